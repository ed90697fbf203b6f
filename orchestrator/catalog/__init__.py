"""Chips and models as data; every number names its source. It imports `types` alone."""

from orchestrator.catalog.chips import (
    Chip,
    Quantity,
    Topology,
    chip,
    chip_of,
    chips,
    defined,
    model,
    model_source,
    models,
    sources,
)
from orchestrator.catalog.published import Efficiency, LearnedConstant, Range, efficiency
from orchestrator.catalog.topologies import hosts, rental_warnings, topologies, topology

__all__ = [
    "Chip",
    "Efficiency",
    "LearnedConstant",
    "Quantity",
    "Range",
    "Topology",
    "chip",
    "chip_of",
    "chips",
    "defined",
    "efficiency",
    "hosts",
    "model",
    "model_source",
    "models",
    "rental_warnings",
    "sources",
    "topologies",
    "topology",
]

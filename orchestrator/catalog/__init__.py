"""Chips and models as data; every number names its source. It imports `values` only."""

from orchestrator.catalog.chips import (
    chip,
    chip_of,
    chips,
    defined,
    model,
    model_source,
    models,
    sources,
)
from orchestrator.catalog.published import Efficiency, LearnedConstant, efficiency
from orchestrator.catalog.topologies import hosts, rental_warnings, topologies, topology

__all__ = [
    "Efficiency",
    "LearnedConstant",
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

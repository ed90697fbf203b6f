"""Chips and models as data: the only room with datasheets. Every number names its source."""

from orchestrator.catalog.architectures import model, model_source, models
from orchestrator.catalog.chip import Chip, Quantity, Slices, Topology
from orchestrator.catalog.citations import Source, sources
from orchestrator.catalog.datasheets import chip, chips
from orchestrator.catalog.efficiency import Efficiency, Learned, efficiency
from orchestrator.catalog.quotes import figures, questions
from orchestrator.catalog.renting import hosts, schedulable
from orchestrator.catalog.shapes import topologies, topology

__all__ = [
    "Chip",
    "Efficiency",
    "Learned",
    "Quantity",
    "Slices",
    "Source",
    "Topology",
    "chip",
    "chips",
    "efficiency",
    "figures",
    "hosts",
    "model",
    "model_source",
    "models",
    "questions",
    "schedulable",
    "sources",
    "topologies",
    "topology",
]

"""Chips and models as data: the only room with datasheets. Every number names its source."""

from orchestrator.catalog.architectures import model, model_source, models
from orchestrator.catalog.chip import Chip, Quantity, Topology
from orchestrator.catalog.citations import sources
from orchestrator.catalog.datasheets import chip, chips
from orchestrator.catalog.efficiency import Efficiency, Learned, Reach, efficiency, reach
from orchestrator.catalog.quotes import figures, questions
from orchestrator.catalog.renting import hosts, schedulable
from orchestrator.catalog.shapes import topologies, topology

__all__ = [
    "Chip",
    "Efficiency",
    "Learned",
    "Quantity",
    "Reach",
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
    "reach",
    "schedulable",
    "sources",
    "topologies",
    "topology",
]

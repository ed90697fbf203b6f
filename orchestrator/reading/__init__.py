"""Reads YAML specs and studies; only this package knows their YAML and JSON Schema."""

from orchestrator.reading.load import is_study, load
from orchestrator.reading.problems import Problem, SpecProblems

__all__ = ["Problem", "SpecProblems", "is_study", "load"]

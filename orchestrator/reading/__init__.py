"""Reads YAML specs and studies, and says everything that is wrong with them at once.

The only package that knows YAML and JSON Schema. It imports `catalog`, `plan` and `types`.
"""

from orchestrator.reading.load import is_study, load
from orchestrator.reading.problems import Problem, SpecProblems

__all__ = ["Problem", "SpecProblems", "is_study", "load"]

"""Reads YAML specs and studies, and says everything that is wrong with them at once.

The only package that knows the YAML and the JSON Schema of specs.
"""

from orchestrator.reading.load import is_study, load
from orchestrator.reading.problems import Problem, SpecProblems

__all__ = ["Problem", "SpecProblems", "is_study", "load"]

"""The spec room: YAML text to Spec. The only room that knows YAML and JSON Schema."""

from orchestrator.spec.load import load
from orchestrator.spec.problem import Problem, SpecProblems
from orchestrator.spec.schema import schema_text
from orchestrator.spec.starter import starter

__all__ = ["Problem", "SpecProblems", "load", "schema_text", "starter"]

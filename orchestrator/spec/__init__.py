"""The spec room: YAML text to Spec. The only room that knows YAML and JSON Schema."""

from orchestrator.spec.load import load
from orchestrator.spec.problem import Problem, SpecProblems
from orchestrator.spec.schema import schema_text, study_schema_text
from orchestrator.spec.starter import starter
from orchestrator.spec.study import is_study, load_study

__all__ = [
    "Problem",
    "SpecProblems",
    "is_study",
    "load",
    "load_study",
    "schema_text",
    "starter",
    "study_schema_text",
]

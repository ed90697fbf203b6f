"""Reads YAML specs and studies, and says everything that is wrong with them at once.

The only package that knows YAML and JSON Schema. It imports `catalog`, `plan` and `types`.
"""

from orchestrator.spec.examples import create, examples, starter
from orchestrator.spec.load import load
from orchestrator.spec.problem import Problem, SpecProblems
from orchestrator.spec.schema import schema_text, study_schema_text
from orchestrator.spec.study import is_study, load_study

__all__ = [
    "Problem",
    "SpecProblems",
    "create",
    "examples",
    "is_study",
    "load",
    "load_study",
    "schema_text",
    "starter",
    "study_schema_text",
]

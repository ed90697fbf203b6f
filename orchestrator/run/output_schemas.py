"""The JSON Schemas of what commands print with `--json`, generated from the values' types."""

import json
from typing import Any

import msgspec

from orchestrator.errors import UnknownName
from orchestrator.evidence.explain.formula import Explanation
from orchestrator.evidence.score.samples import Score
from orchestrator.planning.calibrated import ChipProfile
from orchestrator.planning.diff_plans import PlanDiff
from orchestrator.planning.odds import Offers, PlanWithOdds
from orchestrator.proving.compare import ProofDiff
from orchestrator.reading.schema import schema_text, spec_schema, study_schema
from orchestrator.values import run, study
from orchestrator.values.plan import ErrorReport
from orchestrator.values.proof import Proof
from orchestrator.values.report import Report

_Schema = dict[str, Any]
_DEFS = "#/$defs/"
# Name of a schema → the type of the value, and the command that prints it.
_OUTPUTS: dict[str, tuple[type, str]] = {
    "error": (ErrorReport, "any command with --json that fails"),
    "plan": (PlanWithOdds, "orch plan SPEC --json"),
    "plan-diff": (PlanDiff, "orch plan SPEC OTHER --json"),
    "scaling": (study.ScalingForecast, "orch plan STUDY --json, of pods or topologies"),
    "sweep": (study.SweepForecast, "orch plan STUDY --json, of a sweep"),
    "offers": (Offers, "orch plan SPEC --by WHEN --json"),
    "explanation": (Explanation, "orch explain SPEC --json"),
    "proof": (Proof, "orch prove SPEC --json"),
    "proof-diff": (ProofDiff, "orch prove SPEC OTHER --json"),
    "score": (Score, "orch score --json"),
    "run": (run.Run, "orch submit, resume, cancel --json; orch runs --json, each of the list"),
    "status": (run.Status, "orch status RUN --json"),
    "study": (study.StudyStatus, "orch status STUDY --json"),
    "log-line": (run.LogLine, "orch logs RUN --json, each line"),
    "report": (Report, "orch report RUN --json; orch compare --json, each of the list"),
    "scaling-report": (study.ScalingReport, "orch report STUDY --json, of pods or topologies"),
    "sweep-report": (study.SweepReport, "orch report STUDY --json, of a sweep"),
    "sync": (run.SyncResult, "orch sync --json, each of the list"),
    "weights": (run.ExportedWeights, "orch export huggingface RUN OUT --json"),
    "health": (run.HealthReport, "orch doctor --json"),
    "run-health": (run.RunHealth, "orch doctor RUN --json"),
    "profile": (ChipProfile, "orch calibrate --json"),
}
# Notes of keys that a person writes, which schemas of printed values leave out.
_SPEC_NOTES = ("notation", "computed", "default", "examples", "title")


def schema(name: str = "spec") -> str:
    """Return the JSON Schema of a `spec`, a `study`, or a value that --json prints, as text."""
    if name == "spec":
        return schema_text(spec_schema())
    return schema_text(study_schema() if name == "study" else _output_schema(name))


def _output_schema(name: str) -> _Schema:
    """Return the schema of an output. Every key that it names is always printed, and no other."""
    if name not in _OUTPUTS:
        raise UnknownName("output", name, [*_OUTPUTS])
    kind, command = _OUTPUTS[name]
    [reference], sections = msgspec.json.schema_components([kind], ref_template=_DEFS + "{name}")
    defs = {key: _section(section) for key, section in sections.items()}
    top = defs.pop(reference["$ref"].removeprefix(_DEFS))
    if reference["$ref"] in json.dumps([top, defs]):  # a value of values of its kind
        defs[reference["$ref"].removeprefix(_DEFS)] = top
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:orch:output:{name}",
        "$comment": command,
        **top,
        "$defs": defs,
    }


def _section(generated: _Schema) -> _Schema:
    if "properties" not in generated:
        return generated
    keys = {key: _key(schema) for key, schema in generated["properties"].items()}
    about = {"description": " ".join(generated.get("description", "").split())}
    return {
        **(about if about["description"] else {}),
        "type": "object",
        "additionalProperties": False,
        "required": list(keys),
        "properties": keys,
    }


def _key(schema: Any) -> Any:
    """Return the schema of a key as it is printed, at any depth."""
    if isinstance(schema, list):
        return [_key(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _key(value) for key, value in schema.items() if key not in _SPEC_NOTES}

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
from orchestrator.proving.diff_proofs import ProofDiff
from orchestrator.values.proof import Proof
from orchestrator.values.refusal import ErrorReport
from orchestrator.values.report import Report
from orchestrator.values.run import (
    ExportedWeights,
    HealthReport,
    LogLine,
    Run,
    RunHealth,
    Status,
    SyncResult,
)
from orchestrator.values.study import (
    ScalingForecast,
    ScalingReport,
    StudyStatus,
    SweepForecast,
    SweepReport,
)

Schema = dict[str, Any]
DEFS = "#/$defs/"
# What a schema is called → the type of the value, and the command that prints it.
OUTPUTS: dict[str, tuple[type, str]] = {
    "error": (ErrorReport, "any command with --json that fails"),
    "plan": (PlanWithOdds, "orch plan SPEC --json"),
    "plan-diff": (PlanDiff, "orch plan SPEC OTHER --json"),
    "scaling": (ScalingForecast, "orch plan STUDY --json, of pods or topologies"),
    "sweep": (SweepForecast, "orch plan STUDY --json, of a sweep"),
    "offers": (Offers, "orch plan SPEC --by WHEN --json"),
    "explanation": (Explanation, "orch explain SPEC --json"),
    "proof": (Proof, "orch prove SPEC --json"),
    "proof-diff": (ProofDiff, "orch prove SPEC OTHER --json"),
    "score": (Score, "orch score --json"),
    "run": (Run, "orch submit, resume, cancel --json; orch runs --json, each of the list"),
    "status": (Status, "orch status RUN --json"),
    "study": (StudyStatus, "orch status STUDY --json"),
    "log-line": (LogLine, "orch logs RUN --json, each line"),
    "report": (Report, "orch report RUN --json; orch compare --json, each of the list"),
    "scaling-report": (ScalingReport, "orch report STUDY --json, of pods or topologies"),
    "sweep-report": (SweepReport, "orch report STUDY --json, of a sweep"),
    "sync": (SyncResult, "orch sync --json, each of the list"),
    "weights": (ExportedWeights, "orch export huggingface RUN OUT --json"),
    "health": (HealthReport, "orch doctor --json"),
    "run-health": (RunHealth, "orch doctor RUN --json"),
    "profile": (ChipProfile, "orch calibrate --json"),
}
# Of a value that a person writes. What a command prints is written out.
OF_SPECS = ("notation", "computed", "default", "examples", "title")


def output_schema(name: str) -> Schema:
    """The schema of an output. Every key that it names is always printed, and no other is."""
    if name not in OUTPUTS:
        raise UnknownName("output", name, [*OUTPUTS])
    kind, command = OUTPUTS[name]
    [reference], sections = msgspec.json.schema_components([kind], ref_template=DEFS + "{name}")
    defs = {key: _section(section) for key, section in sections.items()}
    top = defs.pop(reference["$ref"].removeprefix(DEFS))
    if reference["$ref"] in json.dumps([top, defs]):  # a value of values of its kind
        defs[reference["$ref"].removeprefix(DEFS)] = top
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:orch:output:{name}",
        "$comment": command,
        **top,
        "$defs": defs,
    }


def output_schema_text(name: str) -> str:
    """The schema, indented."""
    return json.dumps(output_schema(name), indent=2, ensure_ascii=False) + "\n"


def _section(generated: Schema) -> Schema:
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
    """A key as it is printed, at any depth."""
    if isinstance(schema, list):
        return [_key(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _key(value) for key, value in schema.items() if key not in OF_SPECS}

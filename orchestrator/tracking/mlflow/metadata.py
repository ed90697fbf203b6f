"""What MLflow keeps of a run besides its step metrics: params, tags, a note, files."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.errors import JournalUnreadable
from orchestrator.formatting import GIB
from orchestrator.journal import boundary, files
from orchestrator.journal.run_journal import Journal, list_logs
from orchestrator.journal.run_paths import UNCOMMITTED
from orchestrator.journal.run_state import first_line, last_attempt_text
from orchestrator.network.rematerialization import text_of
from orchestrator.tracking.mlflow.metrics import NOT_IN_A_NAME, MetricPoint, of_plan, of_proof
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import LIVE, Run
from orchestrator.values.spec import Spec

# Tags that a later sync reads again.
RUN_ID, STEPS_RECORDED = "orch.id", "orch.steps_recorded"
# What the filters of the views read: the charts of chips and of rehearsals are apart.
REHEARSAL = "orch.rehearsal"
DESCRIBED, ARTIFACTS = "orch.described", "orch.artifacts"
NOTE, PARENT, COMMIT = "mlflow.note.content", "mlflow.parentRunId", "mlflow.source.git.commit"
LONGEST_TAG = 8_000
MOST_RANKS = 8
REPORT = "report.html"
LONGEST_NAME, LONGEST_VALUE = 250, 6_000
SPEC_ARTIFACT = "spec.json"
# Of a longer file only the end is sent, and its first line says so.
LONGEST_LOG_BYTES, LONGEST_FILE_BYTES = 1 << 20, 256 << 20


@dataclass(frozen=True, kw_only=True)
class Description:
    """All that is sent once, and again when it changes."""

    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: tuple[MetricPoint, ...]

    @property
    def digest(self) -> str:
        return codec.digest(self)


def description(journal: Journal, run: Run, parent: str | None) -> Description:
    """The description of a run as it is now. `parent` is the MLflow run of its study.

    A plan or proof that cannot be read is left out.
    """
    plans = {one.number: plan_of(journal, one.plan_digest) for one in run.attempts}
    first = plan_of(journal, run.plan_digest if not run.attempts else run.attempts[0].plan_digest)
    points = of_plan(first, run.submitted_at_s, 0) if first else []
    for attempt in run.attempts[1:]:
        plan = plans[attempt.number]
        if plan and plan != plans[attempt.number - 1]:
            points += of_plan(plan, attempt.started_at_s, attempt.number - 1)
    proof = proof_of(journal, run)
    if proof:
        points += of_proof(proof, run.submitted_at_s)
    return Description(
        params=params(journal.spec()),
        tags=_tags(run, parent, plan_of(journal, run.plan_digest), proof),
        points=tuple(points),
    )


def plan_of(journal: Journal, digest: str) -> Plan | None:
    try:
        return journal.plan(digest)
    except JournalUnreadable:
        return None


def proof_of(journal: Journal, run: Run) -> Proof | None:
    """The proof of the run's plan. A rehearsal has the proof of the plan that it rehearses."""
    try:
        return journal.proof(journal.full_plan(run).digest)
    except JournalUnreadable:
        return None


def _tags(run: Run, parent: str | None, plan: Plan | None, proof: Proof | None) -> dict[str, str]:
    tags = {
        "orch.run": run.run,
        REHEARSAL: yes_or_no(run.rehearsal),
        "orch.kind": "rehearsal" if run.rehearsal else "real",
        "orch.state": run.state,
        "orch.why": first_line(run.detail),
        "orch.attempts": str(len(run.attempts)),
        "orch.spec_digest": run.spec_digest,
        "orch.plan_digest": run.plan_digest,
        "orch.rehearses": run.rehearses or "",
        "orch.journal": run.journal,
        "orch.study": run.study or "",
        PARENT: parent or "",
        NOTE: note(run, plan, proof),
    }
    if plan:
        tags |= {
            "orch.chip": plan.chip,
            "orch.topology": plan.topology,
            "orch.mesh": ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items()),
            "orch.remat": text_of(plan.remat),
            "orch.mfu_definition": plan.forecast.mfu_definition,
        }
    tags |= {f"orch.environment.{name}": value for name, value in run.environment.items()}
    if commit := run.environment.get("git_commit"):
        tags[COMMIT] = commit
    return {name: _fitting(text) for name, text in tags.items() if text}


def yes_or_no(holds: bool) -> str:
    return "yes" if holds else "no"


def _fitting(text: str) -> str:
    """A tag that is short enough for MLflow. A cut one says so."""
    ending = " ... (cut here; the journal has all of it)"
    return text if len(text) <= LONGEST_TAG else text[: LONGEST_TAG - len(ending)] + ending


def note(run: Run, plan: Plan | None, proof: Proof | None) -> str:
    """The run in a few lines, as MLflow shows them on its page."""
    lines = [f"**{run.run}** {run.state}: {run.steps_done:,} of {run.steps:,} steps."]
    if run.rehearsal:
        lines.append("A rehearsal: a small copy, on this machine's CPU devices.")
    if run.state not in LIVE and (why := run.detail or last_attempt_text(run.attempts)):
        lines.append(f"Why: {first_line(why)}")
    if plan:
        lines.append(_plan_line(plan, rehearsal=run.rehearsal))
    if run.recent:
        mfu = "" if run.recent.mfu is None else f", MFU {run.recent.mfu * 100:.1f} %"
        lines.append(f"Measured: {run.recent.step_s:.4g} s a step{mfu}.")
    if proof:
        peak, allowed = proof.peak_hbm_bytes_per_device, proof.hbm_bytes_per_device
        verdict = "fits" if proof.fits else "does not fit"
        lines.append(f"Compiled: {verdict}, {peak / GIB:.2f} of {allowed / GIB:.2f} GiB.")
    if run.tracking and run.state not in LIVE:
        query = f"path={REPORT}&run_uuid={run.tracking.run_id}"
        lines.append(f"Report: [{REPORT}](get-artifact?{query}), among the artifacts.")
    lines.append(f"Journal: `{run.journal}`, shown by `orch status {run.run}`")
    return "\n\n".join(lines)


def _plan_line(plan: Plan, *, rehearsal: bool) -> str:
    mfu, step_s = plan.forecast.mfu.lower, plan.forecast.step_s.lower
    basis = ", for chips and not for CPU devices" if rehearsal else ""
    if rehearsal and plan.chip_profile:
        basis = ", by the measured speed of this machine"
    return (
        f"Plan {codec.short(plan.digest)}: {plan.model.name} on {plan.pods} pods of"
        f" {plan.topology}, {plan.chips:,} {plan.chip} chips. Roofline MFU {mfu * 100:.1f} %,"
        f" {step_s:.4g} s a step at least{basis}."
    )


def artifacts(journal: Journal, run: Run) -> dict[str, Path]:
    """The files that MLflow keeps with the run, by name there. Logs follow once it has ended."""
    places = journal.paths
    found = {SPEC_ARTIFACT: places.spec, REPORT: journal.path / REPORT}
    for folder in (places.plans, places.proofs, places.documents):
        names = [name for name in files.names(folder) if not name.startswith(".")]
        shown = [folder / name for name in names if name != UNCOMMITTED]
        found |= {f"{folder.name}/{path.name}": path for path in shown}
    if run.state not in LIVE:
        for attempt in run.attempts:
            for log in list_logs(journal.path, run, attempt=attempt.number)[: MOST_RANKS + 1]:
                found[f"logs/{_log_name(log.path, log.attempt)}"] = log.path
    return {name: path for name, path in found.items() if _is_there(path)}


def _is_there(path: Path) -> bool:
    try:
        return stat.S_ISREG(boundary.status_of(path).st_mode)
    except OSError:
        return False


def _log_name(path: Path, attempt: int | None) -> str:
    return path.name if attempt is None else f"attempt-{attempt}-{path.name}"


def version_of(sent: Mapping[str, Path]) -> str:
    """A digest of names, sizes and times: it changes when files must be sent again."""
    stats = {name: boundary.status_of(path) for name, path in sent.items()}
    return codec.digest({name: (one.st_size, one.st_mtime_ns) for name, one in stats.items()})


def short_copy(path: Path, copy: Path) -> Path:
    """The file under its new name; of a long one the end, after a line that says so."""
    longest = LONGEST_LOG_BYTES if path.suffix == ".log" else LONGEST_FILE_BYTES
    copy.parent.mkdir(parents=True, exist_ok=True)
    with boundary.reading_file(path) as file, copy.open("wb") as out:
        size = os.fstat(file.fileno()).st_size
        if size > longest:
            out.write(f"(the last {longest:,} of {size:,} bytes; all of it: {path})\n".encode())
            file.seek(size - longest)
        out.write(file.read(longest))
    return copy


def params(spec: Spec) -> dict[str, str]:
    """Every value of a spec under its dotted key.

    A value that is too long for MLflow is replaced by a pointer to the artifact with the spec.
    """
    return dict(_named(key, value) for key, value in _leaves("", msgspec.to_builtins(spec)))


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        inside = [(f"{key}.{name}" if key else name, one) for name, one in value.items()]
        return [leaf for name, one in inside for leaf in _leaves(name, one)]
    return [(key, value)]


def _named(key: str, value: Any) -> tuple[str, str]:
    name = NOT_IN_A_NAME.sub("_", key)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(name) > LONGEST_NAME:
        return name[: LONGEST_NAME - 1] + "_", f"in artifact {SPEC_ARTIFACT}: the key is too long"
    if len(text) > LONGEST_VALUE:
        return name, f"in artifact {SPEC_ARTIFACT}: {len(text):,} characters are too many"
    return name, text

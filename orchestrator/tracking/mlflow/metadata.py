"""The record of a run in MLflow besides its step metrics: params, tags, a note, files."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.errors import JournalUnreadable
from orchestrator.formatting import GIB
from orchestrator.journal import boundary, files
from orchestrator.journal.files import UNCOMMITTED
from orchestrator.journal.run_journal import Journal, list_logs
from orchestrator.journal.run_state import first_line, last_attempt_text
from orchestrator.network.rematerialization import text_of
from orchestrator.tracking.mlflow.metrics import NOT_IN_A_NAME, MetricPoint, of_plan, of_proof
from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import LIVE, Run
from orchestrator.values.spec import Spec

# Tags that a later sync reads again.
RUN_ID, STEPS_RECORDED = "orch.id", "orch.steps_recorded"
# What the filters of the views read: the charts of chips and of rehearsals are apart.
REHEARSAL = "orch.rehearsal"
DESCRIBED, ARTIFACTS = "orch.described", "orch.artifacts"
NOTE, _PARENT, _COMMIT = "mlflow.note.content", "mlflow.parentRunId", "mlflow.source.git.commit"
_LONGEST_TAG = 8_000
_MOST_RANKS = 8
REPORT = "report.html"
_LONGEST_NAME, _LONGEST_VALUE = 250, 6_000
_SPEC_ARTIFACT = "spec.json"
# Only the end of a longer file is sent, and its first line says so.
_LONGEST_LOG_BYTES, _LONGEST_FILE_BYTES = 1 << 20, 256 << 20


class _Description(Value):
    """All that is sent once, and again when it changes."""

    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: tuple[MetricPoint, ...]

    @property
    def digest(self) -> str:
        return codec.digest(self)


def description(journal: Journal, run: Run, parent: str | None) -> _Description:
    # A plan or proof that cannot be read is left out.
    plans = {attempt.number: _plan_of(journal, attempt.plan_digest) for attempt in run.attempts}
    newest = _plan_of(journal, run.plan_digest)
    first = plans[run.attempts[0].number] if run.attempts else newest
    points = of_plan(first, run.submitted_at_s, 0) if first else []
    for attempt in run.attempts[1:]:
        plan = plans[attempt.number]
        if plan and plan != plans[attempt.number - 1]:
            points += of_plan(plan, attempt.started_at_s, attempt.number - 1)
    proof = None
    with suppress(JournalUnreadable):  # a rehearsal has the proof of the plan that it rehearses
        proof = journal.proof(journal.full_plan(run).digest)
    if proof:
        points += of_proof(proof, run.submitted_at_s)
    return _Description(
        params=_params(journal.spec()), tags=_tags(run, parent, newest, proof), points=tuple(points)
    )


def _plan_of(journal: Journal, digest: str) -> Plan | None:
    try:
        return journal.plan(digest)
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
        _PARENT: parent or "",
        NOTE: _note(run, plan, proof),
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
        tags[_COMMIT] = commit
    return {name: _fitting(text) for name, text in tags.items() if text}


def yes_or_no(holds: bool) -> str:
    return "yes" if holds else "no"


def _fitting(text: str) -> str:
    ending = " ... (cut here; the journal has all of it)"
    return text if len(text) <= _LONGEST_TAG else text[: _LONGEST_TAG - len(ending)] + ending


def _note(run: Run, plan: Plan | None, proof: Proof | None) -> str:
    """Return the run in a few lines, as MLflow shows them on its page."""
    lines = [f"**{run.run}** {run.state}: {run.steps_done:,} of {run.steps:,} steps."]
    if run.rehearsal:
        lines.append("A rehearsal: a small copy, on this machine's CPU devices.")
    if run.state not in LIVE and (why := run.detail or last_attempt_text(run.attempts)):
        lines.append(f"Why: {first_line(why)}")
    if plan:
        mfu, step_s = plan.forecast.mfu.lower, plan.forecast.step_s.lower
        basis = ", for chips and not for CPU devices" if run.rehearsal else ""
        if run.rehearsal and plan.chip_profile:
            basis = ", by the measured speed of this machine"
        lines.append(
            f"Plan {codec.short(plan.digest)}: {plan.model.name} on {plan.pods} pods of"
            f" {plan.topology}, {plan.chips:,} {plan.chip} chips. Roofline MFU {mfu * 100:.1f} %,"
            f" {step_s:.4g} s a step at least{basis}."
        )
    if run.recent:
        speed = "" if run.recent.mfu is None else f", MFU {run.recent.mfu * 100:.1f} %"
        lines.append(f"Measured: {run.recent.step_s:.4g} s a step{speed}.")
    if proof:
        peak, allowed = proof.peak_hbm_bytes_per_device, proof.hbm_bytes_per_device
        verdict = "fits" if proof.fits else "does not fit"
        lines.append(f"Compiled: {verdict}, {peak / GIB:.2f} of {allowed / GIB:.2f} GiB.")
    if run.tracking and run.state not in LIVE:
        query = f"path={REPORT}&run_uuid={run.tracking.run_id}"
        lines.append(f"Report: [{REPORT}](get-artifact?{query}), among the artifacts.")
    lines.append(f"Journal: `{run.journal}`, shown by `orch status {run.run}`")
    return "\n\n".join(lines)


def artifacts(journal: Journal, run: Run) -> dict[str, Path]:
    """Return the files that MLflow keeps, by name there. Logs follow once the run has ended."""
    places = journal.paths
    found = {_SPEC_ARTIFACT: places.spec, REPORT: journal.path / REPORT}
    for folder in (places.plans, places.proofs, places.documents):
        names = [name for name in files.names(folder) if not name.startswith(".")]
        shown = [folder / name for name in names if name != UNCOMMITTED]
        found |= {f"{folder.name}/{path.name}": path for path in shown}
    if run.state not in LIVE:
        for attempt in run.attempts:
            for log in list_logs(journal.path, run, attempt=attempt.number)[: _MOST_RANKS + 1]:
                prefix = "" if log.attempt is None else f"attempt-{log.attempt}-"
                found[f"logs/{prefix}{log.path.name}"] = log.path
    return {name: path for name, path in found.items() if _is_file(path)}


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(boundary.status_of(path).st_mode)
    except OSError:
        return False


def version_of(sent: Mapping[str, Path]) -> str:
    """Return a digest of names, sizes and times: it changes when files must be sent again."""
    stats = {name: boundary.status_of(path) for name, path in sent.items()}
    return codec.digest({name: (found.st_size, found.st_mtime_ns) for name, found in stats.items()})


def short_copy(path: Path, copy: Path) -> Path:
    """Copy a file, or the end of a long one after a line that says so; return the copy."""
    longest = _LONGEST_LOG_BYTES if path.suffix == ".log" else _LONGEST_FILE_BYTES
    copy.parent.mkdir(parents=True, exist_ok=True)
    with boundary.reading_file(path) as file, copy.open("wb") as out:
        size = os.fstat(file.fileno()).st_size
        if size > longest:
            out.write(f"(the last {longest:,} of {size:,} bytes; all of it: {path})\n".encode())
            file.seek(size - longest)
        out.write(file.read(longest))
    return copy


def _params(spec: Spec | Mapping[str, Any]) -> dict[str, str]:
    """Return every value of a spec under its dotted key; a pointer where it is too long."""
    params = {}
    for key, value in _leaves("", msgspec.to_builtins(spec)):
        name = NOT_IN_A_NAME.sub("_", key)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if len(name) > _LONGEST_NAME:
            name = name[: _LONGEST_NAME - 1] + "_"
            text = f"in artifact {_SPEC_ARTIFACT}: the key is too long"
        elif len(text) > _LONGEST_VALUE:
            text = f"in artifact {_SPEC_ARTIFACT}: {len(text):,} characters are too many"
        params[name] = text
    return params


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}" if key else name, inner)
    else:
        yield key, value

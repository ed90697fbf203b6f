"""The record of a run in MLflow: params, tags, a note, files, and its metrics, sent from its
journal, live or to repair an older record. A tag in MLflow, written after the points it counts,
says how much it has: syncs may be repeated and interrupted.
"""

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orchestrator import journal as journals
from orchestrator.errors import JournalUnreadable
from orchestrator.evidence.report import make_report
from orchestrator.evidence.studies import report_of_study
from orchestrator.formatting import GIB, counted, percent
from orchestrator.journal import boundary, files
from orchestrator.journal.files import UNCOMMITTED
from orchestrator.journal.heartbeat import read_heartbeats
from orchestrator.journal.listing import StudyJournal, trial_of
from orchestrator.journal.run_journal import Journal, list_logs, noted_tracking
from orchestrator.journal.run_state import first_line, last_attempt_text
from orchestrator.journal.steps import StepReader, read_table
from orchestrator.network.rematerialization import text_of
from orchestrator.storage.addresses import address
from orchestrator.tracking.destinations import RunNotRecorded
from orchestrator.tracking.mlflow import metrics
from orchestrator.tracking.mlflow.descriptions import describe, study_table
from orchestrator.tracking.mlflow.metrics import NOT_IN_A_NAME, MetricPoint
from orchestrator.tracking.mlflow.store import (
    MOST_PARAMS,
    MOST_POINTS,
    NOTE,
    Status,
    Store,
    StoredRun,
)
from orchestrator.values import codec
from orchestrator.values import study as studies
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
_PARENT, _COMMIT = "mlflow.parentRunId", "mlflow.source.git.commit"
_CHECKPOINTS = "orch.checkpoints"  # the attempts, each with the steps of its newest save
_USAGE_EVERY_S = 10.0
_LONGEST_TAG = 8_000
_MOST_RANKS = 8
_REPORT = "report.html"
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
    points = metrics.of_plan(first, run.submitted_at_s, 0) if first else []
    for attempt in run.attempts[1:]:
        plan = plans[attempt.number]
        if plan and plan != plans[attempt.number - 1]:
            points += metrics.of_plan(plan, attempt.started_at_s, attempt.number - 1)
    proof = None
    with suppress(JournalUnreadable):  # a rehearsal has the proof of the plan that it rehearses
        proof = journal.proof(journal.full_plan(run).digest)
    if proof:
        points += metrics.of_proof(proof, run.submitted_at_s)
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
    has_forecast = plan and (not run.rehearsal or plan.chip_profile)
    if plan and has_forecast and run.recent and run.recent.mfu is not None:
        known = plan.forecast.mfu
        expected = "" if known.expected is None else f"expected {percent(known.expected)}, "
        measured, most = percent(run.recent.mfu), percent(known.lower)
        lines[0] += f" **MFU {measured}** measured, {expected}roofline {most}."
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
        query = f"path={_REPORT}&run_uuid={run.tracking.run_id}"
        lines.append(f"Report: [{_REPORT}](get-artifact?{query}), among the artifacts.")
    shown = " or ".join(f"`orch {name} {run.run}`" for name in ("status", "report", "top"))
    lines.append(f"Journal: `{run.journal}`, shown by {shown}")
    return "\n\n".join(lines)


def artifacts(journal: Journal, run: Run) -> dict[str, Path]:
    """Return the files that MLflow keeps, by name there. Logs follow once the run has ended."""
    places = journal.paths
    found = {_SPEC_ARTIFACT: places.spec, _REPORT: journal.path / _REPORT}
    for folder in (places.plans, places.proofs, places.documents):
        names = [name for name in files.names(folder) if not name.startswith(".")]
        shown = [folder / name for name in names if name != UNCOMMITTED]
        found |= {f"{folder.name}/{path.name}": path for path in shown}
    if run.state not in LIVE:
        for attempt in run.attempts:
            for log in list_logs(journal.path, run, attempt=attempt.number)[: _MOST_RANKS + 1]:
                prefix = "" if log.attempt is None else f"attempt-{log.attempt}-"
                found[f"logs/{prefix}{log.path.name}"] = log.path
    regular = {}
    for name, path in found.items():
        with suppress(OSError):
            if stat.S_ISREG(boundary.status_of(path).st_mode):
                regular[name] = path
    return regular


def _version_of(sent: Mapping[str, Path]) -> str:
    """Return a digest of names, sizes and times: it changes when files must be sent again."""
    stats = {name: boundary.status_of(path) for name, path in sent.items()}
    return codec.digest({name: (found.st_size, found.st_mtime_ns) for name, found in stats.items()})


def _short_copy(path: Path, copy: Path) -> Path:
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


_CURVES = "orch.curves"
_STATUS: dict[str, Status] = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "lost": "FAILED",
}
_PARENT_STATUS: dict[studies.StudyState, Status] = {
    "running": "RUNNING",
    "stopped": "FAILED",
    "succeeded": "FINISHED",
}


def _parent_of(journal: Journal, run: Run, store: Store) -> str | None:
    """Return the id of the MLflow run of a run's study; create it when it is missing."""
    if run.study is None:
        return None
    study = StudyJournal(journal.path.absolute().parent / Path(run.study).name)
    try:
        boundary.check_own(study.path)
        opened = study.submission()
    except (JournalUnreadable, OSError):
        return None  # it was removed, or is not this user's
    parent = _find_or_create(study, store)
    status = _PARENT_STATUS[study.status().state]
    if parent.status != status:
        store.set_status(parent.id, status, None)
    page = study.path / _REPORT
    version = _version_of({_REPORT: page}) if page.exists() else None
    if version and parent.tags.get(ARTIFACTS) != version:
        with tempfile.TemporaryDirectory() as folder:
            copy = _short_copy(page, Path(folder) / _REPORT)
            store.log_file(parent.id, copy, None)
        store.log(parent.id, tags={ARTIFACTS: version})
    if run.state in LIVE:
        return parent.id
    # The curves of the study, where they have changed.
    report = report_of_study(study)
    ended = [member.ended_at_s for member in study.status().runs if member.ended_at_s]
    points = metrics.of_study(report, max(ended, default=opened.at_s))
    tags = {_CURVES: codec.digest(points)}
    if parent.tags.get(_CURVES) != tags[_CURVES]:
        best = report.best if isinstance(report, studies.SweepReport) else None
        for trial in opened.study.trials:
            if trial.number == best and trial.settings:
                settings = trial.settings.items()
                tags["orch.best"] = ", ".join(f"{key} {text}" for key, text in settings)
        if table := study_table(report):
            about, blank, journal_line = parent.tags.get(NOTE, "").rpartition("Journal: ")
            before = about.partition("\n\n| ")[0].rstrip()
            tags[NOTE] = f"{before}\n\n{table}\n\n{blank}{journal_line}"
        store.log(parent.id, points, tags=tags)
    return parent.id


def _find_or_create(study: StudyJournal, store: Store) -> StoredRun:
    """Return the noted run, or one that is tagged with the study's id, or a new one."""
    noted, opened, stored = noted_tracking(study.path), study.submission(), None
    if noted and noted.uri == store.where.uri:
        stored = store.run(noted.run_id)
    if stored and not stored.deleted:
        return stored
    if tagged := store.tagged(RUN_ID, opened.id):
        stored = tagged[0]
    else:
        config = opened.study
        varied, repeats = ", ".join(config.vary), f"{config.repeats} of each"
        trials = f"{len(config.trials)} trials over {varied}, {repeats}"
        about = f"**{study.key}**: {studies.kind_text(config.scaling)}, {trials}."
        tags = {
            RUN_ID: opened.id,
            "orch.kind": "study",
            "orch.study": study.key,
            REHEARSAL: yes_or_no(opened.rehearsal),
            "orch.study_kind": config.kind,
            "orch.scaling": config.scaling or "",
            NOTE: f"{about}\n\nJournal: `{study.path}`",
        }
        tags = {name: text for name, text in tags.items() if text}
        stored = store.create(study.key, opened.at_s, tags)
    journals.track(study, store.tracked(stored.id))
    return stored


class RunExport:
    """One run in MLflow. It remembers what it sent, and forgets everything after an error."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal, self._store = journal, store
        self._forget()

    def _forget(self) -> None:
        self._stored: StoredRun | None = None
        self._readers: dict[int, StepReader] = {}
        self._steps, self._status, self._usage_at_s = 0, "", -inf
        self._tags: dict[str, str] = {}

    def catch_up(self, run: Run, on_steps: Callable[[int], None]) -> None:
        """Send what MLflow lacks of a run."""
        try:
            if self._stored is None:
                self._stored = self._find_or_create(run)
                self._tags, self._status = dict(self._stored.tags), self._stored.status
                self._steps = int(self._tags.get(STEPS_RECORDED, 0))
            self._send_description(self._stored, run)
            for points, steps in self._batches(run):
                self._send(self._stored, points, {STEPS_RECORDED: str(steps)})
                self._steps = steps
                on_steps(steps)
            self._send_usage(self._stored, run)
            self._send_checkpoints(self._stored, run)
            if run.state not in LIVE and run.steps_done:
                ending = metrics.of_ending(make_report(self._journal), _last_seen_at_s(run))
                self._send(self._stored, ending, {})
                describe(self._store, REHEARSAL)
            status = _STATUS.get(run.state, "RUNNING")
            if self._status != status:
                ended_at_s = None if status == "RUNNING" else _last_seen_at_s(run)
                self._store.set_status(self._stored.id, status, ended_at_s)
                self._status = status
            self._send_files(self._stored, run)
        except BaseException:
            self._forget()
            raise

    # --- the MLflow run

    def _find_or_create(self, run: Run) -> StoredRun:
        """Return the one MLflow run of this run: the noted, the tagged, or a new one. Another that
        carries the tag is a ghost, whose answer was lost: it is deleted.
        """
        noted, tag = None, RUN_ID
        if run.tracking and run.tracking.uri == self._store.where.uri:
            noted = self._store.run(run.tracking.run_id)
        if noted and noted.deleted:
            raise RunNotRecorded(
                f"{self._store.where.label}: the MLflow run {noted.id} was deleted there; restore"
                f" it, or remove {self._journal.paths.tracking} to record the run anew"
            )
        tagged = self._store.tagged(tag, run.id)
        stored = noted or (tagged[0] if tagged else None)
        if stored is None:
            kind = ", rehearsal" if run.rehearsal else ""
            plan = _plan_of(self._journal, run.plan_digest)
            chips = f" of {plan.topology} {plan.chip}" if plan else ""
            name = f"{run.run}: {counted(run.pods, 'pod')}{chips}{kind}"
            if found := trial_of(self._journal, run.study):
                study, trial = found
                name = f"{studies.settings_text(trial.settings, study.vary)}: {run.run}{kind}"
            stored = self._store.create(name, run.submitted_at_s, {tag: run.id})
        tracking = self._store.tracked(stored.id)
        winner = journals.track(self._journal, tracking, instead=noted is None)
        for ghost in tagged:
            if ghost.id != winner.run_id:
                self._store.delete(ghost.id)
        return stored

    def _send_description(self, stored: StoredRun, run: Run) -> None:
        run = replace(run, tracking=self._store.tracked(stored.id))
        new = description(self._journal, run, _parent_of(self._journal, run, self._store))
        if self._tags.get(DESCRIBED) == new.digest:
            return
        missing = [item for item in new.params.items() if item[0] not in stored.params]
        for at in range(0, len(missing), MOST_PARAMS):
            self._store.log(stored.id, params=dict(missing[at : at + MOST_PARAMS]))
        self._send(stored, new.points, {**new.tags, DESCRIBED: new.digest})

    def _send(self, stored: StoredRun, points: Sequence[MetricPoint], tags: dict[str, str]) -> None:
        """Send points, and after them the tags that count them."""
        size = MOST_POINTS - len(tags)
        last = max(0, (len(points) - 1) // size) * size if points else 0
        for at in range(0, last, size):
            self._store.log(stored.id, points[at : at + size])
        self._store.log(stored.id, points[last:], tags=tags)
        self._tags |= tags

    def _batches(self, run: Run) -> Iterator[tuple[list[MetricPoint], int]]:
        """Yield batches of points of new steps that MLflow takes, and the steps done by then."""
        # MLflow cannot take a point back. When a step is repeated after a failure, its first point
        # stays, so every process that records the run sends the same points.
        batch, done = list[MetricPoint](), self._steps
        for attempt in run.attempts:
            reader = StepReader(self._journal.path, attempt.number)
            for steps in self._readers.setdefault(attempt.number, reader).in_parts():
                for timed in steps:
                    if timed.step.index < done:
                        continue
                    stage = self._journal.plan(attempt.plan_digest).stage_of(timed.step.index)
                    points = metrics.of_step(timed, stage)
                    if batch and len(batch) + len(points) >= MOST_POINTS:
                        yield batch, done
                        batch = []
                    batch += points
                    done = timed.step.index + 1
        if batch:
            yield batch, done

    def _send_checkpoints(self, stored: StoredRun, run: Run) -> None:
        """Send each checkpoint that was saved as a model of the run."""
        newest = [f"{each.number}:{each.saved_steps}" for each in run.attempts if each.saved_steps]
        tags = {_CHECKPOINTS: " ".join(newest)}
        if not newest or self._tags.get(_CHECKPOINTS) == tags[_CHECKPOINTS]:
            return
        known = self._store.checkpoints(stored.id)
        if known is None:  # an older server
            return
        losses: dict[int, MetricPoint] = {}
        saves = [saved for saved in self._journal.state().saves if saved.folder not in known]
        for attempt in run.attempts if saves else ():
            table, _ = read_table(self._journal.path, attempt)
            for row in np.flatnonzero(np.isin(table.index + 1, [saved.step for saved in saves])):
                step, at_s = int(table.index[row]), float(table.at_s[row])
                for point in metrics.finite({metrics.LOSS: table.loss[row]}, at_s, step):
                    losses.setdefault(step + 1, point)
        for saved in saves:
            folder = address(self._journal.paths.checkpoint(saved))
            self._store.add_checkpoint(stored.id, saved, folder, losses.get(saved.step))
        self._send(stored, [], tags)

    def _send_usage(self, stored: StoredRun, run: Run) -> None:
        """Send what each host of a live run is busy with. The journal does not keep it."""
        if run.state not in LIVE or not run.attempts:
            return
        if time.monotonic() - self._usage_at_s < _USAGE_EVERY_S:
            return
        self._usage_at_s = time.monotonic()
        beats = read_heartbeats(self._journal.path, run.attempts[-1].number)
        hosts = {beat.process.host: beat for beat in reversed(beats.values())}  # its first rank
        points = [point for beat in hosts.values() for point in metrics.of_host(beat)]
        self._send(stored, points, {})

    def _send_files(self, stored: StoredRun, run: Run) -> None:
        files = artifacts(self._journal, run)
        version = _version_of(files)
        if self._tags.get(ARTIFACTS) == version:
            return
        with tempfile.TemporaryDirectory() as folder:
            for name, path in files.items():
                inside, _, _ = name.rpartition("/")
                copy = _short_copy(path, Path(folder) / name)
                self._store.log_file(stored.id, copy, inside or None)
        self._send(stored, [], {ARTIFACTS: version})


def _last_seen_at_s(run: Run) -> float:
    """Return when a run ended, or when a lost run last made progress."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    times = [run.submitted_at_s, *([run.last_step.at_s] if run.last_step else [])]
    for attempt in run.attempts:
        times += [attempt.started_at_s, attempt.ended_at_s or attempt.started_at_s]
    return max(times)

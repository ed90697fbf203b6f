"""Journals for tests: small plans, invented steps, a clock that is set by hand."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import journal
from orchestrator.journal.events import AnyEvent, Claimed, Newest, Submitted, digest
from orchestrator.journal.files import RunPaths
from orchestrator.journal.ownership import RunRequest, Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.run_state import RunState, apply, initial
from orchestrator.journal.steps import StepLog, StepTable, _Rows
from orchestrator.planning.planner import make_plan
from orchestrator.values.plan import Plan
from orchestrator.values.run import (
    ProcessIdentity,
    ReasonCode,
    Startup,
    StateReason,
    Step,
    Submission,
    TimedStep,
)
from orchestrator.values.spec import Spec
from tests.conftest import ROOT
from tests.example_specs import TINY, spec_of

ME = ProcessIdentity(host="here", pid=7, machine=None, started_s=0.0)
SUBMITTED = Submitted(
    at_s=0.0,
    submission=Submission(
        id="0", name="it", rehearsal=False, rehearses=None, spec_digest="s", plan_digest="p",
        pods=4, steps=100, environment={}, submitter=ME,
    ),
)  # fmt: skip
CLAIM = Claimed(at_s=1.0, driver=ME, heartbeat_s=2.0)


def table_of(steps: Sequence[TimedStep]) -> StepTable:
    rows = _Rows()
    rows.add(steps)
    return rows.table()


def note_newest(paths: RunPaths, number: int, content: bytes) -> None:
    """Note an event as the newest of a run, with what its file contains."""
    note = Newest(number=number, sha256=digest(content))
    paths.newest_event.write_bytes(msgspec.json.encode(note))


def reason(detail: str, code: ReasonCode = "error") -> StateReason:
    return StateReason(code=code, detail=detail)


@cache
def tiny_spec(pods: int = 2) -> Spec:
    """A spec that is planned quickly."""
    return spec_of(TINY, sequences=64, length=64, chip="v5e", topology="2x2", pods=pods)


@cache
def tiny_plan(pods: int = 2) -> Plan:
    return make_plan(tiny_spec(pods))


def run_request(**changes: Any) -> RunRequest:
    """A request for a run of the tiny plan."""
    fields: dict[str, Any] = {"spec": tiny_spec(), "plan": tiny_plan(), "steps": 100}
    return RunRequest(**fields | changes)


@dataclass
class Clock:
    """A clock that only tests advance."""

    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def step(index: int, *, restored: int | None = None, **changes: Any) -> Step:
    """A step; with `restored` the first of an attempt that restored that many."""
    fields: dict[str, Any] = {
        "index": index, "step_s": 0.25, "data_s": 0.0, "checkpoint_s": 0.0, "tokens": 4096,
        "loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-3,
    }  # fmt: skip
    if restored is None:
        fields |= {"mfu": 0.4, "tokens_per_s_per_chip": 1000.0}
    else:
        fields["startup"] = Startup(steps_done=restored, skipped=(), state_s=1.0, compile_s=2.0)
    return Step(**fields | changes)


def write_steps(path: Path, attempt: int, indices: range, **options: Any) -> None:
    """Write the steps of an attempt that restored the state before `indices`."""
    with StepLog(path, attempt, **options) as log:
        for index in indices:
            log.append(step(index, restored=index if index == indices.start else None))


def claimed_run(storage: Path, *, key: str = "it", **changes: Any) -> Writer:
    """The driver of a new run."""
    return journal.claim_run(journal.create_run(storage, run_request(**changes), key).journal)


def failed_once(storage: Path, key: str = "it") -> Journal:
    """A run whose first attempt failed after ten steps and whose second is running."""
    writer = claimed_run(storage, key=key)
    first = writer.start_attempt(tiny_plan(), ("slice-0", "slice-1"))
    write_steps(writer.journal.path, first, range(10))
    writer.end_attempt("failure", error="ValueError: out of luck", first_dead_rank=1)
    second = writer.start_attempt(tiny_plan(), ("slice-0", "slice-2"))
    write_steps(writer.journal.path, second, range(5, 20))
    return writer.journal


def state_after(*events: AnyEvent) -> RunState:
    """The state of a run with these events after its submission."""
    return list(states_after(list(events)))[-1]


def states_after(events: list[AnyEvent]) -> list[RunState]:
    """The state after each event."""
    so_far = [initial(SUBMITTED)]
    for number, event in enumerate(events, start=2):
        so_far.append(apply(so_far[-1], number, event))
    return so_far


def abandoned_run(storage: Path, key: str) -> None:
    """A run whose driver is a process that has ended."""
    script = "import sys, pathlib; from tests.journals import claimed_run;"
    script += "claimed_run(pathlib.Path(sys.argv[1]), key=sys.argv[2])"
    subprocess.run([sys.executable, "-c", script, str(storage), key], cwd=ROOT, check=True)

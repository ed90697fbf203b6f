"""The progress of an operation: its events, what Ctrl-C does meanwhile, and what to type next."""

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from orchestrator.errors import Interrupted
from orchestrator.storage.addresses import address, folder, is_copy

if TYPE_CHECKING:  # a plan is made without the values of runs
    from orchestrator.values.run import Run, Step

RUNS = Path("runs")  # where runs are stored by default


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A task has begun or reached another stage; `state` is a detail that changes often."""

    task: str
    stage: str
    state: str = ""


class UnitsDone(msgspec.Struct, frozen=True, kw_only=True):
    """How many units of a task are done; `total` is None where it is unknown."""

    task: str
    done: int
    total: int | None = None
    unit: str = ""


class TaskEnded(msgspec.Struct, frozen=True, kw_only=True):
    task: str


class RunUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A followed run as it stands, and its steps since the last update. Sent at every look."""

    run: "Run"
    steps: "tuple[Step, ...]"


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tracker records a run; `problem` says why it is not yet recorded there."""

    tracker: str
    place: str
    problem: str | None = None


# Topics of notices, with the values that each carries.
_Topic = Literal[
    "problem",  # message: something is wrong, and the operation goes on
    # before a run
    "already submitted",  # run: it has the key and the plan, so nothing is submitted
    "started",  # name, address and named_by (None for a rehearsal), study (None for one run)
    "planned",  # plan
    "proved",  # plan, proof, age_s (None where it was compiled just now)
    "rehearsal ready",  # plan, small (its copy for this machine), steps, changes (what it lacks)
    "cluster ready",  # address, slices, hosts, versions, storage, runs (each plan and its steps)
    "job started",  # run, job
    "resumed",  # run, plan: a rehearsal goes on with it
    # a run that is followed
    "following",  # task, attempts (that the run had before)
    "nodes up",  # up, total: nodes of the emulated cluster
    "trouble",  # kind, why: following meets trouble, or "cleared"; the run may well go on
    "stopping",  # how: an interrupt was passed on to the run
    "left running",  # run: it goes on, and is no longer followed
    "ended",  # run, plan, tracked
    # a study
    "study planned",  # forecast
    "trial started",  # study, trial, repeat
    "trial done before",  # run: it succeeded, and the trial is not run again
    "trial continues",  # run: it goes on and is followed again
    "trial ended",  # run, tracked
    # the MLflow UI
    "ui ready",  # address, place, experiments (each with its views), served (by this process)
]


@dataclass(frozen=True, init=False)
class Notice:
    """Something happened: the topic, and its values by name, as `_Topic` lists them."""

    topic: _Topic
    values: Mapping[str, Any]

    def __init__(self, topic: _Topic, **values: Any) -> None:
        object.__setattr__(self, "topic", topic)
        object.__setattr__(self, "values", values)


ProgressEvent: TypeAlias = Stage | UnitsDone | TaskEnded | RunUpdate | Notice
Progress: TypeAlias = Callable[[ProgressEvent], None]


def silent(_: ProgressEvent) -> None:
    """The progress that nobody watches."""


@contextmanager
def task(progress: Progress, name: str) -> Iterator[Callable[[str], None]]:
    """Report the stages of a task while it lasts, and what Ctrl-C ended."""
    try:
        with interruptible(name):
            yield lambda stage: progress(Stage(task=name, stage=stage))
    finally:
        progress(TaskEnded(task=name))


# Interrupts of an operation: they become an error that says what ended, or are collected.


class OperationInterrupted(Interrupted):
    """Ctrl-C ended an operation. `next_command` continues it; empty for the same command again."""

    code = Interrupted.code


class NotConfirmed(Interrupted):
    """The answer was no."""


@contextmanager
def interruptible(
    doing: str, left: str = "nothing is left running", next_command: str = ""
) -> Iterator[None]:
    """Turn Ctrl-C into an error that says what it ended and what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        said = f"interrupted while {doing}; {left}"
        raise OperationInterrupted(said, next_command=next_command) from None


@contextmanager
def collected_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, which do not end the process; only the main thread gets any."""
    numbers: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield numbers
        return
    with handled_by(lambda number, _: numbers.append(number)):
        yield numbers


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let a handler get Ctrl-C and SIGTERM for a while, also where a shell ignores them."""
    handled = (signal.SIGINT, signal.SIGTERM)
    earlier = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in earlier.items():
            signal.signal(number, previous)


def interrupt_name(number: int) -> str:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"interrupted ({name})"


# The commands that a message proposes to type next.


def spec_command(name: str, spec: Path, overrides: Sequence[str], *more: str) -> str:
    settings = [word for override in overrides for word in ("--set", override)]
    return shlex.join(["orch", name, str(spec), *settings, *more])


def stage_option(stage: int | None) -> tuple[str, ...]:
    return ("--stage", str(stage)) if stage else ()


def offer_command(spec: Path, overrides: Sequence[str], chosen: Sequence[str]) -> str:
    """Return the command that plans an offer, whose overrides replace those for other slices."""
    keys = {override.partition("=")[0] for override in chosen}
    others = [text for text in overrides if text.partition("=")[0] not in keys]
    return spec_command("plan", spec, (*others, *chosen))


def run_command(name: str, run: str, storage: Path, *more: str) -> str:
    return shlex.join(["orch", name, run, *_storage_option(storage), *more])


def storage_command(name: str, storage: Path) -> str:
    return shlex.join(["orch", name, *_storage_option(storage)])


def _storage_option(storage: Path) -> tuple[str, ...]:
    return () if storage.absolute() == RUNS.absolute() else ("--storage", address(storage))


def storage_of(run: "Run") -> Path:
    """Return where a run is stored, relative to the working directory where that is shorter."""
    path, here = folder(run.journal).parent, Path.cwd()
    if is_copy(path) or not path.is_relative_to(here):
        return path
    return path.relative_to(here)

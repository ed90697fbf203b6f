"""Station Study: one spec varied, trial by trial. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.stations.run import Process
from orchestrator.stations.spec import Spec

Scaling = Literal["strong", "weak"]
AfterFailure = Literal["stop", "go on"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One point of a study: what is varied, as it was written, and the spec that this gives."""

    number: int
    settings: dict[str, str]
    spec: Spec


@dataclass(frozen=True, kw_only=True)
class Study:
    """What was asked: the trials in the order in which they run, each `repeats` times.

    Scaling is `strong` where all trials have the batch that was asked, and `weak` where it grows
    with the pods.
    """

    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    repeats: int
    after_failure: AfterFailure
    trials: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True)
class StudyOpened:
    """What a study's journal begins with, and never changes. `steps` and `devices` (of a pod; None
    for the fewest) are those of its rehearsals; `digest` is the identity of all of it.
    """

    schema: int
    id: str
    digest: str
    at_s: float
    study: Study
    steps: int
    devices: int | None


@dataclass(frozen=True, kw_only=True)
class TrialBegun:
    """A run that was begun for a trial: which trial, which repeat of it, and the run's key."""

    at_s: float
    trial: int
    repeat: int
    run: str
    by: Process

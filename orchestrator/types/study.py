"""A study: one spec varied, trial by trial. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.run import ProcessIdentity, Run
from orchestrator.types.spec import Spec

StudyKind = Literal["scaling", "sweep"]
Scaling = Literal["strong", "weak"]
AfterFailure = Literal["stop", "go on"]
StudyState = Literal["running", "stopped", "succeeded"]


def kind_text(scaling: Scaling | None) -> str:
    """A kind of study in words."""
    return f"{scaling} scaling" if scaling else "sweep"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One point of a study: the varied settings as written, and the spec that results."""

    number: int
    settings: dict[str, str]
    spec: Spec


@dataclass(frozen=True, kw_only=True)
class Study:
    """The trials in the order in which they run, each `repeats` times.

    `base` is the file of the varied spec, relative to the study's file. With `strong` scaling all
    trials have the same batch; with `weak` scaling it grows with the pods. A sweep has none: it
    compares losses.
    """

    name: str
    scaling: Scaling | None
    vary: tuple[str, ...]
    repeats: int
    after_failure: AfterFailure
    trials: tuple[Trial, ...]
    base: str = ""

    @property
    def kind(self) -> StudyKind:
        return "sweep" if self.scaling is None else "scaling"


@dataclass(frozen=True, kw_only=True)
class StudySubmission:
    """What is fixed when a study is submitted.

    `steps` applies to every run; None where each spec has its own. `devices` is the size of a
    rehearsed pod, None for the smallest. `digest` identifies the whole request.
    """

    schema: int
    id: str
    digest: str
    at_s: float
    study: Study
    steps: int | None
    devices: int | None
    rehearsal: bool = True


@dataclass(frozen=True, kw_only=True)
class TrialStart:
    """A run that was started for a repeat of a trial; `run` is its key."""

    at_s: float
    trial: int
    repeat: int
    run: str
    by: ProcessIdentity


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """The state of a study at `read_at_s`.

    It is `running` while a run of it is live or about to start, `succeeded` when every repeat of
    every trial has, and `stopped` otherwise: submitting it again continues it. `done` of the
    `total` repeats have succeeded, or diverged in a sweep; `runs` are all that were started and not
    removed, in order.
    """

    study: str
    id: str
    name: str
    kind: StudyKind
    scaling: Scaling | None
    state: StudyState
    journal: str
    submitted_at_s: float
    read_at_s: float
    done: int
    total: int
    runs: tuple[Run, ...]

"""Station Run: what happened. Plain values; holds no prediction."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SkippedCheckpoint:
    """A checkpoint that was there and was not restored, and why."""

    step: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How an attempt began: how many steps were done, and the seconds until it could go on.

    `state_s` is for restoring the state, or making it; `skipped` were saved but are not whole.
    """

    steps_done: int
    skipped: tuple[SkippedCheckpoint, ...]
    state_s: float
    compile_s: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as it was measured; `index` counts from 0.

    `step_s` runs from the end of the step before to the end of this one. `data_s` and
    `checkpoint_s` are the parts of it in which the loop waited for a batch, and for a state to
    leave the devices. The first step of an attempt carries its `opening`; it includes warming up,
    and has no rates. `mfu` is None where the peak of the device is not known.
    """

    index: int
    step_s: float
    data_s: float
    checkpoint_s: float
    tokens: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_s_per_chip: float | None = None
    model_flops_per_s_per_chip: float | None = None
    mfu: float | None = None
    trainer_metrics: dict[str, float] = field(default_factory=dict)
    opening: Opening | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended well: all steps done, or asked to stop. `steps_done` are saved."""

    steps_done: int
    stopped: bool
    opening: Opening

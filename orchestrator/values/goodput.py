"""The forecast of goodput: the share of time that trains, and where the rest goes."""

from typing import Literal

from orchestrator.values.codec import Value

# Where time goes that trains nothing. `fewer_pods`: what a run on fewer pods does not do meanwhile.
LossKind = Literal[
    "saving", "lost_steps", "detection", "waiting", "restart", "restore", "fewer_pods",
    "stage_changes", "evaluation",
]  # fmt: skip


class Uncertain(Value):
    """A number with its 80 % interval."""

    value: float
    low: float
    high: float


class SaveCost(Value):
    """A save: the bytes of the state, and the seconds it takes.

    Steps wait for `blocking_s`, in which the state leaves the devices: `host_bytes_per_chip` each.
    It counts once the storage has it, which takes `write_s` more and costs no step.
    """

    bytes: int
    host_bytes_per_chip: float
    host_link_bytes_per_s: float | None
    storage_bytes_per_s: Uncertain
    blocking_s: Uncertain
    write_s: Uncertain


class EvaluationCost(Value):
    """An evaluation every so many steps: `batches` of forward passes, each with `forward_flops` of
    the `step_flops` that a device executes in a step.
    """

    every_steps: int
    batches: int
    forward_flops: float
    step_flops: float

    @property
    def in_steps(self) -> float:
        """The steps that would take as long, as FLOPs of a forward pass take as long as others."""
        return self.batches * self.forward_flops / self.step_flops


class GoodputInputs(Value):
    """What a forecast of goodput starts from; the seconds of a step come on top.

    `every_steps` is None where the best interval is wanted. `stated` is the goodput of the spec.
    `spare` pods are rented besides those that train.
    Times are for each failure, after which the run starts `starts` times on average: twice where it
    goes on with fewer pods first. `missing_pods` is the share of pods that it goes on without, on
    average.
    `sources` are keys of the catalog, by field. `assumed`: the rates are those of other machines.
    """

    failures_per_day: Uncertain
    detection_s: Uncertain
    waiting_s: Uncertain
    restart_s: Uncertain
    restore_s: Uncertain
    starts: float = 1.0
    missing_pods: Uncertain
    save: SaveCost
    pods: int
    spare: int
    every_steps: int | None
    stated: float | None
    failures_known: bool
    assumed: bool
    sources: dict[str, tuple[str, ...]]
    evaluation: EvaluationCost | None = None

    @property
    def rented(self) -> float:
        """All rented pods over those that train."""
        return (self.pods + self.spare) / self.pods


class GoodputLine(Value):
    """A loss: its share of all time, the seconds of one, and how many there are in a day."""

    kind: LossKind
    share: float
    each_s: float
    per_day: float
    formula: str
    inputs: dict[str, float]
    sources: tuple[str, ...] = ()


class GoodputForecast(Value):
    """The share of time that trains, `low` to `high` its 80 % interval. With `lines` it is one.

    A goodput that the spec states has no lines and no interval. `every_s` is the time between two
    saves, `best_every_steps` the interval with the highest goodput. `needed_bytes_per_s` is what
    the storage must take so that a save is over before the next begins.
    """

    expected: float
    low: float
    high: float
    stated: bool
    lines: tuple[GoodputLine, ...]
    seconds_between_failures: float | None
    every_steps: int
    every_s: float
    best_every_steps: int
    best: float
    needed_bytes_per_s: float
    inputs: GoodputInputs


# Ranks share a file system: together they write at most this many heartbeats per second.
_MAX_HEARTBEATS_PER_S = 400
_MIN_INTERVAL_S = 0.25
# A driver that watches an attempt looks this often, or at every second heartbeat.
POLL_S = 0.25
# A rank proves by this many heartbeats that it outlived another.
_SETTLED_BEATS = 4
_SETTLED_S = 3.0
# A run that lost a slice waits this long for another before it goes on with fewer.
SPARE_WAIT_S = 60.0


def heartbeat_interval_s(ranks: int, hang_limit_s: float) -> float:
    return min(max(_MIN_INTERVAL_S, ranks / _MAX_HEARTBEATS_PER_S), hang_limit_s / 4)


def poll_interval_s(heartbeat_s: float) -> float:
    """Return the seconds between two looks at the heartbeats, which bring no news more often."""
    return max(POLL_S, heartbeat_s / 2)


def settling_s(heartbeat_s: float) -> float:
    """Return the seconds that a failed attempt is watched, until it is clear who died first."""
    return max(_SETTLED_S, _SETTLED_BEATS * heartbeat_s)


class Outlook(Value):
    """What is left of a run, from its forecast and what it has measured so far.

    `step_s` and `goodput` are those of the steps that are left, each with an 80 % interval that
    narrows as steps come in. `ends_at_s` is when the run ends, in seconds since 1970-01-01 UTC.
    Dollars are for all rented chips since the first attempt began, None without a price. `odds` is
    the probability that the run ends by `deadline_at_s`, None without one.
    """

    steps_left: int
    step_s: Uncertain
    goodput: Uncertain
    days_left: Uncertain
    ends_at_s: Uncertain
    dollars_so_far: float | None
    dollars_left: Uncertain | None
    deadline_at_s: float | None
    odds: float | None

"""What slows a run, and the checks of its hosts: values of its journal."""

from collections.abc import Sequence
from typing import Literal

from orchestrator import formatting as fmt
from orchestrator.values.codec import Value

# `level`: steps take longer, and nothing tells why. `stall`: a single step that took very long.
# `input`, `saving` and `compilation`: what the steps waited for. `host`: one host is slow.
SlowdownKind = Literal["level", "stall", "input", "saving", "compilation", "host"]

# Which of its own times tells that a host is slow.
HostPart = Literal["devices", "host", "input", "stopped"]
_HOST_PARTS: dict[HostPart, str] = {
    "devices": "its devices took {times} x as long as those of the others",
    "host": "its Python took {each} longer per step than that of the others",
    "input": "its input came {each} later per step than that of the others",
    "stopped": "it stood still for {share} of the time",
}


_NAMED = 4  # hosts in a sentence


class HostTimes(Value):
    """What every process measured of itself over the last steps, by rank: no time in which it
    waited for others. A device time of 0 was not measured, as those of emulated devices.

    `devices_s` is the time of a fixed small amount of work on its devices, `host_s` that of its
    Python per step, `input_s` its wait for a batch per step. `stopped` is the share of the time in
    which the process should have run and did not.
    """

    devices_s: tuple[float, ...]
    host_s: tuple[float, ...]
    input_s: tuple[float, ...]
    stopped: tuple[float, ...]


class Slowdown(Value):
    """Steps of an attempt that took longer than before: why, since when, and what it costs.

    `number` counts the slowdowns of an attempt; a later event with the same number replaces it.
    `first_step` and `last_step` are indices of steps; `last_step` is None while it goes on. `steps`
    were slow so far and took `step_s` each, in place of `usual_s`; together they cost `lost_s`.
    A slow host has its `rank`, its name, the `part` of its own times that is longer, and by how
    much: `times` as long as that of the others, or `excess` seconds per step, or share of the time.
    """

    attempt: int
    number: int
    kind: SlowdownKind
    first_step: int
    last_step: int | None
    steps: int
    usual_s: float
    step_s: float
    lost_s: float
    rank: int | None = None
    host: str | None = None
    part: HostPart | None = None
    times: float | None = None
    excess: float | None = None

    @property
    def text(self) -> str:
        """What was seen, since when, and what it costs, as one sentence. Steps count from one."""
        first = fmt.count(self.first_step + 1)
        last = None if self.last_step is None else fmt.count(self.last_step + 1)
        span = f"since step {first}" if last is None else f"from step {first} to {last}"
        if self.steps == 1 and last is not None:
            span = f"in step {first}"
        took = f"{fmt.seconds(self.step_s)} a step in place of {fmt.seconds(self.usual_s)}"
        where = "" if self.rank is None else f"rank {self.rank}"
        where += f" ({self.host})" if self.host else ""
        wait = "wait" if last is None else "waited"
        what = {
            "level": "steps are slow" if last is None else "steps were slow",
            "stall": "a step stalled" if self.steps == 1 else "steps stalled",
            "input": f"steps {wait} for their input",
            "saving": f"steps {wait} for checkpoints",
            "compilation": f"steps {wait} for the compiler",
            "host": f"{where} is slow" if last is None else f"{where} was slow",
        }[self.kind]
        if self.rank is not None and self.kind != "host":
            what += f" because of {where}"
        if self.part:
            how = _HOST_PARTS[self.part].format(
                times=fmt.to_digits(self.times or 0.0, 3),
                each=fmt.seconds(self.excess or 0.0),
                share=fmt.whole_percent(self.excess or 0.0),
            )
            what += f": {how}"
        cost = f"{fmt.elapsed_or_ms(self.lost_s)} lost"
        if last is None:
            cost += " so far"
        return f"{span} {what}; {took}, {cost}"


def worst_slowdowns(slowdowns: Sequence[Slowdown]) -> list[Slowdown]:
    """Return the slowdowns in the order of what they matter: those that go on, by their cost."""
    return sorted(
        slowdowns, key=lambda slowdown: (slowdown.last_step is not None, -slowdown.lost_s)
    )


class HostTest(Value):
    """A test that every host made: the median over hosts of its seconds, and the extremes."""

    name: str
    median_s: float
    least_s: float
    most_s: float


class SlowHost(Value):
    """A host that took longer for a test than the others: `times` the median."""

    rank: int
    slice_name: str
    host: str
    test: str
    seconds: float
    times: float


class HostCheck(Value):
    """The check of an attempt's hosts before its first step. `slow` has the worst first."""

    attempt: int
    hosts: int
    took_s: float
    tests: tuple[HostTest, ...]
    slow: tuple[SlowHost, ...] = ()

    @property
    def text(self) -> str:
        """The result as one sentence."""
        hosts = fmt.counted(self.hosts, "host")
        if self.hosts == 1:
            return f"{hosts} checked in {fmt.elapsed(self.took_s)}: nothing to compare it with"
        if not self.slow:
            return f"{hosts} checked in {fmt.elapsed(self.took_s)}: none is slower than the rest"
        worst: dict[int, SlowHost] = {}  # by rank
        for slow in self.slow:
            worst.setdefault(slow.rank, slow)
        named = [
            f"rank {slow.rank} ({slow.host}, slice {slow.slice_name}): {slow.test} takes"
            f" {fmt.to_digits(slow.times, 3)} x the median"
            for slow in worst.values()
        ]
        more = [f"and {len(named) - _NAMED} more"] if len(named) > _NAMED else []
        return f"{len(named)} of {hosts} slow: {'; '.join([*named[:_NAMED], *more])}"

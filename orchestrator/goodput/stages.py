"""The goodput of a run in stages, from that of each stage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.formatting import DAY_S
from orchestrator.types.goodput import GoodputForecast, GoodputLine


@dataclass(frozen=True, kw_only=True)
class StagePart:
    """The goodput of a stage, and the seconds of its steps alone."""

    goodput: GoodputForecast
    steps_s: float

    @property
    def all_s(self) -> float:
        return self.steps_s / self.goodput.expected


def change_s(goodput: GoodputForecast) -> float:
    """What a change of stages takes: a save is written, the next step compiled, the state restored.

    A compilation takes no longer than a restart. A goodput that the spec states counts it all.
    """
    inputs = goodput.inputs
    if goodput.stated:
        return 0.0
    start_s = (inputs.restart_s.value + inputs.restore_s.value) / inputs.starts
    return inputs.save.write_s.value + start_s


def over_stages(parts: Sequence[StagePart]) -> GoodputForecast:
    """Seconds add up, so shares are weighted by them. Saves are those of the longest stage."""
    longest = max(parts, key=lambda one: one.all_s).goodput
    steps_s = sum(one.steps_s for one in parts)
    changes = [change_s(one.goodput) for one in parts[1:]]

    def share(of: str) -> float:
        seconds = sum(one.steps_s / getattr(one.goodput, of) for one in parts)
        return float(steps_s / (seconds + sum(changes)))

    total_s = sum(one.all_s for one in parts) + sum(changes)
    return replace(
        longest,
        expected=share("expected"),
        low=share("low"),
        high=share("high"),
        best=share("best"),
        lines=(*_lines(parts, total_s), *_changes(changes, total_s)),
    )


def _lines(parts: Sequence[StagePart], total_s: float) -> list[GoodputLine]:
    """The losses of all stages, each kind once; formulas and inputs are those of the longest."""
    kinds = dict.fromkeys(line.kind for one in parts for line in one.goodput.lines)
    lines = []
    for kind in kinds:
        same = [(one, line) for one in parts for line in one.goodput.lines if line.kind == kind]
        lost_s = sum(one.all_s * line.share for one, line in same)
        count = sum(one.all_s / DAY_S * line.per_day for one, line in same)
        _, longest = max(same, key=lambda pair: pair[0].all_s)
        lines.append(
            replace(
                longest,
                share=lost_s / total_s,
                each_s=lost_s / count if count else longest.each_s,
                per_day=count / total_s * DAY_S,
            )
        )
    return lines


def _changes(changes: Sequence[float], total_s: float) -> list[GoodputLine]:
    lost_s = sum(changes)
    if not lost_s:
        return []
    each_s = lost_s / len(changes)
    return [
        GoodputLine(
            kind="stage_changes",
            share=lost_s / total_s,
            each_s=each_s,
            per_day=len(changes) / total_s * DAY_S,
            formula="changes x (write + start) / total",
            inputs={"changes": len(changes), "each": each_s, "total": total_s},
        )
    ]

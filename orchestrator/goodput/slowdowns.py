"""Watch the steps of an attempt as they come, and find what slows them. It keeps the last steps
only, so its memory and its time per step do not grow with the run.

A change of level is found by two windows: the last steps against the steady ones before them. The
limit is their median and five robust standard deviations, and at least a share of the median.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.values.run import Step
from orchestrator.values.slowdowns import (
    HostCheck,
    HostPart,
    HostTest,
    HostTimes,
    Slowdown,
    SlowdownKind,
    SlowHost,
)

_RECENT, _SLOW, _BEFORE, _FEWEST = 12, 9, 64, 12  # steps: the windows, and how many must be slow
_DEVIATIONS, _MAD = 5.0, 1.4826  # the MAD of a normal distribution times this is its deviation
_STALL_STEPS, _STALL_S = 4.0, 3.0  # a single step is a stall when it is longer by both
_COMPILED = 0.5  # of a step, and seconds
_SAVE_S, _SAVE_TIMES, _SAVE_STEPS = 10.0, 3.0, 10.0
_AGAIN = 4  # steps after which the usual ones are looked at again
_APART = 50  # steps: stalls of one kind that are nearer belong together
_GATHERS = 4  # in a row in which a host must be slow
_MOST, _TOLD = 200, 32  # slowdowns of an attempt, and how many of them are told again and again
_MANY_HOSTS = 8  # whose spread is known
_Shares = NDArray[np.float64]  # of each rank


@dataclass(frozen=True)
class _Limits:
    """The least share of a step that counts as slow: emulated devices share a machine's cores."""

    level: float
    input: float
    hosts: dict[HostPart, float]
    host_s: float  # by so many seconds a host must hold up a step
    level_s: float  # so much a change of level must have cost


# Where a host is slow in several ways, the first one explains the others.
_ORDER: tuple[HostPart, ...] = ("stopped", "input", "host", "devices")
_ON_CHIPS = _Limits(
    level=0.05,
    input=0.1,
    hosts={"devices": 0.1, "host": 0.1, "input": 0.1, "stopped": 0.15},
    host_s=0.002,
    level_s=0.0,
)
_EMULATED = _Limits(
    level=0.5,
    input=0.25,
    hosts={"devices": 0.75, "host": 0.25, "input": 0.25, "stopped": 0.3},
    host_s=0.05,
    level_s=2.0,
)


class SlowdownWatch:
    """What slows the steps of an attempt. `told` are the newest slowdowns, as they were when they
    began, when their cost had doubled and when they ended.
    """

    def __init__(self, attempt: int, *, emulated: bool, save_s: float = 0.0) -> None:
        self._attempt, self._limits = attempt, _EMULATED if emulated else _ON_CHIPS
        self._save_s = save_s  # the longest that a save should stop the steps
        self.told: dict[int, Slowdown] = {}
        self._open: dict[int, Slowdown] = {}  # by number
        self._last: dict[SlowdownKind, Slowdown] = {}  # stalls, the newest of each kind
        self._count = 0
        self._saves: deque[float] = deque(maxlen=8)
        self._saving = False
        self._begin()

    def _begin(self) -> None:
        """Forget the steps so far: those that come are others."""
        self._before: deque[float] = deque(maxlen=_BEFORE)
        self._usual: tuple[float, float] | None = None  # the spread of those before
        self._recent: deque[Step] = deque(maxlen=_RECENT)
        self._paces: deque[float] = deque(maxlen=_RECENT)  # of the recent ones
        self._starved: deque[bool] = deque(maxlen=_RECENT)
        self._scores: deque[dict[HostPart, _Shares]] = deque(maxlen=_GATHERS)
        self._level: int | None = None  # the number of the slowdown that is a change of level

    def add(self, step: Step) -> None:
        if step.startup:
            self.end(step.index - 1)
            self._begin()
            return
        full = len(self._recent) == _RECENT
        if full and self._level is None:
            self._before.append(self._paces[0])
            # Medians of many are dear, and move little with each step.
            if len(self._before) >= _FEWEST and (not self._usual or step.index % _AGAIN == 0):
                self._usual = _spread(self._before)
        self._recent.append(step)
        self._paces.append(_pace(step))
        self._starved.append(step.data_s > self._limits.input * step.step_s)
        if self._usual:
            self._find_stalls(step, *self._usual)
        if step.checkpoint_s:
            self._saves.append(step.checkpoint_s)
            self._saving = True
        if len(self._recent) == _RECENT:
            usual_s, deviation_s = self._usual or (0.0, 0.0)
            if self._usual:
                limit_s = usual_s + max(self._limits.level * usual_s, _DEVIATIONS * deviation_s)
                self._find_level(usual_s, limit_s)
            self._find_starved(usual_s)
        if step.hosts:
            self._find_hosts(step, step.hosts)

    def saved(self) -> None:
        """Note that no save is written in the background any more."""
        self._saving = False

    def end(self, last_step: int) -> None:
        """End what goes on: no step comes after this one."""
        for slowdown in list(self._open.values()):
            self._close(slowdown, last_step)
        for stall in self._last.values():
            self._tell(stall)
        self._last.clear()

    # --- single steps

    def _find_stalls(self, step: Step, usual_s: float, deviation_s: float) -> None:
        if step.checkpoint_s:
            # A save is long against the ones before it; the first ones, against the steps.
            save_s = max(_SAVE_S, _SAVE_STEPS * usual_s, _SAVE_TIMES * self._save_s)
            if len(self._saves) > 1:
                save_s = _SAVE_TIMES * median(self._saves) + max(_STALL_S, 2 * usual_s)
            if step.checkpoint_s > save_s:
                self._stall("saving", step, usual_s, step.checkpoint_s)
        excess_s = self._paces[-1] - usual_s
        if excess_s < _COMPILED * usual_s:
            return
        long_s = max(_STALL_STEPS * usual_s, 2 * _DEVIATIONS * deviation_s, _STALL_S)
        kind = _cause([step], excess_s)
        if kind == "compilation":
            long_s = _COMPILED * max(usual_s, 1.0)
        if excess_s > long_s:
            self._stall(kind or "stall", step, usual_s, excess_s)

    def _stall(self, kind: SlowdownKind, step: Step, usual_s: float, lost_s: float) -> None:
        """Note a long step; one that follows others of its kind soon belongs to them."""
        last = self._last.get(kind)
        if last and step.index - (last.last_step or 0) <= _APART:
            steps = last.steps + 1
            lost_s += last.lost_s
            more = replace(last, last_step=step.index, steps=steps, lost_s=lost_s)
            self._last[kind] = more
            if more.lost_s >= 2 * self.told.get(more.number, more).lost_s:
                self._tell(more)
            return
        new = self._new(kind, step.index, usual_s, lost_s, 1)
        if new:
            self._last[kind] = closed = replace(new, last_step=step.index)
            del self._open[new.number]
            self._tell(closed)

    # --- many steps

    def _find_level(self, usual_s: float, limit_s: float) -> None:
        """Begin, go on with or end a slowdown of the last steps, by their paces."""
        if self._level is None and sum(pace > limit_s for pace in self._paces) < _SLOW:
            return
        slow = [step for step in self._recent if _pace(step) > limit_s]
        step_s = median(self._paces)
        if self._level is None:
            excess_s = sum(_pace(step) - usual_s for step in slow)
            if excess_s < self._limits.level_s:
                return
            kind = _cause(slow, excess_s) or ("saving" if self._saving else "level")
            new = self._new(kind, slow[0].index, usual_s, excess_s, len(slow))
            if new:
                self._level = new.number
                self._tell(new)
            return
        slowdown, step = self._open[self._level], self._recent[-1]
        if len(slow) <= _RECENT - _SLOW and step_s <= limit_s:
            self._close(slowdown, slow[-1].index if slow else step.index - _RECENT)
            self._level = None
            return
        lost_s = slowdown.lost_s + self._paces[-1] - usual_s
        self._go_on(replace(slowdown, lost_s=max(lost_s, 0.0)))

    def _find_starved(self, usual_s: float) -> None:
        """Find steps that wait for their input from the first one on, so that none is usual."""
        if sum(self._starved) < _SLOW and not self._open:
            return
        starved = [step for step, waits in zip(self._recent, self._starved, strict=True) if waits]
        open_one = next((each for each in self._open.values() if each.kind == "input"), None)
        if open_one and open_one.number != self._level:
            if len(starved) <= _RECENT - _SLOW:
                self._close(open_one, self._recent[-1].index - _RECENT)
                return
            more_s = self._recent[-1].data_s
            self._go_on(replace(open_one, lost_s=open_one.lost_s + more_s))
        elif self._level is None and len(starved) >= _SLOW:
            waited_s, steps = sum(step.data_s for step in starved), len(starved)
            without_s = max(median(map(_pace, starved)) - waited_s / steps, 0.0)
            if usual_s:
                without_s = min(usual_s, without_s)
            if new := self._new("input", starved[0].index, without_s, waited_s, steps):
                self._tell(new)

    # --- hosts

    def _find_hosts(self, step: Step, times: HostTimes) -> None:
        """Name the hosts that were slow in each of the last gathers."""
        step_s = median(self._paces)
        scores = {part: _scores(times, part, step_s, self._limits) for part in _ORDER}
        self._scores.append({part: own for part, own in scores.items() if own is not None})
        self._blame_stall(step, times)
        slow: dict[int, tuple[HostPart, float]] = {}
        lasting = [part for part in reversed(_ORDER) if all(part in each for each in self._scores)]
        for part in lasting if len(self._scores) == _GATHERS else ():
            gathers = np.array([seen[part] for seen in self._scores])
            for rank in np.flatnonzero(gathers.min(axis=0) > self._limits.hosts[part]).tolist():
                # Shares count the newest step: those before may have been much shorter.
                known = gathers[-1:, rank] if part in ("host", "input") else gathers[:, rank]
                slow[rank] = part, float(np.median(known))
        named = {each.rank: each for each in self._open.values() if each.rank is not None}
        for rank, slowdown in named.items():
            if slowdown.number == self._level:
                continue
            if rank in slow:
                # The steps since the gather before the newest one.
                told = [step.index for step in self._recent if step.hosts]
                steps_between = next(
                    (after - before for before, after in reversed(list(pairwise(told)))), 1
                )
                more = (slowdown.step_s - slowdown.usual_s) * steps_between
                self._go_on(replace(slowdown, lost_s=slowdown.lost_s + more))
            elif not any(self._is_slow(rank, scores) for scores in self._scores):
                self._close(slowdown, step.index - _RECENT)
        new = [rank for rank in slow if rank not in named]
        for rank in sorted(new, key=lambda rank: -slow[rank][1])[: _TOLD // 8]:
            self._name_host(rank, *slow[rank], step_s)

    def _is_slow(self, rank: int, scores: dict[HostPart, _Shares]) -> bool:
        return any(shares[rank] > self._limits.hosts[part] / 2 for part, shares in scores.items())

    def _name_host(self, rank: int, part: HostPart, score: float, step_s: float) -> None:
        times = 1 + score if part == "devices" else None
        excess = {"devices": None, "stopped": score}.get(part, score * step_s)
        blamed: dict[str, Any] = {"rank": rank, "part": part, "times": times, "excess": excess}
        if self._level is not None and self._open[self._level].rank is None:
            # The steps became slow, and here is the host that slowed them.
            slowdown = self._open[self._level]
            # Where all hosts are starved, one of them waits most: the cause is still the input.
            if not slowdown.kind == part == "input":
                slowdown = replace(slowdown, kind="host")
            self._tell(replace(slowdown, **blamed))
            return
        # It was slow from the start, or the steps hardly feel it: what it costs at most.
        cost_s = step_s * (score / (1 + score) if part == "devices" else score)
        steps = _RECENT
        first = max(self._recent[-1].index - steps + 1, 0)
        new = self._new("host", first, max(step_s - cost_s, 0.0), cost_s * steps, steps)
        if new:
            self._tell(replace(new, **blamed))

    def _blame_stall(self, step: Step, times: HostTimes) -> None:
        """Name the host that stood still in a stall of the last steps."""
        stall = self._last.get("stall")
        scores = self._scores[-1].get("stopped")
        if stall is None or stall.rank is not None or scores is None:
            return
        rank = int(scores.argmax())
        is_new = step.index - (stall.last_step or 0) < 2 * _RECENT
        if is_new and scores[rank] > self._limits.hosts["stopped"]:
            blamed = replace(stall, rank=rank, part="stopped", excess=times.stopped[rank])
            self._last["stall"] = blamed
            self._tell(blamed)

    # --- what is told

    def _new(
        self, kind: SlowdownKind, first: int, usual_s: float, lost_s: float, steps: int
    ) -> Slowdown | None:
        if self._count == _MOST:
            return None
        self._count += 1
        new = Slowdown(
            attempt=self._attempt, number=self._count, kind=kind, first_step=first, last_step=None,
            steps=steps, usual_s=usual_s, step_s=usual_s, lost_s=max(lost_s, 0.0),
        )  # fmt: skip
        self._open[new.number] = new
        return new

    def _go_on(self, slowdown: Slowdown) -> None:
        slowdown = replace(slowdown, steps=self._recent[-1].index - slowdown.first_step + 1)
        self._open[slowdown.number] = slowdown
        if slowdown.lost_s >= 2 * self.told[slowdown.number].lost_s:
            self._tell(slowdown)

    def _close(self, slowdown: Slowdown, last_step: int) -> None:
        last_step = max(last_step, slowdown.first_step)
        del self._open[slowdown.number]
        steps = last_step - slowdown.first_step + 1
        self._tell(replace(slowdown, last_step=last_step, steps=steps))

    def _tell(self, slowdown: Slowdown) -> None:
        each_s = slowdown.lost_s / slowdown.steps
        slowdown = replace(slowdown, step_s=slowdown.usual_s + each_s)
        if slowdown.last_step is None:
            self._open[slowdown.number] = slowdown
        self.told[slowdown.number] = slowdown
        for number in list(self.told)[:-_TOLD]:
            if number not in self._open:
                del self.told[number]


def _pace(step: Step) -> float:
    """The seconds of a step without a save, which is judged apart."""
    return max(step.step_s - step.checkpoint_s, 0.0)


def _cause(steps: Sequence[Step], excess_s: float) -> SlowdownKind | None:
    """What the steps waited for, where it explains half of the excess."""
    waits: dict[SlowdownKind, float] = {
        "compilation": sum(step.compile_s for step in steps),
        "input": sum(step.data_s for step in steps),
    }
    return next((kind for kind, wait_s in waits.items() if wait_s > excess_s / 2), None)


def _spread(paces: deque[float]) -> tuple[float, float]:
    """The median, and the standard deviation as the middle half of the paces shows it."""
    middle = median(paces)
    return middle, _MAD * median(abs(pace - middle) for pace in paces)


def _scores(times: HostTimes, part: HostPart, step_s: float, limits: _Limits) -> _Shares | None:
    """By how much each rank is slower than the median of the others: a share of their device time,
    of a step, or of all time. Less than a step feels, or than the spread of many hosts, counts as
    0. None where all hosts are so near one another that none of them can be slow.
    """
    columns: dict[HostPart, tuple[float, ...]] = {
        "devices": times.devices_s,
        "host": times.host_s,
        "input": times.input_s,
        "stopped": times.stopped,
    }
    known = columns[part]
    least, noise = min(known), limits.host_s if part in ("host", "input") else 0.0
    if len(known) < 2 or step_s <= 0 or (part == "devices" and least <= 0):
        return None
    unit = {"devices": least, "stopped": 1.0}.get(part, step_s)
    if max(known) - least <= max(limits.hosts[part] / 2 * unit, noise):
        return None
    own = np.array(known)
    others = np.full(len(own), np.median(own))
    if len(own) >= _MANY_HOSTS:
        noise = max(noise, _DEVIATIONS * _MAD * float(np.median(np.abs(own - others))))
    else:  # a slow one would move the median of all
        others = np.array([median(known[:at] + known[at + 1 :]) for at in range(len(known))])
    excess = own - others
    shares: _Shares = np.where(excess > noise, excess / (others if part == "devices" else unit), 0)
    return shares


# Which hosts of an attempt are slower than the rest, by what all took for the same work.

# A host is slow beyond this share of the median of the others, and five robust deviations where
# there are enough hosts to know them. Emulated hosts share a machine with other programs.
_LEAST, _LEAST_EMULATED, _LEAST_EMULATED_S = 0.1, 0.5, 1e-3
_MOST_SLOW = 32  # hosts in a record
_NAMED = 2  # so often, and a host is left out


@dataclass(frozen=True)
class HostSeconds:
    """The seconds of each test, a row for each process."""

    tests: tuple[str, ...]
    rows: NDArray[np.float64]
    emulated: bool


def slow_hosts(taken: HostSeconds) -> list[SlowHost]:
    """Return each host and test that took longer than the others by more than the noise."""
    found: list[SlowHost] = []
    hosts = len(taken.rows)
    for test, column in zip(taken.tests, taken.rows.T.tolist() if hosts > 1 else (), strict=False):
        middle = median(column)
        least, least_s = _LEAST, 0.0
        if taken.emulated:
            least, least_s = _LEAST_EMULATED, _LEAST_EMULATED_S
        if hosts >= _MANY_HOSTS:
            spread = _MAD * median(abs(taken_s - middle) for taken_s in column)
            least = max(least, _DEVIATIONS * spread / middle)
        for rank, taken_s in enumerate(column):
            # Among few hosts, a slow one would move the median of all.
            others = (
                middle if hosts >= _MANY_HOSTS else median([*column[:rank], *column[rank + 1 :]])
            )
            if taken_s - others > max(least * others, least_s):
                slow = SlowHost(
                    rank=rank, slice_name="", host="", test=test, seconds=taken_s,
                    times=taken_s / others,
                )  # fmt: skip
                found.append(slow)
    return sorted(found, key=lambda slow: -slow.times)


def host_check(attempt: int, taken: HostSeconds, took_s: float) -> HostCheck:
    """Return the record of a check; the names of its slow hosts are still to be filled in."""
    return HostCheck(
        attempt=attempt,
        hosts=len(taken.rows),
        took_s=took_s,
        tests=tuple(
            HostTest(name=name, median_s=median(column), least_s=min(column), most_s=max(column))
            for name, column in zip(taken.tests, taken.rows.T.tolist(), strict=True)
        ),
        slow=tuple(slow_hosts(taken)[:_MOST_SLOW]),
    )


def slices_to_avoid(checks: Iterable[HostCheck]) -> frozenset[str]:
    """Return the slices with a host that was slow in two checks."""
    named: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, check in enumerate(checks):
        for slow in check.slow:
            named[slow.slice_name, slow.host].add(number)
    return frozenset(name for (name, _), seen in named.items() if len(seen) >= _NAMED)

"""Searches all states of the protocol, breadth first, for one that breaks a promise."""

import time
from collections import deque
from dataclasses import dataclass

from tests.model.protocol import (
    Bounds,
    Move,
    State,
    awakenings,
    faults,
    initial,
    is_settled,
    moves,
    violation,
)

Came = dict[State, tuple[State, str] | None]  # the state before, and the move that led here


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a search found: the moves that lead to a broken promise, or none."""

    states: int
    seconds: float
    broken: str | None = None
    trace: tuple[str, ...] = ()


def check(bounds: Bounds, limit: int = 2_000_000) -> Result:
    """Try everything within the bounds.

    Safety: no state breaks a rule. Progress: from each state the run can end without any more luck,
    that is without a fault, and without that something stopped goes on; so can its processes.
    """
    began_s, first = time.monotonic(), initial(bounds)
    came: Came = {first: None}
    progress: dict[State, list[State]] = {}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        if broken := violation(state, bounds):
            return _result(came, state, broken, began_s)
        own = list(moves(state, bounds))
        for _, after in own:
            progress.setdefault(after, []).append(state)
        for name, after in [*own, *_luck(state, bounds)]:
            if after not in came:
                came[after] = (state, name)
                queue.append(after)
        if len(came) > limit:
            raise OverflowError(f"more than {limit:,} states")
    if stuck := _stuck(came, progress):
        return _result(came, stuck, "the run, or a process of it, can never end", began_s)
    return Result(states=len(came), seconds=time.monotonic() - began_s)


def _luck(state: State, bounds: Bounds) -> list[Move]:
    """Faults while some are left, and awakenings."""
    struck = [
        (name, after._replace(faults=after.faults + 1))
        for name, after in (faults(state) if state.faults < bounds.faults else ())
    ]
    return [*struck, *awakenings(state)]


def _stuck(came: Came, progress: dict[State, list[State]]) -> State | None:
    """The first state from which no moves lead to the end of the run and of its processes."""
    ending = {state for state in came if is_settled(state)}
    queue = deque(ending)
    while queue:
        for before in progress.get(queue.popleft(), ()):
            if before not in ending:
                ending.add(before)
                queue.append(before)
    return next((state for state in came if state not in ending), None)


def _result(came: Came, state: State, broken: str, began_s: float) -> Result:
    trace: list[str] = []
    step = came[state]
    while step:
        before, name = step
        trace.append(name)
        step = came[before]
    seconds = time.monotonic() - began_s
    return Result(states=len(came), seconds=seconds, broken=broken, trace=tuple(reversed(trace)))

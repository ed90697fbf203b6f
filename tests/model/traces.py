"""Real journals as traces of the model: could the protocol have written these events so?

    python -m tests.model.traces RUN...

Events are read as they are on disk, without the code that wrote them. What no event shows (steps,
deaths, awakenings) may have happened at any time in between.
"""

import hashlib
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model.protocol import Bounds, State, faults, initial, moves

VISIBLE = {
    "claimed": " claims",
    "attempt started": " starts attempt",
    "checkpoint saved": " records step",
    "attempt ended": " ends attempt",
    "ended": " ends the run",
}
Raw = dict[str, Any]


@dataclass(frozen=True)
class Observed:
    """An event of the model's kind. `step` is the place of a checkpoint among those that mattered:
    recorded by a `checkpoint saved`, or adopted by a claim.
    """

    number: int
    kind: str
    attempt: int = 0
    step: int = 0


def read_events(run: Path) -> list[Raw]:
    """The events of a run's folder, in order."""
    return [json.loads(path.read_bytes()) for path in sorted((run / "events").glob("*.json"))]


def faults_of(run: Path) -> list[str]:
    """What the protocol could not have done."""
    events = read_events(run)
    found = [*_chain_faults(run), *_restore_faults(run, events)]
    if (number := first_impossible(events)) is not None:
        found.append(f"event {number} ({events[number - 1]['kind']}) is impossible there")
    return found


def _chain_faults(run: Path) -> Iterator[str]:
    """Numbers without a gap, each with the digest of the one before."""
    before = ""
    for number, path in enumerate(sorted((run / "events").glob("*.json")), start=1):
        content = path.read_bytes()
        if int(path.stem) != number:
            yield f"event {number} is missing"
            return
        if before and json.loads(content).get("previous", before) != before:
            yield f"event {number} did not come after event {number - 1}"
        before = hashlib.sha256(content).hexdigest()


# --- by the model


def first_impossible(events: list[Raw]) -> int | None:
    """The number of the first event that no order of moves leads to; None when all are possible."""
    observed = list(_observed(events))
    bounds = Bounds(
        faults=len(events),  # no attempt is one too many
        drivers=1 + sum(event.kind == "claimed" for event in observed),
        steps=max((event.step for event in observed), default=0),
        stale=False,
    )
    states = {initial(bounds)}
    for event in observed:
        states = {
            after for state in _closure(states, bounds) for after in _seen(state, event, bounds)
        }
        if not states:
            return event.number
    return None


def _observed(events: list[Raw]) -> Iterator[Observed]:
    """The events of the model's kinds. Of an attempt's checkpoints the last one counts, and a run
    that failed or was cancelled may go on.
    """
    if events[0]["kind"] != "submitted":
        yield Observed(1, "submitted")
    last = _last_saves(events)
    for number, event in enumerate(events, start=1):
        kind = event["kind"]
        saved = saved_by(event)
        step = last.index(saved) + 1 if saved in last else 0
        if kind == "claimed":
            yield Observed(number, kind, step=step)
        elif kind == "attempt started":
            yield Observed(number, kind, attempt=event["attempt"])
        elif kind == "checkpoint saved" and step:
            yield Observed(number, kind, attempt=event_attempt(event), step=step)
        elif kind == "attempt ended" and event["reason"] != "finished":
            yield Observed(number, kind, attempt=event["attempt"])
        elif kind == "ended" and event["state"] == "succeeded":
            yield Observed(number, kind)


def saved_by(event: Raw) -> tuple[int, int] | None:
    """The attempt and the step of the checkpoint that an event makes count."""
    saved = event.get("checkpoint") or event.get("adopted")
    if event["kind"] == "checkpoint saved" and saved is None:
        saved = event
    return (saved["attempt"], saved["step"]) if saved else None


def event_attempt(event: Raw) -> int:
    saved = saved_by(event)
    return saved[0] if saved else 0


def _last_saves(events: Iterable[Raw]) -> list[tuple[int, int]]:
    newest: dict[int, tuple[int, int]] = {}
    for event in events:
        if saved := saved_by(event):
            newest[saved[0]] = saved
    return list(newest.values())


def _closure(states: set[State], bounds: Bounds) -> Iterator[State]:
    """The states that these lead to without an event. Of faults, deaths are enough: what is stopped
    writes no event either, and what goes on and is superseded writes none.
    """
    reached, queue = set(states), deque(states)
    while queue:
        state = queue.popleft()
        yield state
        deaths = [
            (name, after) for name, after in faults(state) if name.endswith((" die", " dies"))
        ]
        for name, after in [*moves(state, bounds), *deaths]:
            hidden = not any(words in name for words in VISIBLE.values())
            if hidden and after.broken is None and after not in reached:
                reached.add(after)
                queue.append(after)


def _seen(state: State, one: Observed, bounds: Bounds) -> Iterator[State]:
    """The states after an event."""
    if one.kind not in VISIBLE:
        return
    for name, after in moves(state, bounds):
        if VISIBLE[one.kind] in name and after.broken is None and _fits(state, after, one, name):
            yield after


def _fits(state: State, after: State, one: Observed, name: str) -> bool:
    """Whether a move did what the event says: the same attempt, and the same checkpoint counts."""
    if one.kind == "claimed":
        adopted = after.recorded != state.recorded
        return adopted == bool(one.step) and (not adopted or after.recorded.step == one.step)
    if one.kind == "checkpoint saved":
        return (after.recorded.attempt, after.recorded.step) == (one.attempt, one.step)
    if one.kind == "attempt started":
        return len(after.ranks) == one.attempt and after.ranks[-1].reachable
    return one.kind == "ended" or name.endswith(f" attempt {one.attempt}")


# --- by the steps


def _restore_faults(run: Path, events: list[Raw]) -> Iterator[str]:
    """Each attempt begins from the newest checkpoint that counted when it started, or says why it
    skipped that one; a run whose journal records none is not judged.
    """
    counted: list[tuple[int, int]] = []
    records = any(saved_by(event) for event in events)
    for event in events:
        if saved := saved_by(event):
            counted.append(saved)
        if event["kind"] == "attempt started" and records:
            startup = _startup(run / "attempts" / f"{event['attempt']:03d}" / "steps.jsonl")
            skipped = {skip["step"] for skip in startup["skipped"]} if startup else set()
            left = [step for _, step in counted if step not in skipped]
            if startup and startup["steps_done"] != (left[-1] if left else 0):
                expected = f"the journal says {left[-1] if left else 0}"
                yield f"attempt {event['attempt']} began from {startup['steps_done']}: {expected}"


def _startup(path: Path) -> Raw | None:
    """What the first step of an attempt says of its start."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None
    return json.loads(line)["step"]["startup"] if line.endswith(b"\n") else None


def main(runs: list[str]) -> int:
    """Check runs; exit code 1 where one is not a trace of the model."""
    found = {run: faults_of(Path(run)) for run in runs}
    for run, wrong in found.items():
        print(f"{run}: {'; '.join(wrong) or 'a trace of the model'}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

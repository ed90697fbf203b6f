"""The protocol of drivers, ranks and checkpoints of one run, small enough to try all of it.

Drivers claim the run with events of exclusive numbers, start attempts, and end. The ranks of an
attempt are one group: they restore, step, save in two moves, and may be out of reach of the driver
that comes next. Processes die, stop, and go on at any time; reads of folders may be stale.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The guards of the protocol. A test removes each of them."""

    exclusive_numbers: bool = True  # event_log.append: one of all who write a number succeeds
    look_for_successor: bool = True  # Writer.heartbeat: a superseded driver notices and ends
    ranks_watch: bool = True  # ClaimWatch: ranks end when their claim is superseded or silent
    evict: bool = True  # a driver ends the ranks of the claim before, also stopped ones
    end_ranks: bool = True  # no rank is left of an attempt when the next one starts
    recorded_only: bool = True  # an attempt restores what the journal says was saved
    own_folders: bool = True  # a checkpoint's folder is named after its claim and attempt
    prune_recorded: bool = True  # a checkpoint is deleted when a later one is recorded, not before


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far the search goes: so many faults, drivers one after another, and steps, each saved."""

    faults: int = 1
    drivers: int = 3
    steps: int = 2
    stale: bool = True
    rules: Rules = field(default_factory=Rules)


Phase = Literal["new", "waiting", "watching", "over"]
Work = Literal["opening", "training", "saving", "stuck", "gone"]


class Driver(NamedTuple):
    """A driver. `knows` says that it has read the newest event."""

    phase: Phase = "new"
    stopped: bool = False
    knows: bool = False


class Checkpoint(NamedTuple):
    """A whole checkpoint, by the attempt that saved it. `late` says that its claim was superseded
    when it became whole.
    """

    step: int
    attempt: int
    late: bool = False


NOTHING = Checkpoint(0, 0)


class Ranks(NamedTuple):
    """The ranks of one attempt, with the steps that they did and saved. `base` is the checkpoint
    that counted when they started, and `reported` the newest whole one of their heartbeats.
    """

    driver: int
    base: Checkpoint
    work: Work = "opening"
    stopped: bool = False
    reachable: bool = True
    done: int = 0
    saved: int = 0
    reported: Checkpoint = NOTHING
    finished: bool = False


class State(NamedTuple):
    """All there is. `holder` has the newest claim, and `recorded` is the newest checkpoint by the
    journal. `broken` is the promise that was broken on the way.
    """

    drivers: tuple[Driver, ...]
    holder: int | None = None
    ended: bool = False
    recorded: Checkpoint = NOTHING
    ranks: tuple[Ranks, ...] = ()
    folder: frozenset[Checkpoint] = frozenset()
    faults: int = 0
    broken: str | None = None


Move = tuple[str, State]


def initial(bounds: Bounds) -> State:
    """A run that was submitted."""
    return State((Driver(),) * bounds.drivers)


def is_settled(state: State) -> bool:
    """Whether the run has ended, and with it every process that is not stopped."""
    drivers = all(driver.stopped or driver.phase in ("new", "over") for driver in state.drivers)
    ranks = all(rank.stopped or not is_alive(rank) for rank in state.ranks)
    return state.ended and drivers and ranks


def is_alive(ranks: Ranks) -> bool:
    return ranks.work != "gone"


# --- moves of the processes: these need no luck


def moves(state: State, bounds: Bounds) -> Iterator[Move]:
    """What can happen next without a fault."""
    for number, driver in enumerate(state.drivers):
        if not driver.stopped and driver.phase != "over":
            yield from _driver_moves(state, bounds, number, driver)
    for at, ranks in enumerate(state.ranks):
        if is_alive(ranks) and not ranks.stopped:
            yield from _rank_moves(state, bounds, at, ranks)


def _driver_moves(state: State, bounds: Bounds, number: int, driver: Driver) -> Iterator[Move]:
    name = f"driver {number}"
    if driver.phase == "new":
        yield from _claims(state, bounds, number)
        return
    if state.holder != number and bounds.rules.look_for_successor:
        yield f"{name} notices that it is superseded", _left(state, number)
    if driver.phase == "waiting":
        yield from _waiting(state, bounds, number)
    elif driver.phase == "watching":
        yield from _watching(state, bounds, number)


def _claims(state: State, bounds: Bounds, number: int) -> Iterator[Move]:
    """A person resumes a run whose driver seems gone: it may be stopped only."""
    before = None if state.holder is None else state.drivers[state.holder]
    in_turn = all(driver.phase != "new" for driver in state.drivers[:number])
    if state.ended or not in_turn or (before and not before.stopped and before.phase != "over"):
        return
    claimed = _wrote(state, number)._replace(holder=number, recorded=_adopted(state))
    yield f"driver {number} claims", _with(claimed, number, phase="waiting")
    if bounds.stale and before and not bounds.rules.exclusive_numbers:
        broken = f"driver {number} claimed with a number that an event had"
        yield f"driver {number} claims by an old look", claimed._replace(broken=broken)


def _adopted(state: State) -> Checkpoint:
    """The newest checkpoint that counts after a claim: the ranks of the claim before may have
    reported one that their driver did not come to record.
    """
    ours = [rank.reported for rank in state.ranks if rank.driver == state.holder]
    return max([state.recorded, *ours[-1:]])


def _waiting(state: State, bounds: Bounds, number: int) -> Iterator[Move]:
    """A driver that needs slices: those of reachable ranks are not free."""
    rules, name = bounds.rules, f"driver {number}"
    taken = [(at, one) for at, one in enumerate(state.ranks) if is_alive(one) and one.reachable]
    for at, ranks in taken:
        if rules.evict and ranks.driver < number:
            yield f"{name} ends the ranks of attempt {at + 1}", _gone(state, at)
    others = [one for _, one in taken if one.driver != number]
    if others or (taken and rules.end_ranks):
        return
    if len(state.ranks) > bounds.faults + 1:
        return  # each fault costs an attempt; who needs more than that would need any number
    for after in _writes(state, bounds, number, "the start of an attempt"):
        shared = "two attempts are on the same slices" if taken else after.broken
        for reachable in (True, False):
            more = (*after.ranks, Ranks(number, after.recorded, reachable=reachable))
            where = "" if reachable else " on hosts that others cannot reach"
            started = after._replace(ranks=more, broken=shared)
            yield (
                f"{name} starts attempt {len(more)}{where}",
                _with(started, number, phase="watching"),
            )
    yield from _refused(state, number)


def _watching(state: State, bounds: Bounds, number: int) -> Iterator[Move]:
    """A driver whose attempt runs, or has ended."""
    name, rules = f"driver {number}", bounds.rules
    at = max(at for at, one in enumerate(state.ranks) if one.driver == number)
    ranks = state.ranks[at]
    if ranks.reported > state.recorded:
        for after in _writes(state, bounds, number, "a checkpoint"):
            recorded = after._replace(recorded=ranks.reported)
            yield f"{name} records step {ranks.reported.step}", recorded
        yield from _refused(state, number)
    elif ranks.finished:
        for after in _writes(state, bounds, number, "the end of the run"):
            ended = _with(after, number, phase="over")._replace(ended=True)
            yield f"{name} ends the run", ended
        yield from _refused(state, number)
    elif ranks.work in ("gone", "stuck") or ranks.stopped:
        for after in _writes(state, bounds, number, "the end of an attempt"):
            left = _gone(after, at) if rules.end_ranks else after
            yield f"{name} ends attempt {at + 1}", _with(left, number, phase="waiting")
        yield from _refused(state, number)


def _refused(state: State, number: int) -> Iterator[Move]:
    """A superseded driver that writes an event learns it from the number, which is taken."""
    if not state.drivers[number].knows:
        yield f"driver {number} cannot write", _left(state, number)


def _rank_moves(state: State, bounds: Bounds, at: int, ranks: Ranks) -> Iterator[Move]:
    name = f"attempt {at + 1}"
    driver = state.drivers[ranks.driver]
    silent = driver.stopped or driver.phase == "over"
    if bounds.rules.ranks_watch and (silent or state.holder != ranks.driver):
        yield f"the ranks of {name} see that their claim counts no more", _gone(state, at)
    if ranks.work == "opening":
        yield from _restores(state, bounds, at, ranks)
    elif ranks.work == "training" and ranks.saved < ranks.done:
        yield f"{name} begins to save step {ranks.done}", _rank(state, at, work="saving")
    elif ranks.work == "training" and ranks.done < bounds.steps:
        yield f"{name} does step {ranks.done + 1}", _rank(state, at, done=ranks.done + 1)
    elif ranks.work == "training" and (ranks.reported in (NOTHING, state.recorded)):
        yield f"{name} finishes", _gone(state, at, finished=True)
    elif ranks.work == "saving":
        yield from _commits(state, bounds, at, ranks)
    if ranks.work == "training" and state.recorded.attempt == at + 1:
        pruned = _pruned(state, at, state.recorded)
        if pruned != state.folder:
            yield f"{name} deletes older checkpoints", state._replace(folder=pruned)


def _restores(state: State, bounds: Bounds, at: int, ranks: Ranks) -> Iterator[Move]:
    """The ranks delete what was saved before them and never counted, as far as they see it, and
    restore a checkpoint. A file is opened by its name; a listing may be old.
    """
    for fresh in (True, False) if bounds.stale else (True,):
        listed = sorted(state.folder, reverse=True)[0 if fresh else 1 :]
        chosen = ranks.base if bounds.rules.recorded_only else next(iter(listed), NOTHING)
        never = {save for save in listed if save.attempt <= at and save not in (ranks.base, chosen)}
        after = state._replace(folder=state.folder - never)
        after = _rank(after, at, work="training", done=chosen.step, saved=chosen.step)
        if chosen.late:
            after = after._replace(broken="an attempt began from a step of a superseded claim")
        if chosen != NOTHING and chosen not in state.folder and ranks.driver == state.holder:
            after = after._replace(broken="a checkpoint that counts is gone")
        old = "" if fresh else " by an old look"
        yield f"attempt {at + 1} restores step {chosen.step}{old}", after


def _commits(state: State, bounds: Bounds, at: int, ranks: Ranks) -> Iterator[Move]:
    """A save becomes whole by one rename, which fails where its folder is there already."""
    name = f"attempt {at + 1}"
    there = any(save.step == ranks.done for save in state.folder)
    if there and not bounds.rules.own_folders:
        yield f"{name} cannot save: another has saved step {ranks.done}", _gone(state, at)
        return
    whole = Checkpoint(ranks.done, at + 1, late=state.holder != ranks.driver)
    after = state._replace(folder=state.folder | {whole})
    if not bounds.rules.prune_recorded:
        after = after._replace(folder=_pruned(after, at, whole))
    yield (
        f"{name} commits step {ranks.done}",
        _rank(after, at, work="training", saved=ranks.done, reported=whole),
    )


def _pruned(state: State, at: int, newest: Checkpoint) -> frozenset[Checkpoint]:
    """The checkpoints without those before the newest, by this attempt and by those before it."""
    return frozenset(
        save for save in state.folder if save.attempt > at + 1 or save.step >= newest.step
    )


# --- faults, and what nobody may count on


def faults(state: State) -> Iterator[Move]:
    """What may go wrong next. Somebody is always left who resumes."""
    for number, driver in enumerate(state.drivers[:-1]):
        if driver.phase in ("waiting", "watching") and not driver.stopped:
            yield f"driver {number} dies", _with(state, number, phase="over")
            yield f"driver {number} stops", _with(state, number, stopped=True)
    for at, ranks in enumerate(state.ranks):
        if is_alive(ranks) and not ranks.stopped:
            yield f"the ranks of attempt {at + 1} die", _gone(state, at)
            yield f"one rank of attempt {at + 1} dies", _rank(state, at, work="stuck")
            yield f"the ranks of attempt {at + 1} stop", _rank(state, at, stopped=True)


def awakenings(state: State) -> Iterator[Move]:
    """What was stopped may go on, and nobody may count on it."""
    for number, driver in enumerate(state.drivers):
        if driver.stopped:
            yield f"driver {number} goes on", _with(state, number, stopped=False)
    for at, ranks in enumerate(state.ranks):
        if ranks.stopped and is_alive(ranks):
            yield f"the ranks of attempt {at + 1} go on", _rank(state, at, stopped=False)


# --- what must hold


def violation(state: State, bounds: Bounds) -> str | None:
    """What is wrong with a state; None when all holds."""
    if state.broken:
        return state.broken
    for number, driver in enumerate(state.drivers):
        active = driver.phase in ("waiting", "watching") and not driver.stopped
        if active and state.holder != number and not _can_end(state, bounds, number, driver):
            return f"driver {number} is superseded, and cannot know it"
    return None


def _can_end(state: State, bounds: Bounds, number: int, driver: Driver) -> bool:
    after = _driver_moves(state, bounds, number, driver)
    return any(one.drivers[number].phase == "over" for _, one in after)


# --- changes of a state


def _writes(state: State, bounds: Bounds, number: int, what: str) -> Iterator[State]:
    """The state after a driver wrote an event; none where its number is taken."""
    if state.drivers[number].knows:
        yield _wrote(state, number)
    elif not bounds.rules.exclusive_numbers:
        broken = f"driver {number} wrote {what} after driver {state.holder} had claimed"
        yield _wrote(state, number)._replace(broken=broken)


def _wrote(state: State, number: int) -> State:
    """After an event only its writer knows the newest one."""
    drivers = (one._replace(knows=at == number) for at, one in enumerate(state.drivers))
    return state._replace(drivers=tuple(drivers))


def _left(state: State, number: int) -> State:
    """A driver that ends takes the ranks with it that it can reach."""
    after = state
    for at, ranks in enumerate(state.ranks):
        if ranks.driver == number and ranks.reachable and is_alive(ranks):
            after = _gone(after, at)
    return _with(after, number, phase="over")


def _gone(state: State, at: int, *, finished: bool = False) -> State:
    """Ranks that are gone are all alike, but for what they leave behind."""
    before = state.ranks[at]
    kept = before.reported if before.driver == state.holder else NOTHING
    after = Ranks(before.driver, NOTHING, "gone", reported=kept, finished=finished)
    return state._replace(ranks=(*state.ranks[:at], after, *state.ranks[at + 1 :]))


def _with(state: State, number: int, **changes: object) -> State:
    drivers = list(state.drivers)
    drivers[number] = drivers[number]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(drivers=tuple(drivers))


def _rank(state: State, at: int, **changes: object) -> State:
    ranks = list(state.ranks)
    ranks[at] = ranks[at]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(ranks=tuple(ranks))


def rule_names() -> list[str]:
    """The guards that can be removed."""
    return [rule.name for rule in fields(Rules)]

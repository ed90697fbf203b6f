"""The faults of a campaign, drawn from a seed: the same number is always the same fault."""

import random
from dataclasses import dataclass
from typing import Literal

How = Literal["killed", "stopped", "stalled"]
# In an episode each fault strikes the run that survived those before.
EPISODE = 4
# Points that a run passes before its first step: name, process.
EARLY = (
    ("before claim", "driver"),
    ("after claim", "driver"),
    ("before attempt", "driver"),
    ("after attempt", "driver"),
    ("start", "rank-0"),
    ("start", "rank-1"),
    ("compile", "rank-0"),
    ("compile", "rank-1"),
)
BETWEEN = (
    ("before end of attempt", "driver"),
    ("after end of attempt", "driver"),
    ("before attempt", "driver"),
)
RUNNING = (("step", ""), ("save", "rank-0"), ("commit", "rank-0"))
PHASES = {
    "before claim": "claim",
    "after claim": "claim",
    "before attempt": "start",
    "after attempt": "start",
}
AHEAD = (2, 6)  # steps beyond the farthest before a fault strikes a running attempt
PAIRS = 0.3


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A process that is struck. What is `stalled` goes on after some seconds."""

    target: str
    how: How


@dataclass(frozen=True, kw_only=True)
class PlainFault:
    """Where a fault strikes, and which processes. `first` is a rank that is killed to get there."""

    index: int
    phase: str
    point: str
    who: str
    strikes: tuple[Strike, ...]
    ahead: int = 0
    first: str | None = None

    @property
    def name(self) -> str:
        """The fault in a few words, without the number of a rank."""
        if self.first or len(self.strikes) > 1:
            return "two at once"
        [strike] = self.strikes
        return f"{strike.target.partition('-')[0]} {strike.how}"


def draw(seed: int, index: int) -> PlainFault:
    """The fault of that number."""
    chance = random.Random(f"{seed}-{index}")
    position = index % EPISODE
    if position == 0:
        point, who = chance.choice(EARLY)
        phase = PHASES.get(point, point)
        return _fault(index, phase, point, who, _early_strikes(chance, point, who))
    if position == EPISODE - 1:
        point, who = chance.choice(BETWEEN)
        strike = Strike(target="driver", how=chance.choice(("killed", "stopped")))
        first, ahead = f"rank-{chance.randrange(2)}", chance.randint(*AHEAD)
        return _fault(index, "between attempts", point, who, (strike,), ahead, first)
    point, who = chance.choice(RUNNING)
    targets = chance.sample(("driver", "rank-0", "rank-1"), 2 if chance.random() < PAIRS else 1)
    strikes = tuple(
        Strike(target=target, how=chance.choice(("killed", "stopped"))) for target in targets
    )
    return _fault(index, point, point, who, strikes, chance.randint(*AHEAD))


def _early_strikes(chance: random.Random, point: str, who: str) -> tuple[Strike, ...]:
    """Before its first sign of life a stopped process is only slow, so it stalls."""
    unseen = point in ("before claim", "start")
    how: How = chance.choice(("killed", "stalled" if unseen else "stopped"))
    mine = Strike(target=who, how=how)
    if who != "driver" and chance.random() < PAIRS:
        other: How = chance.choice(("killed", "stopped"))
        return mine, Strike(target="driver", how=other)
    return (mine,)


def _fault(
    index: int,
    phase: str,
    point: str,
    who: str,
    strikes: tuple[Strike, ...],
    ahead: int = 0,
    first: str | None = None,
) -> PlainFault:
    return PlainFault(
        index=index, phase=phase, point=point, who=who, strikes=strikes, ahead=ahead, first=first
    )

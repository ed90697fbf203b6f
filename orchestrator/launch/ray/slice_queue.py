"""Launch room: whose turn it is to take slices of a kind: first come, first served. Pure.

Ray gives slices one by one, so two runs that take theirs at once may each hold half for ever. Only
whoever has the turn takes any, and takes all; nobody overtakes. A run that fails keeps its place
and its slices for a while: its retry comes before those who wait.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

# So long a run that had its slices may be away before they are anybody's.
RETURN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class QueueAnswer:
    """Which runs come before the one that asked, none when it is its turn; and which slices are
    others', be they free for the moment.
    """

    before: tuple[str, ...]
    held: tuple[str, ...]


@dataclass
class QueuePosition:
    """A run in the queue. `job` is the Ray job that asked last, `slices` are those that it had
    last. Served, it wants none now. `gone_at_s` is when its job was first seen to have ended.
    """

    run: str
    kind: str
    job: str
    slices: tuple[str, ...] = ()
    served: bool = False
    turn: bool = False
    gone_at_s: float | None = None


class SliceQueue:
    """The runs that want slices of a cluster, or have some, in the order in which they came."""

    def __init__(self, living: Callable[[], Collection[str]], clock: Callable[[], float]) -> None:
        """`living` names the Ray jobs that have not ended."""
        self._living, self._clock = living, clock
        self._places: dict[str, QueuePosition] = {}

    def ask(self, run: str, kind: str, job: str) -> QueueAnswer:
        """What a run may take. Its turn lasts until it asks again, is served, or ends."""
        self._forget()
        place = self._places.setdefault(run, QueuePosition(run, kind, job))
        place.kind, place.job = kind, job
        place.served, place.turn, place.gone_at_s = False, False, None
        alike = [one for one in self._places.values() if one.kind == kind]
        elders = alike[: alike.index(place)]
        before = [one.run for one in alike if one.turn or (one in elders and not one.served)]
        place.turn = not before
        others = (one for one in alike if one is not place)
        return QueueAnswer(
            before=tuple(before), held=tuple(name for one in others for name in one.slices)
        )

    def serve(self, run: str, job: str, slices: tuple[str, ...]) -> None:
        """Note that a run has all its slices: the next may take theirs."""
        for place in self._of(run, job):
            place.slices, place.served, place.turn = slices, True, False

    def leave(self, run: str, job: str) -> None:
        """Give a place up for good, with its slices."""
        for place in self._of(run, job):
            del self._places[place.run]

    def _of(self, run: str, job: str) -> Iterator[QueuePosition]:
        """The run's place, unless a later job of it has asked since."""
        place = self._places.get(run)
        if place and place.job == job:
            yield place

    def _forget(self) -> None:
        """Drop who has ended; whoever had slices may come back within a while."""
        living, now_s = set(self._living()), self._clock()
        for place in list(self._places.values()):
            if place.job in living:
                continue
            if place.gone_at_s is None:
                place.gone_at_s, place.served, place.turn = now_s, False, False
            if not place.slices or now_s - place.gone_at_s > RETURN_S:
                del self._places[place.run]

"""Drive room: which slices an attempt takes, of those that the cluster shows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import SpecError
from orchestrator.launch.ray.protocol import Slice
from orchestrator.types.spec import Pods

# So long a run that lost a slice waits for another before it goes on with fewer.
SPARE_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class SliceSelection:
    """What a run wants. `began` says that it has had slices before, and may go on with fewer.
    `alone` says that the cluster is its own: nothing comes there by waiting.
    """

    pods: Pods
    kind: str
    began: bool
    alone: bool


def chosen(
    seen: Sequence[Slice], wanted: SliceSelection, had: Sequence[str], waited_s: float
) -> tuple[str, ...]:
    """The slices to take, those that the run had first; none when it should wait.

    `Unservable` when waiting cannot help.
    """
    free = [one.name for one in seen if one.whole and one.free and one.settled]
    ranked = sorted(free, key=lambda name: (name not in had, name))
    if len(free) >= wanted.pods.max:
        return tuple(sorted(ranked[: wanted.pods.max]))
    settled = all(one.settled for one in seen)
    whole = sum(one.whole for one in seen)
    if wanted.alone and settled and whole < wanted.pods.min:
        raise SpecError(f"{waiting(seen, wanted)}; this cluster gets no more")
    nothing_comes = wanted.alone and settled and len(free) == whole
    enough = wanted.began and len(free) >= wanted.pods.min
    goes_on = enough and (nothing_comes or waited_s > SPARE_WAIT_S)
    return tuple(sorted(ranked)) if goes_on else ()


def waiting(seen: Sequence[Slice], wanted: SliceSelection, before: Sequence[str] = ()) -> str:
    """What the run waits for, with arithmetic, and which runs come before it."""
    whole = [one for one in seen if one.whole]
    free = sum(one.free for one in whole)
    pods = wanted.pods
    asked = f"{pods.max}" if pods.min == pods.max else f"{pods.min} to {pods.max}"
    text = f"{asked} slices of {wanted.kind} asked, {len(whole)} whole, {free} free"
    broken = [f"{one.name} has {one.hosts} of {one.of} hosts" for one in seen if not one.whole]
    elders = ", ".join(path.rpartition("/")[2] for path in before)
    queue = [f"first come, first served: before it {elders}"] if before else []
    return "; ".join([text, *queue, *broken])

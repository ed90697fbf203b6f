"""Selects the slices that an attempt takes, among those that the backend shows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import SpecError
from orchestrator.launch.backend import Slice
from orchestrator.types.recovery import SPARE_WAIT_S
from orchestrator.types.spec import Pods


@dataclass(frozen=True, kw_only=True)
class SliceRequest:
    """The slices that a run needs.

    A run that has `started` may go on with fewer. So may any run on a `private` cluster, where no
    slice is ever added. It takes a multiple of `sharing`: so many slices have one copy of the
    weights.
    """

    pods: Pods
    kind: str
    started: bool
    private: bool
    sharing: int = 1


def select(
    slices: Sequence[Slice], request: SliceRequest, previous: Sequence[str], waited_s: float
) -> tuple[str, ...]:
    """The slices to take, previous ones first; none when the run should wait.

    `SpecError` when waiting cannot help.
    """
    free = [one.name for one in slices if one.whole and one.free and one.settled]
    ranked = sorted(free, key=lambda name: (name not in previous, name))
    if len(free) >= request.pods.max:
        return tuple(sorted(ranked[: request.pods.max]))
    settled = all(one.settled for one in slices)
    whole = sum(one.whole for one in slices)
    if request.private and settled and whole < request.pods.min:
        raise SpecError(f"{describe_wait(slices, request)}; this cluster gets no more")
    nothing_comes = request.private and settled and len(free) == whole
    fewer = len(free) // request.sharing * request.sharing
    enough = (request.started or nothing_comes) and fewer >= request.pods.min
    goes_on = enough and (nothing_comes or waited_s > SPARE_WAIT_S)
    return tuple(sorted(ranked[:fewer])) if goes_on else ()


def describe_wait(slices: Sequence[Slice], request: SliceRequest, ahead: Sequence[str] = ()) -> str:
    """What the run waits for: the slices by number, the runs ahead of it, and broken slices."""
    whole = [one for one in slices if one.whole]
    free = sum(one.free for one in whole)
    pods = request.pods
    requested = f"{pods.max}" if pods.min == pods.max else f"{pods.min} to {pods.max}"
    text = f"{requested} slices of {request.kind} requested, {len(whole)} whole, {free} free"
    broken = [f"{one.name} has {one.hosts} of {one.size} hosts" for one in slices if not one.whole]
    names = ", ".join(path.rpartition("/")[2] for path in ahead)
    queue = [f"first come, first served: {names} is ahead"] if ahead else []
    return "; ".join([text, *queue, *broken])

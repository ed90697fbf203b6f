"""Prove room: whether anything but gradients crosses pods.

A gradient's reduction is a sum over pods of what a backward pass made. What a forward pass makes
may not cross, however it crosses, beyond a few scalars. All gradients together are the bytes that
the Forecast says: that they cross more than once, or something beside them, is seen by the total.
"""

from orchestrator.prove.compiled import DcnSend
from orchestrator.types.plan import Plan
from orchestrator.types.proof import DcnCrossing

SCALARS_BYTES = 4096  # losses and the like, of one step
GRADIENTS_SHARE = 1.1  # of the Forecast: gradients are rounded up to whole tiles and shards
REDUCE = "all-reduce"


def crossings(sent: tuple[DcnSend, ...]) -> tuple[DcnCrossing, ...]:
    """Everything that is sent to other pods, the most bytes first."""
    ordered = sorted(sent, key=lambda one: (-one.payload_bytes, one.name))
    return tuple(
        DcnCrossing(
            name=one.name,
            kind=one.kind,
            dtype=one.dtype,
            bytes_per_step=one.payload_bytes,
            calls_per_step=one.calls,
            places=one.places,
            is_gradient=one.kind == REDUCE and one.in_backward,
        )
        for one in ordered
    )


def faults(plan: Plan, found: tuple[DcnCrossing, ...]) -> list[str]:
    """What crosses pods and may not, each in one sentence; none where all is well."""
    others = [one for one in found if not one.is_gradient]
    said = []
    if sum(one.bytes_per_step for one in others) > SCALARS_BYTES:
        said += [f"{_sentence(one)} crosses pods: no gradient" for one in others]
    gradients = sum(one.bytes_per_step for one in found if one.is_gradient)
    expected = forecast_bytes(plan)
    if gradients > expected * GRADIENTS_SHARE + SCALARS_BYTES:
        most = next(one for one in found if one.is_gradient)
        said.append(
            f"{gradients:,.0f} B made by the backward pass cross pods each step, the gradients"
            f" alone are {expected:,.0f} B; the most: {_sentence(most)}"
        )
    return said


def forecast_bytes(plan: Plan) -> float:
    """What the Forecast sends between pods."""
    lines = (line.collective for line in plan.forecast.time if line.collective)
    return sum(one.bytes_per_step for one in lines if one.link == "dcn")


def _sentence(one: DcnCrossing) -> str:
    places = f", from {', '.join(one.places)}" if one.places else ""
    calls = f"{one.calls_per_step:,.0f} x " if one.calls_per_step > 1 else ""
    return f"{calls}{one.kind} {one.name} of {one.bytes_per_step:,.0f} B {one.dtype}{places}"

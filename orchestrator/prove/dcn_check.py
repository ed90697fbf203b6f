"""Check that only gradients cross pods.

A gradient's reduction is a sum over pods of what a backward pass made. Beyond a few scalars,
nothing that a forward pass makes may cross. All gradients together are the bytes that the Forecast
says; more bytes mean that they cross twice, or that something else crosses with them.
"""

from orchestrator.prove.compiled import DcnSend
from orchestrator.types.plan import Plan
from orchestrator.types.proof import CrossingFault, DcnCrossing, FaultCode

SCALARS_BYTES = 4096  # losses and the like, of one step
GRADIENTS_SHARE = 1.1  # of the Forecast: gradients are rounded up to whole tiles and shards
REDUCE = "all-reduce"


def crossings(sends: tuple[DcnSend, ...]) -> tuple[DcnCrossing, ...]:
    """Everything that is sent to other pods, the most bytes first."""
    ordered = sorted(sends, key=lambda send: (-send.payload_bytes, send.name))
    return tuple(
        DcnCrossing(
            name=send.name,
            kind=send.kind,
            dtype=send.dtype,
            bytes_per_step=send.payload_bytes,
            calls_per_step=send.calls,
            places=send.places,
            is_gradient=send.kind == REDUCE and send.in_backward,
        )
        for send in ordered
    )


def faults(plan: Plan, crossed: tuple[DcnCrossing, ...]) -> tuple[CrossingFault, ...]:
    """What crosses pods and may not. `crossed` has the most bytes first."""
    gradients = [one for one in crossed if one.is_gradient]
    others = [one for one in crossed if not one.is_gradient]
    result = []
    if _bytes(others) > SCALARS_BYTES:
        result += [_fault("not_a_gradient", one, one.bytes_per_step, 0.0) for one in others]
    allowed = forecast_bytes(plan)
    is_over = _bytes(gradients) > allowed * GRADIENTS_SHARE + SCALARS_BYTES
    if is_over and plan.ledger_describes_trainer:
        result.append(_fault("too_many_bytes", gradients[0], _bytes(gradients), allowed))
    return tuple(result)


def _fault(code: FaultCode, crossing: DcnCrossing, size: float, allowed: float) -> CrossingFault:
    return CrossingFault(
        code=code, crossing=crossing, bytes_per_step=size, allowed_bytes_per_step=allowed
    )


def _bytes(crossed: list[DcnCrossing]) -> float:
    return sum(one.bytes_per_step for one in crossed)


def forecast_bytes(plan: Plan) -> float:
    """What the Forecast sends between pods."""
    lines = (line.collective for line in plan.forecast.time if line.collective)
    return sum(one.bytes_per_step for one in lines if one.link == "dcn")

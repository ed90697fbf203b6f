"""Check that pods exchange what the plan says, and nothing else.

A gradient's reduction is a sum over pods of what a backward pass made. Where pods share weights,
these are gathered as they are stored, and their gradients are scattered. Beyond a few scalars,
nothing that a forward pass makes may cross. All gradients together are the bytes that the Forecast
says, and so are all weights; more bytes mean that they cross twice, or that something else crosses
with them.
"""

from orchestrator.prove.compiled import DcnSend
from orchestrator.types.plan import LineKind, Plan
from orchestrator.types.proof import CrossingFault, DcnCrossing, FaultCode, Payload

SCALARS_BYTES = 4096  # losses and the like, of one step
ROUNDED_SHARE = 1.1  # of the Forecast: payloads are rounded up to whole tiles and shards
SUMS = frozenset({"all-reduce", "reduce-scatter"})
GATHER = "all-gather"
# What a payload is in the Forecast's ledger.
LINES: dict[Payload, tuple[LineKind, ...]] = {
    "gradients": ("gradient_reduction", "gradient_scatter"),
    "weights": ("weight_gather",),
}


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
            carries=payload(send),
            axes=send.axes,
        )
        for send in ordered
    )


def payload(send: DcnSend) -> Payload:
    """What a send carries, by its kind and by what it depends on."""
    if send.kind in SUMS and send.in_backward:
        return "gradients"
    return "weights" if send.kind == GATHER and send.is_stored else "other"


def carries_gradients_alone(crossed: tuple[DcnCrossing, ...]) -> bool:
    """Whether nothing but gradients and a few scalars crosses."""
    return _bytes([one for one in crossed if one.carries != "gradients"]) <= SCALARS_BYTES


def faults(plan: Plan, crossed: tuple[DcnCrossing, ...]) -> tuple[CrossingFault, ...]:
    """What crosses pods and may not. `crossed` has the most bytes first."""
    planned = {what: forecast_bytes(plan, what) for what in LINES}
    # What another trainer sends has no Forecast, but gradients may always cross.
    expected = {"gradients", *(what for what, size in planned.items() if size)}
    others = [one for one in crossed if one.carries not in expected]
    result = []
    if _bytes(others) > SCALARS_BYTES:
        result += [_fault("not_planned", one, one.bytes_per_step, 0.0) for one in others]
    for what in sorted(expected):
        sent = [one for one in crossed if one.carries == what]
        is_over = _bytes(sent) > planned[what] * ROUNDED_SHARE + SCALARS_BYTES
        if is_over and plan.ledger_describes_trainer:
            result.append(_fault("too_many_bytes", sent[0], _bytes(sent), planned[what]))
    return tuple(result)


def _fault(code: FaultCode, crossing: DcnCrossing, size: float, allowed: float) -> CrossingFault:
    return CrossingFault(
        code=code, crossing=crossing, bytes_per_step=size, allowed_bytes_per_step=allowed
    )


def _bytes(crossed: list[DcnCrossing]) -> float:
    return sum(one.bytes_per_step for one in crossed)


def forecast_bytes(plan: Plan, what: Payload) -> float:
    """What the Forecast sends between pods, of one payload."""
    lines = (line for line in plan.forecast.time if line.kind in LINES[what])
    sent = (line.collective for line in lines if line.collective)
    return sum(one.bytes_per_step for one in sent if one.link == "dcn")

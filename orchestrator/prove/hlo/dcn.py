"""Find what a compiled program sends to other pods, and the trainer's lines that ask for it.

The data-center network appears only as `send` and `recv` of megascale's host transfers. A send says
what it is part of (an all-reduce, say), but not which line of the trainer it comes from: that is
read from what it depends on.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.prove.hlo.dataflow import Dataflow, Value, is_crop
from orchestrator.prove.hlo.execution_counts import Visit
from orchestrator.prove.hlo.logical_collectives import (
    ALL_TO_ALL,
    GATHER,
    PERMUTE,
    REDUCE,
    SCATTER,
    sent_bytes,
)
from orchestrator.prove.hlo.program import Array, Instruction

MEGASCALE = "xla_megascale_runtime"
KINDS = {"ALL_REDUCE": REDUCE, "ALL_GATHER": GATHER, "REDUCE_SCATTER": SCATTER}
KINDS |= {"ALL_TO_ALL": ALL_TO_ALL, "ONE_TO_ONE": PERMUTE}
BACKWARD = "transpose("  # jax's scope of everything that a backward pass computes
MOST_PLACES = 4


@dataclass(frozen=True, kw_only=True)
class DcnPayload:
    """One send. `in_backward`: it depends on a backward pass, as gradients do."""

    name: str
    kind: str
    dtype: str
    payload_bytes: float
    executed_bytes: float
    times: int
    places: tuple[str, ...]
    in_backward: bool


def dcn_payloads(flow: Dataflow, visit: Visit) -> Iterator[DcnPayload]:
    """The payload of a `send` to other pods; nothing for other instructions."""
    where, send, times = visit
    if send.opcode != "send" or send.quoted("_xla_host_transfer_handler_name") != MEGASCALE:
        return
    given = Value(where.name, send.operands[0])
    pods = len(re.findall(r"\d+", send.quoted("_xla_megascale_target").split("x")[0]))
    kind = KINDS.get(send.quoted("_xla_megascale_transfer_type"), PERMUTE)
    padded = flow.array(given)
    logical = _logical(flow, given)
    shards = pods if kind == GATHER else 1
    yield DcnPayload(
        name=send.quoted("_xla_host_transfer_rendezvous"),
        kind=kind,
        dtype=padded.dtype,
        payload_bytes=sent_bytes(kind, logical.bytes * shards, pods),
        executed_bytes=sent_bytes(kind, padded.bytes * shards, pods),
        times=times,
        places=tuple(_places(flow, given)),
        in_backward=_is_in_backward(flow, given),
    )


def _logical(flow: Dataflow, sent: Value) -> Array:
    """The array before its size was rounded up to whole tiles."""
    at: Value | None = sent
    while at is not None:
        sent = at
        cropped = is_crop(flow.instruction(at))
        at = next(iter(flow.sources(at)), None)
        if cropped and at is not None:
            return flow.array(at)
    return flow.array(sent)


def _places(flow: Dataflow, sent: Value) -> list[str]:
    """The trainer's lines nearest to a value, back through everything that it depends on."""
    lines: list[str] = []
    for instruction in flow.ancestors(sent, lambda at: bool(_line(flow, at))):
        line = _line(flow, instruction)
        if line and line not in lines:
            lines.append(line)
        if len(lines) == MOST_PLACES:
            break
    return lines


def _line(flow: Dataflow, instruction: Instruction) -> str:
    return flow.program.sources.trainer_line(instruction.frame)


def _is_in_backward(flow: Dataflow, sent: Value) -> bool:
    return any(
        BACKWARD in i.op_name for i in flow.ancestors(sent, lambda at: BACKWARD in at.op_name)
    )

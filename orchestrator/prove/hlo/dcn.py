"""Find what a compiled program sends to other pods, and the trainer's lines that ask for it.

The data-center network appears only as `send` and `recv` of megascale's host transfers. A send says
what it is part of (an all-reduce, say), but not which line of the trainer it comes from: that is
read from what it depends on.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.prove.hlo.dataflow import RENDEZVOUS, Dataflow, Value
from orchestrator.prove.hlo.execution_counts import Visit
from orchestrator.prove.hlo.logical_collectives import (
    ALL_TO_ALL,
    GATHER,
    PERMUTE,
    REDUCE,
    SCATTER,
    sent_bytes,
)
from orchestrator.prove.hlo.program import Array, Instruction, numbers
from orchestrator.prove.hlo.replica_groups import DeviceMesh

MEGASCALE = "xla_megascale_runtime"
KINDS = {"ALL_REDUCE": REDUCE, "ALL_GATHER": GATHER, "REDUCE_SCATTER": SCATTER}
KINDS |= {"ALL_TO_ALL": ALL_TO_ALL, "ONE_TO_ONE": PERMUTE}
BACKWARD = "transpose("  # jax's scope of everything that a backward pass computes
# All slices by their numbers, times the devices of each; or groups of single devices.
TARGET = re.compile(r'_xla_megascale_target=(?:"\{([\d,]+)\}x|\{\{([\d,]+)\})')
OF_A_SLICE = 100_000  # a single device is its slice's number times this, plus its own
MOST_PLACES = 4
# Operations that mix weights with tokens. Weights that are gathered depend on none of them.
MIXES = frozenset({"dot", "convolution", "gather", "scatter", "exponential"})


@dataclass(frozen=True, kw_only=True)
class DcnPayload:
    """One send. `in_backward`: it depends on a backward pass, as gradients do. `is_stored`: on no
    computation with tokens, as weights do.
    """

    name: str
    kind: str
    dtype: str
    payload_bytes: float
    executed_bytes: float
    times: int
    places: tuple[str, ...]
    in_backward: bool
    is_stored: bool
    axes: tuple[str, ...]


def is_to_other_slices(send: Instruction) -> bool:
    is_send = send.opcode == "send"
    return is_send and send.quoted("_xla_host_transfer_handler_name") == MEGASCALE


def dcn_payloads(flow: Dataflow, slices: DeviceMesh, visit: Visit) -> Iterator[DcnPayload]:
    """The payload of a `send` to other pods; nothing for other instructions."""
    where, send, times = visit
    if not is_to_other_slices(send):
        return
    given = Value(where.name, send.operands[0])
    kind, members = transfer_of(send)
    pods = len(members)
    padded = flow.array(given)
    logical = _logical(flow, given)
    shards = pods if kind == GATHER else 1
    yield DcnPayload(
        name=send.quoted(RENDEZVOUS),
        kind=kind,
        dtype=padded.dtype,
        payload_bytes=sent_bytes(kind, logical.bytes * shards, pods),
        executed_bytes=sent_bytes(kind, padded.bytes * shards, pods),
        times=times,
        places=tuple(_places(flow, given)),
        in_backward=_is_in_backward(flow, given),
        is_stored=_is_stored(flow, given),
        axes=slices.axes_of(members),
    )


def transfer_of(send: Instruction) -> tuple[str, tuple[int, ...]]:
    """What a send is part of, and the slices that exchange it."""
    return KINDS.get(send.quoted("_xla_megascale_transfer_type"), PERMUTE), _members(send)


def _members(send: Instruction) -> tuple[int, ...]:
    """The slices of the first group that exchange something; the compiler counts them from one."""
    target = TARGET.search(send.rest)
    if target is None:
        return ()
    every, group = target.groups()
    if every:
        return tuple(number - 1 for number in numbers(every))
    return tuple(number // OF_A_SLICE - 1 for number in numbers(group))


def _logical(flow: Dataflow, sent: Value) -> Array:
    """The array before it was put into a larger one, of whole tiles: the smallest that it was."""
    arrays, at = [flow.array(sent)], sent
    while sources := flow.sources(at):
        at = sources[0]
        arrays.append(flow.array(at))
    return min(arrays, key=lambda one: one.bytes)


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


def _is_stored(flow: Dataflow, sent: Value) -> bool:
    """Whether it comes from the program's arguments, without a computation that mixes them."""
    ancestors = flow.ancestors(sent, lambda at: at.opcode in MIXES)
    return all(one.opcode not in MIXES for one in ancestors)


def _is_in_backward(flow: Dataflow, sent: Value) -> bool:
    return any(
        BACKWARD in i.op_name for i in flow.ancestors(sent, lambda at: BACKWARD in at.op_name)
    )

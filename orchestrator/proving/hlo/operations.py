"""The operations of a compiled program by name, with what a trace needs to know of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.proving.compiled import DcnSend
from orchestrator.proving.hlo import collectives, flops
from orchestrator.proving.hlo import transfers as moves
from orchestrator.proving.hlo.collectives import DeviceMesh
from orchestrator.proving.hlo.dataflow import Dataflow
from orchestrator.proving.hlo.origins import Kind, Lines, Origins, only_moves
from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction
from orchestrator.values.program import AnyPlan
from orchestrator.values.proof import OTHER_LINE

_CONTAINERS = frozenset({"while", "call", "conditional"})
_DONE = "-done"
_PRODUCT_CALLS = ("matmul", "gemm")  # in the names of a library's kernels of products


@dataclass(frozen=True)
class Operation:
    """One operation. `kind` is `sent` of a transfer, or a wait for its end; None of what only
    contains others. `transfer` is what is sent, and over which axes. `once`: it runs once a step.
    """

    kind: Kind | str | None
    ledger: str
    lines: Lines
    transfer: tuple[str, tuple[str, ...]] = ("", ())
    once: bool = False


def program_mesh(plan: AnyPlan, places: Iterable[int], *, whole: bool) -> DeviceMesh:
    """The mesh of one program: of a slice of TPUs, or of all devices of others. `places` has the
    place of each of the program's partitions in the plan's mesh; none where they are in order.
    """
    count = plan.devices if whole else plan.devices_per_slice
    found = tuple(place % count for place in [*places][:count])
    axes = {axis.name: axis.size for axis in plan.axes if whole or axis.link == "ici"}
    between = tuple(axis.name for axis in plan.axes if whole and axis.link == "dcn")
    return DeviceMesh(axes, None if found == tuple(range(len(found))) else found, between)


def planned_exchanges(plan: AnyPlan) -> dict[tuple[tuple[str, ...], str], str]:
    """The ledger's line for the axes and the kind of a collective, if only one line has them."""
    alike = defaultdict[tuple[tuple[str, ...], str], set[str]](set)
    for line in plan.forecast.time if plan.ledger_describes_trainer else ():
        if sent := line.collective:
            axes = tuple(axis for axis in sent.axes if plan.mesh[axis] > 1)
            alike[axes, sent.kind].add(line.kind)
    return {key: kinds.pop() for key, kinds in alike.items() if len(kinds) == 1}


def operations_of(
    program: HloProgram, plan: AnyPlan, places: Iterable[int], *, whole: bool
) -> dict[str, Operation]:
    """Return every operation that a device runs by itself, by its name."""
    mesh, planned = program_mesh(plan, places, whole=whole), planned_exchanges(plan)
    between = DeviceMesh({axis.name: axis.size for axis in plan.axes if axis.link == "dcn"})
    flow, found = Dataflow(program), dict[str, Operation]()
    for where in _run(program, program.entry):
        exchanges = {  # of a send, by the name that it shares with its receive
            sent.name if isinstance(sent, DcnSend) else op.name: planned.get(
                (sent.axes, sent.kind), OTHER_LINE
            )
            for op in where.instructions.values()
            for sent in (
                *collectives.logical_payloads(flow, mesh, (where, op, 1)),
                *collectives.dcn_payloads(flow, between, (where, op, 1)),
            )
        }
        origins = Origins(program, where, exchanges)
        for op in where.instructions.values():
            found[op.name] = _operation(program, mesh, between, origins, op)
    return found


def _run(program: HloProgram, where: Computation) -> Iterator[Computation]:
    yield where
    for op in where.instructions.values():
        if op.opcode in _CONTAINERS:
            for called in program.called(op):
                yield from _run(program, called)


def _operation(
    program: HloProgram, mesh: DeviceMesh, between: DeviceMesh, origins: Origins, op: Instruction
) -> Operation:
    once = origins.where is program.entry
    if op.opcode in _CONTAINERS:
        return Operation(None, OTHER_LINE, ())
    started = op
    while started.opcode.endswith(_DONE) and started.operands:  # a wait is for what it began with
        started = origins.where.operand(started, 0)
    inside = moves.inside(program, started) if started.called else []
    parts = [(origins.where, started), *inside]
    sent = [part for _, part in parts if moves.is_collective(part)]
    if sent:
        kind = sent[0].opcode.removesuffix(moves.START)
        if kind == collectives.PERMUTE:
            members = collectives.chain(collectives.pairs_text(sent[0]))[0]
        else:
            members = collectives.first_group(sent[0], program.partitions)
        ledger = origins.said_ledger(sent[0]) or OTHER_LINE
        transfer = kind, mesh.axes_of(members)
        return Operation("sent", ledger, origins.lines(started), transfer, once)
    lines, ledger = origins.lines(started), origins.ledger(started)
    opcode = started.opcode.removesuffix(moves.START)
    if started is not op or opcode != started.opcode or opcode in {"send", "recv"}:
        to_host = "S(5)" in started.shape
        ledger = "offload" if to_host else ledger
        joined = tuple(name for name, size in between.axes.items() if size > 1)
        axes = joined if opcode in {"send", "recv"} else ()
        return Operation("sent", ledger, lines, (f"{opcode}{' to host' * to_host}", axes), once)
    products = [part for _, part in parts if flops.is_product(part)]
    if products:
        said = origins.said_ledger(products[0])
        lines = origins.said_lines(products[0]) or lines
        return Operation("product", said or ledger, lines, once=once)
    target = op.quoted("custom_call_target").lower()
    if any(word in target for word in _PRODUCT_CALLS):
        return Operation("product", ledger, lines, once=once)
    if flops.is_kernel(op):
        return Operation("kernel", ledger, lines, once=once)
    moved = only_moves({part.opcode for _, part in parts})
    return Operation("copy" if moved else "other", ledger, lines, once=once)

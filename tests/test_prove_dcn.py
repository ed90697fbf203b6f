"""What crosses pods, which lines ask for it, and whether it may."""

from dataclasses import replace

import pytest

from orchestrator.prove.compiled import DcnSend
from orchestrator.prove.dcn_check import crossings, faults, forecast_bytes
from orchestrator.prove.hlo.dataflow import Dataflow
from orchestrator.prove.hlo.dcn import DcnPayload, dcn_payloads
from orchestrator.prove.hlo.execution_counts import visits
from orchestrator.prove.hlo.program import program_of
from orchestrator.types.plan import Collective, LedgerLine, Plan
from tests.trainer_plans import plan_of

HEAD = """HloModule m, num_partitions=4

FileNames
1 "/here/trainers/toy/net.py"
2 "/there/jax/numpy.py"

FunctionNames
1 "reduced"
2 "block.<locals>.inner"
3 "where"

FileLocations
1 {file_name_id=1 function_name_id=1 line=62 end_line=62 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=9 end_line=9 column=1 end_column=2}
3 {file_name_id=2 function_name_id=3 line=1 end_line=1 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=3 parent_frame_id=3}

"""


def sent(operand: str, shape: str, kind: str = "ALL_REDUCE") -> str:
    """The instruction that sends an operand to four pods."""
    return (
        f"%send.1 = ({shape}, u32[], token[]) send(%{operand}, %token), channel_id=2,"
        ' is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="'
        f'xla_megascale_runtime",_xla_host_transfer_rendezvous="psum.7_0",'
        f'_xla_megascale_target="{{1,2,3,4}}x{{0:3}}",_xla_megascale_transfer_type="{kind}"}}'
    )


def program_that(*lines: str) -> list[DcnPayload]:
    """What a program of these lines sends to other pods."""
    body = "\n".join(f"  {line}" for line in (*lines, "ROOT %end = f32[] constant(0)"))
    read = program_of(f"{HEAD}ENTRY %main () -> f32[] {{\n{body}\n}}\n")
    return [one for visit in visits(read) for one in dcn_payloads(Dataflow(read), visit)]


DOT = 'metadata={{op_name="jit(step)/{}/dot_general" stack_frame_id={}}}'


def test_a_gradient_is_followed_to_the_line_that_reduces_it() -> None:
    """Through what has no name: tiles, a concatenation, a reduction inside the slice."""
    [one] = program_that(
        "%p = bf16[64,8] parameter(0)",
        f"%g = bf16[1000] negate(%p), {DOT.format('transpose(jvp())/while/body', 3)}",
        "%r = bf16[1000] all-reduce(%g), replica_groups={{0,1},{2,3}}, to_apply=%add",
        "%both = bf16[2000] concatenate(%r, %r), dimensions={0}",
        '%crop = bf16[2048] custom-call(%both), custom_call_target="ZeroCrop"',
        "%tiles = bf16[2,8,128] bitcast(%crop)",
        "%token = token[] after-all()",
        sent("tiles", "bf16[2,8,128]"),
    )
    assert (one.name, one.kind, one.dtype, one.times) == ("psum.7_0", "all-reduce", "bf16", 1)
    assert one.payload_bytes == 2 * 2000 * 2 * 3 / 4
    assert one.executed_bytes == 2 * 2048 * 2 * 3 / 4
    assert one.places == ("trainers/toy/net.py:9 (block.inner)",)
    assert one.in_backward


def test_what_the_forward_pass_makes_is_no_gradient() -> None:
    """An activation, gathered over pods: its volume is that of all pods."""
    [one] = program_that(
        "%p = bf16[64,8] parameter(0)",
        f"%x = bf16[1000] negate(%p), {DOT.format('jvp()/while/body', 1)}",
        "%token = token[] after-all()",
        sent("x", "bf16[1000]", "ALL_GATHER"),
    )
    assert (one.kind, one.in_backward) == ("all-gather", False)
    assert one.payload_bytes == 4 * 2000 * 3 / 4
    assert one.places == ("trainers/toy/net.py:62 (reduced)",)


def test_a_send_to_the_host_crosses_nothing() -> None:
    """Offloading sends too, by another handler."""
    assert not program_that(
        "%x = bf16[1000] parameter(0)",
        "%token = token[] after-all()",
        "%s = (bf16[1000], u32[], token[]) send(%x, %token), channel_id=2, is_host_transfer=true",
    )


# --- the verdict

GRADIENTS = 3_000_000.0


def plan() -> Plan:
    """A plan whose Forecast sends that many bytes between pods."""
    made = plan_of(pods=4)
    moved = Collective(
        kind="all-reduce", axes=("pods",), link="dcn", dtype="bf16", bytes_per_step=GRADIENTS,
        calls_per_step=1,
    )  # fmt: skip
    line = LedgerLine(
        kind="gradient_reduction",
        name="pods",
        value=1,
        unit="s",
        formula="",
        inputs={},
        collective=moved,
    )
    return replace(made, forecast=replace(made.forecast, time=(line,)))


def sending(
    size: float, *, kind: str = "all-reduce", in_backward: bool = True, name: str = "psum.7_0"
) -> DcnSend:
    return DcnSend(
        name=name, kind=kind, dtype="bf16", payload_bytes=size, padding_bytes=0, calls=3,
        places=("trainers/toy/net.py:62 (reduced)",), in_backward=in_backward,
    )  # fmt: skip


def fault_codes(*sends: DcnSend) -> list[tuple[str, str]]:
    found = faults(plan(), crossings(sends))
    return [(fault.code, fault.crossing.name) for fault in found]


def test_gradients_and_a_few_scalars_may_cross() -> None:
    """All gradients once, and 4 KiB of anything."""
    assert forecast_bytes(plan()) == GRADIENTS
    assert fault_codes(sending(GRADIENTS * 1.01), sending(4096, in_backward=False)) == []


@pytest.mark.parametrize(
    "other",
    [
        sending(4097, in_backward=False, name="all-gather.9_0"),
        sending(4097, kind="all-gather", name="all-gather.9_0"),
    ],
)
def test_anything_else_is_a_fault(other: DcnSend) -> None:
    """What no backward pass made, and what is not summed."""
    assert fault_codes(sending(GRADIENTS), other) == [("not_a_gradient", "all-gather.9_0")]


def test_gradients_that_cross_twice_are_seen_by_their_bytes() -> None:
    """As a reduction inside the loop over microbatches would."""
    [fault] = faults(plan(), crossings((sending(2 * GRADIENTS),)))
    assert (fault.code, fault.crossing.name) == ("too_many_bytes", "psum.7_0")
    assert (fault.bytes_per_step, fault.allowed_bytes_per_step) == (2 * GRADIENTS, GRADIENTS)

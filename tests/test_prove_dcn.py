"""What crosses pods, which lines ask for it, and whether it may."""

from dataclasses import replace

import pytest

from orchestrator.planning.planner import make_plan
from orchestrator.proving.compare import (
    _crossings,
    _faults,
    proof_of,
)
from orchestrator.proving.compiled import DcnSend
from orchestrator.proving.hlo.collectives import DeviceMesh, dcn_payloads
from orchestrator.proving.hlo.dataflow import Dataflow, visits
from orchestrator.proving.hlo.program import program_of
from orchestrator.values.plan import Collective, CollectiveKind, LedgerLine, LineKind, Plan
from tests import proofs
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


ALL = '"{1,2,3,4}x{0:3}"'


def sent(operand: str, shape: str, kind: str = "ALL_REDUCE", target: str = ALL) -> str:
    """The instruction that sends an operand to other pods, to all four or to the target."""
    return (
        f"%send.1 = ({shape}, u32[], token[]) send(%{operand}, %token), channel_id=2,"
        ' is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="'
        f'xla_megascale_runtime",_xla_host_transfer_rendezvous="psum.7_0",'
        f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"}}'
    )


def program_that(*lines: str, slices: DeviceMesh | None = None, before: str = "") -> list[DcnSend]:
    """What a program of these lines sends to other pods; `before` are computations they call."""
    body = "\n".join(f"  {line}" for line in (*lines, "ROOT %end = f32[] constant(0)"))
    read = program_of(f"{HEAD}{before}\nENTRY %main () -> f32[] {{\n{body}\n}}\n")
    return [
        dcn_payload
        for visit in visits(read)
        for dcn_payload in dcn_payloads(Dataflow(read), slices or SLICES, visit)
    ]


SLICES = DeviceMesh({"pods": 4, "fsdp_dcn": 1})
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
    assert (one.name, one.kind, one.dtype, one.calls) == ("psum.7_0", "all-reduce", "bf16", 1)
    assert one.payload_bytes == 2 * 2000 * 2 * 3 / 4
    assert one.padding_bytes == 2 * 48 * 2 * 3 / 4
    assert one.places == ("trainers/toy/net.py:9 (block.inner)",)
    assert one.in_backward


def test_a_part_that_a_sparse_core_scatters_is_sent_as_a_part() -> None:
    """The call that begins the scatter has the whole gradient, the call that ends it one part."""
    scattered = """%scattered (q: bf16[4,1024]) -> bf16[1,1024] {
  %q = bf16[4,1024] parameter(0)
  ROOT %r = bf16[1,1024] reduce-scatter(%q), replica_groups={{0,1,2,3}}, dimensions={0}
}, execution_thread="sparsecore"
"""
    [one] = program_that(
        "%p = bf16[64,8] parameter(0)",
        f"%g = bf16[4,1024] negate(%p), {DOT.format('transpose(jvp())/while/body', 3)}",
        "%begun = ((bf16[4,1024]), bf16[1,1024]) call-start(%g), to_apply=%scattered",
        "%part = bf16[1,1024] call-done(%begun)",
        "%tiles = bf16[1,8,128] bitcast(%part)",
        "%token = token[] after-all()",
        sent("tiles", "bf16[1,8,128]"),
        before=scattered,
    )
    assert (one.payload_bytes, one.padding_bytes) == (2 * 1024 * 2 * 3 / 4, 0)
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


def test_a_gradient_is_followed_through_another_exchange() -> None:
    """Pods scatter it first, then others sum the part that they received."""
    first = sent("g", "bf16[1000]", "REDUCE_SCATTER").replace("psum.7_0", "scatter.3_0")
    received = first.replace("%send.1", "%recv.1").replace("send(%g, ", "recv(")
    scatter, psum = program_that(
        "%p = bf16[64,8] parameter(0)",
        f"%g = bf16[1000] negate(%p), {DOT.format('transpose(jvp())/while/body', 1)}",
        "%token = token[] after-all()",
        first,
        received,
        "%done = (bf16[250], token[]) recv-done(%recv.1), channel_id=3",
        "%part = bf16[250] get-tuple-element(%done), index=0",
        sent("part", "bf16[250]").replace("%send.1", "%send.2"),
    )
    assert (scatter.kind, psum.kind) == ("reduce-scatter", "all-reduce")
    assert scatter.in_backward
    assert psum.in_backward


@pytest.mark.parametrize(
    ("target", "axes", "ways"),
    [
        (ALL, ("pods", "fsdp_dcn"), 4),
        ("{{100000,300000},{100001,300001},{200000,400000},{200001,400001}}", ("pods",), 2),
        ("{{100000,200000},{100001,200001},{300000,400000},{300001,400001}}", ("fsdp_dcn",), 2),
    ],
)
def test_a_send_names_the_axes_that_it_joins(target: str, axes: tuple[str, ...], ways: int) -> None:
    """Four pods, of which two share weights: all of them, every other one, or neighbours."""
    lines = (
        "%p = bf16[1000] parameter(0)",
        "%token = token[] after-all()",
        sent("p", "bf16[1000]", "REDUCE_SCATTER", target),
    )
    [one] = program_that(*lines, slices=DeviceMesh({"pods": 2, "fsdp_dcn": 2}))
    assert one.axes == axes
    assert one.payload_bytes == 2000 * (ways - 1) / ways
    assert one.is_stored


def test_a_send_to_the_host_crosses_nothing() -> None:
    """Offloading sends too, by another handler."""
    assert not program_that(
        "%x = bf16[1000] parameter(0)",
        "%token = token[] after-all()",
        "%s = (bf16[1000], u32[], token[]) send(%x, %token), channel_id=2, is_host_transfer=true",
    )


# --- the verdict

GRADIENTS = 3_000_000.0


def line(kind: LineKind, collective: CollectiveKind, size: float) -> LedgerLine:
    """A line of a ledger that sends that many bytes between pods."""
    moved = Collective(
        kind=collective, axes=("pods",), link="dcn", dtype="bf16", bytes_per_step=size,
        calls_per_step=1,
    )  # fmt: skip
    return LedgerLine(
        kind=kind, name="", value=1, unit="s", formula="", inputs={}, collective=moved
    )


def plan(*lines: LedgerLine) -> Plan:
    """A plan whose Forecast sends those gradients between pods, and what else is given."""
    made = plan_of(pods=4)
    reduction = line("gradient_reduction", "all-reduce", GRADIENTS)
    return replace(made, forecast=replace(made.forecast, time=(reduction, *lines)))


WEIGHTS = 2_000_000.0
SHARED = (
    line("weight_gather", "all-gather", WEIGHTS),
    line("gradient_scatter", "reduce-scatter", WEIGHTS / 2),
)


def sending(
    size: float,
    *,
    kind: str = "all-reduce",
    in_backward: bool = True,
    is_stored: bool = False,
    name: str = "psum.7_0",
    said: str = "",
) -> DcnSend:
    return DcnSend(
        name=name, kind=kind, dtype="bf16", payload_bytes=size, padding_bytes=0, calls=3,
        places=("trainers/toy/net.py:62 (reduced)",), in_backward=in_backward,
        is_stored=is_stored, axes=("pods",), line=said,
    )  # fmt: skip


def gathering(size: float, is_stored: bool = True) -> DcnSend:
    return sending(size, kind="all-gather", is_stored=is_stored, in_backward=False, name="gather")


def fault_codes(*sends: DcnSend, planned: Plan | None = None) -> list[tuple[str, str]]:
    found = _faults(planned or plan(), _crossings(sends))
    return [(fault.code, fault.crossing.name) for fault in found]


def test_gradients_and_a_few_scalars_may_cross() -> None:
    """All gradients once, and 4 KiB of anything."""
    assert fault_codes(sending(GRADIENTS * 1.01), sending(4096, in_backward=False)) == []


@pytest.mark.parametrize(
    "other",
    [
        sending(4097, in_backward=False, name="all-gather.9_0"),
        sending(4097, kind="all-gather", name="all-gather.9_0"),
        sending(4097, kind="all-gather", name="all-gather.9_0", is_stored=True),
    ],
)
def test_anything_else_is_a_fault(other: DcnSend) -> None:
    """What no backward pass made, and what is not summed."""
    assert fault_codes(sending(GRADIENTS), other) == [("not_planned", "all-gather.9_0")]


def test_gradients_that_cross_twice_are_seen_by_their_bytes() -> None:
    """As a reduction inside the loop over microbatches would."""
    [fault] = _faults(plan(), _crossings((sending(2 * GRADIENTS),)))
    assert (fault.code, fault.crossing.name) == ("too_many_bytes", "psum.7_0")
    assert (fault.bytes_per_step, fault.allowed_bytes_per_step) == (2 * GRADIENTS, GRADIENTS)


def test_weights_cross_where_pods_share_them() -> None:
    """What the plan gathers and scatters between pods is no fault; it is more than gradients."""
    sends = (
        sending(GRADIENTS),
        sending(WEIGHTS / 2, kind="reduce-scatter", name="scatter"),
        gathering(WEIGHTS),
    )
    assert fault_codes(*sends, planned=plan(*SHARED)) == []
    assert [crossing.carries for crossing in _crossings(sends)] == [
        "gradients",
        "weights",
        "gradients",
    ]
    example = make_plan(proofs.spec())
    compiled = proofs.as_forecast(example)
    for crossing, only_gradients in ((sends, False), (sends[:2], True)):
        summary = replace(compiled.summary, sends=crossing)
        found = proof_of(example, replace(compiled, summary=summary))
        assert found.only_gradients_cross_pods is only_gradients
    assert fault_codes(*sends) == [("not_planned", "gather"), ("too_many_bytes", "psum.7_0")]


def test_activations_cross_where_stages_lie_over_pods() -> None:
    """As many bytes as the plan says, by the name that the trainer gives them."""
    planned = plan(line("stage_exchange", "collective-permute", WEIGHTS))

    def stages(size: float) -> DcnSend:
        return sending(size, kind="collective-permute", name="send", said="stage_exchange")

    assert fault_codes(sending(GRADIENTS), stages(WEIGHTS), planned=planned) == []
    assert fault_codes(stages(2 * WEIGHTS), planned=planned) == [("too_many_bytes", "send")]
    assert fault_codes(stages(WEIGHTS)) == [("not_planned", "send")]


def test_an_activation_is_no_weight_where_pods_share_weights() -> None:
    """A gather of something that a forward pass made, and weights that are gathered twice."""
    twice = fault_codes(sending(GRADIENTS), gathering(2 * WEIGHTS), planned=plan(*SHARED))
    assert twice == [("too_many_bytes", "gather")]
    activation = gathering(WEIGHTS, is_stored=False)
    codes = fault_codes(sending(GRADIENTS), activation, planned=plan(*SHARED))
    assert codes == [("not_planned", "gather")]


def test_stages_in_several_slices_exchange_activations() -> None:
    """Programs for TPUs name no line of what they send; those for GPUs do."""
    sent = DcnSend(
        name="ppermute", kind="collective-permute", dtype="bf16", payload_bytes=1.0,
        padding_bytes=0.0, calls=1.0, places=(), in_backward=False, is_stored=False,
        axes=("pipeline_dcn",),
    )  # fmt: skip
    [stages, pods] = _crossings([sent, replace(sent, axes=("pods",))])
    assert (stages.carries, pods.carries) == ("activations", "other")

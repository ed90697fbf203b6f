"""Collectives as the trainer means them, and the axes that they join."""

import pytest

from orchestrator.proving.compiled import CompiledCollective, DcnSend
from orchestrator.proving.hlo.collectives import (
    DeviceMesh,
    chain,
    first_group,
    logical_payloads,
    pairs_text,
)
from orchestrator.proving.hlo.dataflow import Dataflow, visits
from orchestrator.proving.hlo.program import HloProgram, Instruction, program_of
from orchestrator.values.plan import sent_bytes

SHARED = "sequence_dcn", "fsdp_dcn"
MESH = DeviceMesh({"data": 2, "fsdp": 2, "sequence": 1, "tensor": 2})
TENSOR, FSDP = "{{0,1},{2,3},{4,5},{6,7}}", "{{0,2},{1,3},{4,6},{5,7}}"
ADD = """%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%x, %y)
}
"""


def program(*entry: str, before: str = "") -> HloProgram:
    """A program for eight devices with that entry computation, after other computations."""
    body = "\n".join(f"  {line}" for line in entry)
    head = f"HloModule m, num_partitions=8\n\n{ADD}\n{before}\n"
    return program_of(f"{head}ENTRY %main () -> f32[] {{\n{body}\n}}\n")


def all_moved(read: HloProgram) -> list[CompiledCollective]:
    """Everything that a program exchanges, in the order in which it stands."""
    flow = Dataflow(read)
    moved = [
        logical_payload
        for visit in visits(read)
        for logical_payload in logical_payloads(flow, MESH, visit)
    ]
    return [collective for collective in moved if isinstance(collective, CompiledCollective)]


# --- payload and groups


@pytest.mark.parametrize(
    ("kind", "bytes_"),
    [("all-gather", 75), ("reduce-scatter", 75), ("all-reduce", 150), ("collective-permute", 100)],
)
def test_payload_is_what_one_device_sends(kind: str, bytes_: float) -> None:
    """V (n - 1) / n, an all-reduce twice that, a permute all of it."""
    assert sent_bytes(kind, 100, 4) == bytes_


def instruction(groups: str) -> Instruction:
    read = program(
        "%p = bf16[4] parameter(0)",
        f"ROOT %g = bf16[8] all-gather(%p), replica_groups={groups}, dimensions={{0}}",
    )
    return read.entry.root


@pytest.mark.parametrize(
    ("groups", "members", "axes"),
    [
        (TENSOR, (0, 1), ("tensor",)),
        (FSDP, (0, 2), ("fsdp",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", (0, 4), ("data",)),
        ("{{0,1,2,3},{4,5,6,7}}", (0, 1, 2, 3), ("fsdp", "tensor")),
        ("{{0,3},{1,2},{4,7},{5,6}}", (0, 3), ("fsdp", "tensor")),
        ("[4,2]<=[8]", (0, 1), ("tensor",)),
        ("[4,2]<=[2,4]T(1,0)", (0, 4), ("data",)),
        ("[2,4]<=[2,2,2]T(1,0,2)", (0, 1, 4, 5), ("data", "tensor")),
        ("{}", tuple(range(8)), ("data", "fsdp", "tensor")),
        ("mesh['a'=4,'b'=1,'c'=2] {'c'}", (0, 1), ("tensor",)),
        ("mesh['a'=4,'b'=2] {'a','b'}", tuple(range(8)), ("data", "fsdp", "tensor")),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", (0, 1), ("tensor",)),
        ("mesh['a'=8] {'a':(2)2}", (0, 2), ("fsdp",)),
        ("mesh['a'=2,'b'=4] {'b':(2)2,'a'}", (0, 4, 1, 5), ("data", "tensor")),
    ],
)
def test_groups_name_the_axes_their_devices_differ_in(
    groups: str, members: tuple[int, ...], axes: tuple[str, ...]
) -> None:
    """Groups as lists, transposed counts and axes of a mesh; no list means everyone."""
    found = first_group(instruction(groups), 8)
    assert found == members
    assert MESH.axes_of(found) == axes


def test_groups_in_a_form_that_nobody_knows_are_no_whole_slice() -> None:
    """They would be priced as an exchange of all devices."""
    with pytest.raises(ValueError, match="groups of another form"):
        first_group(instruction("net['a'=8] {'a'}"), 8)


def test_a_mesh_in_another_order_is_looked_up() -> None:
    """Partition i stands where `places` says."""
    assert DeviceMesh(MESH.axes, (0, 2, 1, 3, 4, 6, 5, 7)).axes_of((0, 1)) == ("fsdp",)


def permute(pairs: str) -> Instruction:
    read = program(
        "%p = bf16[4] parameter(0)",
        f"ROOT %c = bf16[4] collective-permute(%p), source_target_pairs={pairs}",
    )
    return read.entry.root


def test_a_ring_is_told_from_a_line() -> None:
    """In a ring everyone who sends receives; the chain starts at the least partition."""
    ring, line = permute("{{1,0},{0,1},{2,3},{3,2}}"), permute("{{2,4},{0,2},{4,6}}")
    assert chain(pairs_text(ring)) == ((0, 1), True)
    assert chain(pairs_text(line)) == ((0, 2, 4, 6), False)


# --- what was meant


def test_collectives_are_read_as_they_stand() -> None:
    """A gather's volume is the whole, a scatter's too; each operand of a tuple is one."""
    gather, scatter, first, second = all_moved(
        program(
            "%p = bf16[64,8]{1,0:T(8,128)(2,1)} parameter(0)",
            f"%g = bf16[128,8] all-gather(%p), replica_groups={TENSOR}, dimensions={{0}}",
            f"%s = bf16[64,8] reduce-scatter(%g), replica_groups={FSDP}, to_apply=%add",
            "%q = f32[16] parameter(1)",
            "%r = (bf16[64,8], f32[16]) all-reduce(%s, %q), replica_groups=[1,8]<=[8],"
            " to_apply=%add",
            "%a = bf16[64,8] get-tuple-element(%r), index=0",
            "ROOT %t = (bf16[64,8]) tuple(%a)",
        )
    )
    assert (gather.kind, gather.axes, gather.payload_bytes) == ("all-gather", ("tensor",), 1024)
    assert (scatter.kind, scatter.axes, scatter.payload_bytes) == (
        "reduce-scatter", ("fsdp",), 1024,
    )  # fmt: skip
    assert [collective.kind for collective in (first, second)] == ["all-reduce"] * 2
    assert (first.payload_bytes, second.payload_bytes) == (2 * 1024 * 7 / 8, 2 * 64 * 7 / 8)


SLICED = """%keep (whole: bf16[128,8], at: s32[]) -> bf16[64,8] {
  %whole = bf16[128,8] parameter(0)
  %at = s32[] parameter(1)
  %wide = f32[128,8] convert(%whole)
  %zero = s32[] constant(0)
  ROOT %mine = f32[64,8] dynamic-slice(%wide, %at, %zero), dynamic_slice_sizes={64,8}
}
"""


def test_an_all_reduce_of_which_everyone_keeps_a_slice_is_a_reduce_scatter() -> None:
    """Through casts, fusions and copies; it takes twice the bytes that were meant."""
    [one] = all_moved(
        program(
            "%p = bf16[128,8] parameter(0)",
            "%i = s32[] parameter(1)",
            f"%r = bf16[128,8] all-reduce(%p), replica_groups={TENSOR}, to_apply=%add",
            "%c = bf16[128,8] copy(%r)",
            "ROOT %s = f32[64,8] fusion(%c, %i), kind=kLoop, calls=%keep",
            before=SLICED,
        )
    )
    assert (one.kind, one.executed_kind) == ("reduce-scatter", "all-reduce")
    assert (one.payload_bytes, one.executed_bytes) == (1024, 2048)


def test_an_all_reduce_on_a_sparse_core_is_read_where_it_is_done() -> None:
    """It is the root of a computation that a call starts, and a slice of what the call ends with
    is kept.
    """
    inside = f"""%inside (q: bf16[128,8]) -> bf16[128,8] {{
  %q = bf16[128,8] parameter(0)
  ROOT %r = bf16[128,8] all-reduce(%q), replica_groups={TENSOR}, to_apply=%add
}}, execution_thread="sparsecore"
"""
    [one] = all_moved(
        program(
            "%p = bf16[128,8] parameter(0)",
            "%i = s32[] parameter(1)",
            "%b = ((bf16[128,8]), bf16[128,8]) call-start(%p), to_apply=%inside",
            "%e = bf16[128,8] call-done(%b)",
            "ROOT %s = f32[64,8] fusion(%e, %i), kind=kLoop, calls=%keep",
            before=SLICED + inside,
        )
    )
    assert (one.kind, one.executed_kind, one.payload_bytes) == (
        "reduce-scatter", "all-reduce", 1024,
    )  # fmt: skip


def test_an_all_reduce_that_anyone_reads_whole_is_one() -> None:
    """One reader of a slice and one of everything: nothing was scattered."""
    [one] = all_moved(
        program(
            "%p = bf16[128,8] parameter(0)",
            "%i = s32[] parameter(1)",
            f"%r = bf16[128,8] all-reduce(%p), replica_groups={TENSOR}, to_apply=%add",
            "%n = bf16[128,8] negate(%r)",
            "ROOT %s = f32[64,8] fusion(%r, %i), kind=kLoop, calls=%keep",
            before=SLICED,
        )
    )
    assert one.kind == one.executed_kind == "all-reduce"


def test_an_all_reduce_of_shards_set_into_zeros_is_an_all_gather() -> None:
    """Everyone but one adds zero."""
    [one] = all_moved(
        program(
            "%p = bf16[64,8] parameter(0)",
            "%i = s32[] parameter(1)",
            "%zero = bf16[] constant(0)",
            "%zeros = bf16[128,8] broadcast(%zero), dimensions={}",
            "%set = bf16[128,8] dynamic-update-slice(%zeros, %p, %i, %i)",
            "%moved = bf16[128,8] copy(%set)",
            f"%r = bf16[128,8] all-reduce(%moved), replica_groups={TENSOR}, to_apply=%add",
            "ROOT %n = bf16[128,8] negate(%r)",
        )
    )
    assert (one.kind, one.executed_kind) == ("all-gather", "all-reduce")
    assert (one.payload_bytes, one.executed_bytes) == (1024, 2048)


def test_a_fusion_called_all_reduce_scatter_is_a_reduce_scatter() -> None:
    """That is how the TPU compiler runs most of them: nothing is replaced."""
    inside = f"""%all-reduce-scatter.5 (p: bf16[128,8], i: s32[]) -> bf16[64,8] {{
  %p = bf16[128,8] parameter(0)
  %i = s32[] parameter(1)
  %r = bf16[128,8] all-reduce(%p), replica_groups={TENSOR}, to_apply=%add
  ROOT %d = bf16[64,8] dynamic-slice(%r, %i, %i), dynamic_slice_sizes={{64,8}}
}}
"""
    [one] = all_moved(
        program(
            "%p.1 = bf16[128,8] parameter(0)",
            "%i.1 = s32[] parameter(1)",
            "ROOT %f = bf16[64,8] fusion(%p.1, %i.1), kind=kCustom, calls=%all-reduce-scatter.5",
            before=inside,
        )
    )
    assert one.kind == one.executed_kind == "reduce-scatter"
    assert one.payload_bytes == one.executed_bytes == 1024


RING = "source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}"


def test_what_fills_up_a_reduce_scatter_is_not_its_payload() -> None:
    """Nor are the permutes that then bring each device its own part: the compiler added both."""
    inside = f"""%all-reduce-scatter.5 (p: bf16[96,8], i: s32[]) -> bf16[64,8] {{
  %p = bf16[96,8] parameter(0)
  %zero = bf16[] constant(0)
  %i = s32[] parameter(1)
  %wide = bf16[128,8] pad(%p, %zero), padding=0_32x0_0
  %r = bf16[128,8] all-reduce(%wide), replica_groups={TENSOR}, to_apply=%add
  ROOT %d = bf16[64,8] dynamic-slice(%r, %i, %i), dynamic_slice_sizes={{64,8}}
}}
"""
    permute, scatter = all_moved(
        program(
            "%p.1 = bf16[96,8] parameter(0)",
            "%i.1 = s32[] parameter(1)",
            "%f = bf16[64,8] fusion(%p.1, %i.1), kind=kCustom, calls=%all-reduce-scatter.5",
            "%end = bf16[16,8] slice(%f), slice={[48:64], [0:8]}",
            f"%start = (bf16[16,8], bf16[16,8]) collective-permute-start(%end), {RING}",
            "%got = bf16[16,8] collective-permute-done(%start)",
            "ROOT %mine = bf16[80,8] concatenate(%got, %f), dimensions={0}",
            before=inside,
        )
    )
    assert (scatter.kind, scatter.executed_kind) == ("reduce-scatter", "reduce-scatter")
    assert (scatter.payload_bytes, scatter.executed_bytes) == (96 * 8 * 2 / 2, 128 * 8 * 2 / 2)
    assert (permute.executed_kind, permute.executed_bytes) == ("collective-permute", 16 * 8 * 2)
    assert permute.payload_bytes == 0


def test_a_ring_around_a_product_is_what_it_adds_up_to() -> None:
    """Passed on and multiplied it gathers, added to it scatters; bytes are as they are sent."""
    gather, scatter = all_moved(
        program(
            "%p = bf16[64,8] parameter(0)",
            "%w = bf16[8,8] parameter(1)",
            f"%start = (bf16[64,8], bf16[64,8]) collective-permute-start(%p), {RING}",
            "%got = bf16[64,8] collective-permute-done(%start)",
            "%y = bf16[64,8] dot(%got, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            f"%sent = bf16[64,8] collective-permute(%y), {RING}",
            "%wide = f32[64,8] convert(%sent)",
            "ROOT %sum = f32[64,8] add(%wide, %wide)",
        )
    )
    assert (gather.kind, gather.executed_kind) == ("all-gather", "collective-permute")
    assert (scatter.kind, scatter.executed_kind) == ("reduce-scatter", "collective-permute")
    assert gather.payload_bytes == gather.executed_bytes == scatter.payload_bytes == 1024


def test_a_ring_of_stages_is_no_gather() -> None:
    """What passes from the last stage of a pipeline to the first is sent, not collected. Between
    domains of GPUs it takes the slowest of its links only.
    """
    text = program(
        "%p = bf16[64,8] parameter(0)",
        "ROOT %c = bf16[64,8] collective-permute(%p), source_target_pairs={{0,2},{2,4},{4,6},{6,0}}"
        ', metadata={op_name="jit(step)/while/body/stage_exchange/ppermute"}',
    )
    [sent] = all_moved(text)
    assert (sent.kind, sent.axes) == ("collective-permute", ("data", "fsdp"))
    *_, visit = visits(text)
    domains = DeviceMesh(MESH.axes, between=("data",))
    [crossing] = logical_payloads(Dataflow(text), domains, visit)
    assert isinstance(crossing, DcnSend)
    assert (crossing.kind, crossing.axes) == ("collective-permute", ("data",))
    assert (crossing.payload_bytes, crossing.line) == (64 * 8 * 2, "stage_exchange")


def test_slices_that_share_weights_are_one_group_and_replicas_another() -> None:
    """The trainer gathers matrices over all of the former at once, and sums over each alone."""
    mesh = DeviceMesh({"pods": 2, "sequence_dcn": 2, "fsdp_dcn": 2}, between=("pods", *SHARED))

    def sent(kind: str, result: str, given: str) -> dict[tuple[str, ...], float]:
        adds = "" if kind == "all-gather" else ", to_apply=%add"
        text = program(
            f"%p = {given} parameter(0)",
            f"ROOT %c = {result} {kind}(%p), replica_groups=[1,8]<=[8], dimensions={{0}}{adds}",
        )
        *_, visit = visits(text)
        moved = logical_payloads(Dataflow(text), mesh, visit)
        return {send.axes: send.payload_bytes for send in moved}

    assert sent("all-reduce", "f32[64]", "f32[64]") == {
        SHARED: 2 * 256 * 3 / 4, ("pods",): 2 * 256 / 2,
    }  # fmt: skip
    gathered = sent("all-gather", "f32[64]", "f32[8]")
    assert gathered == {SHARED: 256 * 3 / 4, ("pods",): 256 / 2}


def test_a_line_of_permutes_stands_for_nothing_else() -> None:
    """The compiler's own exchanges with a neighbour are not a collective of the trainer."""
    [one] = all_moved(
        program(
            "%p = bf16[64,8] parameter(0)",
            "ROOT %c = bf16[64,8] collective-permute(%p), source_target_pairs={{0,2},{4,6}}",
        )
    )
    assert (one.kind, one.axes) == ("collective-permute", ("fsdp",))


def test_a_collective_in_several_parts_counts_once() -> None:
    """Its start, what it hides behind and its end each name it; the first part says -1."""

    def part(name: str, flag: str) -> str:
        config = f'"async_collective_fusion_config":{{"flag_start":"{flag}","flag_end":"8"}}'
        return (
            f"%{name} = bf16[128,8] all-gather(%p), replica_groups={TENSOR}, dimensions={{0}},"
            f" backend_config={{{config}}}"
        )

    read = program(
        "%p = bf16[64,8] parameter(0)", part("a", "-1"), part("b", "2"), f"ROOT {part('c', '2')}"
    )
    [gather] = all_moved(read)
    assert gather.calls == 1


def test_what_reads_the_last_part_tells_what_an_asynchronous_sum_is() -> None:
    """A reduce-scatter where a slice is taken of what the last part ends in."""

    def part(name: str, operand: str, flag: str) -> str:
        config = f'"async_collective_fusion_config":{{"flag_start":"{flag}","flag_end":"8"}}'
        return (
            f"%{name} = bf16[128,8] all-reduce(%{operand}), replica_groups={TENSOR}, to_apply=%add,"
            f' frontend_attributes={{chain_id="3"}}, backend_config={{{config}}}'
        )

    done = '%d = bf16[128,8] custom-call(%p, %b), custom_call_target="AsyncCollectiveDone"'
    parts = "%p = bf16[128,8] parameter(0)", part("a", "p", "-1"), part("b", "p", "2"), done
    at = "%zero = s32[] constant(0)"
    cut = "ROOT %s = bf16[64,8] dynamic-slice(%d, %zero, %zero), dynamic_slice_sizes={64,8}"
    whole = "ROOT %n = bf16[128,8] negate(%d)"
    kinds = [all_moved(program(*parts, at, end))[0].kind for end in (cut, whole)]
    assert kinds == ["reduce-scatter", "all-reduce"]

"""The schedule of a compiled program, priced operation by operation."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from math import exp
from typing import Any

import numpy as np
import pytest

from orchestrator.catalog.published import ScheduleScore
from orchestrator.network.rematerialization import policy
from orchestrator.proving import compare
from orchestrator.proving.compare import _program_kinds, diff_proofs, proof_of
from orchestrator.proving.hlo.collectives import DeviceMesh
from orchestrator.proving.hlo.program import program_of
from orchestrator.proving.hlo.transfers import SliceLinks, TransferReader
from orchestrator.proving.platforms import platform_of
from orchestrator.show.parts import screen
from orchestrator.show.plan_diff_screen import proof_diff_screen
from orchestrator.show.plan_pages import schedule_page
from orchestrator.show.proof_screen import _schedule_parts
from orchestrator.values import codec
from orchestrator.values.proof import Proof, Schedule, SliceTorus
from tests import proofs
from tests.programs import program_text
from tests.schedules import ARRAY_BYTES, LINE_OF_FOUR, RATES, US, schedule, schedule_of


def test_seconds_are_cycles_times_trips_and_add_up() -> None:
    """Three rounds of each fusion and copy; the entry's operation runs once."""
    found = schedule()
    assert found.products_s == pytest.approx(3 * 1 * US)
    assert found.copies_s == pytest.approx(3 * 0.5 * US)
    assert found.other_s == pytest.approx(3 * 0.2 * US + 0.3 * US)
    kinds = (found.products_s, found.kernels_s, found.copies_s, found.other_s, found.exposed_s)
    assert found.total_s == pytest.approx(sum(kinds))
    assert found.total_s == pytest.approx(sum(line.total_s for line in found.lines))


def test_a_transfer_is_exposed_beyond_what_runs_meanwhile() -> None:
    """The ring's wrap goes back over three links, but each carries one message: 2 us, of which the
    product hides one. The all-reduce sends 1.5 arrays over an open line, and nothing hides it.
    """
    by_kind = {collective.kind: collective for collective in schedule().collectives}
    permute, reduce = by_kind["collective-permute"], by_kind["all-reduce"]
    assert permute.asynchronous
    assert permute.wire_s == pytest.approx(3 * 2 * US)
    assert permute.exposed_s == pytest.approx(3 * 1 * US)
    assert permute.behind == "trainers/toy/net.py:7 (block)"
    assert permute.behind_s == pytest.approx(3 * 1 * US)
    assert not reduce.asynchronous
    assert reduce.exposed_s == reduce.wire_s == pytest.approx(3 * 3 * US)
    assert (reduce.axes, reduce.algorithm, reduce.calls_per_step) == (("tensor",), "1DRing", 3)
    assert by_kind["prefetch"].exposed_s == pytest.approx(1 * US)


def test_a_closed_ring_is_twice_as_fast() -> None:
    """Both links of each chip, where the axis closes."""
    closed = schedule(replace(LINE_OF_FOUR, wraps=(True,)))
    [reduce] = [collective for collective in closed.collectives if collective.kind == "all-reduce"]
    assert reduce.wire_s == pytest.approx(3 * 1.5 * US)


def test_a_product_says_what_it_reaches_and_what_was_fused_in() -> None:
    [product] = schedule().products
    assert product.peak_share == pytest.approx(0.5)
    assert (product.shape, product.fused) == ("f32[128,128]", ("pad",))
    assert (product.line, product.calls_per_step) == ("trainers/toy/net.py:7 (block)", 3)


def test_every_second_has_a_line() -> None:
    """A copy that names no line has that of what reads it; a line has the calls that lead to it."""
    lines = {line.line: line for line in schedule().lines}
    assert lines.keys() == {"trainers/toy/net.py:7 (block)", "trainers/toy/net.py:9 (loss)"}
    block = lines["trainers/toy/net.py:7 (block)"]
    assert block.stack == ("trainers/toy/net.py:9 (loss)", "trainers/toy/net.py:7 (block)")
    assert block.copies_s == pytest.approx(3 * 0.5 * US)


def test_every_second_has_a_line_of_the_ledger() -> None:
    """The innermost name counts. A copy has that of what reads it, an addition of what it reads,
    and what names no line belongs to none. What is fetched into fast memory is on no link.
    """
    text = program_text("schedule").replace("activation_scatter/dot_general", "matmul/dot_general")
    found = schedule_of(program_of(text.replace("unembedding/mul", "mul")))
    lines = {line.kind: line for line in found.ledger}
    assert lines.keys() == {"matmul", "activation_scatter", "unembedding", "other"}
    assert lines["matmul"].computed_s == pytest.approx(3 * 1 * US)
    assert lines["other"].computed_s == pytest.approx(0.3 * US)
    scatter, fetched = lines["activation_scatter"], lines["unembedding"]
    assert (scatter.exposed_s, scatter.wire_s) == pytest.approx((3 * 4 * US, 3 * 5 * US))
    assert scatter.computed_s == pytest.approx(3 * 0.7 * US)
    assert (fetched.exposed_s, fetched.wire_s) == pytest.approx((1 * US, 0.0))
    assert found.total_s == pytest.approx(sum(line.total_s for line in found.ledger))


@pytest.mark.parametrize(
    ("op_name", "kind"),
    [
        ("jit(step)/transpose(jvp(matmul))/dot_general", "matmul"),
        ("jit(step)/checkpoint/rematted_computation/matmul/dot_general", "matmul_recompute"),
        ("jit(step)/rematted_computation/attention/jit(splash)/pallas_call", "attention_recompute"),
        ("jit(step)/rematted_computation/weight_gather/all_gather", "weight_gather"),
        ("jit(step)/matmul", "other"),  # an operation of that name, not a scope
    ],
)
def test_what_is_computed_again_is_a_line_of_its_own(op_name: str, kind: str) -> None:
    text = program_text("schedule").replace("jit(step)/unembedding/mul", op_name)
    lines = {line.kind: line.computed_s for line in schedule_of(program_of(text)).ledger}
    assert lines[kind] >= 0.3 * US


def test_a_collective_of_the_compilers_own_is_known_by_its_payload() -> None:
    """It names nothing: its axes and its kind are those of one line of the plan."""
    text = re.sub(r', metadata={op_name="[^"]*psum"[^}]*}', "", program_text("schedule"))
    known: dict[tuple[tuple[str, ...], str], str]
    known = {(("tensor",), "all-reduce"): "gradient_reduction"}
    for planned, kind in ((known, "gradient_reduction"), ({}, "other")):
        found = schedule_of(program_of(text), planned=planned)
        assert {line.kind: line.wire_s for line in found.ledger}[kind] >= 3 * 3 * US


def test_a_proof_without_lines_of_the_ledger_reads() -> None:
    """Proofs from before have none, and programs of other trainers may name none."""
    written = json.loads(codec.to_json(schedule()))
    del written["ledger"]
    old = codec.from_json(json.dumps(written), Schedule)
    assert old.ledger == ()
    assert "by line of the ledger" not in proven(old)[1]
    assert "by line of the ledger" in proven(schedule())[1]


def test_one_round_of_the_layer_loop_is_a_timeline() -> None:
    """Operations one after another; the permute beside the product, on a track of its own."""
    [loop] = schedule().loops
    assert loop.trips == 3
    assert loop.round_s == pytest.approx((0.5 + 1 + 1 + 3 + 0.2) * US)
    compute = [event for event in loop.events if event.track == "compute"]
    for before, after in pairwise(compute):
        assert after.start_s == pytest.approx(before.start_s + before.seconds)
    assert [event.kind for event in compute] == ["copy", "product", "exposed", "exposed", "other"]
    assert {event.track for event in loop.events} == {"compute", "ici"}


# --- passes and products

ONE = """HloModule m, is_scheduled=true, num_partitions=4

%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %r = f32[] add(%p, %q)
}

%put (a: f32[8,128,128], b: f32[128,128], i: s32[]) -> f32[8,128,128] {
  %a = f32[8,128,128] parameter(0)
  %b = f32[128,128] parameter(1)
  %i = s32[] parameter(2)
  %c = f32[1,128,128] bitcast(%b)
  ROOT %u = f32[8,128,128] dynamic-update-slice(%a, %c, %i, %i, %i)
}

%take (a: f32[8,128,128], i: s32[]) -> f32[128,128] {
  %a = f32[8,128,128] parameter(0)
  %i = s32[] parameter(1)
  %s = f32[1,128,128] dynamic-slice(%a, %i, %i, %i), dynamic_slice_sizes={1,128,128}
  ROOT %n = f32[128,128] bitcast(%s)
}

%alone (a: f32[128,128], b: f32[128,128]) -> f32[128,128] {
  %a = TYPE[128,128] parameter(0)
  %b = TYPE[128,128] parameter(1)
  ROOT %d = f32[128,128] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%activated (a: f32[128,128], b: f32[128,128]) -> f32[128,128] {
  %a = TYPE[128,128] parameter(0)
  %b = TYPE[128,128] parameter(1)
  %d = f32[128,128] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = f32[128,128] tanh(%d)
}

ENTRY %main (x: f32[128,128], y: f32[128,128], whole: f32[8,128,128], at: s32[]) -> f32[] {
  %x = TYPE[128,128]{1,0SPACE} parameter(0)
  %y = TYPE[128,128]{1,0SPACE} parameter(1)
  %whole = f32[8,128,128] parameter(2)
  %at = s32[] parameter(3)
  %zero = f32[] constant(0)
  ROOT %found = OPERATION, backend_config={"window_config":{"estimated_cycles":"30000"}}
}
"""
IN_FAST_MEMORY = ":S(1)"


def seconds_of(operation: str, space: str = "", dtype: str = "f32", share: float = 1.0) -> Schedule:
    """The schedule of one operation, whose estimate is thirty microseconds."""
    text = ONE.replace("OPERATION", operation).replace("SPACE", space).replace("TYPE", dtype)
    compute = replace(RATES.compute, product_share=share)
    return schedule_of(program_of(text), compute=compute)


@pytest.mark.parametrize(
    ("operation", "space", "microseconds"),
    [
        ("f32[128,128] negate(%x)", "", 2),
        ("f32[128,128] negate(%x)", IN_FAST_MEMORY, 1),
        ("f32[128,128] add(%x, %y)", "", 3),
        ("f32[128,128]{0,1} copy(%x)", "", 2),
        ("f32[128,128] reduce(%whole, %zero), dimensions={0}, to_apply=%add", "", 9),
        ("f32[8,128] reduce(%whole, %zero), dimensions={1}, to_apply=%add", "", 8 + 1 / 16),
        ("f32[1,128,128] dynamic-slice(%whole, %at, %at, %at)", "", 2),
        ("f32[128,128] fusion(%whole, %at), kind=kLoop, calls=%take", "", 2),
        ("f32[8,128,128] fusion(%whole, %x, %at), kind=kLoop, calls=%put", "", 2),
        ("f32[128,128] gather(%whole, %at)", "", 30),
    ],
)
def test_a_pass_takes_as_long_as_its_bytes(operation: str, space: str, microseconds: float) -> None:
    """An array of the program is a microsecond; fast memory counts as nothing, and of a slice only
    the slice. What gathers single rows keeps the compiler's estimate.
    """
    found = seconds_of(operation, space)
    assert found.other_s + found.copies_s == pytest.approx(microseconds * US, rel=1e-3)


@pytest.mark.parametrize(
    ("called", "dtype", "share", "microseconds"),
    [
        ("alone", "bf16", 1.0, 30),
        ("activated", "bf16", 1.0, 2),
        ("activated", "bf16", 0.1, 5),
        ("activated", "f32", 0.1, 30),
    ],
)
def test_a_product_with_passes_takes_its_flops_or_its_bytes(
    called: str, dtype: str, share: float, microseconds: float
) -> None:
    """At the peak its FLOPs take half a microsecond, its bytes two: half an array for each operand.
    One without passes keeps the compiler's estimate, and so does one in fp32.
    """
    call = f"f32[128,128] fusion(%x, %y), kind=kOutput, calls=%{called}"
    found = seconds_of(call, dtype=dtype, share=share)
    assert found.products_s == pytest.approx(microseconds * US, rel=1e-3)


def test_a_product_of_few_rows_reaches_less() -> None:
    """Its shortest edge is 128, half way between 64 and 256 by the logarithm."""
    compute = replace(RATES.compute, product_share=0.2, rows=(64, 256), row_shares=(0.25, 0.75))
    [product] = schedule(compute=compute).products
    assert product.peak_share == pytest.approx(0.2 * 0.5)


def test_a_product_is_no_faster_than_products_of_published_runs() -> None:
    [product] = schedule(compute=replace(RATES.compute, product_share=0.25)).products
    assert product.peak_share == pytest.approx(0.25)


def test_a_kernel_without_a_formula_is_named() -> None:
    """Its seconds are not known: it counts as nothing, and the screen says so."""
    assert schedule().unpriced == ("kernel",)


GROUPED = """HloModule m, num_partitions=4

ENTRY %main (rows: bf16[1024,256], weights: bf16[8,256,512]) -> bf16[1024,512] {
  %rows = bf16[1024,256] parameter(0)
  %weights = bf16[8,256,512] parameter(1)
  %visits = s32[15] constant({0,0,0,0,0,0,0,0,0,0,0,0,0,0,0})
  ROOT %gmm.1 = bf16[1024,512] custom-call(%visits, %rows, %weights), MADE
}
"""


@pytest.mark.parametrize("scope", ["jit(gmm)", "jit(tgmm)", "ragged-dot-none"])
def test_grouped_matmuls_are_products_of_whole_tiles(scope: str) -> None:
    """Eight tiles of 128 rows, and seven that two experts share: at the rate of products."""
    compute = replace(RATES.compute, product_share=0.8)
    made = f'metadata={{op_name="jit(step)/{scope}/pallas_call"}}'
    made = f'custom_call_target="tpu_custom_call", {made}'
    text = GROUPED.replace("MADE", made)
    found = schedule_of(program_of(text), compute=compute)
    flops = 2 * (8 + 7) * 128 * 256 * 512
    assert found.kernels_s == pytest.approx(flops / (0.8 * compute.peak_flops_per_s))
    assert found.unpriced == ()


# --- the sparse cores

BESIDE = """HloModule m, is_scheduled=true, num_partitions=4

%gathered (p: f32[128,128]) -> f32[512,128] {
  %p = f32[128,128] parameter(0)
  ROOT %g = f32[512,128] all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}, RINGS
}, execution_thread="sparsecore"

%turned (q: f32[512,128]) -> f32[512,128] {
  %q = f32[512,128]{1,0} parameter(0)
  ROOT %c = f32[512,128]{0,1} copy(%q)
}, execution_thread="sparsecore"

ENTRY %main (x: f32[128,128]) -> f32[512,128] {
  %x = f32[128,128] parameter(0)
  %begun = ((f32[128,128]), f32[512,128]) call-start(%x), async_execution_thread="sparsecore", to_apply=%gathered, backend_config={"sparse_core_config":{"offload":"OFFLOAD_COLLECTIVE"}}
  %y = f32[128,128] negate(%x), backend_config={"window_config":{"estimated_cycles":"2000"}}
  %whole = f32[512,128] call-done(%begun)
  %turning = ((f32[512,128]{1,0}), f32[512,128]{0,1}) call-start(%whole), async_execution_thread="sparsecore", to_apply=%turned, backend_config={"sparse_core_config":{"offload":"OFFLOAD_DATA_FORMATTING"}}
  %z = f32[128,128] negate(%y), backend_config={"window_config":{"estimated_cycles":"1000"}}
  ROOT %out = f32[512,128]{0,1} call-done(%turning)
}
"""  # noqa: E501


def rings(*axes: str) -> str:
    """How the compiler writes that a collective goes along these torus axes, in two directions,
    after a chip's two devices (D): each part along one of them first.
    """
    parts = ",".join(
        '{"phase_rings":['
        + ",".join(
            f'{{"ring_type":"ICI_RING_TYPE_UNIDIR_{way}",'
            f'"explicit_strategy_ring_dim":"ICI_RING_DIM_{axis}"}}'
            for axis in ("D", *axes[first:], *axes[:first])
        )
        + "]}"
        for first in range(len(axes))
        for way in ("CW", "CCW")
    )
    return f'backend_config={{"ici_strategy_config":{{"color_strategies":[{parts}]}}}}'


def test_what_sparse_cores_do_runs_beside_other_work() -> None:
    """A gather of three arrays over an open line takes 6 us, of which 2 are hidden; four arrays
    are read and written in 8 us, of which 1 is hidden.
    """
    found = schedule_of(program_of(BESIDE.replace("RINGS", rings("X_MESH"))))
    by_kind = {collective.kind: collective for collective in found.collectives}
    gather, turn = by_kind["all-gather"], by_kind["data formatting"]
    assert (gather.link, gather.algorithm) == ("ici", "sparse cores, 2 rings")
    assert (turn.link, turn.algorithm) == ("hbm", "sparse cores")
    assert gather.asynchronous
    assert turn.asynchronous
    assert (gather.wire_s, gather.exposed_s) == pytest.approx((6 * US, 4 * US))
    assert (turn.wire_s, turn.exposed_s) == pytest.approx((8 * US, 7 * US))
    assert found.other_s == pytest.approx(3 * US)
    assert not found.unpriced


@pytest.mark.parametrize("axes", [("X",), ("X", "Y"), ("X", "Y", "Z")])
def test_a_collective_of_sparse_cores_uses_the_axes_of_its_rings(axes: tuple[str, ...]) -> None:
    """Two links of a chip on each of them, of the six of a cube."""
    everyone = ",".join(map(str, range(64)))
    text = BESIDE.replace("RINGS", rings(*axes)).replace("{{0,1,2,3}}", f"{{{{{everyone}}}}}")
    hlo = program_of(text.replace("num_partitions=4", "num_partitions=64"))
    mesh, between = DeviceMesh({"fsdp": 64}), DeviceMesh({"pods": 1})
    reader = TransferReader(hlo, mesh, between, links(CUBE), RATES.transfers)
    where = hlo.computations["gathered"]
    gather = reader.collective(where, where.root, hlo.entry.instructions["begun"])
    assert gather.seconds == pytest.approx(63 * ARRAY_BYTES / (2 * len(axes)))


# --- links

TOGETHER = """HloModule m, is_scheduled=true, num_partitions=4

ENTRY %main (x: f32[128,128], y: f32[64,128]) -> (f32[128,128], f32[64,128]) {
  %x = f32[128,128] parameter(0)
  %y = f32[64,128] parameter(1)
  %long = (f32[128,128], f32[128,128]) collective-permute-start(%x), source_target_pairs={{0,1},{1,2},{2,3}}
  %short = (f32[64,128], f32[64,128]) collective-permute-start(%y), source_target_pairs={PAIRS}
  %b = f32[64,128] collective-permute-done(%short)
  %a = f32[128,128] collective-permute-done(%long)
  ROOT %t = (f32[128,128], f32[64,128]) tuple(%a, %b)
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("pairs", "first", "second"), [("{0,1},{1,2},{2,3}", 2, 1), ("{1,0},{2,1},{3,2}", 1, 1)]
)
def test_links_carry_the_packets_of_several_transfers_in_turn(
    pairs: str, first: float, second: float
) -> None:
    """Alone they take 2 and 1 us. On the same links the short one takes 2, and the long one 3; the
    other way round there are other links.
    """
    found = schedule_of(program_of(TOGETHER.replace("PAIRS", pairs)))
    assert found.exposed_s == pytest.approx((first + second) * US)


CUBE = SliceTorus(
    lengths=(4, 4, 4), wraps=(True,) * 3, link_bytes_per_s=(1.0,) * 3, devices_per_chip=1, hop_s=0.0
)


def links(torus: SliceTorus) -> SliceLinks:
    return SliceLinks(torus, tuple(map(tuple, np.ndindex(*torus.lengths))))


def test_an_algorithm_of_one_dimension_uses_one_ring() -> None:
    """Over the whole cube, two links of each chip instead of six."""
    members = tuple(range(64))
    assert links(CUBE).group_rate(members, None) == 6.0
    assert links(CUBE).group_rate(members, 1) == 2.0
    assert links(CUBE).group_rate(tuple(range(4)), 1) == 2.0


def test_interleaved_groups_share_links() -> None:
    """Every other chip of an open line of eight."""
    torus = replace(CUBE, lengths=(8,), wraps=(False,), link_bytes_per_s=(1.0,))
    assert links(torus).group_rate((0, 2, 4, 6), None) == 0.5


def test_a_permute_is_as_slow_as_its_busiest_link() -> None:
    """Two messages that go the same way share a link, and the shorter way round is taken."""
    seconds, hops, used = links(CUBE).permute(np.array([(0, 2), (1, 3)]))
    assert (seconds, hops, int(used.sum())) == (2.0, 2, 3)
    assert links(CUBE).permute(np.array([(0, 3)]))[:2] == (1.0, 1)


def test_the_devices_of_a_chip_share_its_links() -> None:
    """Each half of a chip has half a link; both together fetch each byte once."""
    torus = SliceTorus(
        lengths=(4, 2), wraps=(True, False), link_bytes_per_s=(1.0, 6.0),
        devices_per_chip=2, hop_s=0.0,
    )  # fmt: skip
    assert links(torus).group_rate((0, 2, 4, 6), None) == 1.0
    assert links(torus).group_rate(tuple(range(8)), None) == 2.0
    assert links(torus).group_rate((0, 1), None) == 6.0


# --- proofs


def proven(found: Schedule | None) -> tuple[Proof, str]:
    """A proof with that schedule, and its screen."""
    _, plan, entry = proofs.recorded()
    summary = replace(entry.compiled.summary, schedule=found)
    proof = proof_of(plan, replace(entry.compiled, summary=summary))
    return proof, str(screen(_schedule_parts(plan, found, full=False)))


def test_the_proof_has_the_schedule_in_its_json_and_on_its_screen() -> None:
    proof, text = proven(schedule())
    written = json.loads(codec.to_json(proof))["schedule"]
    assert written["total_s"] == pytest.approx(proof.schedule.total_s if proof.schedule else 0)
    assert {"products_s", "kernels_s", "copies_s", "other_s", "exposed_s"} <= written.keys()
    assert {"lines", "collectives", "products", "loops", "unpriced"} <= written.keys()
    for word in ("net.py:7 (block)", "1DRing", "synchronous", "50.0 %", "pad", "kernel"):
        assert word in text


KINDS = (proofs.recorded()[1].chip, "several slices", "the axis data", "the axis tensor")


def judged_by(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Schedule, str]:
    """The proven schedule and its screen, by a score of programs that have all that the plan has,
    but for the changes.
    """
    plan = proofs.recorded()[1]
    score = ScheduleScore(
        date="2026-11-27", compiler="0.0.42.1", spread=0.1, least_tokens=1.0, rows=("a run",),
        kinds=KINDS,
    )  # fmt: skip
    monkeypatch.setattr(compare, "schedule_score", lambda: replace(score, **changes))
    found = proven(schedule())[0].schedule
    assert found is not None
    return found, str(screen(_schedule_parts(plan, found, full=False)))


def test_a_schedule_has_the_interval_of_runs_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, text = judged_by(monkeypatch)
    assert found.never_judged == ()
    assert found.low_s == pytest.approx(found.total_s / exp(0.1))
    assert found.high_s == pytest.approx(found.total_s * exp(0.1))
    assert "in 4 runs of 5" in text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *(({"kinds": {*KINDS} - {kind}}, kind) for kind in KINDS),
        ({"least_tokens": 1e6}, "under 1,000,000 tokens per device"),
    ],
)
def test_what_no_judged_program_had_is_named(
    changes: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no interval then."""
    found, text = judged_by(monkeypatch, **changes)
    assert found.never_judged == (named,)
    assert found.low_s is found.high_s is None
    assert f"no measured run had {named}" in text
    assert "to compare programs with" in text


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("microbatches", 2, {"microbatches"}),
        ("compute", "int8", {"products in int8"}),
        ("remat", policy("offload_qkv"), {"offload"}),
        ("mesh", {"sequence": 4}, {"the axis sequence"}),
        ("mesh", {"pipeline": 2}, {"the axis pipeline"}),
        ("mesh", {"fsdp_dcn": 2}, {"several slices", "weights shared by slices"}),
        ("mesh", {"sequence_dcn": 2}, {"several slices", "the axis sequence_dcn"}),
    ],
)
def test_programs_differ_by_what_their_schedule_rests_on(
    field: str, value: Any, kind: set[str]
) -> None:
    plan = proofs.recorded()[1]
    usual: dict[str, Any] = {
        "chip": "v5p", "mesh": plan.mesh | {"pods": 1}, "model": plan.model, "compute": "bf16",
        "remat": policy("full"), "microbatches": 1,
    }  # fmt: skip
    before = _program_kinds(**usual)
    changed = usual | {field: usual[field] | value if field == "mesh" else value}
    assert _program_kinds(**changed) == before | kind


def test_a_chip_without_a_clock_has_no_schedule() -> None:
    proof, text = proven(None)
    assert proof.schedule is None
    assert "clock" in text


def test_the_rates_are_those_of_one_device() -> None:
    """A tpu7x chip is two devices, which share its peak, its memory and its network."""
    plan = proofs.recorded()[1]
    tpus = replace(plan, chip="tpu7x", topology="4x4x4")
    halves = platform_of(tpus).rates(tpus)
    assert halves is not None
    assert halves.compute.peak_flops_per_s == 2307e12 / 2
    assert halves.transfers.hbm_bytes_per_s == 7380e9 / 2
    assert halves.torus.lengths == (4, 4, 4, 2)
    node = replace(plan, chip="h100", topology="8")
    gpus = platform_of(node).rates(node)
    assert gpus is not None
    assert (gpus.torus.lengths, gpus.torus.switched, gpus.compute.clock_hz) == ((8,), True, 0)
    assert gpus.torus.link_bytes_per_s == (0.95 * 45 / 50 * 450e9,)


def test_two_proofs_stand_side_by_side() -> None:
    """The second has no wait for the all-reduce: its line takes less, and its total."""
    slow, fast = schedule(), schedule(replace(LINE_OF_FOUR, wraps=(True,)))
    diff = diff_proofs(proven(slow)[0], proven(fast)[0])
    figures = {figure.name: figure for figure in diff.figures}
    assert figures["total_s"].first == slow.total_s
    assert figures["total_s"].second == fast.total_s
    assert figures["exposed_s"].second < figures["exposed_s"].first
    first = diff.lines[0]
    assert first.line == "trainers/toy/net.py:7 (block)"
    assert first.more_s == pytest.approx(fast.total_s - slow.total_s)
    assert "shorter" in proof_diff_screen(diff, ("one", "other"))


def test_the_page_has_a_timeline_and_a_flame_graph() -> None:
    """A box for each event of the round, and for each of the two lines."""
    found = schedule()
    page = schedule_page(proofs.recorded()[1], found)
    boxes = page.count("<rect")
    assert boxes == len(found.loops[0].events) + 2
    for text in ("collective-permute", "trainers/toy/net.py:7 (block)"):
        assert page.count(text) > 0, text

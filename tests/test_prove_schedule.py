"""The schedule of a compiled program, priced operation by operation."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from orchestrator.proving.compare import diff_proofs, proof_of
from orchestrator.proving.hlo.collectives import DeviceMesh
from orchestrator.proving.hlo.program import program_of
from orchestrator.proving.hlo.transfers import SliceLinks, TransferReader
from orchestrator.proving.platforms import schedule_rates
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
    by_kind = {one.kind: one for one in schedule().collectives}
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
    [reduce] = [one for one in closed.collectives if one.kind == "all-reduce"]
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


REDUCTION = """
ENTRY %main (x: f32[4,128,128]) -> SHAPE {
  %x = f32[4,128,128]{2,1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %sum = SHAPE reduce(%x, %zero), dimensions={PLACE}, to_apply=%add, backend_config={"window_config":{"estimated_cycles":"30000"}}
}
%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %r = f32[] add(%p, %q)
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("shape", "place", "microseconds"), [("f32[128,128]{1,0}", 0, 5), ("f32[4,128]{1,0}", 1, 30)]
)
def test_a_sum_of_arrays_takes_as_long_as_its_bytes(
    shape: str, place: int, microseconds: float
) -> None:
    """Four of a microsecond and the result; the compiler's estimate is of another kind."""
    head = "HloModule m, is_scheduled=true, num_partitions=4\n"
    text = head + REDUCTION.replace("SHAPE", shape).replace("PLACE", str(place))
    assert schedule_of(program_of(text)).other_s == pytest.approx(microseconds * US)


def test_a_kernel_without_a_formula_is_named() -> None:
    """Its seconds are not known: it counts as nothing, and the screen says so."""
    assert schedule().unpriced == ("kernel",)


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
  %y = f32[128,128] negate(%x), backend_config={"window_config":{"estimated_cycles":"4000"}}
  %whole = f32[512,128] call-done(%begun)
  %turning = ((f32[512,128]{1,0}), f32[512,128]{0,1}) call-start(%whole), async_execution_thread="sparsecore", to_apply=%turned, backend_config={"sparse_core_config":{"offload":"OFFLOAD_DATA_FORMATTING"}}
  %z = f32[128,128] negate(%y), backend_config={"window_config":{"estimated_cycles":"3000"}}
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
    """A gather of three arrays over an open line takes 6 us, of which 4 are hidden; four arrays
    are read and written in 8 us, of which 3 are hidden.
    """
    found = schedule_of(program_of(BESIDE.replace("RINGS", rings("X_MESH"))))
    by_kind = {one.kind: one for one in found.collectives}
    gather, turn = by_kind["all-gather"], by_kind["data formatting"]
    assert (gather.link, gather.algorithm) == ("ici", "sparse cores, 2 rings")
    assert (turn.link, turn.algorithm) == ("hbm", "sparse cores")
    assert gather.asynchronous
    assert turn.asynchronous
    assert (gather.wire_s, gather.exposed_s) == pytest.approx((6 * US, 2 * US))
    assert (turn.wire_s, turn.exposed_s) == pytest.approx((8 * US, 5 * US))
    assert found.other_s == pytest.approx(7 * US)
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


def test_a_chip_without_a_clock_has_no_schedule() -> None:
    proof, text = proven(None)
    assert proof.schedule is None
    assert "clock" in text


def test_the_rates_are_those_of_one_device() -> None:
    """A tpu7x chip is two devices, which share its peak, its memory and its network."""
    plan = proofs.recorded()[1]
    halves = schedule_rates(replace(plan, chip="tpu7x", topology="4x4x4"))
    assert halves is not None
    assert halves.compute.peak_flops_per_s == 2307e12 / 2
    assert halves.transfers.hbm_bytes_per_s == 7380e9 / 2
    assert halves.torus.lengths == (4, 4, 4, 2)
    gpus = schedule_rates(replace(plan, chip="h100", topology="8"))
    assert gpus is not None
    assert (gpus.torus.lengths, gpus.torus.switched, gpus.compute.clock_hz) == ((8,), True, 0)
    assert gpus.torus.link_bytes_per_s == (0.95 * 45 / 50 * 450e9,)


def test_two_proofs_stand_side_by_side() -> None:
    """The second has no wait for the all-reduce: its line takes less, and its total."""
    slow, fast = schedule(), schedule(replace(LINE_OF_FOUR, wraps=(True,)))
    diff = diff_proofs(proven(slow)[0], proven(fast)[0])
    figures = {one.name: one for one in diff.figures}
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

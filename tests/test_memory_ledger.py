"""The ledger of bytes: padding to tiles, its phases, and the programs that were compiled."""

from dataclasses import replace
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np
import pytest

from orchestrator.network.rematerialization import POLICIES
from orchestrator.planning.kernels import loss_chunks
from orchestrator.planning.layout import _NO_TILE, _TPU_TILE, _fewest_elements
from orchestrator.planning.planner import make_plan
from orchestrator.values.model import MixtureOfExperts, Model
from orchestrator.values.plan import MemoryPhase, Plan
from orchestrator.values.spec import MeshRequest, Precision
from tests.bench import proof_rows, proof_table
from tests.bench.proof_rows import BenchPlan, model_named
from tests.bench.proof_table import PAGE
from tests.example_specs import spec_of

MODEL = Model(
    name="model", layers=8, d_model=2048, d_ff=8192, heads=16, kv_heads=4, head_dim=128, vocab=32768
)
GIB = 2**30


def plan_of(model: Model = MODEL, *, chip: str = "v5e", **changes: Any) -> Plan:
    """A plan on 16 chips, weights over all of them unless told otherwise."""
    merged: dict[str, Any] = {
        "sequences": 64, "length": 2048, "remat": "keep_qkv", "topology": "4x4", "tolerance": 0.0,
        "mesh": MeshRequest(data=1, fsdp=16, sequence=1, tensor=1), "pods": 1, **changes,
    }  # fmt: skip
    return make_plan(spec_of(model, chip=chip, **merged))


def phases(plan: Plan) -> dict[str, MemoryPhase]:
    return {phase.name: phase for phase in plan.forecast.memory}


def total(phase: MemoryPhase, kind: str) -> float:
    return sum(line.value for line in phase.lines if line.kind == kind)


def kept(plan: Plan) -> float:
    return total(phases(plan)["loss"], "kept_activations")


# --- tiles


@pytest.mark.parametrize(
    ("sizes", "elements"),
    [
        ((16, 32, 64), 16 * 32 * 128),  # as read in the program of tinyllama on 128 chips
        ((32, 64, 16), 32 * 16 * 128),
        ((16, 5632), 16 * 5632),
        ((5632, 16), 5632 * 16),
        ((128, 32, 64), 128 * 32 * 64),  # d_model in the lanes: nothing is padded
        ((2048,), 2048),
        ((256, 2, 128), 256 * 2 * 128),  # tiles of two rows
        ((256, 3, 80), 80 * 3 * 256),
    ],
)
def test_parameters_lie_as_they_pad_least(sizes: tuple[int, ...], elements: int) -> None:
    """Whatever the order in which their dimensions are written."""
    for order in permutations(sizes):
        assert _fewest_elements(order, _TPU_TILE) == elements
    assert _fewest_elements(sizes, _NO_TILE) <= elements


def gradient_elements(plan: Plan) -> float:
    lines = phases(plan)["mlp backward"].lines
    return sum(line.inputs["elements"] for line in lines if line.kind == "gradients")


def test_gradients_from_a_message_keep_the_order_of_their_dimensions() -> None:
    """Columns of `down` and `output` take whole lanes; other gradients lie as they pad least."""
    with_replicas, alone = (
        plan_of(
            chip="v6e",
            topology=topology,
            sequences=data * 64,
            mesh=MeshRequest(data=data, fsdp=64, sequence=1),
        )
        for topology, data in (("8x16", 2), ("8x8", 1))
    )
    padding = 8 * (8192 + 16 * 128) * (128 - 2048 // 64)
    assert gradient_elements(with_replicas) - gradient_elements(alone) == padding


@pytest.mark.parametrize(("head_dim", "padded"), [(64, 128), (80, 128), (96, 128), (256, 256)])
def test_kept_heads_take_whole_lanes_of_a_tpu(head_dim: int, padded: int) -> None:
    """As much as heads of the next multiple of 128."""
    small = replace(MODEL, head_dim=head_dim)
    assert kept(plan_of(small)) == kept(plan_of(replace(MODEL, head_dim=padded)))


def test_a_gpu_pads_nothing() -> None:
    """Half a head takes half the memory."""
    mesh = MeshRequest(data=1, fsdp=8, sequence=1, tensor=1)
    models = (replace(MODEL, head_dim=n) for n in (128, 64))
    whole, half = (plan_of(model, chip="h100", topology="8", mesh=mesh) for model in models)
    streams = 8 * 2 * 8 * 2048 * 2048 * 2  # layers of block inputs and of mid
    statistics = 8 * 8 * 2048 * 16 * 4
    rest = streams + statistics
    assert kept(half) - rest == pytest.approx((kept(whole) - rest) / 2)


# --- phases


@pytest.mark.parametrize(
    ("pods", "shared", "microbatches", "waits"),
    [(1, 1, 1, True), (2, 1, 1, False), (2, 1, 2, True), (2, 2, 1, False), (2, 2, 2, False)],
)
def test_copies_are_made_again_where_slices_exchange_something_in_each_layer(
    pods: int, shared: int, microbatches: int, waits: bool
) -> None:
    """While the loss is computed, the copy of the attention's last matrix alone is there."""
    mesh = MeshRequest(data=1, fsdp=16, sequence=1, tensor=1, fsdp_dcn=shared)
    spec = spec_of(
        MODEL, sequences=128, length=2048, chip="v5e", topology="4x4", pods=pods, mesh=mesh
    )
    batch = replace(spec.experiment.batch, microbatches=microbatches)
    found = phases(make_plan(replace(spec, experiment=replace(spec.experiment, batch=batch))))
    whole, output = total(found["mlp backward"], "compute_copy"), 2 * 8 * 16 * 128 * 2048
    assert whole > 10 * output / 16 / shared
    assert total(found["loss"], "compute_copy") == (whole if waits else output / 16 / shared)


def working(phase: MemoryPhase, name: str) -> float:
    return sum(line.value for line in phase.lines if line.name == name)


ROWS, HEADS = 4 * 2048 * 16 * 128 * 4, 4 * 2048 * 16 * 128 * 2  # a log-sum-exp's lanes, a result


def test_a_log_sum_exp_waits_in_whole_lanes_where_attention_runs_again() -> None:
    """Once while the MLP is differentiated, twice while the kernel runs, beside its gradient. It is
    narrow at once on v5e and v6e, where sums run beside products, not where slices share weights.
    """
    mlp, runs = "mlp backward", "attention again backward"
    wide, narrow = phases(v5p_plan(remat="full")), phases(plan_of(remat="full"))
    assert working(wide[runs], "attention") == working(wide[mlp], "attention") + ROWS + HEADS
    assert working(narrow[runs], "attention") == working(narrow[mlp], "attention") + HEADS
    assert working(wide[mlp], "attention") - working(narrow[mlp], "attention") == ROWS
    shared = MeshRequest(data=1, fsdp=16, sequence=1, tensor=1, fsdp_dcn=2)
    apart = phases(plan_of(remat="full", sequences=128, pods=2, mesh=shared))
    assert working(apart[mlp], "attention") == working(wide[mlp], "attention")


def test_the_attention_of_a_kept_result_comes_after_the_mlp() -> None:
    """Before it where sums run beside products: what is made again, and the result."""
    mlp = "mlp backward"
    assert working(phases(v5p_plan(remat="keep_attention"))[mlp], "attention") == 0
    every = working(phases(plan_of(remat="full"))[mlp], "attention")
    assert working(phases(plan_of(remat="keep_attention"))[mlp], "attention") == every
    assert working(phases(plan_of(remat="keep_qkv"))[mlp], "attention") == HEADS


def test_gradients_of_an_mlp_are_made_before_the_attentions_backward_pass() -> None:
    for plan in (v5p_plan(remat="full"), plan_of(remat="full"), v5p_plan(remat="none")):
        found = phases(plan)
        assert working(found["mlp backward"], "mlp") > 0
        assert working(found["attention again backward"], "mlp") == 0
        assert working(found["attention backward"], "mlp") == 0


@pytest.mark.parametrize(("d_model", "rows"), [(2048, 128), (2240, 140), (2160, 135)])
def test_an_unembedding_of_odd_parts_arrives_padded(d_model: int, rows: int) -> None:
    """The rows of each device fill 8 sublanes, beside the table in which they follow each other."""
    found = phases(plan_of(replace(MODEL, d_model=d_model), remat="full"))
    assert ("unembedding" in found) == (rows % 8 > 0)
    if "unembedding" in found:
        padded = working(found["unembedding"], "padded unembedding")
        assert padded == pytest.approx(2 * MODEL.vocab * 16 * -(-rows // 8) * 8)


def v5p_plan(**changes: Any) -> Plan:
    return plan_of(chip="v5p", topology="2x2x4", **changes)


def products(model: Model, **changes: Any) -> float:
    lines = phases(plan_of(model, **changes))["mlp backward"].lines
    return next(line.inputs["products"] for line in lines if line.name == "mlp")


def test_products_of_an_mlp_are_beside_their_gradients() -> None:
    """Four where they are made again; else the last matmul's input is beside the gradients, and on
    v5e, where sums run beside products and gathers do not, beside all. One input is differentiated
    in place.
    """
    policies = ("full", "keep_attention", "none")
    for chip, topology, alive in (
        ("v5e", "4x4", [5, 5, 3]), ("v6e", "4x4", [4, 4, 3]), ("v5p", "2x2x4", [4, 4, 3]),
    ):  # fmt: skip
        of_chip = {"chip": chip, "topology": topology}
        assert [products(MODEL, remat=name, **of_chip) for name in policies] == alive
    ungated = replace(MODEL, gated=False)
    assert [products(ungated, remat=name) for name in policies] == [2, 2, 1]


def ring_of(tensor: int) -> MeshRequest:
    return MeshRequest(data=1, fsdp=16 // tensor, sequence=1, tensor=tensor)


RING_MOMENTS = ("mlp backward", "mlp ring backward")


@pytest.mark.parametrize(
    ("gated", "policy", "at_activation", "at_exchange"),
    [
        (True, "full", 5, 3),  # as read in the programs of Llama 3B, 8B, 70B and 405B
        (True, "keep_attention", 5, 3),
        (True, "none", 3, 1),
        (False, "full", 4, 2),
        (False, "keep_mlp", 3, 1),
    ],
)
def test_around_a_ring_the_mlps_tensors_are_alive_beside_their_gradients(
    gated: bool, policy: str, at_activation: int, at_exchange: int
) -> None:
    """What the ring joined is one array, and takes no place of another."""
    model = replace(MODEL, gated=gated)
    found = phases(plan_of(model, remat=policy, mesh=ring_of(4)))
    product = 16 * 2048 * (8192 // 4) * 2
    numbers = [working(found[name], "mlp") / product for name in RING_MOMENTS]
    assert numbers == [at_activation, at_exchange]


@pytest.mark.parametrize("tensor", [2, 4, 8])
@pytest.mark.parametrize(("policy", "inputs"), [("full", 2), ("none", 1)])
def test_around_a_ring_what_was_gathered_is_there_whole(
    tensor: int, policy: str, inputs: int
) -> None:
    """The inputs that are gathered again, and while it arrives the gradient of the result."""
    found = phases(plan_of(remat=policy, mesh=ring_of(tensor)))
    stream = 4 * tensor * 2048 * 2048 * 2
    stages = [working(found[name], "stream") / stream for name in RING_MOMENTS]
    assert stages == [inputs + 3 / tensor, inputs + 2.5]


def test_a_plan_without_a_ring_has_no_phase_of_one() -> None:
    assert "mlp ring backward" not in phases(plan_of())


MIXTURE = replace(MODEL, moe=MixtureOfExperts(experts=8, top_k=2))


def test_matrices_of_experts_are_turned_before_the_first_product() -> None:
    """They are there three times beside one product; then once beside three products, and the last
    matrix is gone; and at last two products stand beside the rows, the gradient of the results and
    two parts of the rows' gradient.
    """
    found = phases(plan_of(MIXTURE, remat="full", mesh=MeshRequest(data=1, expert=1, fsdp=16)))
    first, product = 2 * 8 * 2048 * 8192 * 2, 2 * 4 * 2048 * 8192 * 2
    names = ("turned experts backward", "mlp backward", "rows of experts backward")
    in_turn = [found[name] for name in names]
    assert [working(phase, "gathered weights") / first for phase in in_turn] == [3, 1, 1]
    assert [working(phase, "mlp") / product for phase in in_turn] == [1, 3, 2]
    rows = [working(phase, "rows of experts") for phase in in_turn]
    assert [row / rows[0] for row in rows] == [1, 1, 2]


@pytest.mark.parametrize(
    ("chip", "topology", "tokens"),
    [("v4", "2x2x4", 1024), ("v5e", "4x4", 1024), ("v5p", "2x2x4", 1024), ("v6e", "4x4", 2048),
     ("tpu7x", "2x2x2", 2048)],
)  # fmt: skip
def test_the_loss_takes_as_many_tokens_as_hide_its_tables_gradient(
    chip: str, topology: str, tokens: int
) -> None:
    """4 x peak / HBM rate or up to a tenth less, and their logits are in the ledger."""
    wide = replace(MODEL, vocab=131072)  # 256 MiB would be 512 tokens
    plan = plan_of(wide, chip=chip, topology=topology)
    logits = total(phases(plan)["loss"], "logits")
    assert (plan.loss_chunk_tokens, logits) == (tokens, tokens * wide.vocab * 4)
    wider = plan_of(replace(MODEL, vocab=262144), chip=chip, topology=topology)
    assert total(phases(wider)["loss"], "logits") == GIB  # no more, as 1,024 tokens have them


@pytest.mark.parametrize(
    ("chip", "topology", "data", "d_model", "chunks"),
    [
        ("v6e", "16x16", 1, 4096, 4),
        ("v6e", "16x16", 1, 2048, None),  # eight rows of a device do not fill a tile
        ("v6e", "8x16", 1, 4096, None),  # its links do not close
        ("v6e", "16x16", 2, 4096, None),
        ("v5p", "4x8x8", 1, 4096, None),  # its sums wait
    ],
)
def test_a_whole_pod_sums_the_gradient_of_its_table_in_each_chunk(
    chip: str, topology: str, data: int, d_model: int, chunks: int | None
) -> None:
    """In place of the whole in fp32, a chunk's is there in the type that travels."""
    wide = replace(MODEL, vocab=131072, d_model=d_model)
    devices = 128 if topology == "8x16" else 256
    mesh = MeshRequest(data=data, fsdp=devices // data, sequence=1, tensor=1)
    plan = plan_of(wide, chip=chip, topology=topology, sequences=4 * devices, mesh=mesh)
    assert plan.loss_gradient == ("at_end" if chunks is None else "per_chunk")
    table, gradient = 131072 * d_model, 4 if chunks is None else 2
    assert working(phases(plan)["loss"], "unembedding") == (2 + gradient) * table
    [sent] = [
        line.collective for line in plan.forecast.time if line.name == "table gradient scatter"
    ]
    assert sent is not None
    assert sent.calls_per_step == 1 + (chunks or 1)  # of the embedding, and of each chunk
    assert sent.bytes_per_step == pytest.approx(
        sent.calls_per_step * 2 * table * (1 - data / devices)
    )


def test_chunks_of_the_loss_are_the_fewest_that_divide_its_tokens() -> None:
    """With logits of 1 MiB a token, at most 1,024 tokens are a chunk."""
    tokens = np.array([1024, 1025, 3000, 6993])
    assert loss_chunks(tokens, 2**20, 1024).tolist() == [1, 5, 3, 7]  # 5 x 205, 3 x 1,000, 7 x 999


@pytest.mark.parametrize("policy", POLICIES)
def test_the_peak_is_the_largest_phase(policy: str) -> None:
    """Of every policy, in either type of parameters."""
    for types in (Precision(), Precision(parameters="bf16", optimizer="bf16")):
        forecast = plan_of(remat=policy, precision=types).forecast
        assert forecast.memory_bytes_per_device == max(phase.bytes for phase in forecast.memory)
        for phase in forecast.memory:
            assert phase.bytes == sum(line.value for line in phase.lines)


# --- compiled programs

RECORD = proof_table.read_record()


@pytest.mark.parametrize("row", [row for row in proof_rows.ROWS if str(row) in RECORD], ids=str)
def test_forecasts_are_within_5_percent_of_compiled_peaks(row: BenchPlan) -> None:
    """Of every row of docs/proof-bench.md, of mixtures within 10 %; payload and FLOPs within 2 %.
    FLOPs of rows with attention as it was are within 3 %.
    """
    result = proof_table.result_of(row, RECORD[str(row)])
    assert result.memory == pytest.approx(1, abs=result.memory_share)
    if result.flops:  # recorded since 2026-11-22
        assert result.flops == pytest.approx(1, abs=0.03 if result.is_former else 0.02)
    if result.payload:
        assert result.payload[1] == pytest.approx(1, abs=0.02)


def test_half_of_the_mixtures_are_within_5_percent() -> None:
    misses = [
        abs(result.memory - 1)
        for result in proof_table.results()
        if model_named(result.row.model).moe
    ]
    assert median(misses) <= 0.05


def test_the_page_shows_todays_forecasts(request: pytest.FixtureRequest) -> None:
    """`--refresh-golden` writes it, as does `python -m tests.bench.proof_table --only ""`."""
    if request.config.getoption("--refresh-golden"):
        PAGE.write_text(proof_table.page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == proof_table.page()

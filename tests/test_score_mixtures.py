"""Published runs of mixtures of experts, and of products in int8 and fp8."""

from dataclasses import replace
from statistics import median

import pytest

from orchestrator import catalog
from orchestrator.catalog.published import UNKNOWN_TYPE
from orchestrator.evidence.score.evaluate import (
    DENSE,
    OTHERS,
    published_samples,
    with_catalog_constants,
)
from orchestrator.evidence.score.learn import learn
from orchestrator.evidence.score.published_runs import (
    MIXTURES,
    QUANTIZED,
    Unscorable,
    read,
    run_of,
)
from orchestrator.evidence.score.samples import _lay_out, samples
from orchestrator.network.decoder import decoder
from orchestrator.values.model import LatentDimensions, MixtureOfExperts

ROWS = {row["id"]: row for row in read(MIXTURES)}


def test_mixtures_are_near_their_measured_steps() -> None:
    """Half of them within 5 %, and none is faster than its lower bound."""
    score = with_catalog_constants(MIXTURES)
    assert len(score.rows) == 15
    assert median(abs(row.error) for row in score.rows) < 0.05
    assert score.summary.below_lower_bound == 0
    assert score.mixtures == replace(score.summary, left_out=0)
    assert score.dense.rows == 0


def test_the_default_score_has_mixtures_apart() -> None:
    """Rows of both, with figures of each; the dense ones are as they were."""
    score = with_catalog_constants()
    found = {row.id for row in score.rows if row.mixture}
    assert found == {row.id for row in with_catalog_constants(MIXTURES).rows}
    assert score.dense.rows == score.summary.rows - 15 - score.quantized.rows
    assert not ROWS.keys() & {sample.run.id for sample in published_samples(*DENSE)[0]}
    assert not any(
        sample.run.model.moe for sample in published_samples(*DENSE)[0]
    )  # nothing learned from them


def test_mixtures_decide_about_nothing_that_dense_rows_show() -> None:
    """The constants that they share are the same to the last digit with mixtures and without."""
    dense = [sample for sample in published_samples(*DENSE)[0] if sample.run.chip in {"v5p", "v6e"}]
    mixtures = [s for s in published_samples(*OTHERS)[0] if s.run.chip in {"v5p", "v6e"}]
    alone, together = learn(dense), learn([*dense, *mixtures])
    assert alone.matmul == together.matmul
    new = {"row_move_s", "bias_row_s", "mask_products"}
    assert {name for name, value in alone.shared.items() if value != together.shared[name]} <= new
    assert alone.shared["row_move_s"] != together.shared["row_move_s"]
    assert not alone.quantized
    assert together.quantized.keys() == {"v5p-int8", "v6e-int8"}


def test_latent_attention_is_read() -> None:
    """With queries from a latent, and without."""
    large = run_of(ROWS["moe_tpu7x128_deepseek3-671b"]).model
    assert large.latent == LatentDimensions(
        query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )
    assert (large.head_dim, large.kv_heads) == (192, 128)
    assert decoder(large).parameters / 1e9 == pytest.approx(671.0, rel=1e-3)
    small = run_of(ROWS["moe_v5p8_deepseek2-16b"]).model
    assert small.latent == replace(large.latent, query_rank=None)


def test_grouped_matmuls_take_whole_tiles_of_experts() -> None:
    """1,408 numbers of an expert take two tiles of 1,024; 2,048 and 7,168 fill theirs."""
    run = run_of(ROWS["moe_v5p8_deepseek2-16b"])
    [line] = [entry for entry in _lay_out(run)[1] if entry.name == "tiles of experts"]
    routed = 26 * 6 * 2048 * 1408 * 2 * 24 * 2048
    assert line.inputs["flops"] == pytest.approx(3 * 4 * routed * (2048 / 1408 - 1))
    large = _lay_out(run_of(ROWS["moe_v5p512_deepseek3-671b"]))[1]
    assert [line.value for line in large if line.name == "tiles of experts"] == [0]


def flops_of(name: str, line: str) -> list[float]:
    """Of a run's lines of that name."""
    return [
        entry.inputs["flops"] for entry in _lay_out(run_of(ROWS[name]))[1] if entry.name == line
    ]


def test_tiles_that_two_experts_share_are_computed_for_both() -> None:
    """63 tiles of 512 rows for 64 experts: three matrices, forward, again and twice backward."""
    name = "shared tiles of experts"
    assert flops_of("moe_v5p8_deepseek2-16b", name) == pytest.approx(
        [26 * 3 * 4 * 2 * 63 * 512 * 2048 * 1408]
    )
    assert not flops_of("moe_v5p8_deepseek2-16b", "empty rows of experts")  # in place of ours
    assert not flops_of("moe_v6e256_mixtral-8x7b", name)  # every expert has as many rows


def test_results_that_are_weighed_are_made_again() -> None:
    """A forward product of the last matrices, empty rows too; not where one expert has it all."""
    name = "experts' results again"
    tokens = 24 * 2048
    assert flops_of("moe_v5p8_deepseek2-16b", name) == pytest.approx(
        [26 * 2 * tokens * 6 * 2048 * 1408]
    )
    assert flops_of("moe_v6e256_mixtral-8x7b", name) == pytest.approx(
        [32 * 2 * 12 * 4096 * 2 * 1.25 * 4096 * 14_336]
    )
    assert not flops_of("moe_v5p512_llama4-scout", name)


def test_a_row_becomes_its_mixture() -> None:
    """Experts, their width, shared ones and the capacity."""
    scout = run_of(ROWS["moe_v5p512_llama4-scout"])
    assert scout.model.moe == MixtureOfExperts(experts=16, top_k=1, d_ff=8192, shared_experts=1)
    mixtral = run_of(ROWS["moe_v6e256_mixtral-8x7b"])
    assert mixtral.model.moe == MixtureOfExperts(
        experts=8, top_k=2, d_ff=14_336, capacity_factor=1.25
    )
    assert mixtral.mesh["fsdp"] == 256
    assert mixtral.remat.startswith("custom: offload decoder_layer_input")


def test_masks_that_dispatch_tokens_cost_matmuls() -> None:
    """Six products of every token with every row of its sequence, in each layer."""
    run = run_of(ROWS["moe_v6e256_mixtral-8x7b"])
    [line] = [entry for entry in _lay_out(run)[1] if entry.name == "dispatch by matmuls"]
    tokens, rows = 12 * 4096, 8 * 1280
    assert line.inputs["flops"] == 32 * 6 * 2 * tokens * rows * 4096


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("moe_v6e256_mixtral-8x7b_torchprime", {"capacity_factor": "not stated"}),
        ("moe_v5p512_deepseek3-671b", {"attention": "MLA"}),
        ("moe_h100_qwen3-235b_256", {}),
    ],
)
def test_what_a_row_does_not_state_is_not_guessed(name: str, change: dict[str, str]) -> None:
    """A capacity, sizes of latents, and pipeline stages that plans do not have."""
    with pytest.raises(Unscorable):
        run_of(ROWS[name] | change)


def test_every_row_of_an_expert_is_moved() -> None:
    """Qwen3-235B on a device of 16 sequences: there and back, twice, and there again."""
    [sample], _ = samples([ROWS["moe_tpu7x256_qwen3-235b"]])
    assert float(sample.todo.row_moves) == 16 * 4096 * 8 * 94 * 5
    [masked], _ = samples([ROWS["moe_v6e256_mixtral-8x7b"]])
    assert float(masked.todo.row_moves) == 0  # products with masks take their place
    assert masked.masks_s > 0


def test_biases_of_experts_are_rows_too() -> None:
    """gpt-oss adds three to each row of an expert; other models none."""
    [sample], _ = samples([ROWS["moe_tpu7x64_gpt-oss-120b_w"]])
    assert sample.bias_rows == 3 * 4 * 36 * 10 * 8192
    [without], _ = samples([ROWS["moe_tpu7x256_qwen3-235b"]])
    assert without.bias_rows == 0


def test_an_evaluation_in_a_rows_seconds_is_taken_out() -> None:
    """A forward pass for each sequence is a quarter of a step that makes all of it again."""
    rows = {row["id"]: row for row in read(QUANTIZED)}
    row = rows["mlperf_v6e_1024_gpt3-175b"]
    [sample], _ = samples([row])
    assert sample.run.compute == "int8"
    assert 10.734 / sample.measured_s - 1 == pytest.approx(0.25 * 24_567 / 24_576, abs=0.03)
    [stated], _ = samples([row | {"notes": ""}])
    assert stated.measured_s == 10.734


def test_a_narrow_type_has_a_share_of_its_own() -> None:
    """Where no run of the chip is in that type, its share in bf16, and nobody knows how near."""
    known, narrow = catalog.efficiency("v6e"), catalog.efficiency("v6e", "int8")
    unknown = catalog.efficiency("v6e", "fp8")
    assert known is not None
    assert narrow is not None
    assert unknown is not None
    assert narrow.matmul.rows != known.matmul.rows
    assert unknown.matmul.value == known.matmul.value
    assert unknown.matmul.unsure == UNKNOWN_TYPE

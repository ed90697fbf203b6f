"""Published runs of mixtures of experts, by constants that were learned from dense models alone."""

from statistics import median

import pytest

from orchestrator.score.cells import Unscorable
from orchestrator.score.evaluate import OWN, with_catalog_constants
from orchestrator.score.mixture_rows import MIXTURES
from orchestrator.score.published_runs import read, run_of
from orchestrator.score.run_layout import lay_out
from orchestrator.types.moe import MixtureOfExperts

ROWS = {row["id"]: row for row in read(MIXTURES)}


def test_mixtures_are_near_their_measured_steps() -> None:
    """Half of them within 8 %, and none is faster than its lower bound."""
    assert MIXTURES not in OWN  # no constant has seen them
    score = with_catalog_constants(MIXTURES)
    assert len(score.rows) == 3
    assert median(abs(row.error) for row in score.rows) < 0.08
    assert score.summary.below_lower_bound == 0


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
    [line] = [one for one in lay_out(run).lines if one.name == "dispatch by matmuls"]
    tokens, rows = 12 * 4096, 8 * 1280
    assert line.inputs["flops"] == 32 * 6 * 2 * tokens * rows * 4096


@pytest.mark.parametrize(
    "name", ["moe_v6e256_mixtral-8x7b_torchprime", "moe_v5p512_deepseek3-671b"]
)
def test_what_a_row_does_not_state_is_not_guessed(name: str) -> None:
    """A capacity that is not stated, and attention that plans do not have."""
    with pytest.raises(Unscorable):
        run_of(ROWS[name])

"""Parameters, model FLOPs and MFU, against the figures of "How To Scale Your Model", Part 6."""

import pytest

from orchestrator import catalog
from orchestrator.network.decoder import decoder
from orchestrator.plan import flops


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_parameters_are_exact(name: str, exact: int) -> None:
    """The counts of the released checkpoints, to the last one."""
    assert flops.parameters(catalog.model(name)) == exact


def test_the_book_counts_70b_the_same_way() -> None:
    """FFW 56.3e9, attention 12e9, vocabulary 2.1e9, and 4.2e11 FLOPs a token."""
    model = catalog.model("llama3-70b")
    network = decoder(model)
    block = network.block
    assert network.layers * block.mlp.matrix_elements == pytest.approx(56.3e9, rel=1e-2)
    assert network.layers * block.attention.matrix_elements == pytest.approx(12e9, rel=1e-2)
    assert network.table_parameters == pytest.approx(2.1e9, rel=1e-2)
    assert flops.simple_flops_per_token(model) == pytest.approx(4.2e11, rel=1e-2)


def test_a_tied_model_has_one_table_and_unembeds_all_the_same() -> None:
    """Tying saves parameters, and no matmul."""
    model = catalog.model("llama-1b")
    assert model.tied
    network = decoder(model)
    assert network.table_parameters == model.d_model * model.vocab
    layers = model.layers * network.block.matrix_elements
    assert network.matmul_parameters == layers + model.d_model * model.vocab


def test_mfu_counts_causal_attention_once() -> None:
    """Half of the full 12 L N H S: at 8,192 positions 8B spends 14 % more than its matmuls."""
    model = catalog.model("llama3-8b")
    counted = flops.model_flops_per_token(model, 8192)
    matmuls = 6 * decoder(model).matmul_parameters
    assert counted - matmuls == 6 * model.layers * model.heads * model.head_dim * 8192
    assert counted / matmuls == pytest.approx(1.143, abs=1e-3)


def test_mfu_of_a_published_run() -> None:
    """Llama 3.1 70B on 64 tpu7x chips: 12.2 s a step is stated as 1,207 TFLOP/s a chip."""
    model = catalog.model("llama3-70b")
    step_flops = 2_097_152 * flops.model_flops_per_token(model, 8192)
    assert step_flops / 12.2 / 64 == pytest.approx(1207.05e12, rel=0.01)
    peak = catalog.chip("tpu7x").peak_flops_per_s["bf16"].value
    assert flops.mfu(step_flops, 12.2, 64, peak) == pytest.approx(0.523, abs=5e-3)

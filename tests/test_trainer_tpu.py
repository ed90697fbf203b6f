"""Trainer llama for real TPUs, through libtpu: the compiler needs the topology and no TPU."""

from typing import Any

import pytest
from jax.experimental import topologies

from orchestrator.values.model import Model
from orchestrator.values.spec import Precision
from tests.test_trainer_mesh import WITHOUT_TPU, span
from tests.trainer_plans import plan_of
from trainers import llama
from trainers.contract import build

LLAMA3_70B = Model(
    name="llama3-70b", layers=80, d_model=8192, d_ff=28672,
    heads=64, kv_heads=8, head_dim=128, vocab=128256,
)  # fmt: skip
SPANS: dict[str, list[dict[str, Any]]] = {
    "fsdp": [span("y", 4), span("z", 2, 2)],
    "sequence": [span("z", 2)],
    "tensor": [span("x", 4)],
}
HBM_BYTES = 95.74 * 2**30  # what the compiler allows a v5p chip
STATE_BYTES = 12 * 70_553_706_496 / 64  # fp32 parameters and moments, a chip's part


@pytest.mark.slow
def test_llama3_70b_compiles_for_v5p(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step fits 64 chips, by the compiler's own account, and attention is splash."""
    pytest.importorskip("libtpu")
    for name, value in WITHOUT_TPU.items():
        monkeypatch.setenv(name, value)
    devices = topologies.get_topology_desc("v5:4x4x4", "tpu").devices
    plan = plan_of(
        LLAMA3_70B, precision=Precision(), sequences=64, length=4096,
        fsdp=8, sequence=2, tensor=4, spans=SPANS,
    )  # fmt: skip
    program = build(llama, plan, devices)
    compiled = program.lowered().compile()
    memory, text = compiled.memory_analysis(), compiled.as_text() or ""
    assert memory is not None
    assert STATE_BYTES < memory.argument_size_in_bytes < 1.01 * STATE_BYTES
    assert memory.argument_size_in_bytes < memory.peak_memory_in_bytes < HBM_BYTES / 2
    assert all(f"splash_mha_{kernel}" in text for kernel in ("fwd", "dkv"))
    assert "collective-permute-start" in text  # matmuls overlap what travels over `tensor`

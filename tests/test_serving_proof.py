"""Proofs of serving: the programs of a plan, and what the compiler says of them."""

import pytest

import orchestrator
from orchestrator.errors import SpecError
from orchestrator.serving.programs import served_programs
from tests.bench import proof_serving
from tests.conftest import ROOT, RunOrch

DEEPSEEK = ROOT / "specs" / "serve_deepseek_v3_tpu7x.yaml"
QWEN = ROOT / "specs" / "serve_qwen3_32b_v6e.yaml"
SMALL = (
    "serve.model={layers: 2, d_model: 512, d_ff: 1024, heads: 8, kv_heads: 4, vocab: 1024,\
 head_dim: 128}", "resources.topology=2x2", "serve.concurrency=8", "serve.prompt=256",
    "serve.output=128", "serve.engine=any", "serve.kv_cache=int8",
)  # fmt: skip


def test_programs_have_the_cache_of_the_requests_in_work() -> None:
    plan = orchestrator.plan_serving(DEEPSEEK)
    prefill, decode = served_programs(plan)
    parts = plan.mesh["attention"]
    assert decode.sequences == prefill.sequences
    assert decode.sequences * parts >= plan.forecast.batch / plan.replicas
    assert decode.positions == 4096 + 1024
    assert prefill.tokens * parts == plan.serve.chunk
    for program in prefill, decode:
        sizes = {line.name: line.value for line in program.forecast.memory[0].lines}
        assert sizes["weights"] == plan.forecast.memory.weights_bytes
        assert program.chips * plan.replicas == plan.chips
        assert program.forecast.memory_bytes_per_device < program.forecast.hbm_bytes_per_device


def test_what_programs_send_is_what_plans_price() -> None:
    """Gathers for experts, sums over these and over `tensor`: together the bytes of the plan."""
    plan = orchestrator.plan_serving(DEEPSEEK)
    decode = served_programs(plan)[1]
    sent = {line.kind: line for line in decode.forecast.time if line.collective}
    assert {"expert_gather", "expert_scatter", "activation_scatter"} == {*sent}
    tokens, d_model, layers = decode.sequences * plan.mesh["attention"], 7168, 58
    gathered = layers * tokens * d_model * 2 * 15 / 16
    assert sent["expert_gather"].inputs["bytes"] == pytest.approx(gathered)


def test_options_of_other_proofs_are_refused(orch: RunOrch) -> None:
    done = orch("prove", str(QWEN), "--search", "2")
    assert done.returncode == 2
    assert "--search goes with the proof of a training" in done.stderr


def test_forecasts_are_what_compilers_said_of_the_rows_of_the_bench() -> None:
    """Memory within 5 %, FLOPs within 2 %, and all traffic of each row is what was planned."""
    known = proof_serving.record()
    assert len(known) == 2 * len(proof_serving.ROWS)
    for row in proof_serving.ROWS:
        for program in proof_serving.programs(row):
            compiled, forecast = known[f"{row} {program.phase}"], program.forecast
            flops = sum(line.inputs.get("flops", 0.0) for line in forecast.time)
            assert forecast.memory_bytes_per_device == pytest.approx(compiled.peak_bytes, rel=0.05)
            assert flops == pytest.approx(compiled.flops, rel=0.02), row
            assert compiled.crosses_as_planned


@pytest.mark.slow
def test_the_compiler_agrees_with_the_ledger() -> None:
    """Both programs, with an int8 cache; a type that the network does not store is refused."""
    prefill, decode = orchestrator.prove_serving(QWEN, SMALL)
    for proven in prefill.proof, decode.proof:
        assert proven.passes
        assert proven.agrees, proven.disagreements
        sizes = {line.name: (line.compiled, line.forecast) for line in proven.ledger}
        for kind in "parameters", "cache":
            compiled, forecast = sizes[kind]
            assert compiled == pytest.approx(forecast, rel=0.01)
    with pytest.raises(SpecError, match="can be planned, not compiled"):
        orchestrator.prove_serving(QWEN, (*SMALL, "serve.weights=int4"))

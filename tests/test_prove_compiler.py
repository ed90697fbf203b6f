"""Proofs by the real TPU compiler, without a TPU: a minute or two of one core."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import util
from pathlib import Path

import pytest

from orchestrator.planning.planner import make_plan
from orchestrator.proving import compiler, proofs_folder, verdict
from orchestrator.proving.compiled import CacheEntry, ProgramSummary
from orchestrator.proving.compiler import (
    _environment,
    compile_plan,
    compile_request,
)
from orchestrator.proving.verdict import ProofResult, prove
from orchestrator.values import codec
from orchestrator.values.model import MixtureOfExperts, Model
from orchestrator.values.plan import plan_digest, program_digest
from orchestrator.values.spec import MeshRequest, Spec, TensorTreatments
from tests.conftest import ROOT
from tests.example_specs import spec_of

pytestmark = pytest.mark.skipif(
    util.find_spec("libtpu") is None, reason="libtpu exists for Linux on x86-64 alone"
)


def with_little_effort(inherited: Mapping[str, str]) -> dict[str, str]:
    """The compiler searches less for a fast schedule: it takes a third of the time."""
    return {**_environment(inherited), "JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1.0"}


@pytest.fixture(scope="module")
def summaries() -> dict[str, ProgramSummary]:
    """What is read of the small programs of tests/tpu_programs.py, compiled for two slices."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu_programs"],
        cwd=ROOT, env=with_little_effort({"PATH": "/usr/bin:/bin"}), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = map(json.loads, done.stdout.splitlines())
    return {line["name"]: codec.from_json(line["summary"], ProgramSummary) for line in lines}


WEIGHTS_BYTES = 6 * 512 * 512 * 2
ROWS_BYTES = 1024 * 512 * 2
LAYER_FLOPS = 2 * 1024 * 512 * 512


def test_gradients_alone_cross_pods_where_nothing_else_is_asked_for(
    summaries: dict[str, ProgramSummary],
) -> None:
    """Summed over data and pods: scattered inside the slice, half of them over DCN."""
    read = summaries["gradients_alone"]
    gradient, scalar = sorted(read.sends, key=lambda send: -send.payload_bytes)
    assert gradient.in_backward
    assert gradient.payload_bytes == 2 * WEIGHTS_BYTES / 2 * 1 / 2
    assert (scalar.in_backward, scalar.payload_bytes, scalar.dtype) == (False, 4, "fp32")
    kinds = {collective.kind: collective.payload_bytes for collective in read.collectives}
    assert kinds == {"reduce-scatter": WEIGHTS_BYTES / 2, "all-gather": WEIGHTS_BYTES / 2}


def test_a_scan_over_layers_counts_its_layers(summaries: dict[str, ProgramSummary]) -> None:
    """Six layers forward, and twice that backward: trips are in no attribute of the program."""
    assert summaries["gradients_alone"].flops == {"matrix products": 3 * 6 * LAYER_FLOPS}


def test_activations_that_cross_pods_are_no_gradients(summaries: dict[str, ProgramSummary]) -> None:
    """They are summed as gradients are, but no backward pass made them."""
    sent = summaries["activations_too"].sends
    [activations] = [send for send in sent if not send.in_backward and send.payload_bytes > 4096]
    assert (activations.kind, activations.payload_bytes) == ("all-reduce", ROWS_BYTES)


def test_weights_that_lie_over_pods_are_seen(summaries: dict[str, ProgramSummary]) -> None:
    """Gathered to be used and scattered back: neither is a reduction of gradients."""
    kinds = {send.kind: send.payload_bytes for send in summaries["weights_gathered"].sends}
    assert kinds == {"all-gather": WEIGHTS_BYTES / 2, "reduce-scatter": WEIGHTS_BYTES / 2}


def test_a_ring_around_a_product_is_a_gather(summaries: dict[str, ProgramSummary]) -> None:
    """Three rounds of permutes among four devices, and four products."""
    read = summaries["ring"]
    [one] = read.collectives
    assert (one.kind, one.executed_kind, one.axes) == (
        "all-gather", "collective-permute", ("tensor",),
    )  # fmt: skip
    assert one.payload_bytes == 3 * ROWS_BYTES
    assert read.flops == {"matrix products": 4 * LAYER_FLOPS}


def test_a_window_counts_as_the_blocks_that_it_leaves(summaries: dict[str, ProgramSummary]) -> None:
    """Of 36 blocks below the diagonal 21 are within the window, in a loop of two layers."""
    read = summaries["windowed"]
    pairs, head = 21 * 512 * 512, 128
    splash = {"splash fwd": 4, "splash dq": 6, "splash dkv": 8}
    assert read.uncounted == ()
    assert {name: read.flops[name] for name in splash} == {
        name: 2 * per_pair * pairs * head for name, per_pair in splash.items()
    }


def test_groups_of_several_axes_are_told_apart(summaries: dict[str, ProgramSummary]) -> None:
    """A gather over one axis, a scatter over two."""
    found = {
        collective.axes: (collective.kind, collective.payload_bytes)
        for collective in summaries["two_axes"].collectives
    }
    product_bytes = (4 * 1024) ** 2 * 2
    assert found == {
        ("tensor",): ("all-gather", 4 * ROWS_BYTES * 3 / 4),
        ("data", "tensor"): ("reduce-scatter", product_bytes * 7 / 8),
    }


# --- a whole plan

SMALL = Model(
    name="small", layers=4, d_model=1024, d_ff=4096, heads=8, kv_heads=4, head_dim=128, vocab=32768
)


def small() -> Spec:
    """Two pods, replicas, weights gathered."""
    return spec_of(
        SMALL, sequences=32, length=512, chip="v5e", topology="2x2", pods=2, remat="full",
        mesh=MeshRequest(data=2, fsdp=2, sequence=1, tensor=1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProofResult, list[str], Path]:
    """The proof of the small plan by the trainer's own step, its stages, and the program's text."""
    asked, stages = small(), list[str]()
    hlo = tmp_path_factory.mktemp("hlo")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiler, "_environment", with_little_effort)
        found = prove(asked, make_plan(asked), stages.append, hlo)
    [text] = hlo.iterdir()
    return found, stages, text


def test_the_trainers_step_is_as_forecast(proven: tuple[ProofResult, list[str], Path]) -> None:
    """Memory, payload on every group, FLOPs; gradients alone cross pods."""
    found, stages, text = proven
    assert stages == ["laying out", "tracing", "compiling", "reading"]
    assert found.proof.disagreements == ()
    assert found.proof.passes
    assert {collective.link for collective in found.proof.collectives} == {"ici", "dcn"}
    assert text.read_text(encoding="utf-8").startswith("HloModule")


@pytest.mark.slow
def test_slices_that_share_weights_are_as_forecast() -> None:
    """Of four slices two share each copy: weights and gradients cross, each over its own axis."""
    asked = spec_of(
        SMALL, sequences=64, length=512, chip="v5e", topology="2x2", pods=4, remat="full",
        mesh=MeshRequest(data=1, fsdp=4, sequence=1, tensor=1, fsdp_dcn=2),
    )  # fmt: skip
    proof = prove(asked, make_plan(asked)).proof
    assert proof.passes
    assert proof.crosses_as_planned
    assert not proof.only_gradients_cross_pods
    assert "payload" not in {disagreement.code for disagreement in proof.disagreements}
    carried = {
        (crossing.carries, crossing.axes)
        for crossing in proof.crossings
        if crossing.bytes_per_step > 4096
    }
    assert carried == {
        ("weights", ("fsdp_dcn",)),
        ("gradients", ("fsdp_dcn",)),
        ("gradients", ("pods",)),
    }


def test_every_byte_of_the_peak_has_a_name(proven: tuple[ProofResult, list[str], Path]) -> None:
    """The buffers in the text add up to the peak that the compiler reports."""
    proof = proven[0].proof
    total = sum(line.compiled for line in proof.ledger)
    assert total == pytest.approx(proof.peak_hbm_bytes_per_device, rel=0.01)
    assert proof.peak_at.startswith("trainers/llama/")
    names = [buffer.name for buffer in proof.buffers]
    assert any(name.startswith("parameters.") for name in names)
    assert any(name.startswith("trainers/llama/") for name in names)


def test_every_second_of_the_step_has_a_line_of_the_ledger(
    proven: tuple[ProofResult, list[str], Path],
) -> None:
    """Collectives too, of which the compiler makes its own; few operations name none."""
    schedule = proven[0].proof.schedule
    assert schedule is not None
    lines = {line.kind: line for line in schedule.ledger}
    assert sum(line.total_s for line in lines.values()) == pytest.approx(schedule.total_s)
    assert lines.keys() >= {
        "matmul", "matmul_recompute", "attention", "attention_recompute", "unembedding",
        "elementwise", "optimizer_update", "weight_gather", "gradient_scatter",
        "gradient_reduction", "other",
    }  # fmt: skip
    sent = {kind for kind, line in lines.items() if line.wire_s > 0}
    assert sent - {"other"} == {"weight_gather", "gradient_scatter", "gradient_reduction"}
    assert lines["other"].total_s < 0.1 * schedule.total_s
    assert lines["matmul"].computed_s > lines["matmul_recompute"].computed_s


def test_what_crosses_pods_comes_from_the_trainer(
    proven: tuple[ProofResult, list[str], Path],
) -> None:
    """Each gradient's sum is traced to a line."""
    gradients = [
        crossing for crossing in proven[0].proof.crossings if crossing.carries == "gradients"
    ]
    assert gradients
    assert all(place.startswith("trainers/") for gradient in gradients for place in gradient.places)


def test_the_second_time_nothing_is_compiled(
    proven: tuple[ProofResult, list[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler starts, and the proof says its age."""
    monkeypatch.setattr(verdict, "_compile", None)
    asked = small()
    again = prove(asked, make_plan(asked))
    assert again.age_s is not None
    assert again.proof == proven[0].proof


def test_the_proof_depends_on_what_the_process_loaded(
    proven: tuple[ProofResult, list[str], Path],
) -> None:
    """The trainer and the policies, what reads the program, and the compiler's packages."""
    [path] = proofs_folder().glob(f"{program_digest(proven[0].plan)}.*")
    code = codec.from_json(path.read_bytes(), CacheEntry).compiled.code
    assert {
        "trainers.llama.model",
        "orchestrator.network.rematerialization",
        "orchestrator.proving.compile_process",
        "orchestrator.proving.hlo.summary",
    } <= code.modules.keys()
    assert {"jax", "jaxlib", "numpy", "python"} <= code.packages.keys()
    assert not {"orchestrator.planning.memory", "orchestrator.planning.time"} & code.modules.keys()


MIXED = TensorTreatments(
    block_input="offload", query="offload", key="keep", value="keep", attention="offload",
    up="offload",
)  # fmt: skip


@pytest.mark.slow
def test_an_offloading_plan_is_as_forecast() -> None:
    """A mapping on another chip: the host has what was forecast, HBM does not have it too, and what
    the policy recomputes is recomputed.
    """
    asked = spec_of(
        SMALL, sequences=32, length=2048, chip="v6e", topology="2x2", pods=1, remat=MIXED,
        mesh=MeshRequest(fsdp=4),
    )  # fmt: skip
    proof = prove(asked, make_plan(asked)).proof
    assert proof.disagreements == ()
    assert proof.passes
    assert proof.forecast_host_bytes_per_device
    assert proof.host_bytes_per_device == pytest.approx(proof.forecast_host_bytes_per_device)
    assert proof.flops_per_device == pytest.approx(proof.forecast_flops_per_device, rel=1e-3)
    assert proof.peak_hbm_bytes_per_device == sum(line.compiled for line in proof.ledger)
    assert 0 < proof.margin_bytes < proof.hbm_bytes_per_device


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [None, 1.25], ids=["dropless", "capacity"])
def test_mixtures_compile_for_tpu7x(capacity: float | None) -> None:
    """The compiler's cost model overflows its own stacks there."""
    experts = MixtureOfExperts(experts=8, top_k=2, d_ff=768, capacity_factor=capacity)
    model = Model(
        name="small-mixture", layers=2, d_model=2048, d_ff=6144, heads=32, kv_heads=4, head_dim=128,
        vocab=8192, moe=experts,
    )  # fmt: skip
    asked = spec_of(
        model, sequences=32, length=1024, chip="tpu7x", topology="2x2x1", pods=1, remat="full",
        mesh=MeshRequest(fsdp=8),
    )  # fmt: skip
    proof = prove(asked, make_plan(asked)).proof
    assert proof.passes
    assert proof.flops_per_device == pytest.approx(proof.forecast_flops_per_device, rel=0.02)


def test_too_much_for_the_memory_is_refused_at_once() -> None:
    """The compiler's sentence says how much it wants and what there is."""
    asked = small()
    plan = make_plan(asked)
    sequences = 2**15
    batch = replace(plan.batch, sequences=sequences, tokens=sequences * plan.batch.length)
    large = replace(plan, remat="none", batch=batch)
    large = replace(large, digest=plan_digest(large))
    answer = compile_plan(compile_request(large), lambda _: None)
    assert answer.failure is not None
    assert answer.failure.message.startswith("RESOURCE_EXHAUSTED: ")
    assert "exceeds available HBM (15.75G)" in answer.failure.message.splitlines()[0]


def test_an_unknown_option_is_the_compilers_to_refuse() -> None:
    """Before anything is compiled."""
    plan = replace(make_plan(small()), compiler_options={"xla_no_such_thing": True})
    answer = compile_plan(compile_request(plan), lambda _: None)
    assert answer.failure is not None
    assert "No such compile option: 'xla_no_such_thing'" in answer.failure.message

"""Programs for GPUs: one as the compiler writes it, cut down by hand, and compiled plans."""

import re
import sys
from dataclasses import replace
from importlib import util

import pytest

from orchestrator import plugins
from orchestrator.errors import MissingExtra, ProofUnavailable
from orchestrator.planning.planner import make_plan
from orchestrator.proving import compiler, verdict
from orchestrator.proving.compiled import CompileResult, ProgramSummary
from orchestrator.proving.hlo.collectives import DeviceMesh
from orchestrator.proving.hlo.program import program_of
from orchestrator.proving.hlo.summary import summarize
from orchestrator.proving.hlo.transfers import DomainLinks
from orchestrator.values.proof import (
    ComputeRates,
    ScheduleRates,
    SliceTorus,
    TransferRates,
)
from orchestrator.values.spec import Spec
from tests.example_specs import TINY, spec_of
from tests.programs import program, program_text

NEEDS_COMPILER = pytest.mark.skipif(
    util.find_spec("jax_cuda12_plugin") is None,
    reason="XLA's compiler for GPUs is not installed: make setup GPU=1",
)
PEAK, NVLINK, NETWORK, HBM = 1e15, 100e9, 10e9, 1e12
RATES = ScheduleRates(
    compute=ComputeRates(clock_hz=0.0, peak_flops_per_s=PEAK, kernel_share=0.5),
    transfers=TransferRates(hbm_bytes_per_s=HBM, host_bytes_per_s=None, dcn_bytes_per_s=NETWORK),
    torus=SliceTorus(
        lengths=(2,), wraps=(False,), link_bytes_per_s=(NVLINK,),
        devices_per_chip=1, hop_s=0.0, switched=True,
    ),
)  # fmt: skip
DOMAINS_OF_TWO = DeviceMesh({"pods": 2, "fsdp": 2}, between=("pods",))
US = 1e-6


@pytest.fixture(scope="module")
def summary() -> ProgramSummary:
    """What is read of tests/programs/gpu.txt, for two domains of two GPUs."""
    return summarize(program("gpu"), DOMAINS_OF_TWO, DeviceMesh({"pods": 2}), 1, RATES)


def test_a_collective_of_several_domains_counts_inside_and_between(summary: ProgramSummary) -> None:
    """The compiler merges the sum inside a domain with that between them; the trainer wrote two."""
    found = {
        (collective.axes, collective.kind): collective.payload_bytes
        for collective in summary.collectives
    }
    gathered, summed = 512 * 2048 * 2, 1000 * 2
    assert found == {
        (("fsdp",), "all-gather"): gathered / 2,
        (("fsdp",), "all-reduce"): 2 * summed / 2,
    }
    [sent] = summary.sends
    assert (sent.axes, sent.kind, sent.payload_bytes) == (("pods",), "all-reduce", 2 * summed / 2)
    assert sent.in_backward
    assert sent.places == ("trainers/toy/net.py:7 (mlp)",)


def test_attention_of_cudnn_counts_what_its_mask_shows(summary: ProgramSummary) -> None:
    """Forward 2 H + 2 V of each pair, backward 6 H + 4 V; a window of 64 leaves fewer pairs."""
    of_pairs, heads, width = {"all": 256 * 257 // 2, "window": 64 * 65 // 2 + 192 * 64}, 2 * 4, 64
    assert summary.flops == {
        "matrix products": 2 * 1024 * 512 * 2048,
        "cuDNN attention forward": heads * of_pairs["all"] * 4 * width,
        "cuDNN attention backward": heads * of_pairs["window"] * 10 * width,
    }
    assert summary.uncounted == ()


def test_a_mask_that_is_not_known_is_not_counted() -> None:
    """It is named instead."""
    text = program_text("gpu").replace('"mask_type": "CAUSAL"', '"mask_type": "ALIBI"')
    read = summarize(program_of(text), DOMAINS_OF_TWO, DeviceMesh({"pods": 2}), 1, RATES)
    assert read.uncounted == ("cuDNN attention backward", "cuDNN attention forward")


def test_operations_have_the_seconds_that_the_compiler_writes(summary: ProgramSummary) -> None:
    """Products the peak, or the time of their memory; others the model that knows their tiles."""
    schedule = summary.schedule
    assert schedule is not None
    product_s = 3.5 * US  # of memory: at the peak 2.1
    kernels_s = (summary.flops["cuDNN attention forward"]
                 + summary.flops["cuDNN attention backward"]) / (PEAK * 0.5)  # fmt: skip
    assert schedule.products_s == pytest.approx(product_s)
    assert schedule.other_s == pytest.approx(1.5 * US)
    assert schedule.kernels_s == pytest.approx(kernels_s)


def test_collectives_take_the_rates_of_their_links(summary: ProgramSummary) -> None:
    """A sum goes over NVLink for the whole, and over the network for the part of each domain."""
    assert summary.schedule is not None
    by_kind = {collective.kind: collective for collective in summary.schedule.collectives}
    gather_s = 512 * 2048 * 2 / 2 / NVLINK
    assert by_kind["all-gather"].link == "ici"
    assert by_kind["all-gather"].wire_s == pytest.approx(gather_s)
    assert by_kind["all-gather"].exposed_s == pytest.approx(gather_s - 1.5 * US)
    assert by_kind["all-gather"].behind_s == pytest.approx(1.5 * US)
    sum_s = 2000 / NVLINK + 2 * 1000 / 2 / NETWORK
    assert by_kind["all-reduce"].link == "dcn"
    assert by_kind["all-reduce"].wire_s == pytest.approx(sum_s)


@pytest.mark.parametrize(
    ("kind", "members", "link", "seconds"),
    [
        ("all-gather", (0, 1), "ici", 0.5 / NVLINK),
        ("all-gather", (0, 2), "dcn", 0.5 / NETWORK),
        ("all-gather", (0, 1, 2, 3), "dcn", 0.5 / NVLINK + 0.25 / NETWORK),
        ("reduce-scatter", (0, 1, 2, 3), "dcn", 0.5 / NVLINK + 0.25 / NETWORK),
        ("all-reduce", (0, 1), "ici", 1.0 / NVLINK),
        ("collective-permute", (0, 1), "ici", 1.0 / NVLINK),
        ("collective-permute", (1, 2), "dcn", 1.0 / NETWORK),
    ],
)
def test_a_byte_takes_the_links_of_its_group(
    kind: str, members: tuple[int, ...], link: str, seconds: float
) -> None:
    """Inside a domain for the whole, between domains for a domain's part."""
    found, _, took = DomainLinks(RATES).seconds(kind, 1.0, members)
    assert found == link
    assert took == pytest.approx(seconds)


# --- the compiler


def tiny() -> Spec:
    """Two nodes of four GPUs."""
    return spec_of(
        TINY, sequences=16, length=128, tolerance=0.0, chip="h100", topology="4", pods=2,
        remat="full",
    )  # fmt: skip


def test_without_the_extra_one_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started."""
    monkeypatch.setattr(plugins, "missing", lambda extra: ["it"] if extra == "gpu" else [])
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(MissingExtra, match=r"GPU compiler is not installed \(182 MB") as raised:
        verdict._compile(make_plan(tiny()), lambda _: None, None)
    assert raised.value.next_command
    assert raised.value.next_command.startswith("pip install 'orch[gpu] @ ")


def test_elsewhere_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command would install it."""
    monkeypatch.setattr(plugins, "missing", lambda extra: ["it"] if extra == "gpu" else [])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ProofUnavailable, match=r"Linux alone, and this is darwin\n.*--no-prove"):
        verdict._compile(make_plan(tiny()), lambda _: None, None)


@pytest.fixture(scope="module")
def answer() -> CompileResult:
    """The tiny plan as it is compiled, once for the tests that judge it."""
    return compiler.compile_plan(compiler.compile_request(make_plan(tiny())), lambda _: None)


@NEEDS_COMPILER
def test_a_plan_for_two_nodes_is_compiled_without_a_gpu(
    answer: CompileResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOPs and payload are the forecast's; only gradients leave a node."""
    plan = make_plan(tiny())
    monkeypatch.setattr(compiler, "compile_plan", lambda *_: answer)
    proof = verdict._compile(plan, lambda _: None, None)
    assert proof.fits
    assert proof.crosses_as_planned
    assert proof.only_gradients_cross_pods
    assert proof.flops_per_device == pytest.approx(proof.forecast_flops_per_device, rel=0.02)
    assert not [
        disagreement for disagreement in proof.disagreements if disagreement.code != "peak_memory"
    ]
    assert proof.schedule is not None
    assert proof.schedule.products_s > 0
    assert not proof.schedule.unpriced
    assert set(proof.versions) == {"jax", "jaxlib", "jax-cuda12-pjrt"}


@NEEDS_COMPILER
def test_what_memory_cannot_hold_does_not_fit(
    answer: CompileResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This compiler never refuses: the proof does."""
    plan = make_plan(tiny())
    assert answer.compiled is not None
    monkeypatch.setattr(compiler, "compile_plan", lambda *_: answer)
    little = replace(plan.forecast, hbm_bytes_per_device=answer.compiled.memory.peak / 2)
    proof = verdict._compile(replace(plan, forecast=little), lambda _: None, None)
    assert not proof.fits
    assert proof.refusal is not None
    assert re.match(r"its program needs .* of .* of a device", proof.refusal.message)

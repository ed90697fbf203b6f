"""A compiled program compared with the Forecast."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator import catalog
from orchestrator.planning.planner import make_plan
from orchestrator.proving.compare import _memory_disagreements, _reported_bytes, proof_of
from orchestrator.proving.compiled import Compiled, CompiledCollective, ProgramSummary
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Disagreement, Proof
from orchestrator.values.spec import MeshRequest
from tests.example_specs import spec_of
from tests.proofs import as_forecast, spec

PLAN = make_plan(spec())
GIB = 2**30


def proof(
    change: Callable[[ProgramSummary], ProgramSummary] = lambda r: r, peak: float | None = None
) -> Proof:
    """The proof of a program that is as forecast, but for a change."""
    program = as_forecast(PLAN)
    memory = replace(program.memory, peak=peak or program.memory.peak)
    return proof_of(PLAN, replace(program, memory=memory, summary=change(program.summary)))


def test_a_program_as_forecast_agrees() -> None:
    """Every line has its equal, and nothing is missing on either side."""
    result = proof()
    assert result.fits
    assert result.agrees
    assert result.passes
    assert result.disagreements == ()
    assert result.plan_digest == PLAN.digest
    assert all(e.bytes_per_step == e.forecast_bytes_per_step for e in result.collectives)
    assert result.flops_per_device == pytest.approx(result.forecast_flops_per_device)
    assert result.margin_bytes == result.hbm_bytes_per_device - result.peak_hbm_bytes_per_device


def test_groups_leave_out_axes_of_one_device() -> None:
    """Weights gather over fsdp x sequence; with one sequence shard nothing shows `sequence`."""
    weights = [e for e in proof().collectives if "fsdp" in e.axes]
    assert weights
    assert all("sequence" not in exchanged.axes for exchanged in weights)


@pytest.mark.parametrize(
    ("compiled", "forecast", "agrees"),
    [(4, 4.45, True), (4, 3.55, True), (4, 4.55, False), (40, 41.9, True), (40, 37.9, False)],
)
def test_a_peak_may_be_off_by_a_twentieth_or_half_a_gibibyte(
    compiled: float, forecast: float, agrees: bool
) -> None:
    """Whichever is larger, in either direction."""
    assert (_memory_disagreements(compiled * GIB, forecast * GIB) == ()) is agrees


def test_a_peak_that_is_off_is_a_disagreement() -> None:
    """The ratio of compiled to Forecast shows by how much."""
    result = proof(peak=PLAN.forecast.memory_bytes_per_device * 1.5)
    [missed] = result.disagreements
    assert (missed.code, missed.compiled / missed.forecast) == ("peak_memory", 1.5)
    assert result.fits


def offloading() -> tuple[Plan, Compiled]:
    """A plan that offloads, and a program that is as forecast; the compiler's own peak is that of
    the host, and the buffers in HBM have another sum.
    """
    asked = spec_of(
        "llama3-8b", sequences=128, length=8192, chip="v6e", topology="8x8", pods=1,
        mesh=MeshRequest(fsdp=64), remat="offload_qkv",
    )  # fmt: skip
    plan = make_plan(asked)
    made, forecast = as_forecast(plan), plan.forecast
    hbm, host = forecast.memory_bytes_per_device, forecast.host_memory_bytes_per_chip
    assert host > hbm
    memory = replace(made.memory, host=host, peak=made.memory.arguments + host)
    live = {"parameters": 0.4 * hbm, "working set": 0.6 * hbm}
    return plan, replace(made, memory=memory, summary=replace(made.summary, live_bytes=live))


def test_what_is_on_the_host_is_no_part_of_the_peak() -> None:
    """Verdict, margin and agreement are about HBM; the host has figures of its own."""
    plan, compiled = offloading()
    found = proof_of(plan, compiled)
    assert found.peak_hbm_bytes_per_device == pytest.approx(plan.forecast.memory_bytes_per_device)
    assert found.margin_bytes > 0
    assert found.agrees
    assert found.host_bytes_per_device == found.forecast_host_bytes_per_device
    assert found.host_bytes_per_device == plan.forecast.host_memory_bytes_per_chip


def test_another_amount_on_the_host_is_a_disagreement() -> None:
    """The same tolerance as for HBM."""
    plan, compiled = offloading()
    memory = replace(compiled.memory, host=1.2 * compiled.memory.host)
    [missed] = proof_of(plan, replace(compiled, memory=memory)).disagreements
    assert missed.code == "host_memory"
    assert missed.compiled / missed.forecast == pytest.approx(1.2)


def scaled(axes: tuple[str, ...], factor: float) -> Callable[[ProgramSummary], ProgramSummary]:
    """The payload over some axes, times a factor."""

    def scale(one: CompiledCollective) -> CompiledCollective:
        times = factor if one.axes == axes else 1.0
        return replace(one, payload_bytes=one.payload_bytes * times)

    return lambda r: replace(r, collectives=tuple(map(scale, r.collectives)))


@pytest.mark.parametrize(("factor", "agrees"), [(1.015, True), (0.985, True), (1.03, False)])
def test_payload_must_be_right_on_every_group(factor: float, agrees: bool) -> None:
    """Two per cent, on each group of axes by itself."""
    result = proof(scaled(("fsdp",), factor))
    assert result.agrees is agrees
    if not agrees:
        [missed] = result.disagreements
        assert (missed.code, missed.axes) == ("payload", ("fsdp",))
        assert missed.compiled / missed.forecast == pytest.approx(factor)


def test_loads_of_experts_are_reported_beside_the_payload() -> None:
    """One fp32 number for every expert of every layer, sent to and fro."""
    dense, mixture = catalog.model("llama3-8b"), catalog.model("mixtral-8x7b")
    assert _reported_bytes(mixture) - _reported_bytes(dense) == 2 * 4 * 32 * 8


def test_what_no_forecast_has_is_a_disagreement() -> None:
    """A collective over axes of which the Forecast knows none, beyond a few scalars."""

    def with_one(size: float) -> Callable[[ProgramSummary], ProgramSummary]:
        extra = CompiledCollective(
            axes=("data", "tensor"), kind="all-gather", dtype="fp32", payload_bytes=size,
            calls=1, executed_kind="all-gather", executed_bytes=size,
        )  # fmt: skip
        return lambda r: replace(r, collectives=(*r.collectives, extra))

    assert proof(with_one(4096)).agrees
    result = proof(with_one(5000))
    assert not result.agrees
    assert result.disagreements[0].axes == ("data", "tensor")


def test_what_the_compiler_runs_instead_is_a_line_of_its_own() -> None:
    """The payload stays what was meant; the bytes on top are named."""

    def replaced(r: ProgramSummary) -> ProgramSummary:
        first = r.collectives[0]
        runs = replace(first, executed_kind="all-reduce", executed_bytes=3 * first.payload_bytes)
        return replace(r, collectives=(runs, *r.collectives[1:]))

    result = proof(replaced)
    assert result.agrees
    assert result.changes[0].what.startswith("all-reduce in place of")
    assert result.changes[0].bytes_per_step == pytest.approx(
        2 * as_forecast(PLAN).summary.collectives[0].payload_bytes
    )
    padding = [change for change in result.changes if change.link == "dcn"]
    assert [change.bytes_per_step for change in padding] == [1000]


def test_flops_count_what_the_compiler_repeats() -> None:
    """On a line of its own, and in the total that must agree."""
    expected = proof().flops_per_device
    result = proof(
        lambda r: replace(r, flops={**r.flops, "repeated by the compiler": expected / 20})
    )
    assert result.flops_per_device == pytest.approx(expected * 1.05)
    [missed] = result.disagreements
    assert missed.code == "flops"
    assert missed.compiled / missed.forecast == pytest.approx(1.05)


def test_products_of_experts_are_matrix_products() -> None:
    """Also where a kernel multiplies the rows of each expert."""

    def by_kernel(r: ProgramSummary) -> ProgramSummary:
        others = r.flops["matrix products"] / 4
        moved = {"matrix products": 3 * others, "grouped matmul": others}
        return replace(r, flops={**r.flops, **moved})

    before, after = proof(), proof(by_kernel)
    assert after.flops == before.flops
    assert after.agrees


def test_a_kernel_without_a_formula_is_a_disagreement() -> None:
    """Uncounted FLOPs are no agreement."""
    result = proof(lambda r: replace(r, uncounted=("gmm",)))
    assert result.disagreements == (Disagreement(code="uncounted_kernel", kernel="gmm"),)


def test_memory_is_compared_class_by_class() -> None:
    """Copied kv heads are parameters, moments and gradients too; the rest is the working set."""
    largest = max(PLAN.forecast.memory, key=lambda phase: phase.bytes)
    lines = {line.name: line for line in proof().ledger}
    assert sum(line.forecast or 0 for line in lines.values()) == pytest.approx(largest.bytes)
    forecast = {line.name: line.value for line in largest.lines}
    copied = next(line for line in largest.lines if line.name == "copied kv heads")
    assert lines["parameters"].forecast == pytest.approx(
        forecast["parameters"] + 4 * copied.inputs["copied"]
    )
    assert lines["optimizer"].forecast == pytest.approx(
        forecast["optimizer"] + 8 * copied.inputs["copied"]
    )


def test_more_than_gradients_over_pods_fails_the_proof() -> None:
    """It fits and still may not run."""

    def forward(r: ProgramSummary) -> ProgramSummary:
        return replace(r, sends=(*r.sends, replace(r.sends[0], in_backward=False)))

    result = proof(forward)
    assert result.fits
    assert not result.only_gradients_cross_pods
    assert not result.passes
    assert len(result.crossing_faults) == 1


def test_another_trainers_program_is_not_compared() -> None:
    """The Forecast is about llama's program: the sum of gradients over pods is unknown too."""
    other = replace(PLAN, trainer="mlp", ledger_describes_trainer=False)
    program = as_forecast(PLAN)
    sends = tuple(
        replace(send, payload_bytes=9 * send.payload_bytes) for send in program.summary.sends
    )
    result = proof_of(other, replace(program, summary=replace(program.summary, sends=sends)))
    assert result.agrees is None
    assert result.disagreements == ()
    assert result.forecast_peak_hbm_bytes_per_device is None
    assert {line.forecast for line in (*result.ledger, *result.flops)} == {None}
    assert {collective.forecast_bytes_per_step for collective in result.collectives} == {None}
    assert result.only_gradients_cross_pods

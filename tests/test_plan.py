"""The Plan as a whole: its keys, its digest, its bytes, and what it warns of."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.catalog.chips import table
from orchestrator.errors import SpecError
from orchestrator.planning.plan_warnings import _LARGE_BATCH, critical_batch_tokens
from orchestrator.planning.planner import make_plan, make_plans
from orchestrator.run.submit import _check_trainable
from orchestrator.values import codec
from orchestrator.values.plan import Forecast, Plan, WarningCode
from orchestrator.values.spec import MeshRequest, Precision
from tests.example_specs import TINY, spec_of

ROOT = Path(__file__).parent.parent


def figures_of(plan: Plan, *codes: WarningCode) -> list[dict[str, Any]]:
    """The figures of a plan's warnings of those codes."""
    return [warning.figures for warning in plan.warnings if warning.code in codes]


@pytest.fixture(scope="module")
def four_pods() -> Plan:
    return make_plan(spec_of())


def test_the_documented_keys_are_there(four_pods: Plan) -> None:
    """What scripts read from `orch plan --json`."""
    plan = json.loads(codec.to_json(four_pods))
    assert plan["digest"] == four_pods.digest
    assert plan["chips"] == plan["devices"] == 35_840
    assert prod(plan["mesh"].values()) == plan["devices"]
    assert plan["mesh"]["pods"] == 4
    assert 922 <= plan["batch"]["sequences"] <= 1126
    assert plan["model"]["parameters"] == 70_553_706_496
    forecast = plan["forecast"]
    assert forecast["memory_bytes_per_device"] < forecast["hbm_bytes_per_device"]
    assert forecast["fits"] is True
    assert isinstance(forecast["bound"], str)
    for key in ("step_s", "days", "dollars", "chip_hours"):
        assert 0 < forecast[key]["lower"] < forecast[key]["unoverlapped"]
    assert 1 > forecast["mfu"]["lower"] > forecast["mfu"]["unoverlapped"] > 0


def test_a_plan_survives_json(four_pods: Plan) -> None:
    """The JSON holds every field, to the last float."""
    assert codec.from_json(codec.to_json(four_pods), Plan) == four_pods


def test_the_ledgers_add_up(four_pods: Plan) -> None:
    """Every total is the sum of its lines."""
    forecast = four_pods.forecast
    total = sum(line.value for line in forecast.time)
    assert total == pytest.approx(forecast.step_s.unoverlapped, rel=1e-12)
    for phase in forecast.memory:
        assert sum(line.value for line in phase.lines) == pytest.approx(phase.bytes, rel=1e-12)
    assert forecast.memory_bytes_per_device == max(phase.bytes for phase in forecast.memory)


def test_every_line_names_a_source_that_exists(four_pods: Plan) -> None:
    """Each published number of the time ledger has a source in the catalog."""
    known = catalog.sources()
    for line in four_pods.forecast.time:
        assert line.sources, line.name
        assert set(line.sources) <= set(known), line.name


def test_mesh_axes_have_their_torus_axes(four_pods: Plan) -> None:
    """Spans multiply to the axis, and all axes together fill the slice."""
    for axis in four_pods.axes:
        if axis.name != "pods":
            assert prod(span.size for span in axis.spans) == axis.size
    by_torus = {"x": 1, "y": 1, "z": 1}
    for axis in four_pods.axes:
        for span in axis.spans:
            by_torus[span.torus] *= span.size
    assert by_torus == {"x": 16, "y": 20, "z": 28}


def test_gradients_cross_pods_once_a_step() -> None:
    """One collective over dcn: 24 MB a chip and step for 70B on 4 x 8,960 chips."""
    plan = make_plan(spec_of(mesh=MeshRequest(data=35, fsdp=8, sequence=4, tensor=8)))
    over_dcn = [
        line.collective
        for line in plan.forecast.time
        if line.collective and line.collective.link == "dcn"
    ]
    (only,) = over_dcn
    assert only is not None
    assert only.calls_per_step == 1
    gradients = 2 * plan.model.parameters / 8960
    assert only.bytes_per_step == pytest.approx(2 * gradients * 3 / 4, rel=0.06)
    assert only.bytes_per_step > 2 * gradients * 3 / 4, "arrays are padded to whole tiles"


def test_the_digest_is_of_what_will_run() -> None:
    """Names, prices and overrides do not change it; meshes, models and compiler options do."""
    spec = spec_of(TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=1)
    plan = make_plan(spec)
    renamed = replace(spec, name="other", overrides=("name=other",))
    pricier = replace(spec, resources=replace(spec.resources, dollars_per_chip_hour=9.0))
    assert make_plan(renamed).digest == make_plan(pricier).digest == plan.digest
    options: dict[str, bool | int | float | str] = {"xla_tpu_scoped_vmem_limit_kib": 98304}
    tuned = replace(spec, experiment=replace(spec.experiment, compiler_options=options))
    meshes = [
        replace(spec, resources=replace(spec.resources, mesh=MeshRequest(tensor=size)))
        for size in (1, 4)
    ]
    assert make_plan(tuned).digest != plan.digest
    assert make_plan(meshes[0]).digest != make_plan(meshes[1]).digest


def test_a_chips_compiler_options_are_the_plans_unless_the_spec_sets_them() -> None:
    """Some chips have some, with evidence; the spec's value comes first, others are added."""
    name, gathers = "xla_tpu_scoped_vmem_limit_kib", "xla_enable_async_all_gather"
    spec = spec_of(TINY, sequences=16, length=64, chip="v6e", topology="4x4", pods=1)
    of_chip = make_plan(spec).compiler_options
    assert of_chip[name] == 65536
    assert of_chip[gathers] is True
    options: dict[str, bool | int | float | str] = {
        name: 16384, gathers: False, "xla_tpu_other": True
    }  # fmt: skip
    tuned = replace(spec, experiment=replace(spec.experiment, compiler_options=options))
    assert make_plan(tuned).compiler_options == of_chip | options
    padding = "xla_tpu_enable_sparse_core_reduce_scatter_padding"
    sparse = "xla_tpu_enable_sparse_core_collective_offload_all_gather"
    v5p = spec_of(TINY, sequences=16, length=64, chip="v5p", topology="2x2x4", pods=1)
    of_v5p = make_plan(v5p).compiler_options
    assert (of_v5p[name], of_v5p[sparse], of_v5p["xla_sc_enable_instruction_fusion"]) == (
        32768, True, False
    )  # fmt: skip
    for chip, own in (("tpu7x", {name: 65536, padding: True}), ("v4", {})):
        spec = spec_of(TINY, sequences=16, length=64, chip=chip, topology="2x2x4", pods=1)
        assert make_plan(spec).compiler_options == own
    for chip, mesh in (
        ("v5p", MeshRequest(data=3, fsdp=64)), ("tpu7x", MeshRequest(data=3, fsdp=128))
    ):  # fmt: skip
        # The compiler ends in a check of its own where copies are odd in number along a torus axis.
        model = catalog.model("llama3-8b")
        spec = spec_of(
            model, sequences=384, length=64, chip=chip, topology="4x4x12", pods=1, mesh=mesh
        )
        assert make_plan(spec).compiler_options[sparse] is False
    other = spec_of(TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=1)
    sums = dict.fromkeys(
        ("xla_enable_async_all_reduce", "xla_tpu_enable_async_collective_fusion_fuse_all_reduce"),
        True,
    )
    assert make_plan(other).compiler_options == {name: 32768} | sums
    mesh = MeshRequest(fsdp_dcn=2)
    shared = spec_of(TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=2, mesh=mesh)
    assert make_plan(shared).compiler_options == {name: 32768}


def test_only_the_experiment_is_the_identity() -> None:
    """Other chips change the digest of the plan, not that of the experiment."""
    small = spec_of(TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=1)
    large = replace(small, resources=replace(small.resources, topology="4x8"))
    one, other = make_plan(small), make_plan(large)
    assert one.spec_digest == other.spec_digest
    assert one.digest != other.digest


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_every_process_makes_the_same_bytes(seed: str, four_pods: Plan) -> None:
    """Hash seeds and locales do not change a plan."""
    code = (
        "import sys; sys.path.insert(0, '.');"
        "from tests.example_specs import spec_of;"
        "from orchestrator.planning.planner import make_plan;"
        "from orchestrator.values import codec;"
        "sys.stdout.buffer.write(codec.to_json(make_plan(spec_of())))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    assert done.stdout == codec.to_json(four_pods)


def test_alternatives_are_other_meshes_and_no_better(four_pods: Plan) -> None:
    """Runners-up follow the plan, each of another kind."""
    plans = make_plans(spec_of(), 5)
    assert plans[0] == four_pods
    kinds = {(p.mesh["tensor"], str(p.remat), p.batch.microbatches) for p in plans}
    assert len(kinds) == 5
    costs = [
        (p.forecast.step_s.lower + p.forecast.step_s.unoverlapped) / p.batch.tokens for p in plans
    ]
    assert min(costs) >= costs[0] / 1.01


def test_a_plan_warns_of_slices_that_cannot_be_rented(four_pods: Plan) -> None:
    """Four whole v5p pods exceed both the largest slice and Multislice."""
    one_slice, multislice = figures_of(four_pods, "slice_not_rented", "slices_not_joined")
    assert (one_slice["most_chips"], one_slice["chips"]) == (6144, 8960)
    assert (multislice["most_chips"], multislice["chips"]) == (18_432, 35_840)


def test_a_plan_warns_of_a_batch_that_uses_up_the_tokens() -> None:
    """Seven steps are too few to train a model."""
    spec = spec_of(sequences=4_000_000, length=4096, topology="4x4x8", pods=1, tokens=10**11)
    assert figures_of(make_plan(spec), "few_steps") == [{"steps": 7}]
    fewer = replace(spec.experiment, batch=replace(spec.experiment.batch, sequences=1024))
    assert not figures_of(make_plan(replace(spec, experiment=fewer)), "few_steps")


@pytest.mark.parametrize(("warmup", "warned"), [(2000, True), (1001, True), (1000, False)])
def test_a_plan_warns_of_a_warm_up_longer_than_the_run(warmup: int, warned: bool) -> None:
    """A thousand steps never reach the peak of a longer warm-up; one that ends with them does."""
    spec = spec_of(topology="4x4x8", pods=1, tokens=1000 * 1024 * 4096)
    optimizer = replace(spec.experiment.optimizer, warmup_steps=warmup)
    plan = make_plan(replace(spec, experiment=replace(spec.experiment, optimizer=optimizer)))
    expected = [{"warmup_steps": warmup, "steps": 1000}] if warned else []
    assert figures_of(plan, "long_warmup") == expected


PUBLISHED_BATCHES = {  # sequences x length, and the tokens of the run
    "Llama 3 405B": (2048, 8192, 15_600 * 10**9),
    "DeepSeek-V3": (15_360, 4096, 14_800 * 10**9),
    "GPT-3": (1600, 2000, 300 * 10**9),
    "PaLM": (2048, 2048, 780 * 10**9),
}


@pytest.mark.parametrize("name", PUBLISHED_BATCHES)
def test_published_batches_are_not_too_large(name: str) -> None:
    """No warning for what was trained."""
    sequences, length, tokens = PUBLISHED_BATCHES[name]
    assert sequences * length < _LARGE_BATCH * critical_batch_tokens(tokens)


@pytest.mark.parametrize(
    ("million_parameters", "sequences"),
    [(85, 745), (151, 955), (302, 1394), (604, 1889), (1200, 2533)],
)
def test_the_critical_batch_is_that_of_its_source(
    million_parameters: int, sequences: float
) -> None:
    """The sequences of 512 tokens that the authors' own fit has, for 20 tokens a parameter."""
    tokens = 20 * million_parameters * 10**6
    assert critical_batch_tokens(tokens) == pytest.approx(512 * sequences, rel=0.05)


def test_a_plan_warns_of_a_batch_far_above_the_critical_one() -> None:
    """537M tokens a step is 19 times the critical batch of 15T tokens: they train for 3T."""
    spec = spec_of(
        "llama3-8b", chip="v6e", topology="16x16", pods=16, sequences=65_536, length=8192
    )
    [figures] = figures_of(make_plan(spec), "large_batch")
    assert figures["batch_tokens"] == 65_536 * 8192
    assert figures["critical_tokens"] == pytest.approx(27.7e6, rel=0.01)
    assert figures["token_factor"] == pytest.approx(4.9, rel=0.02)
    assert figures["source"] in catalog.sources()
    long = spec_of("llama3-8b", chip="v6e", topology="16x16", pods=2, sequences=512, length=131_072)
    [figures] = figures_of(make_plan(long), "large_batch")
    assert figures["token_factor"] == pytest.approx(1.5, rel=0.02)
    assert not figures_of(make_plan(spec_of()), "large_batch")


@pytest.mark.parametrize(
    ("length", "sequence", "warned"), [(8192, 8, False), (8191, 1, True), (4096, 64, True)]
)
def test_a_plan_warns_of_positions_that_the_kernel_refuses(
    length: int, sequence: int, warned: bool
) -> None:
    """The attention kernel takes 128 positions at a time, of a sequence and of each part of it."""
    mesh = MeshRequest(sequence=sequence)
    spec = spec_of("llama3-8b", topology="4x4x4", pods=1, length=length, sequences=64, mesh=mesh)
    figures = figures_of(make_plan(spec), "attention_positions")
    found = {"length": length, "sequence": sequence, "positions": 128}
    assert figures == ([found] if warned else [])


def test_a_plan_warns_of_a_run_that_lasts_for_years() -> None:
    """70B on 64 chips takes years; on four pods there is no warning."""
    slow = make_plan(spec_of(topology="4x4x4", pods=1))
    days = slow.forecast.days.expected
    assert days is not None
    assert figures_of(slow, "many_years") == [{"years": days / 365.25}]
    assert not figures_of(make_plan(spec_of()), "many_years")


def test_bf16_parameters_are_planned_with_a_warning() -> None:
    """bf16 parameters halve their line, and the plan warns of their cost."""
    book = Precision(parameters="bf16")
    plan = make_plan(spec_of(precision=book, mesh=MeshRequest(data=35, fsdp=8, tensor=8)))
    ours = make_plan(spec_of(mesh=MeshRequest(data=35, fsdp=8, tensor=8)))
    lines = [{line.name: line.value for line in p.forecast.memory[0].lines} for p in (plan, ours)]
    assert lines[0]["parameters"] * 2 == lines[1]["parameters"]
    assert figures_of(plan, "bf16_parameters") == [{}]
    assert not figures_of(ours, "bf16_parameters")


def test_goodput_and_price_scale_days_and_dollars() -> None:
    """Days grow with lost time, dollars with the price; the step does not."""
    spec = spec_of()
    spec = replace(spec, resources=replace(spec.resources, goodput=1.0))
    half = replace(spec, resources=replace(spec.resources, goodput=0.5, dollars_per_chip_hour=1.0))
    full, lossy = make_plan(spec).forecast, make_plan(half).forecast
    assert lossy.step_s == full.step_s
    assert lossy.days.lower == pytest.approx(2 * full.days.lower)
    assert lossy.dollars is not None
    assert lossy.dollars.lower == pytest.approx(lossy.chip_hours.lower)
    free = make_plan(replace(spec, resources=replace(spec.resources, dollars_per_chip_hour=0.0)))
    assert free.forecast.dollars is not None
    assert free.forecast.dollars.lower == 0


def test_a_chip_without_a_price_has_no_dollars() -> None:
    """Nobody knows what a chip of one's own costs, unless its file says so."""
    spec = spec_of("llama3-8b", sequences=128, chip="tpu7x", topology="4x4x4", pods=1)
    definition = {**table("chips/tpu7x.toml")}
    del definition["dollars_per_hour"]
    own = replace(spec.resources, chip="mine", chip_definition=definition)
    plan = make_plan(replace(spec, resources=own))
    assert plan.forecast.dollars is None
    assert plan.devices == 2 * plan.chips == 128


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "tpu7x", "h100", "h200", "b200"])
def test_every_chip_has_plans(chip: str) -> None:
    """8B on some slice of each, by its own torus rules."""
    topology = {"v5e": "16x16", "v6e": "8x8", "h100": "8", "h200": "8", "b200": "8"}
    plan = make_plan(
        spec_of("llama3-8b", sequences=256, chip=chip, pods=2,
                topology=topology.get(chip, "4x4x4"))
    )  # fmt: skip
    assert plan.forecast.fits
    assert plan.mesh["pods"] == 2


def test_copied_kv_heads_have_their_own_lines() -> None:
    """tensor 16 on 8 kv heads: each is on two devices, and both ledgers count it."""
    plan = make_plan(spec_of(mesh=MeshRequest(tensor=16)))
    phase = {line.name: line.value for line in plan.forecast.memory[0].lines}
    times = {line.name: line for line in plan.forecast.time}
    model, ways = plan.model, plan.mesh["fsdp"] * plan.mesh["sequence"]
    extra = 2 * model.layers * model.d_model * model.head_dim * (1 - 8 / 16) / ways
    assert phase["copied kv heads"] == pytest.approx((4 + 8) * extra)
    assert times["copied kv heads"].value > 0
    assert times["kv weight copies"].collective is not None


def test_a_host_of_unknown_memory_is_warned_of() -> None:
    """Offloading on request is not checked where no source has the host's memory."""
    spec = spec_of(TINY, sequences=64, length=128, chip="h100", topology="8", pods=1,
                   remat="offload_input")  # fmt: skip
    plan = make_plan(spec)
    [figures] = figures_of(plan, "host_memory_unknown")
    assert figures["offloaded_bytes"] == plan.forecast.host_memory_bytes_per_chip > 0
    known = make_plan(replace(spec, resources=replace(spec.resources, chip="v5e", topology="2x4")))
    assert figures_of(known, "host_memory_unknown") == []


def test_every_key_is_documented() -> None:
    """docs/plan-json.md names each field of the Plan and of its Forecast."""
    table = (ROOT / "docs/plan-json.md").read_text(encoding="utf-8")
    keys = [f"`{field.name}`" for field in fields(Plan) if field.name != "forecast"]
    keys += [f".{field.name}`" for field in fields(Forecast)]
    missing = [key for key in keys if key not in table]
    assert not missing


def test_narrow_matmuls_are_planned_at_their_rate() -> None:
    """int8 multiplies the matrices of blocks twice as fast on v6e; all else stays as it is."""
    plans = [
        make_plan(spec_of("llama3-8b", sequences=512, length=8192, chip="v6e", topology="16x16",
                          pods=1, remat="full", precision=Precision(compute=compute)))
        for compute in ("bf16", "int8")
    ]  # fmt: skip
    wide, narrow = ({str(line.kind): line.value for line in plan.forecast.time} for plan in plans)
    for kind in ("matmul", "matmul_recompute"):
        assert narrow[kind] == wide[kind] / 2
    for kind in ("attention", "unembedding", "weight_gather", "activation_traffic"):
        assert narrow[kind] == wide[kind]
    assert plans[0].forecast.memory == plans[1].forecast.memory
    faster = plans[1].forecast.step_s
    assert faster.expected is not None
    assert faster.lower < faster.expected < (plans[0].forecast.step_s.expected or 0)


def test_what_can_be_planned_only_is_refused_before_a_run() -> None:
    """A submit ends there; a trainer from elsewhere may know the type."""
    plan = make_plan(spec_of(TINY, sequences=64, chip="v6e", topology="2x2", pods=1,
                             precision=Precision(compute="int8")))  # fmt: skip
    with pytest.raises(SpecError, match="int8 can be planned, not trained"):
        _check_trainable(plan)
    _check_trainable(replace(plan, ledger_describes_trainer=False))


@pytest.mark.parametrize(
    ("chip", "compute", "why"),
    [("v4", "fp8", "no rate of v4"), ("v5p", "fp8", "no faster than in bf16"),
     ("v4", "int8", "Plan in bf16: "), ("gb300", "int8", "Plan in fp8 or bf16: "),
     ("tpu7x", "int8", "no rate of tpu7x")],
)  # fmt: skip
def test_a_type_that_a_chip_gains_nothing_from_is_refused(
    chip: str, compute: Any, why: str
) -> None:
    """The refusal says which types the chip has, and which chips have this one."""
    topology = "8" if chip == "gb300" else "4x4x4"
    asked = spec_of("llama3-8b", sequences=512, chip=chip, topology=topology, pods=1,
                    precision=Precision(compute=compute))  # fmt: skip
    with pytest.raises(SpecError, match=why) as refused:
        make_plan(asked)
    way_out, others = str(refused.value).splitlines()[1:3]
    assert way_out.endswith("--set experiment.precision.compute=bf16")
    assert chip not in others
    assert ("h100" if compute == "fp8" else "v5p") in others


def test_experts_without_a_capacity_are_refused_in_fp8() -> None:
    """The trainer cannot multiply them; another trainer may."""
    asked = spec_of("mixtral-8x7b", sequences=512, chip="tpu7x", topology="4x4x4", pods=1,
                    precision=Precision(compute="fp8"))  # fmt: skip
    with pytest.raises(SpecError, match="capacity_factor"):
        make_plan(asked)
    other = replace(asked, run=replace(asked.run, trainer="trainers.mlp"))
    assert make_plan(other).precision.compute == "fp8"


def test_fp8_changes_only_the_seconds_of_the_blocks_products() -> None:
    """Twice the rate; attention, the unembedding, links and memory are as in bf16."""
    plans = [
        make_plan(spec_of("llama3-8b", sequences=16, length=8192, chip="h100", topology="8", pods=1,
                          mesh=MeshRequest(data=1, fsdp=8, sequence=1, tensor=1), remat="full",
                          precision=Precision(compute=compute)))
        for compute in ("bf16", "fp8")
    ]  # fmt: skip
    wide, narrow = ({line.name: line for line in plan.forecast.time} for plan in plans)
    assert wide.keys() == narrow.keys()
    assert {n for n in wide if wide[n].value != narrow[n].value} == {"matmuls", "recompute"}
    for name in ("matmuls", "recompute"):
        assert narrow[name].inputs["flops"] == wide[name].inputs["flops"]
        assert wide[name].value / narrow[name].value == pytest.approx(1978.9 / 989.4)
    assert plans[0].forecast.memory == plans[1].forecast.memory

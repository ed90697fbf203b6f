"""Serving specs: read, planned, shown, derived and refused."""

import json
import re
import time
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator

import orchestrator as orch
from orchestrator import catalog
from orchestrator.catalog.serving import constants_of, figures, learned
from orchestrator.errors import SpecError
from orchestrator.evidence.explain.serving import quoted
from orchestrator.reading.load_serving import load_serving
from orchestrator.reading.problems import SpecProblems
from orchestrator.reading.schema import serving_schema
from orchestrator.serving import step
from orchestrator.serving.frontier import serving_frontier
from orchestrator.serving.layout import STORED_BYTES, decode, layouts, prefill
from orchestrator.serving.planner import NotServed, layout_of, make_serving_plan, mix_of
from orchestrator.values.serving import (
    ServingEstimate,
    ServingForecast,
    ServingMesh,
    ServingPlan,
    ServingSpec,
)
from tests.conftest import ROOT, RunOrch
from tests.test_spec_schema import EditorLoader

SPECS = sorted((ROOT / "specs").glob("serve_*.yaml"))
BOOK, QWEN, DEEPSEEK = (
    ROOT / "specs" / f"serve_{name}.yaml"
    for name in ("llama3_70b_v5e", "qwen3_32b_v6e", "deepseek_v3_tpu7x")
)
ENDS = ("lower", "expected", "low", "high")


def tpot(plan: ServingPlan) -> ServingEstimate:
    assert plan.forecast.tpot_s is not None
    return plan.forecast.tpot_s


def planned(path: Path, *overrides: str) -> ServingPlan:
    return make_serving_plan(load_serving(path, overrides))


def changed(path: Path, *overrides: str) -> ServingSpec:
    return load_serving(path, overrides)


# --- specs


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_specs_are_planned_shown_and_derived(path: Path, orch: RunOrch) -> None:
    for command in (("plan",), ("plan", "--brief"), ("explain",)):
        done = orch(command[0], str(path), *command[1:])
        assert done.returncode == 0, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_keys_of_a_plan(orch: RunOrch) -> None:
    plan = json.loads(orch("plan", str(QWEN), "--json").stdout)
    for name in (
        "ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_chip",
        "dollars_per_million_output_tokens",
    ):  # fmt: skip
        assert set(plan["forecast"][name]) == set(ENDS)
    assert plan["forecast"]["kv_bytes_per_token"] == 2 * 64 * 8 * 128 * 2
    assert isinstance(plan["forecast"]["max_batch"], int)


SHAPE = "layers: 4, d_model: 512, d_ff: 1024, heads: 8, kv_heads: 8, head_dim: 64, vocab: 32000"


@pytest.mark.parametrize(
    ("more", "where", "message"),
    [
        ("moe: {experts: 8, top_k: 9, d_ff: 64}", "moe.top_k", "at most the 8 experts"),
        ("moe: {experts: 8, top_k: 2, d_ff: 64, groups: 3}", "moe.groups", "divide the 8 experts"),
        (
            "latent: {query_rank: 64, kv_rank: 64, nope_dim: 31, rope_dim: 33, value_dim: 32}",
            "latent.rope_dim",
            "must be even",
        ),
    ],
)
def test_a_shape_of_ones_own_is_checked_as_for_training(
    more: str, where: str, message: str
) -> None:
    with pytest.raises(SpecProblems) as found:
        load_serving(QWEN, [f"serve.model={{name: mine, {SHAPE}, {more}}}"])
    assert f"serve.model.{where}: is" in str(found.value)
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("serve.weights=int3", "one of bf16", "did you mean int8"),
        ("serve.tpot=50", "a time such as 50ms", "did you mean 50s?"),
        ("serve.prompt=[{tokens: 1K, share: 30%}]", "has shares of 30 %", "for example prompt"),
        ("serve.modle=x", "is unknown", "did you mean model?"),
        ("serve.engine=vllm", "no run on v6e is published", "with runs on v6e: sglang-jax"),
        ("serve.tpot.percentile=200", "at most 99.9", "for example percentile: 95"),
        ("resources.topology=3x5", "must be a slice that exists", "nearest"),
        ("serve.model=gpt3-175b", "", ""),
    ],
)
def test_bad_specs_have_a_place_and_a_hint(override: str, message: str, hint: str) -> None:
    if not message:
        # GPT-3 has learned positions: 16,384 of them.
        override, message, hint = "serve.prompt=20K", "16,384 positions", "shorten one"
        with pytest.raises(SpecProblems) as found:
            load_serving(QWEN, ["serve.model=gpt3-175b", override])
    else:
        with pytest.raises(SpecProblems) as found:
            load_serving(QWEN, [override])
    assert message in str(found.value)
    assert f"hint: {hint}" in str(found.value)
    assert str(found.value).startswith(("--set:", str(QWEN)))


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (["serve.weights=int3"], "serve.weights"),
        (["serve.foo=1"], "serve"),
        (["foo"], "serve"),
        (["serve.chunk=0", "serve.bar=2", "serve.ttft=3"], "serve.chunk"),
    ],
)
def test_a_wrong_value_ends_with_what_tells_of_its_key(
    sets: list[str], key: str, orch: RunOrch
) -> None:
    done = orch("plan", str(BOOK), *(word for value in sets for word in ("--set", value)))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"Next: orch schema --key {key}"
    assert orch("schema", "--key", key).returncode == 0


def test_unknown_keys_list_those_of_their_level(orch: RunOrch) -> None:
    for key, known in (("experiment.foo", "experiment.model, experiment.tokens"),
                       ("serve.ttft.foo", "serve.ttft.time, serve.ttft.percentile\n"),
                       ("foo", "schema, name, experiment, resources")):  # fmt: skip
        done = orch("schema", "--key", key)
        assert done.returncode == 2
        assert f"unknown key '{key}'; known: {known}" in done.stderr


def test_a_second_spec_is_refused_for_serving(orch: RunOrch) -> None:
    done = orch("plan", str(BOOK), str(QWEN))
    assert done.returncode == 2
    assert "a second spec goes with the plan of a training" in done.stderr


def test_rate_and_concurrency_exclude_each_other() -> None:
    with pytest.raises(SpecProblems, match="one follows from the other"):
        load_serving(QWEN, ["serve.requests_per_s=2", "serve.concurrency=3"])


def test_commands_of_training_refuse_a_serving_spec(orch: RunOrch) -> None:
    done = orch("submit", str(QWEN))
    assert done.returncode == 2
    assert "makes it a serving spec, must be a spec of training" in " ".join(done.stderr.split())
    assert "orch plan" in done.stderr


def test_options_of_training_are_refused(orch: RunOrch) -> None:
    done = orch("plan", str(QWEN), "--stage", "1")
    assert done.returncode == 2
    assert "--stage goes with" in done.stderr


# --- memory


def test_weights_and_cache_of_llama_add_up() -> None:
    plan = planned(BOOK)
    assert plan.forecast.kv_bytes_per_token == 2 * 8 * 128 * 80  # 160 kB in the book
    layout = layout_of(plan)
    devices = prod(plan.mesh[name] for name in ("attention", "tensor"))
    tables = 2 * 2 * 128_256 * 8192  # embedding and head, in bf16
    matrices = plan.parameters - 2 * 128_256 * 8192 - (2 * 80 + 1) * 8192
    whole = (matrices + tables) / devices + 2 * (2 * 80 + 1) * 8192
    assert step.as_float(layout.weights_bytes) == pytest.approx(whole, rel=1e-12)


def test_kv_heads_are_replicated_and_latents_too() -> None:
    """On 16 devices each of 8 KV heads lies twice; a latent lies on every device of `tensor`."""
    chip, llama = catalog.chip("v5e"), catalog.model("llama3-70b")
    topology = catalog.topology(chip, "4x4")
    sizes = {}
    for tensor in (8, 16):
        mesh = ServingMesh(tensor=tensor)
        layout = layouts(chip, topology, llama, "int8", "int8", mesh)
        assert layout is not None
        sizes[tensor] = step.as_float(layout.column(0).cache_bytes(1000))
    assert sizes[8] == sizes[16] == 1000 * 2 * 80 * 128
    v3 = planned(DEEPSEEK)
    assert v3.forecast.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert step.as_float(layout_of(v3).cache_bytes(1)) == v3.forecast.kv_bytes_per_token


def test_a_window_bounds_the_cache() -> None:
    """Five of six layers of Gemma 3 keep 1,024 positions."""
    spec = changed(QWEN, "serve.model=gemma3-27b", "serve.prompt=32K", "serve.output=1K")
    layout = layout_of(make_serving_plan(replace(spec, serve=replace(spec.serve, ttft=None,
                                                                     tpot=None))))  # fmt: skip
    heads = 16 / step.as_int(layout.mesh["tensor"])
    full, local = 10, 52
    expected = 2 * 2 * heads * 128 * (full * 20_000 + local * 1024)
    assert step.as_float(layout.cache_bytes(20_000)) == pytest.approx(expected)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    plan = planned(BOOK)
    layout, mix = layout_of(plan), mix_of(plan.serve)
    copies = plan.mesh["replicas"]
    own = plan.forecast.max_batch // copies
    length = mix.prompt + mix.output

    def used(batch: int) -> float:
        cache = batch * step.as_float(layout.cache_bytes(length))
        work = step.as_float(layout.activation_bytes(mix.chunk, batch))
        return step.as_float(layout.weights_bytes) + work + cache

    assert used(own) <= layout.hbm_bytes < used(own + 1)


# --- time


def test_decoding_turns_compute_bound_at_the_books_batch() -> None:
    """240 sequences on v5e: the peak over the bandwidth, in int8 as in bf16 (book, part 7)."""
    for weights in ("bf16", "int8"):
        plan = planned(BOOK, f"serve.weights={weights}", "serve.prompt=1K", "serve.concurrency=4")
        # The head is read in bf16 in any case: a little later than the matrices by themselves.
        assert plan.forecast.turns_at == pytest.approx(240.5, rel=0.02)


def test_experts_turn_later_by_their_share() -> None:
    """A mixture turns at E / k times the batch of a dense model, where all experts are read."""
    chip = catalog.chip("v5e")
    layout = layouts(chip, catalog.topology(chip, "4x4"), catalog.model("qwen3-30b-a3b"), "bf16",
                     "bf16", ServingMesh(tensor=4, attention=4))  # fmt: skip
    assert layout is not None
    turns = step.turning_batch(layout.column(0))
    assert 1500 < turns < 240 * 128 / 8 * 1.1


def test_a_step_is_the_sum_of_its_work() -> None:
    plan = planned(DEEPSEEK)
    layout, mix = layout_of(plan), mix_of(plan.serve)
    batch = plan.forecast.batch / plan.replicas
    work = step.work_of(layout, decode(batch, mix.context))
    lines = {line.name: line.value for line in plan.forecast.decode}
    assert lines["experts"] == pytest.approx(step.as_float(work.expert_weights))
    assert sum(lines.values()) == pytest.approx(sum(map(step.as_float, work[2:])))
    for line in plan.forecast.decode:
        assert line.value == pytest.approx(_evaluated(line.formula, line.inputs))


def _evaluated(formula: str, numbers: dict[str, float]) -> float:
    from orchestrator.evidence.explain.formula import compute  # noqa: PLC0415

    return compute(formula, numbers).value


def test_prefill_flops_are_those_of_the_book() -> None:
    """2 x parameters x tokens, and the causal half of attention, over all devices."""
    layout = layout_of(planned(BOOK, "serve.concurrency=2", "resources.mesh.tensor=8"))
    work = prefill(8192, 8192, 8192)
    devices = step.as_int(layout.copy_devices)
    total = devices * step.as_float(layout.shared_flops(work))
    matrices = 80 * (2 * 8192 * 128 * (64 + 8) + 3 * 8192 * 28_672)
    assert total == pytest.approx(2 * 8192 * matrices + 2 * 128_256 * 8192, rel=1e-9)
    scores = devices * step.as_float(layout.attention_flops(work))
    assert scores == pytest.approx(80 * 2 * 2 * 8192 * 8192 / 2 * 64 * 128)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_bounds_and_intervals_are_in_order(path: Path) -> None:
    check_order(planned(path).forecast)


def check_order(forecast: ServingForecast) -> None:
    for time_s in filter(None, (forecast.ttft_s, forecast.tpot_s)):
        assert time_s.lower <= time_s.low <= time_s.expected <= time_s.high
    rate = forecast.output_tokens_per_s
    assert rate.low <= rate.expected <= rate.high <= rate.lower
    if cost := forecast.dollars_per_million_output_tokens:
        assert cost.lower <= cost.low <= cost.expected <= cost.high


def test_no_engine_is_faster_than_the_peaks() -> None:
    """Every constant of the catalog slows what it multiplies."""
    for engine, chips in learned().constants.items():
        for chip in chips:
            found = constants_of(engine, chip)
            factors = (found.weights, found.matmul, found.cache, found.attention, found.exchange)
            assert min(*factors, found.experts) >= 1
            assert found.layer_s > 0


def test_requests_that_arrive_are_answered() -> None:
    """By Little's law the requests in work are the rate times the time of an answer."""
    plan = planned(DEEPSEEK)
    forecast, mix = plan.forecast, mix_of(plan.serve)
    assert forecast.output_tokens_per_s.expected == pytest.approx(6 * mix.output)
    layout = layout_of(plan)
    constants = constants_of("any", "tpu7x")
    batch = forecast.batch / plan.replicas
    found = step.rates(*step.mix_work(layout, batch, mix), mix.chunks, constants)
    lasts = step.as_float(found.tpot_s(batch, mix.output)) * mix.output
    # Between the numbers of requests that the search tries, it interpolates.
    assert forecast.batch == pytest.approx(6 * lasts, rel=0.02)


def test_more_concurrency_never_answers_faster() -> None:
    plans = [
        planned(QWEN, "serve.tpot=10s", "serve.ttft=100s", f"serve.concurrency={n}")
        for n in (1, 4, 16, 64)
    ]
    rates = [plan.forecast.output_tokens_per_s.expected for plan in plans]
    times = [tpot(plan).expected for plan in plans]
    assert rates == sorted(rates)
    assert times == sorted(times)


def test_the_plan_is_the_best_of_its_layouts() -> None:
    """Each mesh by itself has no more output tokens per second than the plan."""
    best = planned(BOOK).forecast.output_tokens_per_s.expected
    found = []
    for tensor in (2, 4, 8, 16):
        try:
            plan = planned(BOOK, f"resources.mesh.tensor={tensor}")
        except NotServed:
            continue
        assert plan.mesh["tensor"] == tensor
        found.append(plan.forecast.output_tokens_per_s.expected)
    assert len(found) >= 2
    assert best == max(found)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_slice_is_searched_in_a_tenth_of_a_second(path: Path) -> None:
    """Where the processor is quiet."""
    spec = load_serving(path)
    make_serving_plan(spec)
    began = time.process_time()
    make_serving_plan(spec)
    assert time.process_time() - began < 1


# --- refusals


def test_a_wish_that_nothing_meets_names_the_nearest_that_is_met() -> None:
    with pytest.raises(NotServed) as found:
        planned(QWEN, "serve.tpot.time=2ms")
    text = str(found.value)
    assert "serve.tpot: 2 ms at p95 is met by no layout of v6e 2x4" in text
    [option] = [word for word in text.split() if word.startswith("serve.tpot.time=")]
    plan = planned(QWEN, option.rstrip(","))
    wish = plan.serve.tpot
    assert wish is not None
    assert tpot(plan).expected <= wish.time
    with pytest.raises(NotServed):  # and no much shorter one is met
        planned(QWEN, f"serve.tpot.time={wish.time * 900:.4g}ms")


def test_a_cache_without_room_has_its_arithmetic_and_a_way_out() -> None:
    with pytest.raises(NotServed) as found:
        planned(QWEN, "resources.topology=1x1")
    text = str(found.value)
    assert "weights take 61.02 GiB" in text
    assert "--set resources.topology=2x2" in text
    loose = ("serve.tpot=10s", "serve.ttft=100s")
    assert planned(QWEN, "resources.topology=2x2", *loose).topology == "2x2"


def test_too_many_requests_have_a_number_that_fits() -> None:
    with pytest.raises(NotServed) as found:
        planned(BOOK, "serve.concurrency=3000")
    [most] = [word for word in str(found.value).split() if "serve.concurrency=" in word]
    assert planned(BOOK, most.rstrip(",")).forecast.batch > 32


def test_an_overload_names_the_replicas_that_serve_it() -> None:
    with pytest.raises(NotServed) as found:
        planned(DEEPSEEK, "serve.requests_per_s=200")
    [option] = [word for word in str(found.value).split() if "resources.replicas=" in word]
    plan = planned(DEEPSEEK, "serve.requests_per_s=200", option.rstrip(","))
    assert plan.replicas > 2


def random_sets(dice: np.random.Generator) -> list[str]:
    """Return what makes another legal spec of the book's, but for engines without runs."""

    def one_of(*values: object) -> object:
        return values[dice.integers(len(values))]

    chip = catalog.chip(str(one_of(*catalog.chips())))
    mixed = "[{tokens: %d, share: 80%%}, {tokens: %d, share: 20%%}]"
    sets = {
        "serve.model": one_of(*catalog.models()),
        "serve.weights": one_of("bf16", "int8", "fp8", "int4", "fp4"),
        "serve.kv_cache": one_of("bf16", "int8", "fp4"),
        "serve.prompt": one_of(1, 100, 8192, 131072, mixed % (100, 1000), mixed % (1024, 65536)),
        "serve.output": one_of(1, 128, 8192, mixed % (1, 1000)),
        "serve.chunk": one_of(1, 2048, 100_000),
        "serve.concurrency": "null",
        "resources.chip": chip.name,
        "resources.topology": one_of(*catalog.topologies(chip)),
        "resources.replicas": one_of(1, 2, 7),
    }
    load = one_of("", "serve.requests_per_s", "serve.concurrency")
    if load:
        sets[str(load)] = one_of(1, 10, 3000)
    for wish in ("ttft", "tpot"):
        if dice.random() < 0.5:
            limit, percentile = one_of("1ms", "50ms", "60s"), one_of(1, 50, 99.9)
            sets[f"serve.{wish}"] = f"{{time: {limit}, percentile: {percentile}}}"
    return [f"{key}={value}" for key, value in sets.items()]


def test_random_specs_have_a_plan_in_order_or_an_error_with_a_way_out() -> None:
    dice, served, refused = np.random.default_rng(4), 0, list[str]()
    for _ in range(80):
        try:
            check_order(planned(BOOK, *random_sets(dice)).forecast)
            served += 1
        except SpecError as error:
            refused.append(str(error))
    assert served > 20
    assert len(refused) > 20
    for text in refused:
        assert re.search("--set [a-z]|another chip or model|, must be ", text)


@pytest.mark.parametrize(
    "sets",
    [
        ("serve.model=llama3-405b", "serve.prompt=100", "serve.output=1024",
         "serve.concurrency=64", "resources.chip=gb300", "resources.topology=72"),
        ("serve.model=qwen3-235b-a22b", "serve.prompt=1K", "serve.concurrency=1",
         "resources.topology=16x16"),
        ("serve.prompt=[{tokens: 100, share: 80%}, {tokens: 1000, share: 20%}]",
         "serve.ttft={time: 60s, percentile: 95}", "serve.concurrency=8"),
    ],
)  # fmt: skip
def test_no_expected_time_is_below_its_bound(sets: tuple[str, ...]) -> None:
    """Prompts shorter than a chunk, experts that only prompts read, and a long prompt of many."""
    check_order(planned(BOOK, *sets).forecast)


def test_an_overload_of_a_slice_without_room_ends_with_replicas_of_a_larger_one() -> None:
    sets = ("serve.concurrency=null", "serve.requests_per_s=10", "resources.topology=2x2")
    for prompt in (8192, 131072):
        with pytest.raises(NotServed, match="not one request") as found:
            planned(BOOK, *sets, f"serve.prompt={prompt}")
        options = str(found.value).partition("served: ")[2].split(" --set ")
        options[0] = options[0].removeprefix("--set ")
        assert [option.partition("=")[0] for option in options] == [
            "resources.topology", "resources.replicas",
        ]  # fmt: skip
        assert planned(BOOK, *sets, f"serve.prompt={prompt}", *options).replicas > 1


def test_fewer_requests_than_copies_are_not_said_to_lack_room() -> None:
    with pytest.raises(NotServed, match="leave idle some of the 4 copies") as found:
        planned(BOOK, "serve.concurrency=2", "resources.topology=2x4", "resources.replicas=4")
    [option] = [word for word in str(found.value).split() if "resources.replicas=" in word]
    sets = ("serve.concurrency=2", "resources.topology=2x4")
    assert planned(BOOK, *sets, option).replicas == 2


def test_answers_of_one_token_have_no_time_between_tokens(orch: RunOrch) -> None:
    sets = ("serve.output=1", "serve.tpot=null", "serve.ttft=null")
    assert planned(QWEN, *sets).forecast.tpot_s is None
    options = [word for value in sets for word in ("--set", value)]
    assert "none: answers of one token" in orch("plan", str(QWEN), *options).stdout
    load = orch("plan", str(QWEN), *options, "--load", "poisson")
    assert load.returncode == 0, load.stderr
    assert "none: answers of one token" in load.stdout
    with pytest.raises(SpecProblems, match="nothing is between tokens"):
        planned(QWEN, "serve.output=1")
    with pytest.raises(NotServed, match="answers of one token"):
        serving_frontier(changed(QWEN, *sets))


def test_no_mesh_of_a_slice_divides_an_odd_model() -> None:
    with pytest.raises(SpecError, match="no mesh of v6e 2x4 divides"):
        planned(QWEN, "resources.mesh.tensor=3")


# --- derivation


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_derivation_comes_to_the_plan(path: Path) -> None:
    sheet = orch.explain_serving(path)
    forecast = sheet.plan.forecast
    values = {line.symbol: line.computed.value for part in sheet.sections for line in part.lines}
    work = sum(line.value for line in forecast.decode)
    assert values["lower"] <= work
    assert values["lower"] == pytest.approx(tpot(sheet.plan).lower)
    assert values["turns"] == pytest.approx(forecast.turns_at, rel=1e-6)
    if sheet.plan.serve.requests_per_s is None:
        rate = forecast.output_tokens_per_s.expected
        assert values["rate"] == pytest.approx(rate, rel=1e-9)
        cost = forecast.dollars_per_million_output_tokens
        assert cost is not None
        assert values["cost"] == pytest.approx(cost.expected)
    else:
        assert values["rate"] == pytest.approx(forecast.output_tokens_per_s.expected, rel=0.02)


def test_a_derivation_without_experts_has_no_line_of_zeros() -> None:
    sheet = orch.explain_serving(BOOK)
    symbols = {line.symbol for part in sheet.sections for line in part.lines}
    assert not symbols & {"t_X", "t_XF", "s_X", "c_X"}
    assert "L_moe" not in {entry.symbol for entry in sheet.inputs}


def test_every_source_of_a_derivation_is_in_the_catalog() -> None:
    sheet = orch.explain_serving(BOOK)
    named = {entry.source for entry in sheet.inputs if entry.source}
    assert named <= {source.key for source in sheet.sources}
    known = catalog.sources()
    assert {figure.source for figure in figures()} <= set(known)


def test_types_have_their_bytes() -> None:
    assert STORED_BYTES["int8"] == STORED_BYTES["fp8"] == 1
    assert 0.5 < STORED_BYTES["int4"] < STORED_BYTES["fp4"] < 0.6


def test_a_percentile_of_lengths() -> None:
    """TTFT at p95 is that of the long prompts, which are a fifth."""
    short, long = (
        planned(QWEN, f"serve.ttft={{time: 10s, percentile: {p}}}", "serve.concurrency=8")
        for p in (50, 95)
    )
    assert long.forecast.ttft_s.expected > 1.5 * short.forecast.ttft_s.expected
    assert np.isclose(short.forecast.output_tokens_per_s.expected,
                      long.forecast.output_tokens_per_s.expected)  # fmt: skip
    assert quoted() is not None


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_editors_accept_the_shipped_serving_specs(path: Path) -> None:
    loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=EditorLoader)
    assert list(Draft202012Validator(serving_schema()).iter_errors(loaded)) == []
    assert loaded["name"] == path.stem.replace("_", "-")

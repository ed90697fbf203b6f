"""The search against brute force: every placement, batch, split and policy, one by one."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, prod
from typing import Any

import numpy as np
import pytest

from orchestrator.catalog.published import shared_efficiency
from orchestrator.network.mesh_axes import ICI_AXES, ways
from orchestrator.network.rematerialization import Policy, policy, remat_of
from orchestrator.planning.fastest_ways import _PolicyArray, policy_array, searched_policies
from orchestrator.planning.feasibility import placements, sizes_by_name
from orchestrator.planning.forecast import step_bounds
from orchestrator.planning.layout import Training
from orchestrator.planning.memory import peak_bytes
from orchestrator.planning.planner import make_plan
from orchestrator.planning.ranking import (
    _SAME,
    OFFLOAD_GAIN,
    SURE_WITHIN,
    TIE,
    RankedChoice,
    expected_s_of,
    kinds_of,
    pick,
    ranked_choices,
)
from orchestrator.planning.search import (
    MEMORY_MARGIN,
    Choice,
    SearchRequest,
    layout_of_choice,
    layout_of_rows,
    search,
    search_request,
)
from orchestrator.planning.step_work import (
    host_bytes,
    host_limit_bytes,
    never_hidden_s,
    step_work,
    transfers,
)
from orchestrator.planning.time import step_time, time_lines
from orchestrator.planning.torus import axis_sizes
from orchestrator.proving.verdict import _recompute_flops
from orchestrator.values.codec import DType
from orchestrator.values.spec import MeshRequest, Precision, Spec, TensorTreatments
from tests.example_specs import TINY, chosen, spec_of

V5E: dict[str, Any] = {"chip": "v5e", "topology": "4x4", "pods": 1}
SMALL = {
    "one pod": spec_of(TINY, sequences=16, length=64, **V5E),
    "two pods of unequal axes": spec_of(
        TINY, sequences=48, length=64, chip="v5e", topology="4x8", pods=2, tolerance=0.2
    ),
    "three axes, odd batch": spec_of(
        TINY, sequences=20, length=96, chip="v5p", topology="2x2x4", pods=1, tolerance=0.5
    ),
    "three pods": spec_of(
        TINY, sequences=12, length=64, chip="v6e", topology="2x4", pods=3, tolerance=0.4
    ),
    "two devices a chip": spec_of(
        TINY, sequences=8, length=64, chip="tpu7x", topology="2x2x1", pods=2, tolerance=0.3
    ),
    "tight memory": spec_of("llama3-8b", sequences=64, length=8192, **V5E),
    "tight memory, two pods": spec_of(
        "llama3-8b", sequences=60, length=4096, chip="v6e", topology="4x4", pods=2
    ),
    "a wish": spec_of(TINY, sequences=16, length=64, mesh=MeshRequest(tensor=4), **V5E),
    "a policy": spec_of(TINY, sequences=16, length=64, remat="keep_mlp", **V5E),
}
LEFT = 1 - MEMORY_MARGIN


@dataclass(frozen=True)
class Priced:
    """One combination that keeps to every rule, with its cost per token."""

    choice: Choice
    cost: float


def splits(length: int) -> list[tuple[int, ...]]:
    """Ordered sizes of ICI_AXES that multiply to a length, by trying all.

    A dense model has nothing for `expert`, and nobody asked for a pipeline.
    """
    every = itertools.product(range(1, length + 1), repeat=4)
    return [(1, data, 1, *others) for data, *others in every if data * prod(others) == length]


def keeps_rules(spec: Spec, mesh: tuple[int, ...]) -> bool:
    """The divisibility rules, written once more, one at a time."""
    model, length = spec.experiment.model, spec.experiment.batch.length
    *_, fsdp, sequence, tensor = mesh
    mesh_request = spec.resources.mesh
    requested = tuple(getattr(mesh_request, axis) for axis in ICI_AXES)
    halves = 2 if sequence > 1 else 1
    return (
        all(wanted is None or wanted == size for wanted, size in zip(requested, mesh, strict=True))
        and model.heads % tensor == 0
        and (model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0)
        and model.d_ff % tensor == 0
        and model.d_model % (fsdp * sequence) == 0
        and length % (sequence * tensor * halves) == 0
    )


def batches(spec: Spec, replicas: int) -> list[int]:
    """The requested batch if it divides, else its neighbours within the tolerance."""
    batch = spec.experiment.batch
    slack = int(batch.sequences * batch.tolerance + 1e-9)
    legal = [
        b
        for b in range(batch.sequences - slack, batch.sequences + slack + 1)
        if b > 0 and b % replicas == 0
    ]
    if batch.sequences in legal:
        return [batch.sequences]
    below = [b for b in legal if b < batch.sequences]
    return below[-1:] + [b for b in legal if b > batch.sequences][:1]


def brute(request: SearchRequest, spec: Spec, margin: float) -> Iterator[Priced]:
    """Every combination that is realizable and fits, with the best policy of each."""
    for factors in itertools.product(*(splits(axis.length) for axis in request.torus.axes)):
        mesh = tuple(prod(row[i] for row in factors) for i in range(len(ICI_AXES)))
        replicas = request.pods * mesh[ICI_AXES.index("data")] * mesh[ICI_AXES.index("fsdp")]
        if not keeps_rules(spec, mesh):
            continue
        for sequences in batches(spec, replicas):
            for parts in range(1, sequences // replicas + 1):
                if (sequences // replicas) % parts == 0:
                    yield from fastest(request, Choice(factors, sequences, parts, "full"), margin)


def fastest(request: SearchRequest, choice: Choice, margin: float) -> Iterator[Priced]:
    """The choice with the policy that costs least of all that fit, and with the one that does of
    those that offload nothing; none where none fits.
    """
    policies = searched_policies(request.chip, request.experiment)
    remat = policy_array(policies, request.experiment.model)
    layout = replace(layout_of_choice(request, choice), remat=remat)
    costs = cost_per_token(layout, choice.sequences)
    left = 1 - margin
    fits = peak_bytes(layout) <= request.chip.hbm_usable_bytes.value * left
    fits &= host_bytes(layout) <= host_limit_bytes(request.chip) * left
    for some in (fits, fits & (host_bytes(layout) == 0)):
        least = np.where(some, costs, np.inf)
        best = int(least.argmin())
        if least[best] < np.inf:
            yield Priced(replace(choice, remat=remat_of(policies[best])), float(costs[best]))


def cost_per_token(layout: Training, sequences: int) -> Any:
    """The rule of the search."""
    lines = time_lines(layout)
    time = step_time(layout, lines)
    total = time.lower_s + time.unoverlapped_s - transfers(layout).hidden_s()
    return (total / 2 + never_hidden_s(layout, lines)) / (sequences * layout.length)


# The others have several pods and too little memory, too.
_SLOW = ("one pod", "tight memory, two pods")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=name, marks=pytest.mark.slow if name in _SLOW else ())
        for name, spec in SMALL.items()
    ],
)
def test_the_search_equals_brute_force(spec: Spec) -> None:
    """The costs of the best of all combinations, priced one by one, by the stated rule."""
    request = search_request(spec)
    result = search(request)
    margin = MEMORY_MARGIN if spec.experiment.remat == "auto" else 0.0
    assert result.margin == margin
    everything = list(brute(request, spec, margin))
    known = exp(shared_efficiency("reference_spread").value)
    within = min(t.cost for t in everything) * (1 + SURE_WITHIN)
    everything = [t for t in everything if t.cost <= within]
    expected = {id(t): expected_per_token(request, t.choice) for t in everything}
    first = first_of(spec, everything, expected)
    alike = [t for t in everything if t.choice.microbatches <= first.choice.microbatches]
    best = min(expected[id(t)] for t in alike)
    if best * known < expected[id(first)]:
        near = [t for t in alike if expected[id(t)] <= best * known]
        first = first_of(spec, near, expected)

    choice = chosen(request)
    actual = cost_per_token(layout_of_choice(request, choice), choice.sequences)
    assert actual == pytest.approx(first.cost, rel=1e-12)
    assert choice.sequences == first.choice.sequences


def first_of(spec: Spec, everything: list[Priced], expected: dict[int, float]) -> Priced:
    """The first by all of the rule but its last part."""
    least = min(t.cost for t in everything)
    on_chip = [t for t in everything if not policy(t.choice.remat).needs_host]
    if min((t.cost for t in on_chip), default=np.inf) <= least * (1 + OFFLOAD_GAIN):
        everything = on_chip
    left = [t for t in everything if t.cost <= min(e.cost for e in everything) * (1 + TIE)]
    requested = spec.experiment.batch.sequences
    change = min(abs(t.choice.sequences - requested) for t in left)
    left = [t for t in left if abs(t.choice.sequences - requested) == change]
    best = min(expected[id(t)] for t in left)
    left = [t for t in left if expected[id(t)] <= best * (1 + _SAME)]
    axes = min(axes_of(t.choice) for t in left)
    return min((t for t in left if axes_of(t.choice) == axes), key=lambda t: t.cost)


def axes_of(choice: Choice) -> int:
    return sum(size > 1 for size in choice.mesh.values())


def expected_per_token(request: SearchRequest, choice: Choice) -> float:
    """What a run of that choice is expected to take, by its own ledger."""
    layout = layout_of_choice(request, choice)
    lines = time_lines(layout)
    work = step_work(layout, lines)
    expected = step_bounds(layout, lines, step_time(layout, lines), work).expected
    assert expected is not None
    return expected / choice.sequences


def test_arrays_price_as_plain_numbers_do() -> None:
    """Each row of a search costs what the ledger of that one choice adds up to."""
    request = search_request(SMALL["two pods of unequal axes"])
    candidates = search(request).candidates
    rows = np.random.default_rng(0).choice(len(candidates), 25, replace=False)
    for row in map(int, rows):
        choice = candidates.choice(row)
        layout = layout_of_choice(request, choice)
        assert not isinstance(layout.remat, _PolicyArray)
        cost = cost_per_token(layout, choice.sequences)
        assert cost == pytest.approx(candidates.cost_s_per_token[row], rel=1e-12)


def test_a_limit_on_replicas_loses_no_mesh() -> None:
    """On 12x12x12 with so few replicas as a batch feeds: the meshes that the limit allows."""
    request = search_request(spec_of("llama3-8b", chip="tpu7x", topology="12x12x12", length=8192))
    arguments = (request.torus, request.experiment.model, 8192, request.mesh)
    every, limited = (
        {tuple(row) for row in axis_sizes(placements(*arguments, most))} for most in (2**62, 27)
    )
    fed = {mesh for mesh in every if ways(sizes_by_name(np.array(mesh)), "batch") <= 27}
    assert limited == fed
    assert limited


def test_mirror_images_are_priced_once() -> None:
    """On 4x4 the two torus axes are alike: about half of all placements remain."""
    request = search_request(SMALL["one pod"])
    result = search(request)
    assert result.enumerated == 100
    assert result.realizable < 60


def test_a_batch_stays_where_a_mesh_within_the_tie_divides_it() -> None:
    """Tolerance is used when it must be, not to shave a percent."""
    plan = make_plan(spec_of("llama3-8b", sequences=128, topology="4x4x4", pods=1))
    assert plan.batch.sequences == 128


def test_a_requested_mesh_is_planned() -> None:
    """Every axis gets its requested size."""
    mesh = MeshRequest(data=35, fsdp=8, sequence=4, tensor=8)
    plan = make_plan(spec_of(mesh=mesh))
    assert plan.mesh == {
        "pods": 4,
        "fsdp_dcn": 1,
        "data": 35,
        "expert": 1,
        "fsdp": 8,
        "sequence": 4,
        "tensor": 8,
    }
    assert plan.batch.sequences == 1120


def long_sequences(length: int) -> Spec:
    """One sequence of 8B a chip, on chips of 16 GiB."""
    return spec_of(
        "llama3-8b", sequences=32, length=length, chip="v5e", topology="4x8", pods=1,
        mesh=MeshRequest(fsdp=32),
    )  # fmt: skip


def best_policy(request: SearchRequest) -> Policy:
    return policy(chosen(request).remat)


def test_auto_remat_recomputes_only_what_memory_needs() -> None:
    """Ever longer sequences: nothing is moved, then the host takes what it can without delay, then
    some is computed again; MEMORY_MARGIN of both memories stays free.
    """
    plans = [make_plan(long_sequences(length)) for length in (2048, 4096, 8192, 16384)]
    for plan in plans:
        forecast = plan.forecast
        assert forecast.memory_bytes_per_device <= LEFT * forecast.hbm_bytes_per_device
        assert forecast.host_bytes_per_chip
        assert forecast.host_memory_bytes_per_chip <= LEFT * forecast.host_bytes_per_chip
    assert plans[0].remat == "none"
    assert [policy(plan.remat).needs_host for plan in plans] == [False, True, True, True]
    again = [_recompute_flops(plan) / plan.batch.tokens for plan in plans]
    assert again[:2] == [0, 0]
    assert 0 < again[2] <= again[3]


def test_nothing_is_offloaded_to_a_host_without_a_source() -> None:
    """Where the rate of the link or the memory of the host is unknown, everything stays in HBM."""
    request = search_request(long_sequences(4096))
    assert best_policy(request).needs_host
    for chip in (
        replace(request.chip, host_bytes=None),
        replace(request.chip, host_link_bytes_per_s=None),
    ):
        assert not best_policy(replace(request, chip=chip)).needs_host


def test_a_full_host_offloads_no_more() -> None:
    """The host's memory is a limit like HBM: with little of it, less is offloaded."""
    request = search_request(long_sequences(8192))
    source = request.chip.host_bytes
    assert source
    for limit_bytes in (1e9, 4e9):
        chip = replace(request.chip, host_bytes=replace(source, value=limit_bytes))
        smaller = replace(request, chip=chip)
        choice = chosen(smaller)
        assert host_bytes(layout_of_choice(smaller, choice)) <= LEFT * limit_bytes


def test_transfers_hide_behind_their_own_pass() -> None:
    """What takes longer than the forward pass is exposed there, whatever the backward pass does."""
    layout = layout_of_choice(*offloading_mlp())
    moved = transfers(layout)
    line = next(line for line in time_lines(layout) if line.kind == "offload")
    assert 2 * moved.one_way_s == pytest.approx(line.value)
    forward_s, backward_s = sum(moved.forward_s), sum(moved.backward_s)
    assert forward_s < moved.one_way_s < backward_s
    assert moved.exposed_s() == pytest.approx(moved.one_way_s - forward_s)
    assert moved.exposed_s(matmul=0.5, attention=0.5) == 0
    time = step_time(layout, time_lines(layout))
    assert time.lower_s >= line.value


def offloading_mlp() -> tuple[SearchRequest, Choice]:
    """A request for a policy that offloads both projections of the MLP, and its choice."""
    spec = long_sequences(4096)
    mlp = TensorTreatments(gate="offload", up="offload")
    request = search_request(replace(spec, experiment=replace(spec.experiment, remat=mlp)))
    return request, chosen(request)


# 70B on v6e and 405B on tpu7x, with the batch of a published run and the seconds it took.
PUBLISHED = [
    ("llama3-70b", "v6e", "4x8", 64, "bf16", 17.79),
    ("llama3-70b", "v6e", "8x8", 128, "fp32", 18.7),
    ("llama3-70b", "v6e", "8x16", 512, "fp32", 34.8),
    ("llama3-70b", "v6e", "16x16", 1280, "fp32", 42.7),
    ("llama3-405b", "tpu7x", "4x8x8", 1536, "fp32", 98.3),
]


@pytest.mark.parametrize(("model", "chip", "topology", "sequences", "dtype", "measured"), PUBLISHED)
def test_auto_loses_to_no_published_run(
    model: str, chip: str, topology: str, sequences: int, dtype: DType, measured: float
) -> None:
    """Each of these runs offloads; so does its plan, which is expected to be about as fast."""
    spec = spec_of(
        model, sequences=sequences, length=8192, chip=chip, topology=topology, pods=1,
        tolerance=0.0,
    )  # fmt: skip
    precision = Precision(parameters=dtype, optimizer=dtype)
    plan = make_plan(replace(spec, experiment=replace(spec.experiment, precision=precision)))
    assert policy(plan.remat).needs_host
    assert plan.forecast.step_s.expected is not None
    assert plan.forecast.step_s.expected < 1.08 * measured


def test_offloading_is_priced_on_request() -> None:
    """A policy that offloads has a line for the host, where its rate is known."""
    spec = spec_of("llama3-8b", sequences=64, chip="v5e", topology="16x16", pods=1)
    offloading = replace(spec, experiment=replace(spec.experiment, remat="offload_qkv"))
    plan = make_plan(offloading)
    assert plan.remat == "offload_qkv"
    assert any(line.resource == "host" for line in plan.forecast.time)


# --- the ranking


def test_the_best_expected_time_breaks_a_tie() -> None:
    """70B on v5e: none within 1 % is expected to be faster; the cheapest is 2 % slower."""
    spec = spec_of("llama3-70b", chip="v5e", topology="16x16", pods=1, sequences=512, length=8192)
    request = search_request(spec)
    candidates = search(request).candidates
    cost = candidates.cost_s_per_token
    tied = np.flatnonzero(cost <= cost.min() * (1 + TIE))
    tied = tied[candidates.sequences[tied] == request.experiment.batch.sequences]
    expected = expected_s_of(layout_of_rows(request, candidates, tied))
    cheapest = expected[np.argmin(cost[tied])]
    seconds = expected_per_token(request, chosen(request)) / request.experiment.batch.length
    assert seconds <= expected.min() * (1 + _SAME)
    assert cheapest > 1.02 * seconds


def test_fewer_axes_break_a_tie_of_equal_times() -> None:
    """1B on 128 v6e chips: replicas beside fsdp cost nothing and bring nothing."""
    spec = spec_of("llama-1b", chip="v6e", topology="8x16", pods=1, sequences=2048, length=8192)
    plan = make_plan(spec)
    assert plan.mesh == {**dict.fromkeys(plan.mesh, 1), "fsdp": 128}


def test_runners_up_are_the_best_of_other_kinds() -> None:
    """A tensor size, a policy and microbatches stand once; meshes that are alike are counted."""
    request = search_request(spec_of())
    candidates = search(request).candidates
    ranked = ranked_choices(request, candidates, 6)
    kinds = [
        (
            candidate.choice.mesh["tensor"],
            str(candidate.choice.remat),
            candidate.choice.microbatches,
        )
        for candidate in ranked
    ]
    assert len(set(kinds)) == len(kinds) == 6
    rows = kinds_of(candidates)
    meshes = axis_sizes(candidates.factors)
    for candidate in ranked:
        sizes = tuple(candidate.choice.mesh[axis] for axis in ICI_AXES)
        kind = rows[np.flatnonzero((meshes == sizes).all(axis=1))]
        same = np.isin(rows[:, 0], kind[:, 0])
        assert candidate.alike < len(np.unique(meshes[same], axis=0))
    assert ranked[0].alike > 0


def test_nothing_is_offloaded_for_a_gain_below_what_the_forecast_knows() -> None:
    """8B on 64 v5p: the host would save 1 %. 70B on 32 v6e has no room without it."""
    spec = spec_of("llama3-8b", chip="v5p", topology="4x4x4", pods=1, sequences=512, length=8192)
    request = search_request(spec)
    candidates = search(request).candidates
    cost, offloads = candidates.cost_s_per_token, candidates.offloads
    gain = cost[~offloads].min() / cost[offloads].min() - 1
    assert 0 < gain < OFFLOAD_GAIN
    assert not policy(chosen(request).remat).needs_host


def test_waits_that_accumulation_would_spare_are_a_warning() -> None:
    """1B on 64 slices of four chips: a reduction in each layer waits longer than the layer works.

    The rule counts no waits, and takes one microbatch; the plan says what two are expected to take.
    """
    spec = spec_of("llama-1b", chip="v5e", topology="2x2", pods=64, sequences=1024, length=4096)
    plan = make_plan(spec)
    assert plan.batch.microbatches == 1
    [figures] = [
        warning.figures for warning in plan.warnings if warning.code == "accumulation_faster"
    ]
    assert plan.forecast.step_s.expected == figures["step_s"]
    accumulating = make_plan(with_microbatches(spec, int(figures["microbatches"])))
    assert accumulating.batch.microbatches == figures["microbatches"] == 2
    assert accumulating.forecast.step_s.expected == pytest.approx(figures["expected_s"], rel=0.01)
    assert not any(warning.code == "accumulation_faster" for warning in accumulating.warnings)
    shown = [candidate.choice.microbatches for candidate in ranked_for(spec, 3)]
    assert (shown[0], shown[-1]) == (1, 2)


def ranked_for(spec: Spec, most: int) -> list[RankedChoice]:
    request = search_request(spec)
    return ranked_choices(request, search(request).candidates, most)


def with_microbatches(spec: Spec, microbatches: int) -> Spec:
    batch = replace(spec.experiment.batch, microbatches=microbatches)
    return replace(spec, experiment=replace(spec.experiment, batch=batch))


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_requested_microbatches_are_planned(microbatches: int) -> None:
    """Each replica gets a multiple of them; a tolerance moves the batch there."""
    spec = spec_of("llama3-8b", chip="v5p", topology="4x4x4", pods=1, sequences=500, tolerance=0.1)
    plan = make_plan(with_microbatches(spec, microbatches))
    assert plan.batch.microbatches == microbatches
    assert plan.batch.sequences_per_replica % microbatches == 0


def test_the_expected_time_decides_on_gpus_too() -> None:
    """Among plans alike by the first rule; elsewhere it was unknown there, and all were equal."""
    spec = spec_of("llama3-405b", chip="b200", topology="b200-8", pods=16, sequences=512)
    request = search_request(spec)
    candidates = search(request).candidates
    near = np.flatnonzero(
        candidates.cost_s_per_token <= candidates.cost_s_per_token.min() * (1 + TIE)
    )
    expected = expected_s_of(layout_of_rows(request, candidates, near))
    least = expected[candidates.cost_s_per_token[near].argmin()]
    first = pick(request, candidates, near, expected)
    assert expected[near == first] < least * (1 - _SAME)

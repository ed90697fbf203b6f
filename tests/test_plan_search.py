"""The search against brute force: every placement, batch, split and policy, one by one."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest

from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.network.rematerialization import POLICIES
from orchestrator.plan.layout import Layout
from orchestrator.plan.memory import peak_bytes
from orchestrator.plan.planner import make_plan, search_request
from orchestrator.plan.search import (
    MEMORY_MARGIN,
    TIE,
    Choice,
    SearchRequest,
    best_choices,
    layout_of_choice,
    search,
)
from orchestrator.plan.time import step_time, time_lines
from orchestrator.plan.torus import count_placements
from orchestrator.types.spec import MeshRequest, Spec
from tests.example_specs import TINY, spec_of

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


@dataclass(frozen=True)
class Priced:
    """One combination that keeps to every rule, with its costs per token."""

    choice: Choice
    lower: float
    unoverlapped: float

    @property
    def cost(self) -> float:
        return (self.lower + self.unoverlapped) / 2


def splits(length: int) -> list[tuple[int, ...]]:
    """Ordered (data, fsdp, sequence, tensor) that multiply to a length, by trying all."""
    return [f for f in itertools.product(range(1, length + 1), repeat=4) if prod(f) == length]


def keeps_rules(spec: Spec, mesh: tuple[int, ...]) -> bool:
    """The divisibility rules, written once more, one at a time."""
    model, length = spec.experiment.model, spec.experiment.batch.length
    _, fsdp, sequence, tensor = mesh
    mesh_request = spec.resources.mesh
    requested = tuple(getattr(mesh_request, axis) for axis in ICI_AXES)
    halves = 2 if sequence > 1 else 1
    return (
        all(wanted is None or wanted == size for wanted, size in zip(requested, mesh, strict=True))
        and model.heads % tensor == 0
        and (model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0)
        and model.d_ff % tensor == 0
        and model.vocab % tensor == 0
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
    """Every combination that is realizable and fits, with its own scalar ledger."""
    usable = request.chip.hbm_usable_bytes.value * (1 - margin)
    for factors in itertools.product(*(splits(axis.length) for axis in request.torus.axes)):
        mesh = tuple(prod(row[i] for row in factors) for i in range(4))
        replicas = request.pods * mesh[0] * mesh[1]
        if not keeps_rules(spec, mesh):
            continue
        for sequences in batches(spec, replicas):
            for parts, remat in itertools.product(
                range(1, sequences // replicas + 1), policies(spec)
            ):
                if (sequences // replicas) % parts:
                    continue
                choice = Choice(factors, sequences, parts, remat)
                layout = layout_of_choice(request, choice)
                if float(peak_bytes(layout)) <= usable:
                    yield priced(layout, choice, sequences * spec.experiment.batch.length)


def policies(spec: Spec) -> list[str]:
    remat = spec.experiment.remat
    return [n for n, p in POLICIES.items() if not p.needs_host] if remat == "auto" else [remat]


def priced(layout: Layout, choice: Choice, tokens: int) -> Priced:
    time = step_time(layout, time_lines(layout))
    return Priced(choice, float(time.lower_s) / tokens, float(time.unoverlapped_s) / tokens)


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL)
def test_the_search_equals_brute_force(spec: Spec) -> None:
    """The same costs as the best of all combinations, priced one by one, by the stated rule."""
    request = search_request(spec)
    result = search(request)
    margin = MEMORY_MARGIN if spec.experiment.remat == "auto" else 0.0
    assert result.margin == margin
    everything = list(brute(request, spec, margin))
    left = [t for t in everything if t.cost <= min(e.cost for e in everything) * (1 + TIE)]
    requested = spec.experiment.batch.sequences
    change = min(abs(t.choice.sequences - requested) for t in left)
    left = [t for t in left if abs(t.choice.sequences - requested) == change]
    expected = min(left, key=lambda t: t.cost)

    chosen = best_choices(request, result.candidates, 1)[0]
    actual = priced(
        layout_of_choice(request, chosen), chosen, chosen.sequences * spec.experiment.batch.length
    )
    assert actual.cost == pytest.approx(expected.cost, rel=1e-12)
    assert chosen.sequences == expected.choice.sequences


def test_arrays_price_as_plain_numbers_do() -> None:
    """Each row of a search costs what the ledger of that one choice adds up to."""
    request = search_request(SMALL["two pods of unequal axes"])
    candidates = search(request).candidates
    rows = np.random.default_rng(0).choice(len(candidates), 25, replace=False)
    for row in map(int, rows):
        choice = candidates.choice(row)
        tokens = choice.sequences * request.experiment.batch.length
        one = priced(layout_of_choice(request, choice), choice, tokens)
        assert one.lower == pytest.approx(candidates.lower_s_per_token[row], rel=1e-12)
        assert one.unoverlapped == pytest.approx(
            candidates.unoverlapped_s_per_token[row], rel=1e-12
        )


def test_mirror_images_are_priced_once() -> None:
    """On 4x4 the two torus axes are alike: about half of all placements remain."""
    request = search_request(SMALL["one pod"])
    assert count_placements(request.torus) == 100
    assert search(request).realizable < 60


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
        "fsdp": 8,
        "sequence": 4,
        "tensor": 8,
    }
    assert plan.batch.sequences == 1120


def test_auto_remat_recomputes_only_what_memory_needs() -> None:
    """One sequence a chip, ever longer: each policy keeps less, and a tenth of HBM stays free."""
    chosen = []
    for length in (2048, 4096, 8192, 16384):
        spec = spec_of(
            "llama3-8b", sequences=32, length=length, chip="v5e", topology="4x8", pods=1,
            mesh=MeshRequest(fsdp=32),
        )  # fmt: skip
        plan = make_plan(spec)
        chosen.append(plan.remat)
        forecast = plan.forecast
        assert forecast.memory_bytes_per_device <= 0.9 * forecast.hbm_bytes_per_device
    assert chosen == ["none", "keep_qkv", "keep_attention", "full"]


def test_offloading_is_priced_on_request() -> None:
    """A policy that offloads has a line for the host, where its rate is known."""
    spec = spec_of("llama3-8b", sequences=64, chip="v5e", topology="16x16", pods=1)
    offloading = replace(spec, experiment=replace(spec.experiment, remat="offload_qkv"))
    plan = make_plan(offloading)
    assert plan.remat == "offload_qkv"
    assert any(line.resource == "host" for line in plan.forecast.time)

"""The search against brute force: every placement, batch, split and policy, one by one."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest

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
from tests.asks import TINY, spec_of

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
class Tried:
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
    wish = spec.resources.mesh
    asked = (wish.data, wish.fsdp, wish.sequence, wish.tensor)
    halves = 2 if sequence > 1 else 1
    return (
        all(size is None or size == got for size, got in zip(asked, mesh, strict=True))
        and model.heads % tensor == 0
        and (model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0)
        and model.d_ff % tensor == 0
        and model.vocab % tensor == 0
        and model.d_model % (fsdp * sequence) == 0
        and length % (sequence * tensor * halves) == 0
    )


def batches(spec: Spec, replicas: int) -> list[int]:
    """The asked batch if it divides, else its neighbours within the tolerance."""
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


def brute(ask: SearchRequest, spec: Spec, margin: float) -> Iterator[Tried]:
    """Every combination that is realizable and fits, with its own scalar ledger."""
    usable = ask.chip.hbm_usable_bytes.value * (1 - margin)
    for factors in itertools.product(*(splits(axis.length) for axis in ask.torus.axes)):
        mesh = tuple(prod(row[i] for row in factors) for i in range(4))
        replicas = ask.pods * mesh[0] * mesh[1]
        if not keeps_rules(spec, mesh):
            continue
        for sequences in batches(spec, replicas):
            for parts, remat in itertools.product(
                range(1, sequences // replicas + 1), policies(spec)
            ):
                if (sequences // replicas) % parts:
                    continue
                choice = Choice(factors, sequences, parts, remat)
                layout = layout_of_choice(ask, choice)
                if float(peak_bytes(layout)) <= usable:
                    yield tried(layout, choice, sequences * spec.experiment.batch.length)


def policies(spec: Spec) -> list[str]:
    asked = spec.experiment.remat
    return [n for n, p in POLICIES.items() if not p.needs_host] if asked == "auto" else [asked]


def tried(layout: Layout, choice: Choice, tokens: int) -> Tried:
    time = step_time(layout, time_lines(layout))
    return Tried(choice, float(time.lower_s) / tokens, float(time.unoverlapped_s) / tokens)


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL)
def test_the_search_equals_brute_force(spec: Spec) -> None:
    """The same costs as the best of everything tried one by one, by the stated rule."""
    ask = search_request(spec)
    found = search(ask)
    margin = MEMORY_MARGIN if spec.experiment.remat == "auto" else 0.0
    assert found.margin == margin
    everything = list(brute(ask, spec, margin))
    left = [t for t in everything if t.cost <= min(e.cost for e in everything) * (1 + TIE)]
    asked = spec.experiment.batch.sequences
    moved = min(abs(t.choice.sequences - asked) for t in left)
    left = [t for t in left if abs(t.choice.sequences - asked) == moved]
    expected = min(left, key=lambda t: t.cost)

    chosen = best_choices(ask, found.candidates, 1)[0]
    got = tried(
        layout_of_choice(ask, chosen), chosen, chosen.sequences * spec.experiment.batch.length
    )
    assert got.cost == pytest.approx(expected.cost, rel=1e-12)
    assert chosen.sequences == expected.choice.sequences


def test_arrays_price_as_plain_numbers_do() -> None:
    """Each row of a search costs what the ledger of that one choice adds up to."""
    ask = search_request(SMALL["two pods of unequal axes"])
    candidates = search(ask).candidates
    rows = np.random.default_rng(0).choice(len(candidates), 25, replace=False)
    for row in map(int, rows):
        choice = candidates.choice(row)
        tokens = choice.sequences * ask.experiment.batch.length
        one = tried(layout_of_choice(ask, choice), choice, tokens)
        assert one.lower == pytest.approx(candidates.lower_s_per_token[row], rel=1e-12)
        assert one.unoverlapped == pytest.approx(
            candidates.unoverlapped_s_per_token[row], rel=1e-12
        )


def test_mirror_images_are_priced_once() -> None:
    """On 4x4 the two torus axes are alike: about half of all placements remain."""
    ask = search_request(SMALL["one pod"])
    assert count_placements(ask.torus) == 100
    assert search(ask).realizable < 60


def test_a_batch_stays_when_a_mesh_as_fast_serves_it() -> None:
    """Tolerance is used when it must be, not to shave a percent."""
    plan = make_plan(spec_of("llama3-8b", sequences=128, topology="4x4x4", pods=1))
    assert plan.batch.sequences == 128


def test_a_wished_mesh_is_kept() -> None:
    """Named axes get the sizes asked; the others are chosen."""
    wish = MeshRequest(data=35, fsdp=8, sequence=4, tensor=8)
    plan = make_plan(spec_of(mesh=wish))
    assert plan.mesh == {"pods": 4, "data": 35, "fsdp": 8, "sequence": 4, "tensor": 8}
    assert plan.batch.sequences == 1120


def test_auto_remat_recomputes_only_what_memory_asks_for() -> None:
    """One sequence a chip, ever longer: each policy keeps less, and a tenth of HBM stays free."""
    chosen = []
    for length in (2048, 4096, 8192, 16384):
        asked = spec_of(
            "llama3-8b", sequences=32, length=length, chip="v5e", topology="4x8", pods=1,
            mesh=MeshRequest(fsdp=32),
        )  # fmt: skip
        plan = make_plan(asked)
        chosen.append(plan.remat)
        forecast = plan.forecast
        assert forecast.memory_bytes_per_device <= 0.9 * forecast.hbm_bytes_per_device
    assert chosen == ["none", "keep_qkv", "keep_attention", "full"]


def test_offloading_is_priced_when_it_is_named() -> None:
    """A policy with the host among its places has a line of its own, where the rate is known."""
    spec = spec_of("llama3-8b", sequences=64, chip="v5e", topology="16x16", pods=1)
    asked = replace(spec, experiment=replace(spec.experiment, remat="offload_qkv"))
    plan = make_plan(asked)
    assert plan.remat == "offload_qkv"
    assert any(line.resource == "host" for line in plan.forecast.time)

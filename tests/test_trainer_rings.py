"""Rings: devices that pass data on are neighbours, and no link carries two messages."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import topologies

from orchestrator.planning.torus import _DIE_AXIS
from orchestrator.proving.hlo.transfers import SliceLinks
from orchestrator.values.proof import SliceTorus
from tests.test_trainer_mesh import WITHOUT_TPU, span
from tests.trainer_plans import plan_of
from trainers.mesh import _ring_order, mesh_of

# topology, lengths, whether axes close, and the spans of `tensor`
RINGS: dict[str, tuple[str, tuple[int, ...], bool, list[dict[str, Any]]]] = {
    "2x2x2": ("v5:4x4x4", (4, 4, 4), True, [span("x", 2), span("y", 2), span("z", 2)]),
    "4x2": ("v5:4x4x4", (4, 4, 4), True, [span("x", 4), span("y", 2)]),
    "4x4, open": ("v5e:4x4", (4, 4), False, [span("x", 4), span("y", 4)]),
    "2x4, open": ("v5e:4x4", (4, 4), False, [span("x", 2), span("y", 4)]),
    "whole": ("v5:4x4x4", (4, 4, 4), True, [span("x", 4), span("y", 4), span("z", 4)]),
    "with dies": ("tpu7x:2x2x2", (2, 2, 2, 2), False, [span("x", 2), span("y", 2), span("d", 2)]),
}


@pytest.mark.parametrize("name", RINGS)
def test_a_ring_sends_one_message_over_each_link(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every hop is one step, the last to the first too; each way of the ring alone."""
    pytest.importorskip("libtpu")
    for variable, value in WITHOUT_TPU.items():
        monkeypatch.setenv(variable, value)
    topology, lengths, wraps, spans = RINGS[name]
    devices = topologies.get_topology_desc(topology, "tpu").devices
    tensor = int(np.prod([span["size"] for span in spans]))
    rest = [
        span(torus, length // used(spans, torus), used(spans, torus))
        for torus, length in zip(("x", "y", "z", _DIE_AXIS), with_die(lengths), strict=False)
        if length > used(spans, torus)
    ]
    plan = plan_of(
        fsdp=len(devices) // tensor, tensor=tensor, sequences=64,
        spans={"tensor": spans, "fsdp": rest},
    )  # fmt: skip
    rings = mesh_of(plan, devices).devices.reshape(-1, tensor)
    dies = len(lengths) == 4
    torus = SliceTorus(
        lengths=lengths, wraps=(wraps,) * len(lengths), link_bytes_per_s=(1.0,) * len(lengths),
        devices_per_chip=2 if dies else 1, hop_s=0.0,
    )  # fmt: skip
    flat = rings.reshape(-1)
    places = [(*d.coords, d.core_on_chip) if dies else d.coords[: len(lengths)] for d in flat]
    links = SliceLinks(torus, tuple(places))
    start = np.arange(len(flat)).reshape(rings.shape)
    for step in (1, -1):
        pairs = np.stack([start.ravel(), np.roll(start, -step, axis=1).ravel()], axis=1)
        busiest, hops, _ = links.permute(pairs)
        assert (busiest, hops) == (1.0, 1)


def with_die(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths along x, y, z and the dies."""
    return lengths if len(lengths) == 4 else (*lengths, *(1,) * (4 - len(lengths)))


def used(spans: list[dict[str, Any]], torus: str) -> int:
    return next((span["size"] for span in spans if span["torus"] == torus), 1)


@given(st.lists(st.integers(2, 6), min_size=1, max_size=3))
def test_a_ring_goes_through_every_place_once(sizes: list[int]) -> None:
    """Each a step from the one before; round, where two spans of which one is even allow it."""
    order = _ring_order(*sizes)
    assert len(set(order)) == len(order) == np.prod(sizes)
    assert all(distance(a, b) == 1 for a, b in pairwise(order))
    if len(sizes) > 1 and any(size % 2 == 0 for size in sizes):
        assert distance(order[-1], order[0]) == 1


def distance(here: tuple[int, ...], there: tuple[int, ...]) -> int:
    return sum(abs(a - b) for a, b in zip(here, there, strict=True))

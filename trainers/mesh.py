"""The device mesh of a Plan: its axes on the torus axes that the Plan names, by device coordinates,
so that devices that pass data on are neighbours. Without coordinates: by slice, then process.
"""

import os
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import AXES, RING_AXES, link_of
from orchestrator.values.plan import MeshAxis, TorusSpan
from orchestrator.values.program import AnyPlan

_TORUS_AXES = ("x", "y", "z")
_DIE_AXIS = "d"  # the devices of one chip


def mesh_of(plan: AnyPlan, devices: Sequence[jax.Device]) -> Mesh:
    """Return the devices as an array with one dimension for each of AXES."""
    platform = devices[0].platform
    if len(devices) != plan.devices:
        seen = f"here are {len(devices)} of platform {platform}"
        if platform == "cpu":  # JAX takes it where the plug-in of a chip is missing or fails
            seen += f"; hosts with {plan.chip} lack JAX's plug-in for it, or it fails"
        raise SpecError(f"the plan is for {plan.devices} devices, {seen}")
    lay = _by_coordinates if platform == "tpu" else _by_order
    return Mesh(lay(plan, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def abstract_mesh_of(plan: AnyPlan) -> AbstractMesh:
    """Return the same mesh without devices: programs can be traced on it."""
    sizes = tuple(axis.size for axis in axes_of(plan))
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def axes_of(plan: AnyPlan) -> list[MeshAxis]:
    """Return all of AXES; those that the plan leaves out have size 1."""
    planned = {axis.name: axis for axis in plan.axes}
    return [
        planned.get(name) or MeshAxis(name=name, size=1, link=link_of((name,)), spans=())
        for name in AXES
    ]


def _by_coordinates(plan: AnyPlan, devices: Sequence[jax.Device]) -> np.ndarray:
    """One device for each mesh index: the one at the torus coordinates of the index."""

    def place_of(device: Any) -> tuple[int, ...]:
        return (int(getattr(device, "slice_index", 0)), *device.coords, device.core_on_chip)

    by_place = {place_of(device): device for device in devices}
    slices = sorted({place[0] for place in by_place})
    if len(slices) != plan.pods:
        raise SpecError(f"the plan is for {plan.pods} pods, here are {len(slices)} slices")
    axes = axes_of(plan)
    grid = np.empty([axis.size for axis in axes], dtype=object)
    between = [axis.size for axis in axes if axis.link == "dcn"]
    for index in np.ndindex(grid.shape):
        pod = np.ravel_multi_index(index[: len(between)], between)
        # Each span adds its part of the index x its stride.
        on_torus = dict.fromkeys((*_TORUS_AXES, _DIE_AXIS), 0)
        for axis, position in zip(axes, index, strict=True):
            if axis.link == "ici" and axis.size > 1:
                parts = _ring_parts if axis.name in RING_AXES else _parts
                for span, part in parts(axis.spans, position):
                    on_torus[span.torus] += part * span.stride
        place = (slices[pod], *on_torus.values())
        if place not in by_place:
            raise SpecError(f"no device at {place[1:]}: this slice is not a {plan.topology}")
        grid[index] = by_place[place]
    return grid


def _parts(spans: tuple[TorusSpan, ...], position: int) -> list[tuple[TorusSpan, int]]:
    """A position on a mesh axis as positions on its spans, the first span outermost."""
    parts = np.unravel_index(position, [span.size for span in spans])
    return [(span, int(part)) for span, part in zip(spans, parts, strict=True)]


def _ring_parts(spans: tuple[TorusSpan, ...], position: int) -> list[tuple[TorusSpan, int]]:
    """A position on a ring as positions on its spans: the next one is a step away on one span."""
    # Both devices of a chip follow one another, so that only one of them sends to the next.
    dies = [span for span in spans if span.torus == _DIE_AXIS]
    between = [span for span in spans if span.torus != _DIE_AXIS]
    chip, die = divmod(position, prod(span.size for span in dies))
    parts = list(zip(between, _ring_order(*(span.size for span in between))[chip], strict=True))
    return parts + [(span, span.size - 1 - die if chip % 2 else die) for span in dies]


@cache
def _ring_order(*sizes: int) -> tuple[tuple[int, ...], ...]:
    """Return the places of a grid, each a step from the one before, the last a step from the first.
    The way goes to and fro through all of the grid except one line across it, and back along that
    line. A grid of one span, or without an even one, has no such way: it then goes from end to end.
    """
    even = next((i for i, size in enumerate(sizes) if size % 2 == 0), None)
    if len(sizes) < 2 or even is None:
        return _to_and_fro(sizes)
    others = _to_and_fro(sizes[:even] + sizes[even + 1 :])
    rows, way = sizes[even], [(0, others[0])]
    for row in range(rows):
        way += [(row, place) for place in others[1:][:: -1 if row % 2 else 1]]
    way += [(row, others[0]) for row in reversed(range(1, rows))]
    return tuple((*place[:even], row, *place[even:]) for row, place in way)


def _to_and_fro(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every place of a grid, each a step from the one before: a reflected Gray code."""
    places: tuple[tuple[int, ...], ...] = ((),)
    for size in sizes:
        places = tuple(
            (*place, part)
            for i, place in enumerate(places)
            for part in (reversed(range(size)) if i % 2 else range(size))
        )
    return places


def _by_order(plan: AnyPlan, devices: Sequence[jax.Device]) -> np.ndarray:
    """Whole slices after one another, in each of them the processes in order."""
    slice_ids = _slice_ids(devices)
    sizes = np.bincount([slice_ids[device.process_index] for device in devices])
    sizes = sizes[sizes > 0]
    if len(sizes) > 1 and (len(sizes) != plan.pods or len(set(sizes.tolist())) > 1):
        raise SpecError(f"the plan is for {plan.pods} equal pods, slices hold {sizes.tolist()}")

    def order(device: jax.Device) -> tuple[int, int, int]:
        return slice_ids[device.process_index], device.process_index, device.id

    grid = np.empty(len(devices), dtype=object)
    grid[:] = sorted(devices, key=order)
    return grid.reshape([axis.size for axis in axes_of(plan)])


def _slice_ids(devices: Sequence[jax.Device]) -> Sequence[int]:
    """The slice of each process, from its environment; one slice without that. Devices that are
    only compiled for have no processes here: their hosts follow one another.
    """
    hosts = 1 + max(device.process_index for device in devices)
    if hosts > jax.process_count():
        return [0] * hosts
    mine = int(os.environ.get("MEGASCALE_SLICE_ID", "0"))
    if jax.process_count() == 1:
        return [mine]
    return list(map(int, multihost_utils.process_allgather(np.int32(mine))))

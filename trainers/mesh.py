"""The device mesh of a Plan, for every trainer.

Each mesh axis lies on the torus axes that the Plan names, by the coordinates of the devices.
Devices without coordinates (CPU, GPU) are ordered by slice, then by process.
"""

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from orchestrator.errors import SpecError
from orchestrator.types.plan import Plan, TorusSpan

TORUS_AXES = ("x", "y", "z")
DIE_AXIS = "d"  # the devices of one chip


def mesh_of(plan: Plan, devices: Sequence[jax.Device]) -> Mesh:
    """The devices as an array with one dimension for each mesh axis of the plan."""
    if len(devices) != plan.devices:
        raise SpecError(f"the plan is for {plan.devices} devices, here are {len(devices)}")
    lay = _by_coordinates if devices[0].platform == "tpu" else _by_order
    grid = lay(plan, devices)
    return Mesh(grid, _names(plan), axis_types=(AxisType.Auto,) * len(plan.axes))


def abstract_mesh_of(plan: Plan) -> AbstractMesh:
    """The same mesh without devices: programs can be traced on it."""
    return AbstractMesh(_shape(plan), _names(plan), axis_types=(AxisType.Auto,) * len(plan.axes))


def _names(plan: Plan) -> tuple[str, ...]:
    return tuple(axis.name for axis in plan.axes)


def _shape(plan: Plan) -> tuple[int, ...]:
    return tuple(axis.size for axis in plan.axes)


def _by_coordinates(plan: Plan, devices: Sequence[jax.Device]) -> np.ndarray:
    """One device for each mesh index: the one at the torus coordinates of the index."""
    at = {(_slice_of(device), *_coordinates(device)): device for device in devices}
    slices = sorted({place[0] for place in at})
    if len(slices) != plan.pods:
        raise SpecError(f"the plan is for {plan.pods} pods, here are {len(slices)} slices")
    grid = np.empty(_shape(plan), dtype=object)
    between = [axis.size for axis in plan.axes if axis.link == "dcn"]
    for index in np.ndindex(grid.shape):
        pod = np.ravel_multi_index(index[: len(between)], between)
        place = (slices[pod], *_torus_place(plan, index))
        if place not in at:
            raise SpecError(f"no device at {place[1:]}: this slice is not a {plan.topology}")
        grid[index] = at[place]
    return grid


def _torus_place(plan: Plan, index: tuple[int, ...]) -> tuple[int, ...]:
    """Where on the torus a mesh index lies: each span adds its part of the index x its stride."""
    place = dict.fromkeys((*TORUS_AXES, DIE_AXIS), 0)
    for axis, position in zip(plan.axes, index, strict=True):
        if axis.link == "ici" and axis.size > 1:
            for span, part in zip(axis.spans, _parts(axis.spans, position), strict=True):
                place[span.torus] += part * span.stride
    return tuple(place.values())


def _parts(spans: tuple[TorusSpan, ...], position: int) -> tuple[int, ...]:
    """A position on a mesh axis as positions on its spans, the first span outermost."""
    sizes = [span.size for span in spans]
    return tuple(int(part) for part in np.unravel_index(position, sizes))


def _coordinates(device: Any) -> tuple[int, ...]:
    return (*device.coords, device.core_on_chip)


def _slice_of(device: Any) -> int:
    return int(getattr(device, "slice_index", 0))


def _by_order(plan: Plan, devices: Sequence[jax.Device]) -> np.ndarray:
    """Whole slices after one another, in each of them the processes in order."""
    slice_ids = _slice_ids()
    sizes = np.bincount([slice_ids[device.process_index] for device in devices])
    sizes = sizes[sizes > 0]
    if len(sizes) > 1 and (len(sizes) != plan.pods or len(set(sizes.tolist())) > 1):
        raise SpecError(f"the plan is for {plan.pods} equal pods, slices hold {sizes.tolist()}")

    def order(device: jax.Device) -> tuple[int, int, int]:
        return slice_ids[device.process_index], device.process_index, device.id

    grid = np.empty(len(devices), dtype=object)
    grid[:] = sorted(devices, key=order)
    return grid.reshape(_shape(plan))


def _slice_ids() -> list[int]:
    """The slice of each process, from its environment; one slice without that."""
    mine = int(os.environ.get("MEGASCALE_SLICE_ID", "0"))
    if jax.process_count() == 1:
        return [mine]
    gathered = multihost_utils.process_allgather(np.int32(mine))
    return [int(slice_id) for slice_id in gathered]

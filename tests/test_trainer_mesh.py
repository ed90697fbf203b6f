"""Meshes: each axis lies where the plan says, on real coordinates, slices and processes."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh

from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import DCN_AXES, sizes
from orchestrator.values.plan import Plan
from tests.trainer_plans import plan_of
from trainers.llama.collectives import with_copies
from trainers.mesh import abstract_mesh_of, axes_of, mesh_of

# libtpu compiles without a TPU when it does not look for one.
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@pytest.fixture(autouse=True)
def _without_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libtpu")
    for name, value in WITHOUT_TPU.items():
        monkeypatch.setenv(name, value)


def span(torus: str, size: int, stride: int = 1) -> dict[str, Any]:
    return {"torus": torus, "size": size, "stride": stride, "ring": True}


CUBE: dict[str, Any] = {
    "fsdp": 8,
    "sequence": 2,
    "tensor": 4,
    "spans": {
        "fsdp": [span("y", 4), span("z", 2, 2)],
        "sequence": [span("z", 2)],
        "tensor": [span("x", 4)],
    },
}
PODS: dict[str, Any] = {
    "pods": 2,
    "data": 4,
    "tensor": 4,
    "spans": {"data": [span("x", 4)], "tensor": [span("y", 4)]},
}
DIES: dict[str, Any] = {
    "fsdp": 4,
    "tensor": 2,
    "spans": {"fsdp": [span("x", 2), span("y", 2)], "tensor": [span("d", 2)]},
}
SHARED: dict[str, Any] = {
    "pods": 2,
    "fsdp_dcn": 2,
    "fsdp": 4,
    "spans": {"fsdp": [span("x", 2), span("y", 2)]},
}
SLICES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "v5:4x4x4": ("v5:4x4x4", 1, CUBE),
    "two v5e:4x4": ("v5e:4x4", 2, PODS),
    "tpu7x:2x2x1": ("tpu7x:2x2x1", 1, DIES),
    "four v5e:2x2": ("v5e:2x2", 4, SHARED),
}


def mesh_on(name: str) -> tuple[Plan, np.ndarray]:
    topology, slices, axes = SLICES[name]
    plan = plan_of(**axes)
    devices = topologies.get_topology_desc(topology, "tpu", num_slices=slices).devices
    return plan, mesh_of(plan, devices).devices


@pytest.mark.parametrize("name", SLICES)
def test_every_device_has_its_place(name: str) -> None:
    """A mesh holds every device of the topology once, in the shape of the plan."""
    plan, grid = mesh_on(name)
    assert grid.shape == tuple(sizes(plan.mesh).values())
    assert len({device.id for device in grid.flat}) == plan.devices


@pytest.mark.parametrize("name", SLICES)
def test_a_step_along_an_axis_is_a_step_along_its_torus_axis(name: str) -> None:
    """Next neighbours in the mesh differ on one torus axis that the plan named, by its stride."""
    plan, grid = mesh_on(name)
    for number, axis in enumerate(axes_of(plan)):
        spans = {s.torus: s.stride for s in axis.spans}
        along = np.moveaxis(grid, number, 0)
        for here, there in zip(along[:-1].flat, along[1:].flat, strict=True):
            moved = difference(here, there)
            assert moved.keys() <= spans.keys() or axis.link == "dcn"
            assert all(moved[t] % spans[t] == 0 for t in moved)
        if axis.size > 1 and axis.link == "ici":
            last = axis.spans[-1]
            first, second = along[0].flat[0], along[1].flat[0]
            assert difference(first, second) == {last.torus: last.stride}


def test_slices_lie_along_the_axes_that_join_them() -> None:
    """Each index of `pods` and `fsdp_dcn` is one slice, and neighbours share weights."""
    plan, grid = mesh_on("four v5e:2x2")
    between = tuple(sizes(plan.mesh, DCN_AXES).values())
    slices = [{device.slice_index for device in of.flat} for of in grid.reshape(4, -1)]
    assert slices == [{0}, {1}, {2}, {3}]
    assert between == grid.shape[: len(DCN_AXES)]
    assert (plan.mesh["pods"], plan.mesh["fsdp_dcn"]) == (2, 2)


def difference(here: Any, there: Any) -> dict[str, int]:
    """By how much two devices' coordinates differ, and on which torus axes."""
    places = [(*device.coords, device.core_on_chip) for device in (here, there)]
    moved = {t: b - a for t, a, b in zip("xyzd", *places, strict=True)}
    return {torus: by for torus, by in moved.items() if by}


def test_pods_are_slices() -> None:
    """The devices of a pod are those of one slice."""
    _, grid = mesh_on("two v5e:4x4")
    assert [{d.slice_index for d in pod.flat} for pod in grid] == [{0}, {1}]


def test_another_shape_is_refused() -> None:
    """A slice that lacks a place of the plan is no slice for it, though it has as many chips."""
    devices = topologies.get_topology_desc("v5e:4x8", "tpu").devices
    with pytest.raises(SpecError, match=r"no device at .* not a 4x4x4"):
        mesh_of(plan_of(data=8, tensor=4, spans={"data": [span("x", 8)], "tensor": [span("y", 4)]}),
                devices)  # fmt: skip


def test_another_number_of_slices_is_refused() -> None:
    """Two pods on one slice would call DCN what is ICI."""
    devices = topologies.get_topology_desc("v5e:4x8", "tpu").devices
    with pytest.raises(SpecError, match="2 pods, here are 1 slices"):
        mesh_of(plan_of(pods=2, data=16), devices)


def test_another_number_of_devices_is_refused() -> None:
    """The message says what the plan needs and what is here."""
    with pytest.raises(SpecError, match="for 4 devices, here are 16"):
        mesh_of(plan_of(data=4), jax.devices())


def test_without_coordinates_devices_go_in_order() -> None:
    """One process: in order of their ids, pods outermost."""
    mesh = mesh_of(plan_of(pods=2, fsdp=4, tensor=2), jax.devices())
    assert [device.id for device in mesh.devices.flat] == list(range(16))
    assert split(mesh) == {"pods": 2, "fsdp": 4, "tensor": 2}


def split(mesh: Mesh) -> dict[str, int]:
    """The axes of more than one device, in order."""
    return {str(axis): size for axis, size in mesh.shape.items() if size > 1}


class OfProcess:
    """A device of a process, as far as a mesh asks."""

    platform = "cpu"

    def __init__(self, number: int, process: int) -> None:
        self.id, self.process_index = number, process


def test_several_processes_are_ordered_by_their_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks follow slice names as text; the mesh follows the slices' own numbers."""
    monkeypatch.setattr("trainers.mesh._slice_ids", lambda _: [1, 0, 1, 0])
    devices: Any = [OfProcess(number, number // 2) for number in range(8)]
    seen: list[np.ndarray] = []
    monkeypatch.setattr("trainers.mesh.Mesh", lambda found, *_, **__: seen.append(found))
    mesh_of(plan_of(pods=2, data=4), devices)
    assert [[d.process_index for d in pod] for pod in seen[0].reshape(2, 4)] == [
        [1, 1, 3, 3],
        [0, 0, 2, 2],
    ]


def test_slices_of_unlike_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that lost a process cannot be a pod."""
    monkeypatch.setattr("trainers.mesh._slice_ids", lambda _: [0, 0, 1])
    devices: Any = [OfProcess(number, number // 2) for number in range(6)]
    with pytest.raises(SpecError, match=r"2 equal pods, slices hold \[4, 2\]"):
        mesh_of(plan_of(pods=2, data=3, sequences=6), devices)


def test_a_process_alone_is_one_slice_of_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that the environment gives a slice is a name, not a count."""
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "3")
    assert split(mesh_of(plan_of(pods=2, data=8), jax.devices())) == {"pods": 2, "data": 8}


@pytest.mark.parametrize(("tensor", "split"), [(2, (2, 1)), (4, (4, 1)), (16, (4, 4))])
def test_tensor_is_seen_as_kv_heads_and_copies(tensor: int, split: tuple[int, int]) -> None:
    """Beyond the four kv heads each of them stands on several chips, next to one another."""
    plan = plan_of(data=16 // tensor, tensor=tensor)
    mesh = mesh_of(plan, jax.devices())
    assert with_copies(mesh, 4).axis_sizes[-2:] == split
    assert with_copies(abstract_mesh_of(plan), 4).axis_sizes[-2:] == split
    assert [d.id for d in with_copies(mesh, 4).devices.flat] == [d.id for d in mesh.devices.flat]

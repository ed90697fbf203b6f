"""The names of slices, compared with Ray's own arithmetic, on which its trainer relies."""

import tempfile
from pathlib import Path

import pytest
from ray.util.tpu import get_tpu_worker_resources

from orchestrator.errors import SpecError
from orchestrator.interop.kubernetes import manifests
from orchestrator.launch.ray.local_cluster import _short_folder
from orchestrator.launch.ray.slices import _SLICE_NAME, emulated_hosts, kind_of
from orchestrator.planning.planner import make_plan
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec
from tests.example_specs import TINY, spec_of
from tests.kuberay import hosts_of

SLICES = [
    ("v4", "2x2x1", "v4-8"),
    ("v5p", "2x2x2", "v5p-16"),
    ("v5e", "2x2", "v5litepod-4"),
    ("v5e", "2x4", "v5litepod-8"),
    ("v5e", "4x4", "v5litepod-16"),
    ("v6e", "2x4", "v6e-8"),
    ("tpu7x", "2x2x1", "v7x-8"),
]


def spec_on(chip: str, topology: str) -> Spec:
    """A tiny run on two slices."""
    return spec_of(TINY, chip=chip, topology=topology, pods=2, sequences=128, length=128)


def plan_on(chip: str, topology: str) -> Plan:
    return make_plan(spec_on(chip, topology))


@pytest.mark.parametrize(("chip", "topology", "name"), SLICES)
def test_ray_counts_the_hosts_as_the_plan_does(chip: str, topology: str, name: str) -> None:
    """As many workers as the plan has hosts, each with a host's chips, of the same pod type."""
    plan = plan_on(chip, topology)
    kind = kind_of(plan)
    workers, each = get_tpu_worker_resources(topology, kind.accelerator, num_slices=2)
    assert kind.name == name
    assert workers == plan.hosts
    assert each["TPU"] == plan.chips / plan.hosts
    assert plan.devices_per_host * workers == plan.devices


def test_each_slice_has_one_head_and_its_hosts_in_order() -> None:
    """Two slices of two hosts: four nodes, of which the first of each slice is its head."""
    hosts = emulated_hosts(plan_on("v5p", "2x2x2"))
    names = [(h.labels["ray.io/tpu-slice-name"], h.labels["ray.io/tpu-worker-id"]) for h in hosts]
    assert names == [("pod-0", "0"), ("pod-0", "1"), ("pod-1", "0"), ("pod-1", "1")]
    assert ["TPU-v5p-16-head" in host.resources for host in hosts] == [True, False, True, False]
    assert [host.resources["TPU"] for host in hosts] == [4.0] * 4


@pytest.mark.parametrize(("chip", "topology"), [one[:2] for one in SLICES])
def test_a_rehearsal_has_the_nodes_of_the_exported_manifest(chip: str, topology: str) -> None:
    """What Ray finds in the pods of the manifest, but for the names of slices."""
    [manifest] = manifests("ray", spec_on(chip, topology), plan_on(chip, topology), "")
    rehearsed, exported = emulated_hosts(plan_on(chip, topology)), hosts_of(manifest)
    for emulated, real in zip(rehearsed, exported, strict=True):
        name = real.labels[_SLICE_NAME]
        assert emulated.labels == real.labels | {_SLICE_NAME: emulated.labels[_SLICE_NAME]}
        assert emulated.resources == {key: n for key, n in real.resources.items() if key != name}
    assert len({host.labels[_SLICE_NAME] for host in exported}) == 2


def test_what_is_no_tpu_is_refused() -> None:
    """Ray knows no slices of it."""
    with pytest.raises(SpecError, match="only TPU slices"):
        emulated_hosts(plan_on("h100", "4"))


def test_a_cluster_lies_where_socket_paths_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below TMPDIR, unless that is long."""
    for letters, lies_below in (("o", True), (50 * "x", False)):
        named = tempfile.mkdtemp(prefix=letters, dir="/tmp")
        monkeypatch.setattr(tempfile, "tempdir", named)
        folder = _short_folder()
        folder.rmdir()
        Path(named).rmdir()
        assert folder.parent == Path(named if lies_below else "/tmp")

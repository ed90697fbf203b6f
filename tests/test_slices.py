"""The names of slices, compared with Ray's own arithmetic, on which its trainer relies."""

import tempfile
from pathlib import Path

import pytest
from ray.util.tpu import get_tpu_worker_resources

from orchestrator.errors import SpecError
from orchestrator.launch.ray.local_cluster import short_folder
from orchestrator.launch.ray.slices import accelerator_type, emulated_hosts, pod_type
from orchestrator.plan.planner import make_plan
from orchestrator.types.plan import Plan
from tests.example_specs import TINY, spec_of

SLICES = [
    ("v4", "2x2x1", "v4-8"),
    ("v5p", "2x2x2", "v5p-16"),
    ("v5e", "2x2", "v5litepod-4"),
    ("v5e", "2x4", "v5litepod-8"),
    ("v5e", "4x4", "v5litepod-16"),
    ("v6e", "2x4", "v6e-8"),
    ("tpu7x", "2x2x1", "v7x-8"),
]


def plan_on(chip: str, topology: str, pods: int = 2) -> Plan:
    """A tiny plan on some slices."""
    spec = spec_of(TINY, chip=chip, topology=topology, pods=pods, sequences=128, length=128)
    return make_plan(spec)


@pytest.mark.parametrize(("chip", "topology", "name"), SLICES)
def test_ray_counts_the_hosts_as_the_plan_does(chip: str, topology: str, name: str) -> None:
    """As many workers as the plan has hosts, each with a host's chips, of the same pod type."""
    plan = plan_on(chip, topology)
    workers, each = get_tpu_worker_resources(topology, accelerator_type(plan), num_slices=2)
    assert pod_type(plan) == name
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


def test_what_is_no_tpu_is_refused() -> None:
    """Ray knows no slices of it."""
    with pytest.raises(SpecError, match="only TPU slices"):
        emulated_hosts(plan_on("h100", "4"))


def test_a_cluster_lies_where_socket_paths_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below TMPDIR, unless that is long."""
    for letters, lies_below in (("o", True), (50 * "x", False)):
        named = tempfile.mkdtemp(prefix=letters, dir="/tmp")
        monkeypatch.setattr(tempfile, "tempdir", named)
        folder = short_folder()
        folder.rmdir()
        Path(named).rmdir()
        assert folder.parent == Path(named if lies_below else "/tmp")

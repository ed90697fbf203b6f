"""Slices of TPUs and nodes of GPUs: their names, compared with Ray's own, and who is in them."""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.util.tpu import get_tpu_worker_resources

from orchestrator import catalog
from orchestrator.catalog.chips import GPU_DOMAIN, table
from orchestrator.errors import SpecError
from orchestrator.interop.kubernetes import manifests
from orchestrator.launch.backend import AttemptEvent, Slice, WorkerArgs
from orchestrator.launch.ray import private_api
from orchestrator.launch.ray.attempt import _train
from orchestrator.launch.ray.local_cluster import _short_folder
from orchestrator.launch.ray.slices import (
    _SLICE_NAME,
    emulated_hosts,
    kind_of,
    members,
    others,
    slices_of,
)
from orchestrator.planning.planner import make_plan
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec
from tests.example_specs import TINY, spec_of
from tests.kuberay import gpu_type, hosts_of

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


ON_GPUS = [("h100", "8"), ("h100", "4"), ("gb200", "4"), ("gb200", "8")]


@pytest.mark.parametrize(("chip", "topology"), [*(case[:2] for case in SLICES), *ON_GPUS])
def test_a_rehearsal_has_the_nodes_of_the_exported_manifest(chip: str, topology: str) -> None:
    """What Ray finds in the pods of the manifest, but for the names of slices."""
    *_, manifest = manifests("ray", spec_on(chip, topology), plan_on(chip, topology), {})
    rehearsed, exported = emulated_hosts(plan_on(chip, topology)), hosts_of(manifest)
    key = GPU_DOMAIN if catalog.chip(chip).switched else _SLICE_NAME
    for emulated, real in zip(rehearsed, exported, strict=True):
        name = real.labels.get(key)
        renamed = {key: emulated.labels[key]} if name else {}
        assert emulated.labels == real.labels | renamed
        assert emulated.resources == {key: n for key, n in real.resources.items() if key != name}
    assert len({host.labels.get(key) for host in exported}) == (2 if name else 1)


@pytest.mark.parametrize("name", [name for name in catalog.chips() if catalog.chip(name).switched])
def test_ray_finds_out_which_gpu_a_node_has(name: str) -> None:
    """By itself, from the name that NVIDIA's driver gives it, which is what JAX calls it too."""
    chip = catalog.chip(name)
    assert chip.ray
    assert {gpu_type(kind) for kind in chip.device_kinds} == {chip.ray.accelerator}


def test_a_chip_without_a_name_in_ray_is_refused() -> None:
    """The error says how it runs without Ray, and with it."""
    definition = {key: part for key, part in table("chips/h100.toml").items() if key != "ray"}
    plan = replace(plan_on("h100", "4"), chip="h900", chip_definition=definition)
    with pytest.raises(SpecError, match=r"h900 has no name in Ray.*cluster.backend=hosts"):
        kind_of(plan)


def gpus(name: str, count: int, kind: str = "GB200", domain: str = "") -> dict[str, Any]:
    """A node as Ray describes it."""
    return {
        "NodeID": f"{name}-id-of-the-node",
        "NodeManagerHostname": "host",
        "Alive": True,
        "Resources": {"GPU": float(count), f"accelerator_type:{kind}": 1.0},
        "Labels": {GPU_DOMAIN: domain} if domain else {},
    }


def test_nodes_of_gpus_are_slices_by_themselves() -> None:
    """Those of the plan's type with as many GPUs as it wants; free is one whose GPUs all are."""
    eight = kind_of(plan_on("h100", "8"))
    assert (eight.name, eight.queue, eight.hosts) == ("H100-8", "H100-8", 1)
    nodes = [
        gpus("a", 8, "H100"), gpus("b", 8, "H100"), gpus("c", 4, "H100"), gpus("d", 8, "A100"),
        gpus("e", 8, "H100") | {"Alive": False}, gpus("f", 2, "") | {"Resources": {"GPU": 2.0}},
        {"NodeID": "head", "Alive": True, "Resources": {"CPU": 1.0}},
    ]  # fmt: skip
    free = {"a-id-of-the-node": {"GPU": 8.0}, "b-id-of-the-node": {"GPU": 7.0}}
    assert slices_of(members(nodes, eight), free, eight, lambda _: True) == (
        Slice(name="host-a-id-of-", hosts=1, size=1, free=True),
        Slice(name="host-b-id-of-", hosts=1, size=1, free=False),
    )
    assert others(nodes, eight) == {"H100-4": 1, "A100-8": 1, "GPU-2": 1}


def test_nodes_of_a_domain_are_one_slice_or_more() -> None:
    """As many as fit; what is left is none, unless it is all there is. Without the label that says
    who shares NVLink, no node has a partner. Slices that a run has keep their nodes.
    """
    two = kind_of(plan_on("gb200", "8"))
    assert (two.name, two.queue, two.hosts) == ("GB200-8", "GB200-4", 2)
    rack = [gpus(name, 4, domain="rack") for name in "abcde"]
    nodes = [*rack, gpus("f", 4, domain="half"), gpus("g", 4), gpus("h", 4)]

    def named(groups: dict[str, list[Any]]) -> dict[str, str]:
        return {
            name: "".join(node["NodeID"][0] for node in found) for name, found in groups.items()
        }

    before = named(members(nodes, two))
    assert before == {
        "rack-a-id-of-": "ab", "rack-c-id-of-": "cd", "half-f-id-of-": "f",
        "host-g-id-of-": "g", "host-h-id-of-": "h",
    }  # fmt: skip
    assert others(nodes, two) == {"GB200-4": 3}
    nodes[0] = nodes[0] | {"Alive": False}
    places = {"rack-a-id-of-": [rack[0]["NodeID"], rack[1]["NodeID"]]}
    lost = named(members(nodes, two, places))
    assert lost == before | {"rack-a-id-of-": "b"}
    assert named(members(nodes, two))["rack-b-id-of-"] == "bc"  # a spare node makes a new slice


@pytest.mark.parametrize(("chip", "topology"), [("h100", "8"), ("gb200", "8")])
def test_ranks_are_bound_to_the_nodes_of_the_chosen_slices(
    chip: str, topology: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process for all GPUs of a node, slice after slice; each knows its slice. Nothing is started
    where a node is missing.
    """
    plan, asked = plan_on(chip, topology), []

    def trainer(**options: Any) -> Any:
        asked.append(options)
        return SimpleNamespace(fit=lambda: None)

    monkeypatch.setattr(private_api, "jax_trainer", lambda **_: trainer)
    args = WorkerArgs(run=str(tmp_path), claim=1, attempt=1, plan_digest="", heartbeat_s=1)
    hosts = plan.hosts_per_slice
    places = {name: tuple(f"{name}{host}" for host in range(hosts)) for name in ("y", "x")}
    assert _train(plan, args, "w", places, rehearsal=False) == AttemptEvent(ended=True)
    [options] = asked
    scaling, config = options["scaling_config"], options["train_loop_config"]
    assert scaling._resources_per_worker_not_none == {
        "GPU": plan.chips_per_host, f"accelerator_type:{chip.upper()}": 0.001,
    }  # fmt: skip
    assert scaling.num_workers == plan.hosts
    nodes = [node for name in ("y", "x") for node in places[name]]
    assert scaling.label_selector == [{"ray.io/node-id": node} for node in nodes]
    assert config["slices"] == tuple(node[0] for node in nodes)
    assert (options["jax_config"].use_gpu, options["jax_config"].use_tpu) == (True, False)
    ended = _train(plan, args, "w", places | {"x": ()}, rehearsal=False)
    assert (len(asked), ended.error) == (1, "a slice lost a host before its ranks started")


def test_a_cluster_lies_where_socket_paths_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below TMPDIR, unless that is long."""
    for letters, lies_below in (("o", True), (50 * "x", False)):
        named = tempfile.mkdtemp(prefix=letters, dir="/tmp")
        monkeypatch.setattr(tempfile, "tempdir", named)
        folder = _short_folder()
        folder.rmdir()
        Path(named).rmdir()
        assert folder.parent == Path(named if lies_below else "/tmp")

"""The containers of a JobSet as plain processes: what the manifest says is what runs."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import orchestrator as api
from orchestrator import journal, storage
from orchestrator.launch.hosts.backend import end
from orchestrator.launch.hosts.meeting import HostName, HostState, Meeting, Order
from tests.bucket_server import BROKEN, LOST, THROTTLED, BucketServer
from tests.conftest import ROOT

SPEC = ROOT / "specs" / "tiny_2pod.yaml"
STEPS = 4


def state(index: int, beat: int) -> HostState:
    host = HostName(slice_name="slice-0", index=index)
    return HostState(host=host, size=2, kind="v5e 2x4", address="h", free_port=1, beat=beat)


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch, copies: Path) -> Iterator[None]:
    """Another machine, with copies of its own."""
    with monkeypatch.context() as patch:
        patch.setenv(storage.addresses.VARIABLE, str(copies))
        yield


def test_hosts_and_their_driver_meet_in_a_bucket(
    bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each machine sees the states and orders of the others, though requests fail."""
    count = iter(range(10**6))

    def fault(_method: str, _name: str) -> str | None:
        number = next(count)
        return [LOST, THROTTLED, BROKEN][number // 4 % 3] if number % 4 == 0 else None

    bucket_server.fault = fault
    where = storage.folder("gs://bucket/runs/_hosts/it")
    driver = Meeting(where)
    with machine(monkeypatch, tmp_path / "host"):
        host = Meeting(storage.folder("gs://bucket/runs/_hosts/it"))
        assert host.order() is None
        host.join(state(0, beat=1))
        host.join(state(1, beat=1))
    assert driver.hosts() == (state(0, beat=1), state(1, beat=1))
    driver.give(first := Order(number=1, run="it", run_id="it", claim=1))
    with machine(monkeypatch, tmp_path / "host"):
        assert host.order() == first
        host.join(state(1, beat=2))
        with pytest.raises(FileExistsError):
            host.give(Order(number=1, run="another", run_id="another", claim=1))
    assert driver.hosts() == (state(0, beat=1), state(1, beat=2))
    assert bucket_server.faults > 3


def containers(manifest: dict[str, Any], job: str) -> tuple[int, int, dict[str, Any]]:
    """How many slices and hosts of each a job has, and the container of its pods."""
    jobs = manifest["spec"]["replicatedJobs"]
    [found] = [described for described in jobs if described["name"] == job]
    inside = found["template"]["spec"]
    [container] = inside["template"]["spec"]["containers"]
    return found["replicas"], inside["parallelism"], container


SLICE_INDEX = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
USE = re.compile(r"\$\((\w+)\)")


def environment(container: dict[str, Any], slice_index: int, host_index: int) -> dict[str, str]:
    """What a kubelet sets: what the manifest says, and of a pod of an indexed job its index."""
    fields = {SLICE_INDEX: str(slice_index), "status.hostIP": "127.0.0.1"}
    found = {"JOB_COMPLETION_INDEX": str(host_index)}
    for variable in container["env"]:
        if "valueFrom" in variable:
            found[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            found[variable["name"]] = expanded(variable["value"], found)
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it in arguments: a name that is not set stays."""
    return USE.sub(lambda match: variables.get(match[1], match[0]), text)


@contextmanager
def pods(manifest: dict[str, Any], devices: int, copies: Path) -> Iterator[int]:
    """The processes of all hosts, each with copies of its own as pods have; how many they are."""
    slices, size, container = containers(manifest, "slice")
    started = []
    for number in range(slices * size):
        own = environment(container, number // size, number % size)
        words = [expanded(word, own) for word in [*container["command"], *container["args"]]]
        whole = {**os.environ, **own, storage.addresses.VARIABLE: str(copies / str(number))}
        command = [sys.executable, *words[1:], "--emulate", str(devices)]
        started.append(subprocess.Popen(command, cwd=ROOT, env=whole))
    try:
        yield len(started)
    finally:
        end(started)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "slices", "hosts"),
    [
        ("folder", ("resources.chip=v5p", "resources.topology=2x2x2"), 4),  # two of each slice
        ("gs", (), 2),
        ("s3", (), 2),
    ],
)
def test_the_processes_of_a_jobset_train(
    kind: str, slices: tuple[str, ...], hosts: int, bucket_server: BucketServer, tmp_path: Path
) -> None:
    """Each has the words and the environment of its pod; the driver's own shell line submits."""
    runs = str(tmp_path / "runs") if kind == "folder" else f"{kind}://bucket/runs"
    batch = api.load(SPEC).experiment.batch
    sets = [
        f"run.storage={runs}",
        f"experiment.tokens={STEPS * batch.sequences * batch.length}",
        "run.trainer=mlp",
        *slices,
    ]
    config, manifest = api.export("jobset", SPEC, sets)
    file = tmp_path / "spec.yaml"
    file.write_text(config["data"]["spec.yaml"])
    _, _, driver = containers(manifest, "driver")
    line = driver["args"][0].replace("/etc/orch/spec.yaml", str(file))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    plan = api.plan(SPEC, sets)
    with pods(manifest, plan.devices_per_host, tmp_path / "hosts") as started:
        done = subprocess.run(
            [*driver["command"], line], env={**os.environ, "PATH": path}, cwd=ROOT, timeout=500,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, started) == (0, hosts), done.stderr
    [run] = [found.run() for found in journal.list_journals(storage.folder(runs))]
    assert (run.run, run.state, run.steps_done) == (
        manifest["metadata"]["name"],
        "succeeded",
        STEPS,
    )
    assert bool(bucket_server.names("bucket/runs/_hosts/")) == (kind != "folder")

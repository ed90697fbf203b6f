"""The private parts of Ray that one file of the package and one of the tests use: the installed
version has them, and was tried.

For a new version of Ray: install it, run this file and tests/test_launch.py, and add the
version to `private_api._TRIED`.
"""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from ray._common.usage import usage_lib

from orchestrator.launch.ray import local_cluster, private_api
from tests.conftest import ROOT

FENCED = {
    ROOT / "orchestrator" / "launch" / "ray" / "private_api.py",
    ROOT / "tests" / "kuberay.py",
    ROOT / "tests" / "test_ray_private_api.py",
}
# What tests/kuberay.py reads of a node.
OF_A_TPU_NODE = (
    "TPUAcceleratorManager.get_current_node_accelerator_type",
    "TPUAcceleratorManager.get_current_node_additional_resources",
    "TPUAcceleratorManager.get_current_node_accelerator_labels",
    "get_tpu_cores_per_chip",
    "normalize_tpu_accelerator_type",
    "get_num_chips_from_topology",
)


def test_the_installed_ray_was_tried() -> None:
    """It is the newest version that was, and the one that an installation gets."""
    wanted = [Requirement(text) for text in metadata.requires("orch") or ()]
    pinned = {str(requirement.specifier) for requirement in wanted if requirement.name == "ray"}
    assert metadata.version("ray") in private_api._TRIED
    assert pinned == {f"=={private_api._TRIED[-1]}"}


@pytest.mark.parametrize(
    ("module", "function", "parameters"),
    [
        ("ray._private.state", "available_resources_per_node", ()),
        ("ray._private.state", "jobs", ()),
        ("ray._private.state", "actors", ("actor_id",)),
        ("ray._private.services", "get_node", ("gcs_address", "node_id")),
        (
            "ray._private.services",
            "start_raylet",
            ("session_dir", "node_id", "dashboard_agent_listen_port"),
        ),
        (
            "ray.dashboard.modules.dashboard_sdk",
            "SubmissionClient._do_request",
            ("method", "endpoint", "kwargs"),
        ),
        (
            "ray.train.v2.api.data_parallel_trainer",
            "DataParallelTrainer._create_default_callbacks",
            (),
        ),
        *(("ray._private.accelerators.tpu", name, ()) for name in OF_A_TPU_NODE),
        (
            "ray._private.accelerators.nvidia_gpu",
            "NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type",
            ("name",),
        ),
        ("ray.cluster_utils", "Cluster", ("initialize_head", "head_node_args")),
        ("ray.cluster_utils", "Cluster.add_node", ("wait", "node_args")),
    ],
)
def test_ray_has_the_functions(module: str, function: str, parameters: tuple[str, ...]) -> None:
    """With the parameters that are passed, or read."""
    found: Any = import_module(module)
    for name in function.split("."):
        found = getattr(found, name)
    assert set(parameters) <= inspect.signature(found).parameters.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray warns of its own options
@pytest.mark.parametrize("private", [True, False])
def test_a_run_starts_no_processes_that_it_has_no_use_for(private: bool) -> None:
    """Nobody serves data sets; in a private cluster nobody frees slices after its end."""
    from ray.train.v2._internal.callbacks import datasets, placement_group_callback  # noqa: PLC0415
    from ray.train.v2.api.config import RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.v2.jax import JaxTrainer  # noqa: PLC0415

    def callbacks(kind: Any) -> set[type]:
        made = kind(lambda: None, scaling_config=ScalingConfig(), run_config=RunConfig(name="it"))
        return {type(callback) for callback in made._create_default_callbacks()}

    left_out: set[type] = {datasets.DatasetsCallback}
    if private:
        left_out.add(placement_group_callback.PlacementGroupCleanerCallback)
    ours = callbacks(private_api.jax_trainer(private=private))
    assert callbacks(JaxTrainer) - ours == left_out


def test_ray_waits_for_a_node_by_the_function_that_is_replaced() -> None:
    """A node looks it up in its module, each time; it does not have its own."""
    node = inspect.getsource(import_module("ray._private.node"))
    assert "ray._private.services.get_node(" in node
    assert "ray._private.services.start_raylet(" in node


def test_an_agent_finds_the_port_that_was_written_for_it(tmp_path: Path) -> None:
    """Where Ray's own agents write theirs, by the name that Ray looks for."""
    raylet: Any = import_module("ray._raylet")
    name = raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME
    raylet.persist_port(str(tmp_path), "n0", name, 4321)
    [written] = (path for path in tmp_path.rglob("*") if path.is_file())
    assert "4321" in written.read_text(encoding="utf-8")


def test_a_private_cluster_reports_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither usage, nor that its reports are switched off, which Ray sends too."""
    for name, value in local_cluster._environment(tmp_path, "mark", 4).items():
        monkeypatch.setenv(name, value)
    assert not usage_lib.usage_stats_enabled()
    assert usage_lib._usage_stats_report_url().startswith("http://127.0.0.1:")


def private_names(path: Path) -> Iterator[str]:
    """What a file imports of Ray that is private, or meant for Ray's own tests."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, *parts = name.split(".")
            if top == "ray" and any(p.startswith("_") or p == "cluster_utils" for p in parts):
                yield name


def test_no_other_file_uses_private_parts() -> None:
    """Neither code nor tests; the fenced files do use some."""
    folders = ("orchestrator", "trainers", "tests")
    files = {path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    users = {path for path in files if any(private_names(path))}
    assert users == FENCED


def test_the_process_of_an_actor_is_read_as_ray_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"Address": {"NodeID": "n7"}, "Pid": 70, "State": "DEAD"}
    monkeypatch.setattr("ray._private.state.actors", {"known": told, "unknown": {}}.get)
    process = private_api.process_of_actor
    assert process("known") == ("n7", 70)
    assert process("unknown") is process(None) is None


def test_an_error_of_a_dead_worker_has_that_of_its_actor() -> None:
    """`dead_ranks` reads it."""
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError  # noqa: PLC0415

    cause = OSError()
    assert WorkerHealthCheckFailedError("text", cause).health_check_failure is cause

"""Exported manifests: by the published schemas of their kinds, and by rules no schema can say."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import orchestrator as api
from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.catalog.topologies import hosts
from orchestrator.errors import SpecError
from orchestrator.interop.kubernetes import _OBJECTS, manifests
from orchestrator.reading.examples import spec_text
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec
from tests.conftest import TRAINING_SPECS, RunOrch
from tests.shipped_plans import shipped_plan

ROOT = Path(__file__).parents[1]
SPECS = TRAINING_SPECS
TINY = ROOT / "specs/tiny_2pod.yaml"
DEFINITIONS = ROOT.parent / "shared/crd"
FILES = {"RayCluster": "raycluster.v1", "RayJob": "rayjob.v1", "JobSet": "jobset.v1alpha2"}
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST = {"RayCluster": 53, "RayJob": 47, "ConfigMap": 63, "JobSet": 63, "ComputeDomain": 63}
TPUS = [name for name in catalog.chips() if not catalog.chip(name).switched]
OPTIONS = [
    "run.secrets=[HF_TOKEN, API_KEY]",
    "run.storage=/shared/runs",
    "cluster.kubernetes.queue=tpus",
    "cluster.kubernetes.spot=true",
    "cluster.kubernetes.service_account=trainer",
    "cluster.kubernetes.namespace=research",
    "cluster.kubernetes.claim=filestore",
    "cluster.kubernetes.secret=keys",
    "cluster.kubernetes.image=registry.example/orch:2",
]


def slices_of(name: str) -> list[str]:
    """Small slices, one with many hosts, and the largest that can be rented."""
    chip = catalog.chip(name)
    listed = ["x".join(map(str, shape)) for shape in chip.slices.listed]
    return [*listed, "x".join(map(str, chip.largest_slice))]


def exported(kind: Any, *overrides: str, spec: Path = TINY) -> list[dict[str, Any]]:
    return api.export(kind, spec, overrides)


@cache
def planned(path: Path, *overrides: str) -> tuple[Spec, Plan]:
    spec = api.load(path, overrides)
    return spec, api.plan(spec) if overrides else shipped_plan(path)


def every_kind(
    path: Path, *overrides: str, options: Sequence[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """The objects of one plan, by kind. The options change no plan."""
    spec, plan = planned(path, *overrides)
    if options:
        spec = api.load(path, (*overrides, *options))
    return {kind: manifests(kind, spec, plan, {"spec.yaml": spec_text(spec)}) for kind in _OBJECTS}


def on(name: str, topology: str, pods: int) -> list[str]:
    """Overrides of a spec that fits these slices whatever their size."""
    chips = prod(map(int, topology.split("x")))
    return [
        f"resources.chip={name}",
        f"resources.topology={topology}",
        f"resources.pods={pods}",
        f"experiment.batch.sequences={2 * chips * pods}",
        "experiment.tokens=1T",
    ]


def pod_templates(node: Any) -> Iterator[dict[str, Any]]:
    """The specs of all pods inside an object."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from pod_templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_templates(value)


def check_pod(pod: dict[str, Any]) -> None:
    """What a server refuses although the schema allows it."""
    names = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = container["volumeMounts"]
        assert {mount["name"] for mount in mounts} <= names
        assert len({mount["mountPath"] for mount in mounts}) == len(mounts)
        variables = [variable["name"] for variable in container.get("env", ())]
        assert len(set(variables)) == len(variables)
        ports = [port["containerPort"] for port in container.get("ports", ())]
        assert len(set(ports)) == len(ports)
        assert all(len(port["name"]) <= 15 for port in container.get("ports", ()))
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert {"cpu", "memory"} <= set(resources["requests"])


@pytest.mark.parametrize("name", TPUS)
def test_every_chip_and_slice_has_valid_manifests(name: str) -> None:
    chip = catalog.chip(name)
    for topology in slices_of(name):
        for pods in (1, 2, 32):
            found = every_kind(TINY, *on(name, topology, pods))
            check_cluster(found["ray"], chip, topology, pods)
            check_cluster(found["rayjob"], chip, topology, pods)
            check_jobset(found["jobset"], chip, topology, pods)


def check_cluster(objects: list[dict[str, Any]], chip: Chip, topology: str, pods: int) -> None:
    (group,) = cluster_of(objects)["workerGroupSpecs"]
    size = catalog.topology(chip, topology)
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == pods
    assert group["numOfHosts"] == hosts(chip, size)
    pod = group["template"]["spec"]
    tpus = int(pod["containers"][0]["resources"]["limits"]["google.com/tpu"])
    assert tpus * group["numOfHosts"] == size.chips
    assert chip.gke
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": chip.gke.accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    check_objects(objects)


def check_jobset(objects: list[dict[str, Any]], chip: Chip, topology: str, pods: int) -> None:
    check_objects(objects)
    jobs = {job["name"]: job for job in objects[-1]["spec"]["replicatedJobs"]}
    size = hosts(chip, catalog.topology(chip, topology))
    job = jobs["slice"]["template"]["spec"]
    assert jobs["slice"]["replicas"] == pods
    assert job["parallelism"] == job["completions"] == size
    pod = f"{objects[-1]['metadata']['name']}-slice-{pods - 1}-{size - 1}-abcde"
    assert LABEL.fullmatch(pod)
    assert len(pod) <= 63
    words = job["template"]["spec"]["containers"][0]["args"]
    assert words[words.index("--kind") + 1] == f"{chip.name} {topology}"
    assert words[words.index("--hosts") + 1] == str(size)


def cluster_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = objects[-1]["spec"]
    inside: dict[str, Any] = spec.get("rayClusterSpec", spec)
    return inside


def check_objects(objects: list[dict[str, Any]]) -> None:
    for item in objects:
        assert LABEL.fullmatch(item["metadata"]["name"])
        assert len(item["metadata"]["name"]) <= LONGEST[item["kind"]]
        for pod in pod_templates(item):
            check_pod(pod)


@pytest.mark.parametrize("options", [[], OPTIONS], ids=["plain", "options"])
def test_manifests_obey_the_published_schemas(options: list[str]) -> None:
    if not DEFINITIONS.exists():
        pytest.skip(f"needs the CRD schemas of KubeRay and JobSet as JSON in {DEFINITIONS}")
    for spec in [path for path in SPECS if tpu(path)]:
        for manifest in chain.from_iterable(every_kind(spec, options=options).values()):
            if manifest["kind"] != "ConfigMap":
                assert [
                    error.message for error in validator(manifest["kind"]).iter_errors(manifest)
                ] == []


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((DEFINITIONS / f"{FILES[kind]}.json").read_text()))


def tpu(spec: Path) -> bool:
    return not catalog.chip_of(api.load(spec).resources).switched


def test_the_options_of_the_spec_are_in_the_manifest() -> None:
    (cluster,) = exported("ray", *OPTIONS)
    assert cluster["metadata"]["namespace"] == "research"
    assert cluster["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "tpus"}
    for pod in pod_templates(cluster):
        (container,) = pod["containers"]
        assert pod["serviceAccountName"] == "trainer"
        assert container["image"] == "registry.example/orch:2"
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "filestore"}
        assert container["volumeMounts"][0]["mountPath"] == "/shared/runs"
        by_reference = {
            variable["name"]: variable.get("valueFrom") for variable in container["env"]
        }
        for secret in ("HF_TOKEN", "API_KEY"):
            assert by_reference[secret] == {"secretKeyRef": {"name": "keys", "key": secret}}
    (group,) = cluster["spec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert {toleration["key"] for toleration in pod["tolerations"]} == {
        "google.com/tpu",
        "cloud.google.com/gke-spot",
    }


def test_an_elastic_run_has_as_few_slices_as_it_may() -> None:
    (cluster,) = exported("ray", "resources.pods={min: 1, max: 2}")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (1, 2, 2)


@pytest.mark.parametrize("name", ["8" * 63, "a" * 63, "a-" * 31 + "a", "7b"])
def test_any_name_of_a_spec_names_objects(name: str) -> None:
    for kind in ("ray", "rayjob", "jobset"):
        check_objects(exported(kind, f"name={name}"))


def test_the_job_submits_the_same_spec(tmp_path: Path) -> None:
    config, job = exported("rayjob", *OPTIONS)
    file = tmp_path / "spec.yaml"
    file.write_text(config["data"]["spec.yaml"])
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["orch", "submit"]
    assert words[words.index("--key") + 1] == job["metadata"]["name"]
    there, here = api.load(file), api.load(TINY, OPTIONS)
    assert api.plan(there).digest == api.plan(here).digest
    assert there.run == here.run


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_is_written_and_read_again(path: Path, tmp_path: Path) -> None:
    spec = api.load(path)
    file = tmp_path / "again.yaml"
    file.write_text(spec_text(spec))
    assert api.load(file) == spec


@pytest.mark.parametrize(
    ("kind", "chip", "says"),
    [
        ("ray", "a100", r"its file needs \[gke\]; orch export slurm needs none"),
        ("jobset", "gb300", r"its file needs \[gke\]; orch export slurm needs none"),
    ],
)
def test_what_no_manifest_serves_is_refused(kind: str, chip: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        exported(kind, f"resources.chip={chip}", "resources.topology=8")


ON_GPUS = [("h100", "8", 1, 8), ("h200", "4", 1, 4), ("b200", "8", 1, 8), ("gb200", "64", 16, 4)]


def check_node(chip: str, pod: dict[str, Any]) -> None:
    """Its pods go to nodes of the GPU only, also to those that GKE taints as nodes of Arm."""
    names = catalog.chip(chip).gke
    assert names
    arm = {"kubernetes.io/arch": "arm64"} if chip == "gb200" else {}
    selected = {"cloud.google.com/gke-accelerator": names.accelerator, **arm}
    assert pod["nodeSelector"] == selected
    taints = {toleration["key"]: toleration.get("value") for toleration in pod["tolerations"]}
    assert taints == {"nvidia.com/gpu": None, **arm}


def check_arch(chip: str, pod: dict[str, Any]) -> None:
    """The one image of all pods is for one architecture."""
    arm = {"kubernetes.io/arch": "arm64"} if chip == "gb200" else {}
    assert pod.get("nodeSelector", {}) == arm
    assert {
        toleration["key"]: toleration["value"] for toleration in pod.get("tolerations", ())
    } == arm


def check_domain(objects: list[dict[str, Any]], pods: list[dict[str, Any]], nodes: int) -> None:
    """Pods that share an NVLink domain claim a channel of it, by the template of NVIDIA's driver;
    the driver makes it before them.
    """
    made = [item for item in objects if item["kind"] == "ComputeDomain"]
    assert len(made) == (nodes > 1)
    for pod in pods:
        claims = pod.get("resourceClaims", [])
        assert pod["containers"][0]["resources"].get("claims", []) == [
            {"name": claim["name"]} for claim in claims
        ]
        assert [claim["resourceClaimTemplateName"] for claim in claims] == [
            domain["spec"]["channel"]["resourceClaimTemplate"]["name"] for domain in made
        ]
    if made:
        assert objects[0] == made[0]
        assert made[0]["metadata"].get("namespace") == objects[-1]["metadata"].get("namespace")


@pytest.mark.parametrize(("chip", "topology", "nodes", "gpus"), ON_GPUS)
def test_nodes_of_gpus_have_a_jobset(chip: str, topology: str, nodes: int, gpus: int) -> None:
    """A domain of several nodes has a node pool of its own; a node by itself needs none."""
    objects = exported("jobset", *on(chip, topology, 2))
    check_jobset(objects, catalog.chip(chip), topology, 2)
    jobs = {job["name"]: job["template"] for job in objects[-1]["spec"]["replicatedJobs"]}
    assert ("metadata" in jobs["slice"]) == (nodes > 1)
    job = jobs["slice"]["spec"]
    assert job["parallelism"] == nodes
    pod = job["template"]["spec"]
    check_node(chip, pod)
    check_domain(objects, [pod], nodes)
    check_arch(chip, jobs["driver"]["spec"]["template"]["spec"])
    [container] = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
    assert {"name": "JAX_PLATFORMS", "value": "cuda,cpu"} in container["env"]
    assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert "google.com/tpu" not in yaml.safe_dump(objects)
    if DEFINITIONS.exists():
        found = validator("JobSet").iter_errors(objects[-1])
        assert [error.message for error in found] == []


@pytest.mark.parametrize(("chip", "topology", "nodes", "gpus"), ON_GPUS)
@pytest.mark.parametrize("kind", ["ray", "rayjob"])
def test_nodes_of_gpus_have_a_cluster_of_ray(
    kind: str, chip: str, topology: str, nodes: int, gpus: int
) -> None:
    """The slices are replicas of one group; but each domain of several nodes is a group, whose pods
    Ray is told of, on a node pool of its own. An elastic run needs only as many as it may.
    """
    elastic = "resources.pods={min: 1, max: 2}"
    objects = exported(kind, *on(chip, topology, 2), elastic)
    check_objects(objects)
    groups = cluster_of(objects)["workerGroupSpecs"]
    assert len({group["groupName"] for group in groups}) == (2 if nodes > 1 else 1)
    assert [group["numOfHosts"] for group in groups] == [nodes] * len(groups)
    assert sum(group["replicas"] for group in groups) == 2
    assert sum(group["minReplicas"] for group in groups) == 1
    domains = set()
    for group in groups:
        pod, labels = group["template"]["spec"], group.get("labels", {})
        check_node(chip, pod)
        [container] = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
        assert {"name": "JAX_PLATFORMS", "value": "cuda,cpu"} in container["env"]
        assert "mxla" not in yaml.safe_dump(pod)
        domains.add(labels.get("ray.io/gpu-domain"))
        if nodes > 1:
            assert group["template"]["metadata"]["labels"] == labels
            for rule, matches in (("podAffinity", labels), ("podAntiAffinity", None)):
                [term] = pod["affinity"][rule]["requiredDuringSchedulingIgnoredDuringExecution"]
                assert term["topologyKey"] == "cloud.google.com/gke-nodepool"
                assert term["labelSelector"].get("matchLabels") == matches
    assert domains == ({f"tiny-2pod-{n}" for n in range(2)} if nodes > 1 else {None})
    check_domain(objects, [group["template"]["spec"] for group in groups], nodes)
    check_arch(chip, cluster_of(objects)["headGroupSpec"]["template"]["spec"])
    if DEFINITIONS.exists():
        found = validator(objects[-1]["kind"]).iter_errors(objects[-1])
        assert [error.message for error in found] == []


def test_a_run_that_is_over_ends_its_jobset() -> None:
    """No try of the driver goes on with it; a pod that is evicted or killed is no such end."""
    _, jobset = exported("jobset")
    driver = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert "--resume lost" in driver["template"]["spec"]["containers"][0]["args"][0]
    assert driver["template"]["spec"]["restartPolicy"] == "Never"
    over, disrupted = driver["podFailurePolicy"]["rules"]
    assert (over["action"], over["onExitCodes"]["values"]) == ("FailJob", [2, 3, 4])
    assert disrupted["action"] == "Ignore"
    [rule] = jobset["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["targetReplicatedJobs"]) == ("FailJobSet", ["driver"])
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_a_chip_of_ones_own_goes_along(tmp_path: Path) -> None:
    """The spec of the manifest, with the file next to it, has the same plan."""
    chip = (ROOT / "orchestrator/catalog/chips/h100.toml").read_text(encoding="utf-8")
    (tmp_path / "mine").mkdir()
    own = tmp_path / "mine/my-h100.toml"
    own.write_text(chip.replace("value = 50e9", "value = 125e9"))
    where = [f"resources.chip={{file: {own}}}", "resources.topology=8"]
    config, _ = exported("jobset", *where)
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text)
    there = api.load(tmp_path / "spec.yaml")
    assert there.resources == api.load(TINY, where).resources
    assert api.plan(there).digest == api.plan(api.load(TINY, where)).digest
    assert len(exported("ray", *where)) == 1
    own.rename(own.with_name("my h100.toml"))
    with pytest.raises(SpecError, match="name the file with letters"):
        exported("jobset", *[text.replace("my-h100", "my h100") for text in where])


@pytest.mark.parametrize("key", ["experiment.data.path", "run.evaluation.path"])
def test_inputs_that_no_pod_finds_are_refused(key: str) -> None:
    """The pods have a copy of the spec, not its folder; the hosts of a cluster of Ray may."""
    tokens = ["experiment.data={kind: tokens, path: gs://bucket/tokens/manifest.json}"]
    relative = f"{key}=tokens/manifest.json"
    for kind in ("rayjob", "jobset"):
        with pytest.raises(SpecError, match=f"--set {key}=/mnt/runs/tokens/manifest.json"):
            exported(kind, *tokens, relative)
        exported(kind, *tokens, f"{key}=/mnt/runs/manifest.json")
    exported("ray", *tokens, relative)


def test_runs_on_a_bucket_mount_nothing_for_them() -> None:
    for manifest in exported("ray", "run.storage=gs://bucket/runs"):
        text = yaml.safe_dump(manifest)
        assert "persistentVolumeClaim" not in text
        assert "/mnt/runs" not in text


def test_hosts_of_a_jobset_meet_in_the_bucket_of_the_runs() -> None:
    manifests = exported("jobset", "run.storage=gs://bucket/runs")
    assert "persistentVolumeClaim" not in yaml.safe_dump(manifests)
    driver, slices = manifests[-1]["spec"]["replicatedJobs"]
    meeting = f"gs://bucket/runs/_hosts/{manifests[-1]['metadata']['name']}"
    for job in (driver, slices):
        [container] = job["template"]["spec"]["template"]["spec"]["containers"]
        assert meeting in " ".join(container["args"])
        assert "mkdir" not in " ".join(container["args"])


def test_the_command_prints_yaml(orch: RunOrch) -> None:
    done = orch("export", "rayjob", str(TINY))
    assert list(yaml.safe_load_all(done.stdout)) == exported("rayjob")

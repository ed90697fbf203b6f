"""A plan as a JobSet: a job for each slice, and one that drives the run. It needs no Ray."""

from typing import Any

from orchestrator.export import spec_volume
from orchestrator.export.object_names import label, metadata
from orchestrator.export.slice_pods import SLICE_PORT, Manifest, chipless_pod, host_pod, storage
from orchestrator.storage import is_address
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

# JobSet's webhook refuses names that make the name of a pod, NAME-slice-31-2239-abcde, too long.
LONGEST = 40
DRIVER_CPUS, DRIVER_GIGABYTES = 4, 16
NODE_POOL = "cloud.google.com/gke-nodepool"
ONE_POOL_EACH = "alpha.jobset.sigs.k8s.io/exclusive-topology"
SLICE_INDEX = "jobset.sigs.k8s.io/job-index"
# A host that comes again joins again; the run itself counts its retries. The driver resumes a run.
HOST_RETRIES, DRIVER_RETRIES = 1_000, 3
JOBSET_RESTARTS = 3


def job_set(spec: Spec, plan: Plan, spec_text: str) -> list[Manifest]:
    """The spec in a ConfigMap, and the JobSet that runs it."""
    name = label(spec.name, LONGEST)
    driver = _driver(spec, name)
    return [
        spec_volume.config_map(spec, name, spec_text),
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata(spec, name),
            "spec": {
                "successPolicy": {"operator": "All", "targetReplicatedJobs": ["driver"]},
                "failurePolicy": {"maxRestarts": JOBSET_RESTARTS},
                "replicatedJobs": [
                    _job("driver", (1, 1), DRIVER_RETRIES, driver),
                    _slices(spec, plan, name),
                ],
            },
        },
    ]


def meeting(spec: Spec, name: str) -> str:
    """Where the hosts and the driver meet, in the runs' storage. No run has such a name."""
    hidden = "_hosts" if is_address(spec.run.storage) else ".hosts"
    return f"{storage(spec)}/{hidden}/{name}"


def _slices(spec: Spec, plan: Plan, name: str) -> Manifest:
    """A job for each slice, each on a node pool of its own."""
    size = plan.hosts_per_slice
    pod = host_pod(
        spec,
        plan,
        "host",
        command=["python", "-m", "orchestrator.launch.hosts.host_process"],
        args=[
            meeting(spec, name),
            *("--slice", "slice-$(SLICE_INDEX)"),
            *("--host", "$(JOB_COMPLETION_INDEX)"),
            *("--hosts", str(size)),
            *("--kind", plan.slice_kind),
        ],
        ports=[SLICE_PORT],
    )
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{SLICE_INDEX}']"}}
    pod["containers"][0]["env"].append({"name": "SLICE_INDEX", "valueFrom": index})
    pools = {"annotations": {ONE_POOL_EACH: NODE_POOL}}
    return _job("slice", (plan.pods, size), HOST_RETRIES, pod, metadata=pools)


def _driver(spec: Spec, name: str) -> Manifest:
    """A pod without chips that submits the spec; if it comes again, it resumes the run."""
    folder, runs = meeting(spec, name), storage(spec)
    submit = (
        f"orch submit {spec_volume.PATH} --set run.storage={runs}"
        f" --set cluster.backend=hosts --code installed --no-prove --key {name}"
    )
    resume = f"orch resume {name} --storage {runs}"
    prepared = "" if is_address(runs) else f"mkdir -p {folder}; "
    is_there = f"orch status {name} --storage {runs} >/dev/null 2>&1"
    known = f"if {is_there}; then {resume} $with; else {submit} $with; fi"
    return chipless_pod(
        spec,
        "driver",
        DRIVER_CPUS,
        DRIVER_GIGABYTES,
        command=["sh", "-c"],
        args=[f"{prepared}with='--address {folder} --yes'; {known}"],
        **spec_volume.mounted(name),
    )


def _job(
    name: str, size: tuple[int, int], retries: int, pod: Manifest, **about: dict[str, Any]
) -> Manifest:
    """So many jobs of so many pods, which all run at once."""
    replicas, pods = size
    return {
        "name": name,
        "replicas": replicas,
        "template": {
            **about,
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "backoffLimit": retries,
                "template": {"spec": {**pod, "restartPolicy": "OnFailure"}},
            },
        },
    }

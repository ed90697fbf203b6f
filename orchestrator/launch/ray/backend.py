"""The client of a named cluster's job server, which a run needs only until it is submitted. `orch
submit` also starts it as a Ray job without chips, to look at the cluster from inside: it takes a
`PreflightRequest` and a `SliceKind` as JSON, and prints a `PreflightReport` last.
"""

import logging
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.catalog.chips import GPU_DOMAIN
from orchestrator.launch import backend
from orchestrator.launch.provenance import ARCHIVE
from orchestrator.launch.ray import private_api, slices
from orchestrator.launch.ray.attempt import join_cluster
from orchestrator.launch.ray.attempt_process import AttemptProcess
from orchestrator.launch.ray.local_cluster import Patience, PrivateCluster, private_cluster, states
from orchestrator.launch.ray.slices import SliceKind, emulated_hosts, kind_of
from orchestrator.processes import MODULE
from orchestrator.values import codec
from orchestrator.values.plan import Plan

_REACH_LIMIT_S = 10.0
_JOBS_PORT = 8265
_PYTHON = "python"  # the cluster's own, the first in its PATH
_LAST_LINES = 3
_PREFLIGHT, _MARK = "orchestrator.launch.ray.backend", "orch preflight: "
_ANSWER_LIMIT_S = 300.0  # a host may have to fetch and unpack the code first
_MOST_OF_FAULT = 300
# Ray prefers these to the address that it is given.
_OTHER_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_TOKEN = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token"


class _RayJobs:
    def __init__(self, address: str) -> None:
        """Connect. `ClusterUnusable` when nothing answers there, or it wants another token."""
        self.address = address
        with self.in_plain_words("cannot be reached"):
            # Fail at once when nothing listens there. Ray itself would try for minutes.
            host, port = _host_and_port(address)
            try:
                socket.create_connection((host, port), timeout=_REACH_LIMIT_S).close()
            except OSError as error:
                why = f"nothing answers on port {port}: {error.strerror or error}"
                raise backend.ClusterUnusable(f"{address}: {why}") from error
            for name in _OTHER_ADDRESSES:
                os.environ.pop(name, None)
            logging.getLogger("ray").setLevel(logging.ERROR)
            for chatty in ("sdk", "dashboard_sdk"):
                logging.getLogger(f"ray.dashboard.modules.{chatty}").setLevel(logging.ERROR)
            self._client = private_api.job_client(address)

    def preflight(
        self,
        plan: Plan,
        request: backend.PreflightRequest,
        archive: bytes | None,
        on_state: backend.OnState,
    ) -> backend.Preflight:
        """Look at what the cluster has for a run. An interrupt ends the job that looks."""
        asked = [codec.to_json(value).decode() for value in (request, kind_of(plan))]
        job = self.start(["-P", "-m", _PREFLIGHT, *asked], archive)
        state, why = "", None
        try:
            for answer in states(lambda: self.state(job), lambda: self.why(job), Patience()):
                state, why = answer
                on_state(state)
        except KeyboardInterrupt:
            with suppress(backend.ClusterUnusable):
                self.end(job)
            raise
        if state != "SUCCEEDED":
            raise backend.ClusterUnusable(f"{self.address}: {why or self.why(job)}")
        with self.in_plain_words("does not answer"):
            log = str(self._client.get_job_logs(job))
        reports = [line for line in log.splitlines() if line.startswith(_MARK)]
        if not reports:
            raise backend.ClusterUnusable(
                "the preflight job printed no report: see its log on the cluster"
            )
        report = codec.from_json(reports[-1].removeprefix(_MARK), backend.PreflightReport)
        return backend.Preflight(request=request, report=report)

    def start(self, words: Sequence[str], archive: bytes | None, name: str | None = None) -> str:
        """Start `python WORDS` as a job, in the code that travels or in the cluster's own."""
        environment = {}
        with tempfile.TemporaryDirectory(prefix="orch-") as folder:
            if archive is not None:
                path = Path(folder) / ARCHIVE
                path.write_bytes(archive)
                environment["working_dir"] = str(path)
            with self.in_plain_words("does not take the job"):
                command = shlex.join([_PYTHON, *words])
                job = self._client.submit_job(
                    entrypoint=command, runtime_env=environment, submission_id=name
                )
            return str(job)

    def state(self, job: str) -> str:
        with self.in_plain_words("does not answer"):
            return str(self._client.get_job_status(job).value)

    def why(self, job: str) -> str:
        """The last lines of a job that did not succeed, the last one first."""
        with self.in_plain_words("does not answer"):
            message = str(self._client.get_job_info(job).message)
            lines = [line for line in self._client.get_job_logs(job).splitlines() if line.strip()]
        last = lines[: -_LAST_LINES - 1 : -1] or [message]
        return "\n  ".join(["its job ended before the run began", *last])

    def live_jobs(self) -> Sequence[str]:
        """The jobs that have not ended, but for those that nobody submitted as a job."""
        with self.in_plain_words("does not answer"):
            jobs = [job for job in self._client.list_jobs() if job.submission_id]
        return [str(job.submission_id) for job in jobs if job.status.value not in backend.JOB_ENDED]

    def end(self, job: str) -> None:
        """End a job. Ray kills its processes that have not ended in 3 s."""
        with self.in_plain_words("does not answer"):
            self._client.stop_job(job)

    @contextmanager
    def in_plain_words(self, what: str) -> Iterator[None]:
        try:
            yield
        except backend.ClusterUnusable:
            raise
        except Exception as error:  # RuntimeError, Ray's own errors, and its HTTP client's
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            why = lines[-1] if "Traceback" in str(error) else next(iter(lines), "")
            if type(error).__name__ == "AuthenticationError":
                why = f"it asks for a token: {_TOKEN}"
            why = why or type(error).__name__
            raise backend.ClusterUnusable(f"{self.address}: {what}: {why}") from error


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or (port is None and parts.scheme not in ("http", "https")):
        raise backend.ClusterUnusable(
            f"{address!r} is not the address of a cluster: use that of its dashboard, for example"
            f" http://10.0.0.2:{_JOBS_PORT}, or of its head, 10.0.0.2:6379"
        )
    return host, port or {"http": 80, "https": 443}[parts.scheme]


class RayBackend:
    def emulate(self, plan: Plan, command: str) -> AbstractContextManager[PrivateCluster]:
        return private_cluster(emulated_hosts(plan), plan.devices_per_host, command)

    def connect(self, address: str) -> _RayJobs:
        return _RayJobs(address)

    def attempt(self, spec: backend.AttemptSpec) -> AttemptProcess:
        """An attempt on the cluster of RAY_ADDRESS, in whose job the driver runs."""
        module = (*MODULE, "orchestrator.launch.ray.attempt")
        return AttemptProcess([*module, codec.to_json(spec).decode()])


# --- the preflight, as a job of the cluster


def main(argv: list[str]) -> None:
    request = codec.from_json(argv[0], backend.PreflightRequest)
    kind = codec.from_json(argv[1], SliceKind)
    join_cluster(os.environ["RAY_ADDRESS"])
    nodes, free = ray.nodes(), private_api.free_resources()
    groups = slices.members(nodes, kind)
    of_kind = [node for group in groups.values() for node in group]
    # Ray's own count of ready slices takes a host whose chips are all in use for a new one.
    seen = slices.slices_of(groups, free, kind, lambda _: True)
    whole = [each for each in seen if each.whole]
    hint = ""
    if kind.has_gpus and kind.hosts > 1 and any(GPU_DOMAIN not in n["Labels"] for n in of_kind):
        hint = f"start the nodes of each NVLink domain with ray start --labels {GPU_DOMAIN}=NAME"
    # Every host of those slices, asked all at once, and this one, where the driver will run.
    ask, me = ray.remote(num_cpus=0, max_retries=0)(_here), ray.get_runtime_context().get_node_id()
    pending = {}
    for node in of_kind:
        if node["NodeID"] != me:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ask.options(scheduling_strategy=there).remote(request)
            pending[task] = str(node["NodeManagerAddress"])
    done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_ANSWER_LIMIT_S)
    hosts = [_here(request)]
    for task, name in pending.items():
        try:
            hosts.append(ray.get(task) if task in done else backend.PreflightHost(name=name))
        except ray.exceptions.RayError as error:  # the host is gone, or cannot start a process
            *_, fault = str(error).strip().splitlines() or [type(error).__name__]
            hosts.append(backend.PreflightHost(name=name, fault=fault[:_MOST_OF_FAULT]))
    report = backend.PreflightReport(
        present=len(whole), free=sum(each.free for each in whole), hosts=tuple(hosts),
        others=slices.others(nodes, kind), hint=hint,
    )  # fmt: skip
    print(_MARK + codec.to_json(report).decode(), flush=True)


def _here(request: backend.PreflightRequest) -> backend.PreflightHost:
    return backend.describe_host(socket.gethostname(), request.file, request.secrets)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The client of a named cluster's job server, which a run needs only until it is submitted."""

import logging
import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.launch.backend import JOB_ENDED, AttemptSpec, ClusterUnusable, OnState
from orchestrator.launch.preflight import Preflight, PreflightRequest
from orchestrator.launch.provenance import ARCHIVE
from orchestrator.launch.ray import preflight_job, private_api, slices
from orchestrator.launch.ray.attempt_process import AttemptProcess
from orchestrator.launch.ray.local_cluster import PrivateCluster, private_cluster
from orchestrator.launch.ray.slices import emulated_hosts
from orchestrator.values import codec
from orchestrator.values.plan import Plan

# The dashboard of a busy head is silent for tens of seconds.
_SILENCE_LIMIT_S = 60.0
POLL_S = 0.2


@dataclass
class Patience:
    """How long questions may fail: `limit_s` since an answer, for ever while `needless` says so."""

    limit_s: float = _SILENCE_LIMIT_S
    clock: Callable[[], float] = time.monotonic
    needless: Callable[[], bool] = lambda: False
    failing_since_s: float | None = None

    def failed(self, error: Exception) -> None:
        """Note that a question failed; the error again when it is time to give up."""
        now_s = self.clock()
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        late = now_s - self.failing_since_s > self.limit_s
        # Where the cluster refuses this token, asking again would give the same error.
        refusal: BaseException | None = error
        while refusal and type(refusal).__name__ != "AuthenticationError":
            refusal = refusal.__cause__
        if refusal or (late and not self.needless()):
            raise error


def states(
    ask: Callable[[], str],
    why: Callable[[], str],
    patience: Patience,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, str | None]]:
    """Each new state of a job until it has ended, and why it failed where it did."""
    last = ""
    while last not in JOB_ENDED:
        try:
            state = ask()
            error = why() if state == "FAILED" else None
        except Exception as failure:  # noqa: BLE001  Ray and its HTTP client raise many kinds
            patience.failed(failure)
        else:
            patience.failing_since_s = None
            if state != last:
                yield state, error
            last = state
        if last not in JOB_ENDED:
            sleep(POLL_S)


_REACH_LIMIT_S = 10.0
_JOBS_PORT = 8265
_PYTHON = "python"  # the cluster's own, the first in its PATH
_LAST_LINES = 3
# Ray prefers these to the address that it is given.
_OTHER_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_TOKEN = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token"


class _RayJobs:
    """The jobs of a cluster."""

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
                raise ClusterUnusable(f"{address}: {why}") from error
            for name in _OTHER_ADDRESSES:
                os.environ.pop(name, None)
            logging.getLogger("ray").setLevel(logging.ERROR)
            for chatty in ("sdk", "dashboard_sdk"):
                logging.getLogger(f"ray.dashboard.modules.{chatty}").setLevel(logging.ERROR)
            self._client = private_api.job_client(address)

    def preflight(
        self, plan: Plan, request: PreflightRequest, archive: bytes | None, on_state: OnState
    ) -> Preflight:
        """Look at what the cluster has for a run. An interrupt ends the job that looks."""
        names = (plan.topology, slices.pod_type(plan), slices.accelerator_type(plan))
        asked = codec.to_json(request).decode()
        job = self.start(["-m", preflight_job.__name__, asked, *names], archive)
        state, why = "", None
        try:
            for answer in states(lambda: self.state(job), lambda: self.why(job), Patience()):
                state, why = answer
                on_state(state)
        except KeyboardInterrupt:
            with suppress(ClusterUnusable):
                self.end(job)
            raise
        if state != "SUCCEEDED":
            raise ClusterUnusable(f"{self.address}: {why or self.why(job)}")
        with self.in_plain_words("does not answer"):
            log = str(self._client.get_job_logs(job))
        return Preflight(request=request, report=preflight_job.parse_report(log))

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
        return [str(job.submission_id) for job in jobs if job.status.value not in JOB_ENDED]

    def end(self, job: str) -> None:
        """End a job. Ray kills its processes that have not ended in 3 s."""
        with self.in_plain_words("does not answer"):
            self._client.stop_job(job)

    @contextmanager
    def in_plain_words(self, what: str) -> Iterator[None]:
        try:
            yield
        except ClusterUnusable:
            raise
        except Exception as error:  # RuntimeError, Ray's own errors, and its HTTP client's
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            why = lines[-1] if "Traceback" in str(error) else next(iter(lines), "")
            if type(error).__name__ == "AuthenticationError":
                why = f"it asks for a token: {_TOKEN}"
            why = why or type(error).__name__
            raise ClusterUnusable(f"{self.address}: {what}: {why}") from error


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or (port is None and parts.scheme not in ("http", "https")):
        raise ClusterUnusable(
            f"{address!r} is not the address of a cluster: use that of its dashboard, for example"
            f" http://10.0.0.2:{_JOBS_PORT}, or of its head, 10.0.0.2:6379"
        )
    return host, port or {"http": 80, "https": 443}[parts.scheme]


class RayBackend:
    """Starts, watches and stops the processes of a run on Ray."""

    def emulate(self, plan: Plan, command: str) -> AbstractContextManager[PrivateCluster]:
        return private_cluster(emulated_hosts(plan), plan.devices_per_host, command)

    def connect(self, address: str) -> _RayJobs:
        return _RayJobs(address)

    def attempt(self, spec: AttemptSpec) -> AttemptProcess:
        """An attempt on the cluster of RAY_ADDRESS, in whose job the driver runs."""
        module = ("-m", "orchestrator.launch.ray.attempt")
        return AttemptProcess([sys.executable, *module, codec.to_json(spec).decode()])

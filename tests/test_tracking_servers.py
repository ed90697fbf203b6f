"""The record on servers that people run: MLflow on PostgreSQL, and MLflow with accounts."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.journal.run_journal import Journal
from orchestrator.processes import free_port
from orchestrator.tracking.destinations import begin
from orchestrator.tracking.mlflow import metrics, store
from orchestrator.tracking.recorder import Recorder
from orchestrator.values.run import Destination
from tests.records import destination_in, finished_run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
_STEPS = 20
_HERE = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))


def missing(*modules: str) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


@dataclass
class Postgres:
    """A server of its own, as Debian's package runs it: by a user that is not root."""

    folder: Path
    port: int

    def run(self, program: str, *words: str) -> None:
        command = [str(_HERE[-1].with_name(program)), *words]
        if os.getuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, capture_output=True, cwd="/tmp", timeout=120)

    def start(self) -> None:
        words = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        log = str(self.folder / "log")
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", log, "-o", words, "start")

    def stop(self, how: str) -> None:
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-m", how, "stop")

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/postgres"


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if not _HERE or missing("psycopg2"):
        pytest.skip("needs Debian's postgresql and pip's psycopg2-binary, which are not both here")
    folder = Path("/tmp") / f"orch-postgres-{os.getpid()}"
    folder.mkdir(mode=0o700)
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
    server = Postgres(folder, free_port())
    try:
        words = ("-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync")
        server.run("initdb", *words)
        server.start()
        yield server
    finally:
        with suppress(subprocess.CalledProcessError):  # the test stopped it
            server.stop("immediate")
        shutil.rmtree(folder)


def recorded_in(storage: Path, where: Destination, key: str = "it") -> Journal:
    journal = finished_run(storage, key, steps=_STEPS)
    begin(journal, where)
    return journal


def check_whole(where: Destination, run_id: str) -> None:
    """Every point of each step is there once."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415

    client = MlflowClient(tracking_uri=where.uri)
    for name in (metrics.LOSS, metrics._STEP_TIME, metrics._MFU_ROOFLINE):
        steps = [point.step for point in client.get_metric_history(run_id, name)]
        assert sorted(steps) == list(range(_STEPS)), name
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_run_is_recorded_in_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    """Also when the server is killed while a run is sent, and comes back."""
    where = replace(destination_in(tmp_path), uri=postgres.uri)
    first = recorded_in(tmp_path, where, "first")
    [result] = [Recorder({}).record(first)]
    assert result.problem is None
    assert result.run_id
    check_whole(where, result.run_id)

    second, recorder = recorded_in(tmp_path, where, "second"), Recorder({})
    sent: list[int] = []

    def kill(steps: int) -> None:
        if not sent:
            postgres.stop("immediate")
        sent.append(steps)

    result = recorder.record(second, on_steps=kill)
    assert result.problem
    assert "\n" not in result.problem
    assert len(result.problem) < 300
    postgres.start()
    result = Recorder({}).record(second)
    assert result.problem is None
    assert result.run_id
    check_whole(where, result.run_id)


def test_a_postgresql_that_hangs_holds_nobody(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call ends after its limit, and the record is completed once the server goes on."""
    where = replace(destination_in(tmp_path), uri=postgres.uri)
    journal = recorded_in(tmp_path, where)
    main = int((postgres.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
    monkeypatch.setattr(store, "_CALL_LIMIT_S", 5.0)

    def every(signal_name: str) -> None:
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (str(main), *children):
            subprocess.run(["kill", f"-{signal_name}", pid], check=False)

    recorder, hangs = Recorder({}), list[bool]()

    def hang(_: int) -> None:
        if not hangs:
            hangs.append(True)
            every("STOP")

    began_s = time.monotonic()
    try:
        problem = recorder.record(journal, on_steps=hang).problem
    finally:
        every("CONT")
    assert problem
    assert "took more than" in problem
    assert time.monotonic() - began_s < 100
    result = Recorder({}).record(journal)
    assert result.problem is None
    assert result.run_id
    check_whole(where, result.run_id)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """An MLflow server with accounts, as MLflow ships it: its administrator is admin."""
    if absent := missing("flask_wtf"):
        pytest.skip(f"MLflow's server with accounts needs {', '.join(absent)}: pip's Flask-WTF")
    port, folder = free_port(), tmp_path / "server"
    folder.mkdir()
    config = folder / "auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = NO_PERMISSIONS\n"
        f"database_uri = sqlite:///{folder}/auth.db\nadmin_username = admin\n"
        "admin_password = password1234-of-a-test\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    environment = os.environ | {
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a key of a test",
        **store.SETTINGS,
    }
    command = [
        sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1",
        "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files"),
    ]  # fmt: skip
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 240
        try:
            while True:
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=5)
                    break
                except urllib.error.HTTPError:
                    break  # it answers, and wants a password
                except OSError:
                    assert process.poll() is None, (folder / "log").read_text()[-2000:]
                    assert time.monotonic() < deadline
                    time.sleep(1)
            yield address
        finally:
            os.killpg(process.pid, 15)


def test_a_server_with_accounts(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password comes from the environment; a wrong one is a plain problem, mended later."""
    where = replace(destination_in(tmp_path), uri=guarded, artifacts=None)
    journal = recorded_in(tmp_path, where)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    problem = Recorder({}).record(journal).problem
    assert problem
    assert problem.startswith(f"{guarded}")
    assert "password1234" not in problem
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "password1234-of-a-test")
    result = Recorder({}).record(journal)
    assert result.problem is None
    assert result.run_id
    check_whole(where, result.run_id)

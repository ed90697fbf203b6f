"""Buckets of a server that others wrote, moto: it shows that the one of this suite is like it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator import journal, storage
from orchestrator.storage import bucket as buckets
from orchestrator.storage import copies
from orchestrator.storage.bucket import Bucket
from tests.chaos.faults import losses
from tests.clusters import eventually
from tests.conftest import RunOrch
from tests.journals import reason, run_request

pytestmark = pytest.mark.slow
STEPS, EVERY = 60, 10  # of a checkpoint
LIMIT_S = 400


@pytest.fixture
def s3_bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """A bucket of moto's server."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  it takes seconds

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv(buckets._S3_ENDPOINT, f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("ORCH_BUCKETS", str(tmp_path / "copies"))
    monkeypatch.setattr(copies, "_FRESH_S", 0.0)
    buckets.bucket.cache_clear()
    import boto3  # noqa: PLC0415

    boto3.client("s3", region_name="us-east-1", endpoint_url=f"http://{host}:{port}").create_bucket(
        Bucket="bucket"
    )
    yield buckets.bucket("s3", "bucket")
    buckets.bucket.cache_clear()
    server.stop()


def test_conditions_count(s3_bucket: Bucket) -> None:
    s3_bucket.create("a/b", b"first")
    with pytest.raises(FileExistsError):
        s3_bucket.create("a/b", b"second")
    version = s3_bucket.read("a/b")[1].version
    assert s3_bucket.read_if_changed("a/b", version) is None
    s3_bucket.replace_version("a/b", b"third", version)
    with pytest.raises(FileExistsError):
        s3_bucket.replace_version("a/b", b"fourth", version)
    assert [item.name for item in s3_bucket.below("a/", after="a/a")] == ["a/b"]
    s3_bucket.delete(["a/b", "nothing"])
    assert s3_bucket.inside("") == ([], [])


def test_a_run_is_created_driven_and_removed(s3_bucket: Bucket) -> None:
    folder = storage.folder(f"s3://{s3_bucket.name}/runs")
    journal.check_writable(folder)
    record = journal.create_run(folder, run_request()).journal
    writer = journal.claim_run(record)
    writer.end_run("failed", reason("it broke"))
    assert record.run().state == "failed"
    assert record.run().problems == ()
    journal.remove_run(record)
    assert s3_bucket.below("") == []


def test_a_killed_run_goes_on_elsewhere(
    s3_bucket: Bucket, orch_process: RunOrch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its processes are killed after a checkpoint. A machine that has nothing of it but the
    bucket takes the steps that are missing, with the losses of a run that nobody killed.
    """
    where = f"s3://{s3_bucket.name}/runs"
    options = ("cluster.backend=hosts", "run.trainer=mlp", f"run.checkpoint.every={EVERY}")
    settings = [word for option in (*options, f"run.storage={where}") for word in ("--set", option)]
    submit = ["submit", "specs/tiny_2pod.yaml", *settings, "--no-prove", "--no-calibrate"]
    submit += ["--steps", str(STEPS), "--json", "--key"]
    calm = orch_process(*submit, "calm", timeout_s=LIMIT_S)
    assert calm.returncode == 0, calm.stderr

    def recorded(key: str) -> journal.Journal:
        return journal.Journal(storage.folder(where) / key)

    def has_saved() -> bool:
        names = {found.key for found in journal.list_journals(storage.folder(where))}
        return "struck" in names and recorded("struck").run().steps_done > EVERY

    orch = Path(sys.executable).with_name("orch")
    with subprocess.Popen([orch, *submit, "struck"], stdout=subprocess.DEVNULL) as struck:
        eventually(has_saved, LIMIT_S)
        for process in psutil.Process(struck.pid).children(recursive=True):
            process.kill()
        struck.send_signal(signal.SIGKILL)
    monkeypatch.setenv("ORCH_BUCKETS", str(tmp_path / "another machine"))
    resumed = orch_process("resume", "struck", "--storage", where, "--json", timeout_s=LIMIT_S)
    assert resumed.returncode == 0, resumed.stderr
    run = recorded("struck").run()
    assert (run.state, run.steps_done, run.problems) == ("succeeded", STEPS, ())
    assert len(run.attempts) > 1
    assert losses(recorded("struck")) == losses(recorded("calm"))

"""Buckets of a server that others wrote, moto: it shows that the one of this suite is like it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import journal, storage
from orchestrator.storage import bucket as buckets
from orchestrator.storage import copies
from orchestrator.storage.bucket import Bucket
from tests.journals import reason, run_request

pytestmark = pytest.mark.slow


@pytest.fixture
def s3_bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """A bucket of moto's server."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  it takes seconds

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv(buckets.S3_ENDPOINT, f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("ORCH_BUCKETS", str(tmp_path / "copies"))
    monkeypatch.setattr(copies, "FRESH_S", 0.0)
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
    assert [one.name for one in s3_bucket.below("a/", after="a/a")] == ["a/b"]
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

"""Buckets under faults: whatever answer is lost, an object is created once, and nothing is lost."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import plugins, storage
from orchestrator.errors import JournalUnreadable, JournalUnwritable, MissingExtra
from orchestrator.journal import boundary, events, files
from orchestrator.run.progress import _storage_option, storage_of
from orchestrator.storage import bucket as bucket_module
from orchestrator.storage import segments
from orchestrator.storage.addresses import Place, place_of
from orchestrator.storage.bucket import Bucket, _failure
from tests.bucket_server import BROKEN, LOST, STALLED, THROTTLED, BucketServer


def lose(server: BucketServer, answers: int) -> None:
    """Lose the answers to so many puts that come next."""
    faults = iter([LOST] * answers)
    server.fault = lambda method, _: next(faults, None) if method == "PUT" else None


# --- objects


def test_an_object_is_created_once(bucket: Bucket) -> None:
    bucket.create("a/b", b"first")
    with pytest.raises(FileExistsError):
        bucket.create("a/b", b"second")
    assert bucket.read("a/b")[0] == b"first"


def test_an_object_is_replaced_only_in_the_version_that_is_known(bucket: Bucket) -> None:
    bucket.create("a", b"1")
    version = bucket.read("a")[1].version
    bucket.replace_version("a", b"2", version)
    with pytest.raises(FileExistsError):
        bucket.replace_version("a", b"3", version)
    assert bucket.read("a")[0] == b"2"
    assert bucket.read_if_changed("a", bucket.read("a")[1].version) is None
    bucket.delete(["a"])
    with pytest.raises(FileExistsError):
        bucket.replace_version("a", b"4", version)
    with pytest.raises(FileNotFoundError):
        bucket.read("a")


def test_listings_are_of_a_folder_and_of_all_below_it(bucket: Bucket) -> None:
    for name in ("runs/a/events/1", "runs/a/spec", "runs/ab/spec", "runs/b"):
        bucket.create(name, name.encode())
    objects, prefixes = bucket.inside("runs/a/")
    assert [item.name for item in objects] == ["runs/a/spec"]
    assert [prefix.rstrip("/") for prefix in prefixes] == ["runs/a/events"]
    assert [item.name for item in bucket.below("runs/a/")] == ["runs/a/events/1", "runs/a/spec"]
    assert [item.name for item in bucket.below("runs/", after="runs/ab/spec")] == ["runs/b"]
    assert bucket.inside("nothing/") == ([], [])


@pytest.mark.parametrize("fault", [LOST, THROTTLED, BROKEN])
def test_a_creation_counts_once_whatever_happens_to_its_answer(
    bucket: Bucket, bucket_server: BucketServer, fault: str
) -> None:
    faults = iter([fault, fault])
    bucket_server.fault = lambda method, _: next(faults, None) if method == "PUT" else None
    bucket.create("event", b"by me")
    assert bucket_server.faults == 2
    assert bucket.read("event")[0] == b"by me"


def test_an_object_of_another_writer_is_not_taken_for_one_s_own(
    bucket: Bucket, bucket_server: BucketServer
) -> None:
    """The answer to the winner is lost, and the one to the loser, which must not believe it."""
    bucket_server.fault = lambda method, _: (
        LOST if method == "PUT" and bucket_server.faults < 2 else None
    )
    bucket.create("event", b"winner")
    bucket_server.fault = lambda method, _: (
        LOST if method == "PUT" and bucket_server.faults < 4 else None
    )
    with pytest.raises(FileExistsError):
        bucket.create("event", b"loser")


def test_a_request_that_stalls_ends_and_is_made_again(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_REQUEST_S", 1)
    bucket_server.stall_s = 1.5
    bucket_server.fault = lambda method, _: (
        STALLED if method == "PUT" and not bucket_server.faults else None
    )
    fresh = Bucket("s3", "bucket")
    fresh.create("event", b"by me")
    assert bucket_server.faults == 1
    assert fresh.read("event")[0] == b"by me"


def test_a_server_that_stays_away_is_an_error_with_its_address(
    one_bucket: Bucket, bucket_server: BucketServer
) -> None:
    bucket_server.fault = lambda _method, _path: BROKEN
    with pytest.raises(OSError, match=f"{one_bucket.scheme}://bucket/event"):
        one_bucket.create("event", b"by me")
    assert bucket_server.names() == []


def test_of_many_writers_of_a_number_one_succeeds(
    bucket: Bucket, bucket_server: BucketServer
) -> None:
    """With every third answer lost or refused, each number has one writer, who knows it."""
    dice = random.Random(0)
    bucket_server.fault = lambda method, _: (
        dice.choice([LOST, THROTTLED, BROKEN]) if method == "PUT" and dice.random() < 0.3 else None
    )

    def write(writer: int) -> list[int]:
        won = []
        for number in range(10):
            try:
                bucket.create(f"events/{number}", f"{writer}:{number}".encode())
                won.append(number)
            except FileExistsError:
                pass
        return won

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(write, range(4)))
    assert sorted(number for numbers in won for number in numbers) == list(range(10))
    for writer, numbers in enumerate(won):
        for number in numbers:
            written = bucket_server.objects[f"bucket/events/{number}"].content
            assert written == f"{writer}:{number}".encode()
    assert bucket_server.faults > 3


# --- copies


def folder_of(bucket: Bucket) -> Path:
    return storage.folder(f"{bucket.scheme}://{bucket.name}/runs")


def test_an_address_is_a_folder_here_and_the_folder_the_address(one_bucket: Bucket) -> None:
    address = f"{one_bucket.scheme}://bucket/team/runs"
    folder = storage.folder(f"{address}/")
    assert storage.address(folder / "key") == f"{address}/key"
    assert storage.folder("runs") == Path("runs")
    assert storage.address("/runs") == "/runs"
    place = place_of(folder / "key" / "spec.json")
    assert place is not None
    assert (place.bucket, place.name) == (one_bucket, "team/runs/key/spec.json")
    assert place_of(folder / "key" / "sync.lock") is None
    assert not storage.is_address("gs://")
    assert not storage.is_address("https://bucket/runs")


def test_files_of_a_copy_are_those_of_the_bucket(
    bucket: Bucket, bucket_server: BucketServer
) -> None:
    folder = folder_of(bucket) / "key" / "events"
    files.write_new(folder / "000001.json", b"one")
    bucket.create("runs/key/events/000002.json", b"two")  # by another machine
    assert files.names(folder) == ["000001.json", "000002.json"]
    assert files.read(folder / "000002.json") == b"two"
    log = events.read(folder)
    assert (log.contents, log.problems) == ({1: b"one", 2: b"two"}, ())
    with pytest.raises(FileExistsError):
        files.write_new(folder / "000002.json", b"other")
    bucket.replace("runs/key/events/000001.json", b"changed")
    assert files.read(folder / "000001.json") == b"changed"
    bucket.delete(["runs/key/events/000002.json"])
    assert files.names(folder) == ["000001.json"]
    assert not (folder / "000002.json").exists()
    files.delete(folder)
    assert bucket_server.names() == []
    assert files.names(folder) == []


def test_an_object_that_would_fill_the_memory_is_not_read(
    one_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_MOST_BYTES", 10)
    one_bucket.create("runs/spec.json", b"x" * 11)
    with pytest.raises(JournalUnreadable, match="is larger than 10 bytes"):
        files.read(folder_of(one_bucket) / "spec.json")


def test_a_name_that_is_no_name_here_is_left_out(one_bucket: Bucket) -> None:
    for name in ("runs/good", "runs/.hidden", "runs/sync.lock"):
        one_bucket.create(name, b"")
    assert files.names(folder_of(one_bucket)) == ["good"]


def test_without_its_library_an_error_says_what_to_install(
    one_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "missing", lambda _: ["obstore"])
    with pytest.raises(MissingExtra, match="bucket"):
        files.check_writable(folder_of(one_bucket))


def test_a_bucket_without_conditions_is_refused(
    one_bucket: Bucket, bucket_server: BucketServer
) -> None:
    files.check_writable(folder_of(one_bucket))
    bucket_server.conditions = False
    with pytest.raises(JournalUnwritable, match="two drivers could claim a run"):
        files.check_writable(folder_of(one_bucket))
    assert bucket_server.names() == []


def test_missing_credentials_are_said_in_a_sentence() -> None:
    """And not what the cloud's library tried."""
    error = RuntimeError("Generic GCS error: Error performing token request: Error performing GET")
    assert "no credentials" in str(_failure("gs://bucket/runs", error))
    assert "GET" not in str(_failure("gs://bucket/runs", error))


# --- files that grow


def test_a_file_in_parts_reads_as_one(one_bucket: Bucket) -> None:
    path = folder_of(one_bucket) / "key" / "steps.jsonl"
    writer = segments.lines(path)
    assert writer is not None
    with writer:
        for number in range(5):
            writer.append(b"%d" % number)
            writer.sync()
        files.read(path)
        writer.append(b"5")
    assert files.read(path) == b"0\n1\n2\n3\n4\n5\n"
    with pytest.raises(FileExistsError):
        segments.lines(path)


def test_parts_come_once_each_through_faults(
    one_bucket: Bucket, bucket_server: BucketServer
) -> None:
    dice = random.Random(1)
    bucket_server.fault = lambda method, _: (
        dice.choice([LOST, BROKEN]) if method == "PUT" and dice.random() < 0.4 else None
    )
    path = folder_of(one_bucket) / "key" / "rank-0.log"
    place = place_of(path)
    assert place is not None
    writer = segments._PartWriter(place)
    for number in range(30):
        writer.append(b"line %d\n" % number)
        writer.ship()
    assert files.read(path) == b"".join(b"line %d\n" % number for number in range(30))
    assert bucket_server.faults > 5


def test_a_copy_of_another_file_of_that_name_begins_anew(one_bucket: Bucket) -> None:
    path = folder_of(one_bucket) / "key" / "steps.jsonl"
    for content in (b"a long first line", b"short"):
        with segments.lines(path) or pytest.fail("no bucket") as writer:
            writer.append(content)
        assert files.read(path) == content + b"\n"
        one_bucket.delete([item.name for item in one_bucket.below("runs/")])


def test_a_part_that_is_missing_hides_what_comes_after_it(one_bucket: Bucket) -> None:
    place = Place(one_bucket, "runs/a.log", folder_of(one_bucket) / "a.log")
    for offset, content in ((0, b"one\n"), (8, b"three\n")):
        one_bucket.create(f"runs/a.log/{offset:015d}", content)
    segments.pull(place)
    assert boundary.read_bytes(place.path) == b"one\n"
    one_bucket.create("runs/a.log/000000000000004", b"two\n")
    segments.pull(place)
    assert boundary.read_bytes(place.path) == b"one\ntwo\nthree\n"


def test_parts_grow_with_the_age_of_a_file() -> None:
    assert [segments._every_s(age) for age in (0, 100, 1000, 100_000)] == [2.0, 2.0, 10.0, 30.0]


def test_many_processes_share_a_copy(one_bucket: Bucket) -> None:
    """Threads with open files of their own are as processes to the lock of a file."""
    path = folder_of(one_bucket) / "a.log"
    place = place_of(path)
    assert place is not None
    writer = segments._PartWriter(place)

    def pull() -> None:
        for _ in range(10):
            segments.pull(place)

    readers = [threading.Thread(target=pull) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(20):
        writer.append(b"%d\n" % number)
        writer.ship()
    for reader in readers:
        reader.join()
    segments.pull(place)
    assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(20))
    assert time.time() - path.stat().st_mtime < 60


def test_the_next_command_names_the_bucket_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the home folder, which the copies of buckets are below."""
    monkeypatch.setenv("ORCH_BUCKETS", str(tmp_path / "copies"))
    monkeypatch.chdir(tmp_path)
    run: Any = SimpleNamespace(journal="gs://bucket/runs/first")
    assert _storage_option(storage_of(run)) == ("--storage", "gs://bucket/runs")
    here: Any = SimpleNamespace(journal=str(tmp_path / "mine" / "first"))
    assert _storage_option(storage_of(here)) == ("--storage", "mine")

"""The journal's files: what is foreign or damaged is said, and a long run is read quickly."""

import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import journal
from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import event_log, files
from tests.journals import claimed_run, failed_once, reason, run_request, tiny_plan, write_steps

# --- foreign and damaged files


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("events/notes.txt", b"mine", "events/notes.txt: is not a file of the journal"),
        ("events/000003.json", b"", "events/000003.json: Input data was truncated"),
        ("events/000003.json", b"\xff\x00", "events/000003.json: "),
        ("events/000003.json", b'{"kind":"dance","at_s":1}', "Invalid value 'dance'"),
        ("events/000003.json", b'{"kind":"pending","at_s":1}', "missing required field `reason`"),
        ("events/000009.json", b"{}", "events/000006.json: is missing"),
        ("requests/000001.json", b"[]", "requests/000001.json: Expected `object`"),
        ("requests/me", b"", "requests/me: is not a file of the journal"),
        ("tracking.json", b"null", "tracking.json: Expected `object`"),
        ("attempts/001/steps.jsonl", b"\xff\n", "001/steps.jsonl: a line is not a step"),
        ("attempts/002/steps.jsonl", b'{"at_s":1}\n', "002/steps.jsonl: a line is not a step"),
    ],
)
def test_what_the_journal_should_not_hold_is_said(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    """The run is told as far as it can be read; the file is named, and left as it is."""
    found = failed_once(tmp_path)
    (found.path / name).write_bytes(content)
    run = found.run()
    assert any(problem in said for said in run.problems), run.problems
    assert (found.path / name).read_bytes() == content
    assert run.attempts


def test_a_folder_where_a_file_should_be_is_said(tmp_path: Path) -> None:
    """Nothing that lies about crashes a reader."""
    found = failed_once(tmp_path)
    (found.paths.events / "000003.json").unlink()
    (found.paths.events / "000003.json").mkdir()
    (found.paths.requests / "000001.json").mkdir()
    problems = found.run().problems
    for name in ("events/000003.json", "requests/000001.json"):
        assert any(f"{name}: cannot be read: Is a directory" in one for one in problems)


def test_a_writer_goes_on_after_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Its number is taken all the same."""
    writer = claimed_run(tmp_path)
    (writer.journal.paths.events / "000003.json").write_bytes(b"{")
    with pytest.raises(Exception, match="another process wrote event 3"):
        writer.record_pending(reason("a slice", "waiting_for_slices"))
    writer.record_pending(reason("a slice", "waiting_for_slices"))
    run = writer.run()
    assert run.state == "pending"
    assert run.problems == ("events/000003.json: Input data was truncated",)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "contains no run|Input data was truncated"),
        (b'{"kind":"pending","at_s":1,"reason":{"code":"error","detail":"x"}}', "not a submission"),
        (None, "there is no events/000001.json"),
    ],
)
def test_a_directory_that_holds_no_run_says_why(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    """An error that names the directory."""
    (tmp_path / "it/events").mkdir(parents=True)
    if content is not None:
        (tmp_path / "it/events/000001.json").write_bytes(content)
    with pytest.raises(JournalUnreadable, match=why) as met:
        journal.find_run(tmp_path, "it").run()
    assert str(tmp_path / "it") in str(met.value)


def test_a_journal_of_a_newer_orch_is_not_guessed_at(tmp_path: Path) -> None:
    """What it means is not known here."""
    path = journal.create_run(tmp_path, run_request(), "it").journal.paths.events / "000001.json"
    path.write_bytes(path.read_bytes().replace(b'"schema":2', b'"schema":3'))
    with pytest.raises(JournalUnreadable, match="its schema is 3"):
        journal.find_run(tmp_path, "it").run()


def test_what_a_newer_orch_added_is_passed_over(tmp_path: Path) -> None:
    """A field more is no fault."""
    path = journal.create_run(tmp_path, run_request(), "it").journal.paths.events / "000001.json"
    path.write_bytes(path.read_bytes().replace(b'"schema":2', b'"schema":2,"mood":"good"'))
    assert journal.find_run(tmp_path, "it").run().problems == ()


def test_what_killed_writers_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    """Not what another may just be writing."""
    found = journal.create_run(tmp_path, run_request(), "it").journal
    old = [found.paths.events / ".000002.json.0.partial", tmp_path / ".0.partial"]
    new = [found.paths.events / ".000002.json.1.partial", tmp_path / ".1.removed"]
    for path in old + new:
        path.write_bytes(b"{")
    for path in old:
        os.utime(path, (1.0, 1.0))
    assert found.run().problems == ()
    journal.claim_run(found)
    journal.create_run(tmp_path, run_request())
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in new)


@pytest.mark.parametrize(
    ("fails", "number", "said"),
    [
        ("mkdir", errno.EROFS, "Read-only file system"),
        ("mkdir", errno.EACCES, "Permission denied; it needs permission to write there"),
        ("link", errno.EPERM, "Operation not permitted; the journal needs a file system with hard"),
    ],
)
def test_a_storage_is_tried_as_a_journal_would_use_it(
    fails: str, number: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not there yet where it would be made; nothing is left, whatever comes of it."""
    storage = tmp_path / "not" / "yet"
    files.check_writable(storage)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, fails, refuse)
    with pytest.raises(JournalUnwritable) as caught:
        files.check_writable(storage)
    assert str(caught.value).startswith(f"{storage}: ")
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# --- lines


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=40),
       st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), st.integers(1, 50))  # fmt: skip
def test_the_last_lines_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bytes, at_least: int
) -> None:
    """Whatever the window, with the torn one dropped."""
    path = tmp_path_factory.mktemp("lines") / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "TAIL_BYTES", 7)
        read, end = files.last_lines(path, at_least)
    assert len(read) >= min(at_least, len(lines))
    assert read == lines[len(lines) - len(read) :]
    assert end == path.stat().st_size - len(torn)


def test_a_long_run_is_read_in_about_a_second_and_its_status_at_once(tmp_path: Path) -> None:
    """All of 100,000 steps, or the last few, without reading the rest."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(20))
    path = writer.journal.paths.steps(number)
    line = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as file:
        for index in range(20, 100_000):
            file.write(line.replace(b'"index":19', b'"index":%d' % index))
    began = time.perf_counter()
    run = writer.run()
    status_s = time.perf_counter() - began
    steps = writer.journal.steps(run)
    all_s = time.perf_counter() - began
    assert (run.steps_done, len(steps), run.problems) == (100_000, 100_000, ())
    assert status_s < 0.5
    assert all_s < 5  # about 0.5 on a machine that does nothing else


def test_numbered_files_are_read_beyond_a_million(tmp_path: Path) -> None:
    """A name grows when its digits no longer do."""
    for number in (999_999, 1_000_000):
        event_log.append(tmp_path, number, b"{}")
    assert event_log.read(tmp_path).last == 1_000_000

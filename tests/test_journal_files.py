"""The journal's files: foreign, damaged and large ones."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import journal
from orchestrator.cli.endings import next_after
from orchestrator.cli.look_commands import status_command
from orchestrator.errors import JournalUnreadable, JournalUnwritable, OtherVersion
from orchestrator.journal import events, files
from orchestrator.journal import steps as step_log
from orchestrator.journal.events import SCHEMA
from orchestrator.values.plan import PLAN_SCHEMA
from orchestrator.values.run import Run, TimedStep
from tests.journals import (
    claimed_run,
    failed_once,
    note_newest,
    reason,
    run_request,
    step,
    tiny_plan,
    write_steps,
)

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
def test_unexpected_and_damaged_files_are_problems(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    """The rest of the run is read, and the file is kept."""
    run_journal = failed_once(tmp_path)
    (run_journal.path / name).write_bytes(content)
    run = run_journal.run()
    assert any(problem in text for text in run.problems), run.problems
    assert (run_journal.path / name).read_bytes() == content
    assert run.attempts


def test_a_folder_in_place_of_a_file_is_a_problem(tmp_path: Path) -> None:
    run_journal = failed_once(tmp_path)
    (run_journal.paths.events / "000003.json").unlink()
    (run_journal.paths.events / "000003.json").mkdir()
    (run_journal.paths.requests / "000001.json").mkdir()
    problems = run_journal.run().problems
    for name in ("events/000003.json", "requests/000001.json"):
        assert any(f"{name}: cannot be read: Is a directory" in problem for problem in problems)


def test_the_number_of_an_unreadable_event_is_taken(tmp_path: Path) -> None:
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
def test_a_folder_without_a_run_is_an_error(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    (tmp_path / "it/events").mkdir(parents=True)
    if content is not None:
        (tmp_path / "it/events/000001.json").write_bytes(content)
    with pytest.raises(JournalUnreadable, match=why) as met:
        journal.find_run(tmp_path, "it").run()
    assert str(tmp_path / "it") in str(met.value)


def test_another_schema_is_not_read(tmp_path: Path) -> None:
    path = journal.create_run(tmp_path, run_request(), "it").journal.paths.events / "000001.json"
    path.write_bytes(path.read_bytes().replace(b'"schema":', b'"schema":99'))
    with pytest.raises(OtherVersion) as met:
        journal.find_run(tmp_path, "it").run()
    assert (met.value.written, met.value.read) == (990 + SCHEMA, SCHEMA)


def test_a_plan_of_another_version_is_named_as_that(tmp_path: Path) -> None:
    """The plan is as it was written, with a sum; its keys are those of another version."""
    plan = tiny_plan()
    made = journal.create_run(tmp_path, run_request(plan=plan), "it").journal
    older = json.loads(made.paths.plan(plan.digest).read_bytes())
    del older["loss_chunk_tokens"]
    for schema in (PLAN_SCHEMA - 1, PLAN_SCHEMA):
        rewrite_plan(made, plan.digest, json.dumps(older | {"schema": schema}).encode())
        with pytest.raises(OtherVersion) as met:
            made.plan(plan.digest)
        assert (met.value.what, met.value.written, met.value.read) == ("plan", schema, PLAN_SCHEMA)
    assert next_after(met.value) == "orch plan SPEC"
    made.paths.submitted_spec.write_text("name: it\n", encoding="utf-8")
    assert next_after(met.value) == f"orch plan {made.paths.submitted_spec}"
    journal.claim_run(made).end_run("succeeded")
    shown = CliRunner().invoke(status_command, ["it", "--storage", str(tmp_path)])
    assert shown.stdout.splitlines()[-1] == f"Next: {next_after(met.value)}"


def rewrite_plan(made: journal.Journal, digest: str, text: bytes) -> None:
    """Write another plan and its sum, as another version would have."""
    path, first = made.paths.plan(digest), made.paths.events / "000001.json"
    sums = events.digest(path.read_bytes()), events.digest(text)
    path.write_bytes(text)
    first.write_bytes(first.read_bytes().replace(sums[0].encode(), sums[1].encode()))
    note_newest(made.paths, 1, first.read_bytes())


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    paths = journal.create_run(tmp_path, run_request(), "it").journal.paths
    first = paths.events / "000001.json"
    first.write_bytes(first.read_bytes().replace(b'"schema":', b'"mood":"good","schema":'))
    note_newest(paths, 1, first.read_bytes())
    assert journal.find_run(tmp_path, "it").run().problems == ()


def test_old_partial_files_are_swept(tmp_path: Path) -> None:
    """New ones may belong to a living process."""
    run_journal = journal.create_run(tmp_path, run_request(), "it").journal
    old = [run_journal.paths.events / ".000002.json.0.partial", tmp_path / ".0.partial"]
    new = [run_journal.paths.events / ".000002.json.1.partial", tmp_path / ".1.removed"]
    for path in old + new:
        path.write_bytes(b"{")
    for path in old:
        os.utime(path, (1.0, 1.0))
    assert run_journal.run().problems == ()
    journal.claim_run(run_journal)
    journal.create_run(tmp_path, run_request())
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in new)


@pytest.mark.parametrize(
    ("fails", "number", "expected"),
    [
        ("mkdir", errno.EROFS, "Read-only file system"),
        ("mkdir", errno.EACCES, "Permission denied; it needs permission to write there"),
        ("link", errno.EPERM, "Operation not permitted; the journal needs a file system with hard"),
    ],
)
def test_an_unusable_storage_is_an_error(
    fails: str, number: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying it leaves nothing behind."""
    storage = tmp_path / "not" / "yet"
    files.check_writable(storage)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, fails, refuse)
    with pytest.raises(JournalUnwritable) as caught:
        files.check_writable(storage)
    assert str(caught.value).startswith(f"{storage}: ")
    assert expected in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# --- lines


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=40),
       st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), st.integers(1, 50))  # fmt: skip
def test_last_lines_equal_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bytes, at_least: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "_TAIL_BYTES", 7)
        read, end = files.last_lines(path, at_least)
    assert len(read) >= min(at_least, len(lines))
    assert read == lines[len(lines) - len(read) :]
    assert end == path.stat().st_size - len(torn)


def test_a_long_run_is_read_quickly(tmp_path: Path) -> None:
    """Its status does not read all of its 40,000 steps."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(20))
    path = writer.journal.paths.steps(number)
    with path.open("ab") as file:
        for index in range(20, 40_000):
            file.write(step_log._encode(TimedStep(at_s=1.0, step=step(index))) + b"\n")
    run, lines = counted(writer.run)
    assert lines < 40_000 / 2
    assert (run.steps_done, run.problems) == (40_000, ())
    assert len(writer.journal.steps(run)) == 40_000


def test_a_look_takes_work_in_proportion_to_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts, waits and checkpoints alike; also where every event is out of order."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    lines: list[int] = []
    for rounds in (30, 120):
        writer = claimed_run(tmp_path, key=f"of-{rounds}")
        for number in range(1, rounds + 1):
            writer.record_pending(reason(f"slot {number}", "waiting_for_slices"))
            writer.start_attempt(tiny_plan())
            writer.record_checkpoint(number, "0" * 64)
            writer.end_attempt("preemption", error=f"slice {number} is gone")
        run, count = counted(writer.run)
        assert len(run.attempts) == rounds
        lines.append(count)
    assert rounds < lines[1] < 4 * lines[0] * 1.1


def counted(look: Callable[[], Run]) -> tuple[Run, int]:
    """What a look sees, and the lines of Python that it runs, again and again in loops."""
    count = 0

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run = look()
    finally:
        sys.settrace(before)
    return run, count


def test_numbers_may_exceed_six_digits(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000):
        events.append(tmp_path, number, b"{}")
    assert events.read(tmp_path).last == 1_000_000


def test_a_run_that_is_removed_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Another command may remove it between two looks."""
    run = failed_once(tmp_path)
    shutil.rmtree(run.path)
    for look in (run.spec, run.state, run.run, run.status):
        with pytest.raises(JournalUnreadable, match=r"000001\.json"):
            look()

"""What is synced, and before what: a kill keeps the page cache, so no kill shows a sync missing."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import journal
from orchestrator.errors import JournalUnreadable
from orchestrator.journal import files
from orchestrator.journal.steps import StepLog
from tests.journals import claimed_run, run_request, step, tiny_plan

Changes = list[tuple[str, str]]


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Changes:
    """Each sync of a file or folder, and each name that is given or taken, as they happen."""
    seen: Changes = []

    def noted(name: str, path_of: Callable[..., str]) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(os, name)

        def called(*arguments: Any, **named: Any) -> Any:
            path = path_of(*arguments)
            result = real(*arguments, **named)
            seen.append((name, Path(path).name))
            return result

        return called

    monkeypatch.setattr(os, "fsync", noted("fsync", descriptor))
    monkeypatch.setattr(os, "link", noted("link", lambda _, target, *__: str(target)))
    monkeypatch.setattr(os, "rename", noted("rename", lambda _, target, *__: str(target)))
    return seen


def descriptor(target: int) -> str:
    """The path of an open file."""
    path = Path(f"/proc/self/fd/{target}")
    if not path.exists():
        pytest.skip("this system does not say which file a descriptor is of")
    return str(path.readlink())


def kinds(changes: Changes) -> Changes:
    """The changes, with one name for all files that have no name yet."""
    return [(kind, "partial" if name.endswith(files.PARTIAL) else name) for kind, name in changes]


def test_a_new_file_is_synced_before_its_name_and_the_name_after(
    tmp_path: Path, changes: Changes
) -> None:
    files.write_new(tmp_path / "event", b"content")
    expected = [("fsync", "partial"), ("link", "event"), ("fsync", tmp_path.name)]
    assert kinds(changes) == expected


def test_a_file_is_replaced_durably_or_quickly(tmp_path: Path, changes: Changes) -> None:
    files.replace(tmp_path / "note", b"content", durably=True)
    assert kinds(changes)[:2] == [("fsync", "partial"), ("rename", "note")]
    changes.clear()
    files.replace(tmp_path / "note", b"another")
    assert kinds(changes) == [("rename", "note")]


def test_a_run_is_synced_before_its_name_and_the_name_after(
    tmp_path: Path, changes: Changes
) -> None:
    """Its last sync before the rename is of its own folder: the names in it are then on disk."""
    journal.create_run(tmp_path, run_request(), "it")
    names = kinds(changes)
    at = names.index(("rename", "it"))
    assert names[at - 1] == ("fsync", "partial")
    assert names[at + 1] == ("fsync", tmp_path.name)


def test_steps_are_synced_every_five_seconds_and_at_the_end(
    tmp_path: Path, changes: Changes
) -> None:
    """The name of their file once."""
    writer, now_s = claimed_run(tmp_path), time.time()
    number = writer.start_attempt(tiny_plan())
    changes.clear()
    with StepLog(writer.journal.path, number, clock=lambda: now_s) as log:
        log.append(step(0, restored=0))
        assert changes == []
        now_s += 5.0
        log.append(step(1))
        assert changes == [("fsync", "steps.jsonl"), ("fsync", "001")]
        log.append(step(2))
        assert len(changes) == 2
    assert changes[2:] == [("fsync", "steps.jsonl")]


# --- what killed and failed writers leave


def test_only_old_left_overs_are_swept(tmp_path: Path) -> None:
    """A new one belongs to a writer that may be alive. Other hidden files stay."""
    old, new, other = (tmp_path / f".{name}" for name in ("a.partial", "b.partial", "c"))
    for path in (old, new, other):
        path.touch()
    long_ago_s = time.time() - files._LEFT_OVER_S - 60
    for path in (old, other):
        os.utime(path, (long_ago_s, long_ago_s))
    files.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.partial", ".c"]


def test_removing_a_run_sweeps_its_storage(tmp_path: Path) -> None:
    """What another process that removed a run left there goes too."""
    writer = claimed_run(tmp_path)
    writer.end_run("failed")
    left = tmp_path / ".other.0123.removed"
    left.mkdir()
    (left / "spec.json").touch()
    long_ago_s = time.time() - files._LEFT_OVER_S - 60
    os.utime(left, (long_ago_s, long_ago_s))
    journal.remove_run(writer.journal)
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of whole lines holds one in memory."""
    monkeypatch.setattr(files, "_MAX_TAIL_BYTES", 100)
    monkeypatch.setattr(files, "_PART_BYTES", 50)
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" + b"x" * 1000 + b"\n")
    with pytest.raises(JournalUnreadable, match="has a line of more than 100 bytes"):
        list(files.whole_lines(path))

"""A storage that this user may only read: every command that looks at runs works there."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import tracking
from orchestrator.run.records import _readable_copy
from tests.conftest import RunOrch
from tests.records import destination_in, finished_run, start_tracked_run, train_steps

NOBODY = 65534
COMMANDS = (
    ("runs",),
    ("runs", "--json"),
    ("status", "it"),
    ("logs", "it"),
    ("compare", "it", "live"),
    ("report", "it", "--json"),
    ("report", "it"),
    ("report", "live"),
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A storage with an ended run and a live one, in a folder that everybody can enter."""
    folder = Path(tempfile.mkdtemp(prefix="orch-test-"))
    storage = folder / "runs"
    storage.mkdir()
    finished_run(storage)
    train_steps(start_tracked_run(storage, "live"), range(3))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield storage
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def another_user() -> Iterator[None]:
    """Be nobody for a while. Modules that are not loaded yet may be out of reach then."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def all_work(orch: RunOrch, storage: Path, here: Path) -> None:
    before = sorted(storage.rglob("*"))
    for words in COMMANDS:
        done = orch(*words, "--storage", str(storage), cwd=here)
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), (words, done.stderr)
        assert done.stdout or words == ("logs", "it")
    assert (here / "it-report.html").stat().st_size > 1000
    assert sorted(storage.rglob("*")) == before


def test_another_users_storage_can_be_looked_at(
    shared: Path, tmp_path: Path, orch: RunOrch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a run goes to the current directory, and nothing is written to the storage."""
    monkeypatch.setattr(tracking, "in_background", lambda _: None)
    for words in COMMANDS:  # loads what they need
        orch(*words, "--storage", str(shared), cwd=tmp_path)
    (shared / "it" / "report.html").unlink(missing_ok=True)
    (shared / "live" / "report.html").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as here:
        Path(here).chmod(0o777)
        with another_user():
            all_work(orch, shared, Path(here))


def test_a_read_only_file_system_can_be_looked_at(
    shared: Path, tmp_path: Path, orch: RunOrch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attempt to write there fails, for its owner too."""
    usual_open, usual_access = os.open, os.access

    def is_below(path: object) -> bool:
        return str(path).startswith(str(shared))

    def open_file(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        inside = Path(f"/proc/self/fd/{dir_fd}").readlink() if dir_fd is not None else path
        if is_below(inside) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return int(usual_open(path, flags, mode, dir_fd=dir_fd))

    def access(path: Path, mode: int) -> bool:
        return not (is_below(path) and mode & os.W_OK) and usual_access(path, mode)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "access", access)
    all_work(orch, shared, tmp_path)


def test_the_ui_shows_a_copy_of_a_database_that_it_may_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is gone afterwards."""
    database, where = tmp_path / "mlflow.db", destination_in(tmp_path)
    database.write_bytes(b"rows")
    usual = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and usual(path, mode))
    with _readable_copy(where.uri, [where], tmp_path) as (uri, places, folder):
        copy = Path(places[0].label)
        assert (copy.read_bytes(), copy.parent) == (b"rows", folder)
        assert uri == places[0].uri != where.uri
    assert not copy.exists()

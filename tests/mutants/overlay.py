"""A copy of the project in which one file at a time is changed, and tests run against it.

Tests run in children of this process, which has imported the large packages before. A changed
program may do anything, so its processes carry a mark: they can signal only each other, and all of
them are ended after each run.
"""

import contextlib
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from tests.conftest import ROOT
from tests.mutants.child import MARK

COPIED = ("orchestrator", "trainers", "tests", "specs", "dashboards", "docs", "pyproject.toml")
OPTIONS = (
    *("-q", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of what was imported before
)
POLL_S = 0.02
TIMED_OUT, BROKEN = -1, 3
CUSTOMIZE = "from tests.mutants import child\n\nchild.enter()\n"


def preload(modules: Sequence[str]) -> None:
    """Import what every child would import, but nothing of the project."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def forked(work: Callable[[], int]) -> int:
    """A fork of this process that exits with the result of `work`, or `BROKEN`.

    JAX warns of a fork wherever it is loaded; a child here computes nothing.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        child = os.fork()
    if child:
        return child
    status = BROKEN
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@dataclass
class Overlay:
    """A copy of the project in a folder."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()  # a module knows its file without links
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            source, target = ROOT / name, self.folder / name
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=ignored)
            elif source.exists():
                shutil.copy(source, target)
        (self.folder / "sitecustomize.py").write_text(CUSTOMIZE, encoding="utf-8")

    @property
    def _options(self) -> list[str]:
        return [*OPTIONS, f"--basetemp={self.folder / 'tmp'}"]

    def write(self, path: str, content: bytes) -> None:
        """Change a file. Its bytecode goes too: two changes may be equal in time and size."""
        changed = self.folder / path
        changed.write_bytes(content)
        for compiled in (changed.parent / "__pycache__").glob(f"{changed.stem}.*.pyc"):
            compiled.unlink()

    def run(
        self,
        tests: Sequence[str],
        limit_s: float,
        plugins: Callable[[], Sequence[object]] = tuple,
        environment: Mapping[str, str] = MappingProxyType({}),
        options: Sequence[str] = ("-x",),
    ) -> int:
        """The exit code of pytest on these tests, in a child; `TIMED_OUT` after the limit."""

        def work() -> int:
            self._enter(environment)
            arguments = [*self._options, *options, *tests]
            return int(pytest.main(arguments, plugins=list(plugins())))

        return self.wait(forked(work), limit_s)

    def wait(self, child: int, limit_s: float) -> int:
        """The exit code of a process that leads a session; `TIMED_OUT` after the limit. Afterwards
        nothing is left of it, nor of what it started.
        """
        try:
            return _wait(child, limit_s)
        finally:
            self._end_all()

    def _enter(self, environment: Mapping[str, str]) -> None:
        """Become a process of the copy."""
        os.setsid()
        log = os.open(self.folder / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.folder)
        os.environ |= {MARK: self.mark, "PYTHONPATH": str(self.folder), "HOME": str(self.folder)}
        os.environ |= environment
        # What this process has of the project is the unchanged one.
        for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
            del sys.modules[name]
        sys.path[:] = [
            str(self.folder),
            *(place for place in sys.path if place not in ("", str(ROOT))),
        ]
        importlib.invalidate_caches()
        importlib.import_module("tests.mutants.child").enter()

    def _end_all(self) -> None:
        """Kill what the tests left running. A child's variables are not its mark: it was forked."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    process.kill()


def _wait(child: int, limit_s: float) -> int:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT

"""Which tests execute which lines of a package, so that a mutant meets only the tests that can see
it. Child processes note their lines themselves: see `child`.
"""

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from tests.mutants.child import TEST

MOST_S = 30.0
Lines = dict[str, set[int]]  # by file


class Coverage(msgspec.Struct, frozen=True):
    """The lines that each test executes, its seconds, and the tests that fail without a mutant."""

    lines: dict[str, dict[str, set[int]]]  # by test, by file
    seconds: dict[str, float]
    failed: list[str]

    def tests_of(self, path: str, line: int, most_s: float = MOST_S) -> list[str]:
        """The tests that execute a line, the quickest first.

        A line that nearly all tests execute meets only as many as take so long together.
        """
        sound = [second for second in self.seconds if second not in self.failed]
        seen = [test for test in sound if line in self.lines.get(test, {}).get(path, ())]
        quickest = sorted(seen, key=lambda test: self.seconds[test])
        ends = accumulate(self.seconds[test] for test in quickest)
        return [test for test, end in zip(quickest, ends, strict=True) if end <= most_s] or quickest

    def of_file(self, path: str) -> "Coverage":
        """What the tests of one file execute."""

        def is_of(test: str) -> bool:
            return test.partition("::")[0] == path

        return Coverage(
            lines={test: lines for test, lines in self.lines.items() if is_of(test)},
            seconds={test: taken_s for test, taken_s in self.seconds.items() if is_of(test)},
            failed=[test for test in self.failed if is_of(test)],
        )

    @classmethod
    def joined(cls, parts: Iterable["Coverage"]) -> "Coverage":
        """What the tests of several files execute."""
        some = list(parts)
        return cls(
            lines={test: lines for record in some for test, lines in record.lines.items()},
            seconds={test: taken_s for record in some for test, taken_s in record.seconds.items()},
            failed=[test for record in some for test in record.failed],
        )


def trace_folder(root: Path, paths: Iterable[str]) -> Path:
    """A folder where child processes note the lines of these files that they execute."""
    folder = root / "traced"
    folder.mkdir()
    (folder / "paths").write_text("\n".join(paths), encoding="utf-8")
    return folder


@dataclass
class Tracer:
    """A plugin of pytest that notes the lines of some files while tests run."""

    folder: Path
    paths: frozenset[str]
    lines: dict[str, Lines] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    _now: Lines = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self._names = {str(self.folder / path): path for path in self.paths}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test, its fixtures included."""
        self._now = defaultdict(set)
        os.environ[TEST] = item.nodeid
        began_s = time.monotonic()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = time.monotonic() - began_s
            self.lines[item.nodeid] = dict(self._now)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure: such a test kills no mutant."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write down what was seen: this process ends with the tests."""
        for path in (self.folder / "traced").glob("*.lines"):
            test, *lines = path.read_text(encoding="utf-8").splitlines()
            for line in lines:
                name, _, number = line.rpartition(" ")
                self.lines.setdefault(test, {}).setdefault(name, set()).add(int(number))
        seen = Coverage(lines=self.lines, seconds=self.seconds, failed=self.failed)
        (self.folder / "coverage.json").write_bytes(msgspec.json.encode(seen))

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._names else None

    def _line(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        self._now[self._names[frame.f_code.co_filename]].add(frame.f_lineno)
        return self._line


class Quickest:
    """A plugin of pytest that runs the quickest tests first."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort by the seconds that each took without a mutant."""
        items.sort(key=lambda item: self._seconds.get(item.nodeid, 0.0))

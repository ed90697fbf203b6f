"""A session of pytest that has collected its tests, and forks for each mutant.

To import the project and to collect tests takes seconds, a fork milliseconds. In the fork the
changed function gets its new code; processes that a test starts read the changed file.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutants.overlay import forked

NO_CODE = 4  # the new code does not fit the function: another process must import it
Run = Callable[[Sequence[str], str, bytes, str], int]


@dataclass
class ForkedSession:
    """A plugin of pytest: instead of the collected tests it does `work`.

    `work` gets a function that runs some of the tests in a fork, with a file that has a changed
    function, and returns the exit code of that process, or whatever `wait` makes of it.
    """

    folder: Path
    work: Callable[["ForkedSession"], None]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work."""
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        gc.freeze()  # so that a collection in a fork copies no pages
        self.work(self)
        return True

    def fork(self, tests: Sequence[str], path: str, function: str, source: bytes) -> int:
        """The process that runs these tests until one fails."""

        def work() -> int:
            os.setsid()
            return self._run(tests) if self._change(path, function, source) else NO_CODE

        return forked(work)

    def _run(self, tests: Sequence[str]) -> int:
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._session.testsfailed:
                return 1
        return 0

    def _change(self, path: str, name: str, source: bytes) -> bool:
        """Give a function its new code wherever it is used; False where that cannot be done."""
        file = str(self.folder / path)
        new = {code.co_firstlineno: code for code in _codes(compile(source, file, "exec"), name)}
        gc.unfreeze()
        functions = [
            get_object for get_object in gc.get_objects() if _is_of(get_object, file, name)
        ]
        for function in functions:
            code = new.get(function.__code__.co_firstlineno)
            if code is None or len(code.co_freevars) != len(function.__code__.co_freevars):
                return False
            function.__code__ = code
        return bool(functions) or path.removesuffix(".py").replace("/", ".") not in sys.modules


def _is_of(one: object, file: str, name: str) -> bool:
    """Whether something is the function of that qualified name in a file."""
    if type(one) is not FunctionType:
        return False
    return one.__code__.co_qualname == name and one.__code__.co_filename == file


def _codes(code: CodeType, name: str) -> Iterator[CodeType]:
    """The code of that qualified name, in the code of a module."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                yield constant
            elif name.startswith(f"{constant.co_qualname}."):
                yield from _codes(constant, name)

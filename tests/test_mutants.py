"""The mutation campaign: which changes it makes, which tests see them, and what its list says."""

import ast
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.conftest import ROOT
from tests.mutants import campaign
from tests.mutants.child import TRACE
from tests.mutants.forked_session import ForkedSession
from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.overlay import TIMED_OUT, Overlay
from tests.mutants.tracing import Coverage, Tracer, trace_folder

# JAX, which another test may have started in this process, warns of forks; children do not use it.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork")


all_mutants = cache(campaign.all_mutants)


SAMPLE = b'''"""A sample."""
import os
LIMIT = 1 < 2


def outside(x):
    return x == 1 and x or None


class Some:
    """A class."""

    def method(self, items):
        """Its docstring is not removed."""
        if items is None:
            raise ValueError("no items")
        for one in [x for x in items if x]:
            os.fsync(one)
            self.method(one + 1)
            print(one)
        while True:
            return len(items) < 3
'''


def changed(mutant: Mutant) -> str:
    """The lines that a mutant changes, as they are then."""
    before, after = SAMPLE.splitlines(), mutant.applied(SAMPLE).splitlines()
    return b" / ".join(
        new.strip() for old, new in zip(before, after, strict=True) if old != new
    ).decode()


def test_each_operator_changes_one_place() -> None:
    """Not at the top of a module, no docstring, no print, no `while True`."""
    assert [
        (mutant.function, mutant.operator, changed(mutant))
        for mutant in mutants_of("it.py", SAMPLE)
    ] == [
        ("outside", "change a comparison", "return x != 1 and x or None"),
        ("outside", "swap and, or", "return x == 1 or x or None"),
        ("outside", "swap and, or", "return x == 1 and x and None"),
        ("Some.method", "negate a condition", "if not (items is None):"),
        ("Some.method", "skip a raise", "pass"),
        ("Some.method", "negate a condition", "for one in [x for x in items if not (x)]:"),
        ("Some.method", "drop a sync", "pass"),
        ("Some.method", "remove a call", "pass"),
        ("Some.method", "swap plus, minus", "self.method(one - 1)"),
        ("Some.method", "change a comparison", "return len(items) <= 3"),
    ]


def test_a_key_stays_while_its_function_does() -> None:
    """Lines before it change no key and no digest; its own function changes the digest."""
    moved = SAMPLE.replace(b"LIMIT = 1 < 2", b"LIMIT = 1 < 2\n\n# a comment")
    edited = SAMPLE.replace(b'"no items"', b'"nothing"')
    keys = [(mutant.key, mutant.digest) for mutant in mutants_of("it.py", SAMPLE)]
    assert [(mutant.key, mutant.digest) for mutant in mutants_of("it.py", moved)] == keys
    differ = [
        mutant.function
        for mutant in mutants_of("it.py", edited)
        if (mutant.key, mutant.digest) not in keys
    ]
    assert set(differ) == {"Some.method"}


@pytest.mark.parametrize("package", campaign.PACKAGES, ids=lambda one: one.name)
def test_every_mutant_of_the_packages_is_a_program(package: campaign.Package) -> None:
    """Every eighth is parsed; none is named by another mutant's key."""
    mutants = all_mutants(package)
    assert len(mutants) > 50
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    for path in package.paths():
        source = (ROOT / path).read_bytes()
        for mutant in mutants[::8]:
            if mutant.path == path:
                ast.parse(mutant.applied(source))
    assert all((ROOT / name).exists() for name in package.tests)


def test_a_part_of_the_campaign_has_mutants_of_every_package() -> None:
    due = [600, 0, 300, 100]
    assert campaign.shares(due, 50) == [30, 0, 15, 5]
    assert campaign.shares(due, 5000) == due
    assert campaign.shares([0, 0], 10) == [0, 0]


def test_the_list_of_equivalent_mutants_names_mutants_of_today() -> None:
    """With a reason for each."""
    today = {mutant.key for package in campaign.PACKAGES for mutant in all_mutants(package)}
    listed = campaign.equivalents()
    assert sorted(listed.keys() - today) == []
    assert all(len(why) > 20 for why in listed.values())


# --- one small campaign

TOY = b"""
def double(x):
    if x < 0:
        raise ValueError(x)
    return x + x


def forever(x):
    while x > 0:
        x = x - 1
"""
CHANGED = {
    "double | skip a raise | raise ValueError(x)": "tests/test_toy_mutant.py::test_double",
    # One round more changes nothing.
    "forever | change a comparison | >": "tests/test_toy_mutant.py::test_forever",
    "forever | swap plus, minus | -": "tests/test_toy_mutant.py::test_forever",
}
TOY_TESTS = """
import subprocess, sys
import pytest
from trainers import toy_mutant

def test_double():
    assert toy_mutant.double(2) == 4
    with pytest.raises(ValueError):
        toy_mutant.double(-1)

def test_forever():
    program = "from trainers import toy_mutant; toy_mutant.forever(3)"
    subprocess.run([sys.executable, "-c", program], check=True)
"""


@pytest.mark.slow
def test_mutants_are_killed_by_tests_and_by_time(tmp_path: Path) -> None:
    """A line that only a child process executes is seen by the test that starts it."""
    (tmp_path / "link").symlink_to(tmp_path)
    overlay = Overlay(tmp_path / "link" / "copy")
    path, tests = "trainers/toy_mutant.py", ["tests/test_toy_mutant.py"]
    overlay.write(path, TOY)
    overlay.write(tests[0], TOY_TESTS.encode())
    traced = trace_folder(overlay.folder, [path])
    found = overlay.run(
        tests,
        60.0,
        plugins=lambda: [Tracer(overlay.folder, frozenset([path]))],
        environment={TRACE: str(traced)},
    )
    assert found == 0
    coverage = msgspec.json.decode((overlay.folder / "coverage.json").read_bytes(), type=Coverage)
    mutants = {mutant.key.partition(" ")[2]: mutant for mutant in mutants_of(path, TOY)}
    assert len(mutants) == 6
    fates = {}
    for key, expected in CHANGED.items():
        [test] = coverage.tests_of(path, mutants[key].line)
        assert test == expected
        overlay.write(path, mutants[key].applied(TOY))
        fates[key] = overlay.run([test], 5.0)
        overlay.write(path, TOY)
    assert list(fates.values()) == [1, 0, TIMED_OUT]
    assert fates_in_forks(overlay, path, mutants) == list(fates.values())


def fates_in_forks(overlay: Overlay, path: str, mutants: dict[str, Mutant]) -> list[int]:
    """The same from forks of one session, which has imported the file as it was."""
    kept = overlay.folder / "fates"

    def work(session: ForkedSession) -> None:
        for key, test in CHANGED.items():
            changed = mutants[key].applied(TOY)
            overlay.write(path, changed)
            child = session.fork([test], path, mutants[key].function, changed)
            with kept.open("a", encoding="ascii") as file:
                file.write(f"{overlay.wait(child, 5.0)}\n")
            overlay.write(path, TOY)

    tests = ["tests/test_toy_mutant.py"]
    assert overlay.run(tests, 60.0, plugins=lambda: [ForkedSession(overlay.folder, work)]) == 0
    return [int(line) for line in kept.read_text(encoding="ascii").split()]

"""Ctrl-C: a line says what it ended and what to type next, and nothing is left running."""

import os
import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from orchestrator import run
from orchestrator.cli import main
from orchestrator.launch.ray import attempt_process
from tests.clusters import eventually
from tests.conftest import ROOT

TINY = "specs/tiny_2pod.yaml"
STUDY = "specs/studies/tiny_weak.yaml"
# As a terminal starts it: a shell that runs the tests in the background has interrupts ignored.
ORCH = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from orchestrator.cli import main
main()
"""


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """A module first imported while a test replaces a name would hold what replaced it for good."""
    for module in iter_modules(run.__path__, "orchestrator.run."):
        import_module(module.name)


@pytest.mark.parametrize(
    ("command", "when", "doing"),
    [
        (("prove", TINY), "proving: tracing", "proving"),
        (("calibrate",), "measuring this machine: it takes", "measuring this machine"),
        (("submit", TINY), "proving: tracing", "proving"),
    ],
)
def test_what_runs_beside_a_command_ends_with_it(
    command: tuple[str, ...], when: str, doing: str, tmp_path: Path
) -> None:
    """The compiler and what measures, in sessions of their own; no file of theirs is left."""
    stored = ("--set", f"run.storage={tmp_path}/runs") if command[0] == "submit" else ()
    mark, cache = secrets.token_hex(16), tmp_path / "cache"
    process = subprocess.Popen(
        [sys.executable, "-c", ORCH, *command, *stored],
        cwd=ROOT,
        env=os.environ | {attempt_process.MARK: mark, "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stderr
        while not process.stderr.readline().startswith(when):
            assert process.poll() is None
        eventually(lambda: len(attempt_process.marked(mark)) > 1, 60)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    again = " ".join(["orch", *command, *stored])
    assert said == f"interrupted while {doing}; nothing is left running\nNext: {again}\n"
    assert process.returncode == 130
    # What was asked is killed; what was only being started ends by its closed input.
    eventually(lambda: attempt_process.marked(mark) == [], 30)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("command", "slow", "said"),
    [
        (("plan", TINY), "run.specs.make_plans", "planning; nothing is left running"),
        (("plan", STUDY), "run.studies.make_plan", "planning; nothing is left running"),
        (("submit", STUDY), "run.studies.make_plan", "planning; nothing is left running"),
        (("explain", TINY), "run.proofs.derive", "working it out; nothing is left running"),
        (
            ("score",),
            "evidence.score.evaluate.with_catalog_constants",
            "scoring; nothing is left running",
        ),
        (
            ("doctor",),
            "run.doctor._software",
            "looking at this machine; nothing is left running",
        ),
        (("sync",), "run.records._own_runs", "recording; what is recorded stays"),
        (
            ("report", "it"),
            "show.pages.find_run_or_study",
            "writing the report; nothing is left running",
        ),
        (("compare", "it"), "journal.find_runs", "comparing; nothing is left running"),
    ],
)
def test_each_command_that_takes_long_says_what_was_interrupted(
    command: tuple[str, ...],
    slow: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In one line, with the exact command again, and exit status 130."""
    module, _, name = slow.rpartition(".")
    monkeypatch.setattr(import_module(f"orchestrator.{module}"), name, interrupt)
    assert ended(monkeypatch, command) == 130
    output = capsys.readouterr()
    assert output.err == f"interrupted while {said}\nNext: {' '.join(['orch', *command])}\n"


def test_a_rehearsal_that_is_only_prepared_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Between its table and its first node."""
    monkeypatch.setattr("orchestrator.run.submit.create_run", interrupt)
    more = ("--no-prove", "--no-calibrate", "--set", f"run.storage={tmp_path}")
    said = "interrupted while preparing the rehearsal; nothing is left running"
    command = ("submit", TINY, *more)
    assert ended(monkeypatch, command) == 130
    assert capsys.readouterr().err == f"{said}\nNext: {' '.join(['orch', *command])}\n"


def test_other_commands_say_that_they_were_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is nothing more to say of it."""
    monkeypatch.setattr("orchestrator.journal.list_runs", interrupt)
    assert ended(monkeypatch, ("runs",)) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def ended(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> object:
    """How the command ends in this process."""
    monkeypatch.setattr(sys, "argv", ["orch", *command])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


EARLY = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
print("up", flush=True)
from orchestrator.__main__ import main
main()
"""


@pytest.mark.parametrize("command", [("plan", TINY), ("runs",)], ids=["plan", "runs"])
def test_an_interrupt_while_a_command_starts_is_one_line(command: tuple[str, ...]) -> None:
    """Also while it is imported: most of the first 0.6 s."""

    def interrupted(after_s: float) -> tuple[int, list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", EARLY, *command], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(after_s)
            process.send_signal(signal.SIGINT)
            said = process.communicate()[1]
            return process.returncode, said.splitlines()

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(interrupted, [step / 20 for step in range(1, 17, 3)]))
    assert ends[0] == (130, ["interrupted"])
    for _, said in ends:
        # A plan says what to type next; what was done before the signal says nothing.
        words = [line for line in said if line and not line.startswith("Next: ")]
        assert [line.split()[0].rstrip(";") for line in words] in ([], ["interrupted"]), said

"""Steps as columns: the same figures as from values, in little memory, and damage is told."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.evidence.report import make_report
from orchestrator.journal import steps as step_log
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import (
    _BY_ROW,
    StepReader,
    StepTable,
    _joined,
    counted_rows,
    counted_steps,
    read_table,
)
from orchestrator.values.run import TimedStep
from tests.conftest import ROOT, RunOrch
from tests.journals import claimed_run, step, table_of, tiny_plan, write_steps
from tests.reports import preempted_run, timed


def long_run(storage: Path, steps: int) -> Journal:
    """A finished run of many steps."""
    writer = claimed_run(storage, key=f"of-{steps}", steps=steps)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(1))
    with writer.journal.paths.steps(number).open("ab") as file:
        for index in range(1, steps):
            one = step(index, peak_hbm_bytes=index, loss=9.0 / index)
            file.write(step_log._encode(TimedStep(at_s=1e9 + index, step=one)) + b"\n")
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    return writer.journal


def same(one: StepTable, other: StepTable) -> bool:
    names = [name for name in vars(one) if name not in _BY_ROW]
    equal = [np.array_equal(vars(one)[n], vars(other)[n], equal_nan=True) for n in names]
    return all(equal) and all(getattr(one, name) == getattr(other, name) for name in _BY_ROW)


def test_a_table_has_what_a_reader_reads(tmp_path: Path) -> None:
    """More lines than are read at once; an open attempt and an ended one."""
    run = long_run(tmp_path, 30_000)
    [attempt] = run.run().attempts
    values = StepReader(run.path, 1).read()
    assert len(values) == 30_000
    for known in (attempt, replace(attempt, written=None)):
        table, problems = read_table(run.path, known)
        assert problems == []
        assert same(table, table_of(values))
    assert table.peak_hbm_bytes[1:].max() == 29_999
    assert np.isnan(table.peak_hbm_bytes[0])
    assert list(table.startups) == [0]


def test_of_each_step_the_last_attempt_counts() -> None:
    _, steps = preempted_run()
    tables = {number: table_of(taken) for number, taken in steps.items()}
    counted = counted_rows(tables)
    assert [int(mask.sum()) for _, mask in sorted(counted.items())] == [5, 15]
    table = counted_steps(tables)
    assert table.index.tolist() == list(range(20))
    assert table.startups.keys() == {0, 5}
    assert counted_steps(tables, {1}).index.tolist() == list(range(5))
    assert len(counted_steps({})) == len(_joined([])) == 0


def test_an_attempt_undoes_the_steps_after_those_that_it_restored() -> None:
    """It has not done all of them again yet; a superseded attempt may still write some."""
    tables = {1: table_of(timed(0.0, range(10), 1.0)), 2: table_of(timed(0.0, range(3, 6), 2.0))}
    table = counted_steps(tables)
    assert table.index.tolist() == list(range(6))
    assert table.step_s[4] == 2.0
    assert {int(table.index[row]) for row in table.startups} == {0, 3}


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda text: text.replace(b'"index":7,', b'"index":8,'), 19),
        (lambda text: text.replace(b'"index":7,', b'"index":-7,'), 19),
        (lambda text: text[: len(text) // 2], 10),
        (lambda text: text + text[-50:], 20),
        (lambda text: text + b"\xff\n", 20),
        (lambda _: b"", 0),
    ],
    ids=["another index", "a negative index", "halved", "half a line more", "noise", "emptied"],
)
def test_a_report_of_damaged_steps_says_so(
    tmp_path: Path, damage: Callable[[bytes], bytes], left: int
) -> None:
    """It counts the lines that are whole."""
    run = long_run(tmp_path, 20)
    path = run.paths.steps(1)
    path.write_bytes(damage(path.read_bytes()))
    report = make_report(run)
    measured = report.measured.steps if report.measured else 0
    assert measured == max(0, left - 1)
    assert any("001/steps.jsonl" in problem for problem in report.problems)


def test_a_page_and_the_command_say_what_is_wrong(tmp_path: Path, orch: RunOrch) -> None:
    run = long_run(tmp_path, 20)
    run.paths.steps(1).write_bytes(b"")
    done = orch("report", run.key, "--storage", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "warning: 001/steps.jsonl" in done.stderr
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "001/steps.jsonl: is not what its attempt wrote" in page


def test_lines_after_the_end_of_an_attempt_are_no_damage(tmp_path: Path) -> None:
    """A process on another machine ended a little later than its attempt."""
    run = long_run(tmp_path, 20)
    late = step_log._encode(TimedStep(at_s=2e9, step=step(20)))
    with run.paths.steps(1).open("ab") as file:
        file.write(late + b"\n")
    report = make_report(run)
    assert report.problems == ()
    assert report.measured
    assert report.measured.steps == 20


PEAK = """
import re, sys, time
from pathlib import Path
from typing import Any
from orchestrator.journal import Journal
from orchestrator.show.pages import page_of

def peak():  # what getrusage says begins with the peak of the parent
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
began = time.process_time()
page, *_ = page_of(Journal(Path(sys.argv[1])), None)
taken_s = time.process_time() - began
after = peak()
print(before * 1024, after * 1024, taken_s, len(page))
"""


def cost(run: Journal) -> tuple[float, float, float, float]:
    """Bytes before and at most while a page is made, its processor time, and its size."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(run.path)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    before, after, taken_s, size = (float(word) for word in done.stdout.split())
    return before, after, taken_s, size


def test_the_page_of_a_million_steps_fits_in_300_mb(tmp_path: Path) -> None:
    """By the memory that 150,000 steps add to a process; time grows no faster than steps."""
    few, many = long_run(tmp_path, 50_000), long_run(tmp_path, 200_000)
    of_few, of_many = cost(few), cost(many)
    bytes_a_step = (of_many[1] - of_few[1]) / 150_000
    assert of_few[1] + bytes_a_step * 950_000 < 300e6
    assert of_many[2] < 4 * of_few[2] * 1.5
    assert of_many[3] < 1.5 * of_few[3]


@pytest.mark.parametrize(
    "figures",
    [
        {"step_s": 0.0}, {"step_s": -1e9}, {"step_s": 1e308}, {"data_s": -5.0}, {"data_s": 1e300},
        {"index": -4}, {"index": 10**30}, {"tokens": -1}, {"peak_hbm_bytes": 2**70},
    ],
    ids=str,
)  # fmt: skip
def test_figures_that_no_step_has_are_no_step(
    tmp_path: Path, figures: dict[str, Any], orch: RunOrch
) -> None:
    """Whoever wrote the line, with its checksum: what is left is shown, and no command fails."""
    run = long_run(tmp_path, 20)
    line = step_log._encode(TimedStep(at_s=2e9, step=replace(step(20), **figures)))
    with run.paths.steps(1).open("ab") as file:
        file.write(line + b"\n")
    [attempt] = run.run().attempts
    for known in (attempt, replace(attempt, written=None)):
        table, problems = read_table(run.path, known)
        assert len(table) == 20
        assert len(problems) == 1
    assert run.run().steps_done == 20
    for command in ("status", "report"):
        assert orch(command, run.key, "--storage", str(tmp_path)).returncode == 0

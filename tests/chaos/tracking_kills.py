"""Kills a recorder at each of its commits to the database; used by a test.

    python -m tests.chaos.tracking_kills FOLDER DATABASE

Each death is of a child process, by SIGKILL. After it another recorder brings the run up to its
journal, and MLflow must have each point once.
"""

import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, event

from orchestrator.journal.run_journal import Journal
from orchestrator.tracking.mlflow import metrics
from orchestrator.tracking.mlflow.store import Store
from orchestrator.tracking.recorder import Recorder
from tests.records import destination_in, duplicate_points, finished_run, points, rows

STEPS = 12


def in_child(work: Callable[[], None]) -> bool:
    """Whether the work came to its end; False when it was killed on the way."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFEXITED(status)


def recorder(run: Journal, deadly: int) -> None:
    """Record a run, and die when the commit of that number is about to be made: what was committed
    before it stands, and nothing after.
    """
    count = 0

    def committing(_: object) -> None:
        nonlocal count
        count += 1
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "commit", committing)
    tried = Recorder({}).record(run)
    assert tried.problem is None, tried.problem


def faults(folder: Path, at: str) -> list[str]:
    """What is wrong in MLflow after the last recorder."""
    found = [
        f"{at}: {name} is {points(folder, name)}"
        for name in (metrics.LOSS, metrics._STEP_TIME, metrics._MFU_ROOFLINE)
        if [step for step, _ in points(folder, name)] != list(range(STEPS))
    ]
    if twice := duplicate_points(folder):
        found.append(f"{at}: doubled {twice}")
    active = rows(folder, "SELECT status FROM runs WHERE lifecycle_stage = 'active'")
    if active != [("FINISHED",)]:
        found.append(f"{at}: runs are {active}")
    if len(points(folder, metrics._GOODPUT)) != 1:
        found.append(f"{at}: goodput is {points(folder, metrics._GOODPUT)}")
    return found


def main(folder: Path, database: Path) -> None:
    warnings.simplefilter("ignore")
    shutil.copy(database, folder / "mlflow.db")
    Store(destination_in(folder))  # what takes seconds is loaded once, for every child

    deaths, wrong, deadly, ended = 0, list[str](), 0, False
    while not ended:
        deadly += 1
        here = folder / str(deadly)
        here.mkdir()
        shutil.copy(database, here / "mlflow.db")
        run = finished_run(here, steps=STEPS)
        ended = in_child(lambda: recorder(run, deadly))  # noqa: B023  at once
        deaths += not ended
        in_child(lambda: recorder(run, 10**9))  # noqa: B023  at once
        wrong += faults(here, f"killed at commit {deadly}")
        shutil.rmtree(here)
    print(json.dumps({"deaths": deaths, "faults": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

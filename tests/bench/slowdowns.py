"""Slow runs on purpose, and see what is found; run calm ones, and see that nothing is.

    python -m tests.bench.slowdowns [--calm 10] [--steps 300] [CASE...]

Every run is a rehearsal of two processes with the smallest trainer. In those with trouble it
begins at step 100: a process is stopped again and again, or once for seconds; batches come late,
on one host or on all; a save takes long; programs are compiled anew. The exit code is 1 where a
slowdown is not found within 20 steps with its cause, or one is found in a calm run.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.journal.events import SlowdownSeen, decode_event
from orchestrator.journal.run_journal import Journal
from orchestrator.values.slowdowns import Slowdown
from tests.conftest import ROOT
from tests.troubled import VARIABLE

BEGINS = 100
WITHIN = 20
# What is done, and the kind and the rank that must be found.
CASES: dict[str, tuple[str, float, str, int | None]] = {
    "pulses": ("pulses", 0.1, "host", 1),
    "stop": ("stop", 8.0, "stall", 1),
    "input": ("input", 0.25, "input", None),
    "input of one host": ("input-1", 0.25, "host", 1),
    "save": ("saving", 20.0, "saving", None),
    "compilation": ("compilation", 0.5, "compilation", None),
}


def rehearse(
    storage: Path, key: str, steps: int, trouble: Callable[[Journal], None], ends: int = 0
) -> Journal:
    """A rehearsal to its end; `trouble` strikes it once it has done some steps. `ends` is the exit
    code of the command.
    """
    settings = (
        f"run.storage={storage}", "cluster.backend=hosts", "run.trainer=tests.troubled",
    )  # fmt: skip
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [
        sys.executable, "-m", "orchestrator", "submit", "specs/tiny_2pod.yaml", *sets,
        "--no-prove", "--no-calibrate", "--steps", str(steps), "--key", key,
    ]  # fmt: skip
    folder = storage / f"trouble of {key}"
    folder.mkdir(parents=True)
    environment = os.environ | {VARIABLE: str(folder), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as submitting:
        journal = Journal(storage / key)
        while submitting.poll() is None and written(journal) < BEGINS:
            time.sleep(0.02)
        trouble(journal)
        out, _ = submitting.communicate()
    assert submitting.returncode == ends, out.decode()
    return journal


def written(journal: Journal) -> int:
    """The steps of the first attempt so far."""
    path = journal.paths.steps(1)
    return path.read_bytes().count(b"\n") if path.exists() else 0


def strike(journal: Journal, kind: str, size_s: float) -> None:
    """Begin the trouble of a run; it lasts until the run has ended."""
    if kind not in ("pulses", "stop"):
        (journal.path.parent / f"trouble of {journal.key}" / kind).write_text(str(size_s))
        return
    process = json.loads(journal.paths.heartbeat(1, 1).read_bytes())["process"]["pid"]
    try:
        while True:
            os.kill(process, signal.SIGSTOP)
            time.sleep(size_s)
            os.kill(process, signal.SIGCONT)
            if kind == "stop":
                return
            time.sleep(size_s / 2)
    except ProcessLookupError:
        return


def first_told(journal: Journal) -> list[Slowdown]:
    """The slowdowns of a run, as they were when their kind and their host were found."""
    found: dict[tuple[object, ...], Slowdown] = {}
    for path in sorted(journal.paths.events.glob("*.json")):
        event = decode_event(path.read_bytes())
        if isinstance(event, SlowdownSeen):
            found.setdefault(_what(event.slowdown), event.slowdown)
    return list(found.values())


def _what(slowdown: Slowdown) -> tuple[object, ...]:
    return slowdown.number, slowdown.kind, slowdown.rank


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE")
    parser.add_argument("--calm", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    options, wrong = parser.parse_args(argv), 0
    with tempfile.TemporaryDirectory() as folder:
        storage = Path(folder)
        for number in range(options.calm):
            journal = rehearse(storage, f"calm-{number}", options.steps, lambda _: None)
            alarms = journal.run().slowdowns
            wrong += bool(alarms)
            print(f"calm {number}: {'; '.join(each.text for each in alarms) or 'nothing'}")
        for name in options.cases:
            what, size_s, kind, rank = CASES[name]
            key, began = name.replace(" ", "-"), list[int]()

            def trouble(journal: Journal, what: str = what, size_s: float = size_s) -> None:
                began.append(written(journal))  # noqa: B023
                strike(journal, what, size_s)

            journal = rehearse(storage, key, options.steps, trouble)
            found, first = journal.run().slowdowns, first_told(journal)
            told = {_what(each): each.first_step + each.steps - began[0] for each in first}
            hits = [each for each in found if each.kind == kind and rank in (None, each.rank)]
            # A save comes when it comes.
            late = kind != "saving" and (not hits or told[_what(hits[0])] > WITHIN)
            wrong += not hits or late
            after = f", found {told[_what(hits[0])]} steps after it began" if hits else ""
            print(f"{name}: {'; '.join(each.text for each in found) or 'nothing'}{after}")
    print(f"{wrong} of {options.calm + len(options.cases)} runs went wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

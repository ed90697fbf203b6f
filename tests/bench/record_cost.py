"""What recording costs a training step, and how long many steps take to record and to look at.

    python -m tests.bench.record_cost [STEPS MANY]

A step is written to the journal by the process that trains; recording reads it from there, in a
process of its own at the lowest priority. So what a step pays is the journal's line, with and
without somebody who records, and the processor time that the recorder takes from the machine.
What a command takes to look at a run is told as a multiple of a plain scan of the same files: a
process that reads them and counts their lines.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog
from orchestrator.show.pages import page_of
from orchestrator.tracking.destinations import read_sync_state
from orchestrator.tracking.mlflow import metrics
from orchestrator.tracking.mlflow.store import Store
from orchestrator.tracking.recorder import BackgroundRecorder, Recorder
from tests.journals import step, tiny_plan
from tests.records import destination_in, rows, start_tracked_run

STEP_S = 0.1
USUAL = (300, 10_000)
LIMIT = 0.01
SCAN = """
import sys
from pathlib import Path
files = (path for path in Path(sys.argv[1]).rglob("*") if path.is_file())
print(sum(path.read_bytes().count(b"\\n") for path in files))
"""


def seconds_to_append(
    storage: Path, key: str, steps: int, *, records: bool
) -> tuple[list[float], float]:
    """Seconds that each of many steps took to write down, one every tenth of a second, and the
    processor time of whoever recorded them.
    """
    writer = start_tracked_run(storage, key, steps=steps)
    if not records:
        writer.journal.paths.sync_state.unlink()
    number = writer.start_attempt(tiny_plan())
    taken: list[float] = []
    with writer.background_heartbeat(), BackgroundRecorder(writer.journal):
        with StepLog(writer.journal.path, number) as log:
            for index in range(steps):
                time.sleep(STEP_S)
                began_s = time.perf_counter()
                log.append(step(index, restored=None if index else 0))
                taken.append(time.perf_counter() - began_s)
        writer.end_attempt("finished")
        writer.end_run("succeeded")
        while records and not is_recorded(writer.journal):
            time.sleep(0.2)
    children = os.times()
    return taken, children.children_user + children.children_system


def is_recorded(journal: Journal) -> bool:
    mark = read_sync_state(journal)
    return mark is not None and mark.recorded is not None and mark.recorded.state == "succeeded"


def record_many_steps(storage: Path, steps: int) -> tuple[float, float, int]:
    """Seconds to record a run of many steps from its journal; to make its page, and its bytes."""
    writer = start_tracked_run(storage, "many", steps=steps)
    number = writer.start_attempt(tiny_plan())
    with StepLog(writer.journal.path, number) as log:
        for index in range(steps):
            log.append(step(index, restored=None if index else 0))
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    began_s = time.perf_counter()
    synced = Recorder({}).record(writer.journal)
    took_s = time.perf_counter() - began_s
    assert synced.problem is None, synced.problem
    run_id = synced.run_id
    query = "SELECT COUNT(*) FROM metrics WHERE run_uuid = ? AND key = ?"
    assert rows(storage, query, run_id, metrics.LOSS) == [(steps,)]
    began_s = time.perf_counter()
    page, *_ = page_of(writer.journal, None)
    return took_s, time.perf_counter() - began_s, len(page.encode())


def processor_s(*command: str) -> float:
    """Processor seconds of a command, the least of three."""
    taken: list[float] = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = os.times()
        used_s = after.children_user + after.children_system
        taken.append(used_s - before.children_user - before.children_system)
    return min(taken)


def print_looks(storage: Path, looks: dict[str, tuple[str, ...]]) -> None:
    """Print what commands take to look at a storage, and how many scans of its files that is."""
    scan_s = processor_s("-c", SCAN, str(storage))
    print(f"a scan of the files    {scan_s:.2f} s of processor time")
    for name, words in looks.items():
        took_s = processor_s("-m", "orchestrator", *words, "--storage", str(storage))
        print(f"{name:22} {took_s:.2f} s, {took_s / scan_s:.1f} scans")


def main(steps: int, most: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        storage = Path(folder)
        Store(destination_in(storage))  # a new database takes seconds, once
        bare, _ = seconds_to_append(storage, "bare", steps, records=False)
        beside, recorder_s = seconds_to_append(storage, "recorded", steps, records=True)
        print(f"a step written down    {describe(bare)}")
        print(f"while it is recorded   {describe(beside)}")
        added = (median(beside) - median(bare)) / STEP_S
        print(f"recording adds         {added * 100:.3f} % of a {STEP_S * 1e3:.0f} ms step")
        print(f"the recorder           {recorder_s:.1f} s of processor time for {steps} steps")
        took_s, drawn_s, size = record_many_steps(storage, most)
        print(f"{most:,} steps           recorded in {took_s:.1f} s, drawn in {drawn_s:.1f} s on a"
              f" page of {size / 1e3:.0f} kB")  # fmt: skip
        looks = ("status", "report", "doctor")
        print_looks(storage, {f"orch {name}": (name, "many") for name in looks})
    if added > LIMIT:
        print(f"recording costs more than {LIMIT * 100:.0f} % of a step", file=sys.stderr)
        return 1
    return 0


def describe(taken: list[float]) -> str:
    """Median and 95th percentile."""
    return f"{median(taken) * 1e6:6.0f} us, 95 % within {quantiles(taken, n=20)[-1] * 1e6:.0f} us"


if __name__ == "__main__":
    sys.exit(main(*([int(word) for word in sys.argv[1:]] or USUAL)))

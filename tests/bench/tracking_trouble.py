"""What a tracking server in trouble does to the steps of a run: their 95th percentile beside calm.

    python -m tests.bench.tracking_trouble [--rounds 2] [--turn 60]

A real training loop goes on throughout, and is recorded as it goes. The server before it hangs,
answers 500, is gone, and comes back, one trouble a turn; before and after each is a calm turn. A
turn counts from the first request that met it. Afterwards every step has to be recorded once.
Training has a core of its own: the server would not run on a pod's host, and here it must.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import jax

from orchestrator.journal.steps import StepLog
from orchestrator.tracking.destinations import begin
from orchestrator.tracking.mlflow import metrics
from orchestrator.tracking.recorder import BackgroundRecorder, Recorder
from orchestrator.values.model import Model
from orchestrator.values.run import Destination, Step
from orchestrator.values.spec import CheckpointOptions
from tests.clusters import eventually
from tests.journals import tiny_plan
from tests.records import duplicate_points, rows, start_tracked_run
from tests.trainer_plans import plan_of
from tests.trouble import Server, served
from trainers import llama
from trainers.contract import build
from trainers.loop import Assignment, run

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


LIMIT = 0.05
MOST_STEPS = 100_000
TRAINS_ON = 0
CALM, TROUBLES = "calm", ("hangs", "500", "refuses", "restarts")
SMALL = Model(
    name="small", layers=2, d_model=128, d_ff=384, heads=8, kv_heads=4, head_dim=16, vocab=512
)


def set_trouble(server: Server, what: str) -> None:
    """Set what the server does from now on."""
    server.trouble = what if what in ("hangs", "500") else "none"  # type: ignore[assignment]
    if what in ("refuses", "restarts"):
        server.stop()


@dataclass
class Turns:
    """Which turn a step belongs to; `asked` is called before each step."""

    server: Server
    kinds: list[str]
    length: int
    begins: list[int] = field(default_factory=list)
    _asked: int = -1
    _requests: int = 0

    def asked(self) -> bool:
        """Whether all turns are over."""
        self._asked += 1
        began = len(self.begins)
        if began and self._asked < self.begins[-1] + self.length:
            return False
        if began == len(self.kinds):
            return True
        if self._asked == 0 or (began and self._asked == self.begins[-1] + self.length):
            self._change(self.kinds[began - 1] if began else CALM, self.kinds[began])
        elif self.server.requests > self._requests:
            self._begin(self.kinds[began])
        return False

    def _change(self, was: str, now: str) -> None:
        if was == "refuses":
            self.server.start()
        set_trouble(self.server, now)
        self._requests = self.server.requests

    def _begin(self, kind: str) -> None:
        if kind == "restarts":
            threading.Thread(target=self.server.start, daemon=True).start()
        self.begins.append(self._asked + 1)


def train_in_turns(
    storage: Path, server: Server, kinds: list[str], length: int
) -> list[list[Step]]:
    """The steps of each turn of a run that is recorded on that server."""
    writer = start_tracked_run(storage, steps=MOST_STEPS)
    begin(
        writer.journal,
        Destination(tracker="mlflow", uri=server.address, experiment="orch", artifacts=None),
    )
    number = writer.start_attempt(tiny_plan())
    turns, steps = Turns(server, kinds, length), list[Step]()
    plan = replace(plan_of(SMALL, sequences=8, length=128), remat="none")
    with (
        writer.background_heartbeat(),
        BackgroundRecorder(writer.journal),
        StepLog(writer.journal.path, number) as log,
    ):

        def emit(step: Step) -> None:
            log.append(step)
            steps.append(step)

        assignment = Assignment(
            directory=storage / "trained", steps=MOST_STEPS, emit=emit, stop=turns.asked,
            checkpoint=CheckpointOptions(every=MOST_STEPS, keep=1),
        )  # fmt: skip
        os.sched_setaffinity(0, {TRAINS_ON})
        run(build(llama, plan, jax.devices()[:1]), assignment)
        writer.end_attempt("finished")
        writer.end_run("succeeded")
    eventually(lambda: Recorder({}).record(writer.journal).problem is None, 120)
    check(storage, len(steps))
    return [steps[at : at + length] for at in turns.begins]


def check(storage: Path, steps: int) -> None:
    """Each step is recorded, and once."""
    for name in (metrics.LOSS, metrics._STEP_TIME):
        query = "SELECT step FROM metrics WHERE key = ? ORDER BY step"
        assert [at for [at] in rows(storage, query, name)] == list(range(steps)), name
    assert duplicate_points(storage) == []
    print(f"{steps:,} steps recorded: 0 missing, 0 doubled")


def p95(steps: list[Step]) -> float:
    return statistics.quantiles([step.step_s for step in steps], n=20)[-1]


def main() -> int:
    """Print the ratio for each trouble; exit code 1 where the median of all is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turn", type=int, default=60)
    options = parser.parse_args()
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {TRAINS_ON})
    kinds = [*chain.from_iterable((CALM, trouble) for trouble in TROUBLES * options.rounds), CALM]
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), "nice", "-n", "19") as server,
    ):
        turns = train_in_turns(Path(folder), server, kinds, options.turn)
    ratios: dict[str, list[float]] = {kind: [] for kind in TROUBLES}
    for at in range(1, len(kinds), 2):
        around = (p95(turns[at - 1]) + p95(turns[at + 1])) / 2
        ratios[kinds[at]].append(p95(turns[at]) / around)
    calm = [*chain.from_iterable(turns[::2])]
    usual_s = statistics.median(step.step_s for step in calm)
    print(f"calm      median {usual_s * 1e3:.1f} ms, p95 {p95(calm) * 1e3:.1f} ms")
    for kind, found in ratios.items():
        print(f"{kind:<9} p95 x {', '.join(f'{ratio:.3f}' for ratio in found)}")
    all_of_them = statistics.median(chain.from_iterable(ratios.values()))
    print(f"all       p95 x {all_of_them:.3f} (limit {1 + LIMIT})")
    return int(all_of_them > 1 + LIMIT)


if __name__ == "__main__":
    sys.exit(main())

"""What orch costs compared with a bare JaxTrainer script, on the same emulated cluster.

    python -m tests.bench.launch_time [--spec FILE] [--steps N] [--rounds N]

Both start a private cluster of the slices of the spec and train the same small copy there, in
turns. Measured are the seconds from the start of the command to the end of the first step, and the
median seconds of a step. Exit code 1 above the limits.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from orchestrator import journal, reading
from orchestrator.launch.ray.local_cluster import private_cluster
from orchestrator.launch.ray.slices import emulated_hosts
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.values import codec
from orchestrator.values.plan import Plan

SPEC = Path("specs/tiny_2pod.yaml")
MOST_TO_FIRST_STEP, MOST_PER_STEP = 1.15, 1.02
LIMIT_S = 1800.0
SKIPPED = 3  # steps until caches are warm


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run: until its first step had ended, and the median step after the first few."""

    first_step_s: float
    step_s: float


def measure(began_s: float, ended_s: Sequence[float]) -> Measured:
    """From the times at which the steps had ended."""
    steps = [after - before for before, after in pairwise(ended_s[SKIPPED:])]
    return Measured(first_step_s=ended_s[0] - began_s, step_s=statistics.median(steps))


def time_orch(file: Path, folder: Path, steps: int) -> Measured:
    """`orch submit`."""
    began_s = time.time()
    options = ["--no-prove", "--steps", str(steps), "--set", f"run.storage={folder}"]
    options += ["--set", f"run.checkpoint.every={steps}"]
    command = [sys.executable, "-m", "orchestrator", "submit", str(file), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    [found] = journal.list_journals(folder)
    return measure(began_s, [timed.at_s for timed in found.steps(found.run())])


def time_bare_script(folder: Path, steps: int, plan: Plan) -> Measured:
    """The script, as a job on the same cluster."""
    began_s = time.time()
    plan_path, out = folder / "plan.json", folder / "out.json"
    plan_path.write_text(codec.to_json(plan).decode(), encoding="utf-8")
    arguments = [str(plan_path), str(steps), str(out)]
    command = shlex.join([sys.executable, "-m", "tests.bench.bare_launch", *arguments])
    with private_cluster(emulated_hosts(plan), plan.devices_per_host, command) as cluster:
        deadline = time.monotonic() + LIMIT_S
        while not (event := cluster.next_event(1.0)) or event.job != "SUCCEEDED":
            if (event and event.error) or time.monotonic() > deadline:
                raise RuntimeError(f"the bare script failed: {event}")
    return measure(began_s, json.loads(out.read_text(encoding="utf-8")))


def describe(mine: Measured, theirs: Measured) -> str:
    """One round in words."""
    return (
        f"submit to first step {mine.first_step_s:.1f} s, bare {theirs.first_step_s:.1f} s;"
        f" a step {mine.step_s:.4f} s, bare {theirs.step_s:.4f} s"
    )


def main() -> int:
    """Print both and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    loaded = reading.load(asked.spec)
    plan = rehearse(loaded, make_plan(loaded), steps=asked.steps).plan
    rounds: list[tuple[Measured, Measured]] = []
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            rounds.append(
                (
                    time_orch(asked.spec, Path(one), asked.steps),
                    time_bare_script(Path(other), asked.steps, plan),
                )
            )
            print(f"round {len(rounds)}: {describe(*rounds[-1])}", flush=True)
    first = statistics.median(a.first_step_s / b.first_step_s for a, b in rounds)
    each = statistics.median(a.step_s / b.step_s for a, b in rounds)
    print(
        f"medians: to the first step x {first:.3f} (limit {MOST_TO_FIRST_STEP}),"
        f" a step x {each:.3f} (limit {MOST_PER_STEP})"
    )
    return int(first > MOST_TO_FIRST_STEP or each > MOST_PER_STEP)


if __name__ == "__main__":
    sys.exit(main())

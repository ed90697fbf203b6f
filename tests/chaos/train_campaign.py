"""A campaign: training is killed at random steps, on several meshes, and gives the same steps.

    python -m tests.chaos.train_campaign [--kills 30] [--seed 0]

Every loss and gradient norm of every attempt is compared with an undisturbed run, to the bit.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import Step
from tests.conftest import ROOT
from tests.trainer_plans import plan_of

EVERY = 7
SHAPES: dict[str, dict[str, int]] = {
    "data 4": {"data": 4},
    "fsdp 4": {"fsdp": 4},
    "fsdp 2, tensor 2": {"fsdp": 2, "tensor": 2},
    "pods 2, sequence 2": {"pods": 2, "sequence": 2},
    "pods 2, data 2, fsdp 2": {"pods": 2, "data": 2, "fsdp": 2},
}
Seen = dict[int, tuple[float, float]]


class Violation(AssertionError):
    """A resumed run that is not the undisturbed one."""


@dataclass(frozen=True)
class TrainedPlan:
    """One plan under `folder`, run undisturbed and run with kills."""

    folder: Path
    plan: Plan
    steps: int = 400

    def begin(self, name: str) -> subprocess.Popen[str]:
        """Start an attempt at the run of that name."""
        plan = self.folder / "plan.json"
        plan.write_bytes(codec.to_json(self.plan))
        arguments = [plan, self.run(name), "--emulate", "--show", 1000]
        arguments += ["--steps", self.steps, "--every", EVERY, "--keep", 2]
        environment = {name: os.environ[name] for name in os.environ if name != "XLA_FLAGS"}
        # Compiled once: the campaign is about kills, not about the compiler.
        environment["JAX_COMPILATION_CACHE_DIR"] = str(self.folder / "compiled")
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        return subprocess.Popen(
            [sys.executable, "-m", "trainers", *map(str, arguments)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def finish(self, name: str) -> str:
        """Let an attempt run to its end; its output."""
        return output_of(self.begin(name))

    def undisturbed(self) -> Seen:
        """Every step of a run that nothing disturbs."""
        self.finish("undisturbed")
        steps = dict(losses_and_norms(self.attempts("undisturbed")))
        if sorted(steps) != list(range(self.steps)):
            raise Violation(f"the undisturbed run has {len(steps)} steps, against {self.steps}")
        return steps

    def run(self, name: str) -> Path:
        return self.folder / name

    def attempts(self, name: str) -> list[list[Step]]:
        """The steps of each attempt; a torn last line is none."""
        return [
            [codec.from_json(line, Step) for line in whole_lines(path)]
            for path in sorted(self.run(name).glob("steps-*.jsonl"))
        ]


def output_of(process: subprocess.Popen[str]) -> str:
    """The output of an attempt, which must succeed."""
    text, _ = process.communicate(timeout=300)
    if process.returncode:
        raise Violation(f"an attempt failed with exit code {process.returncode}: {text}")
    return text


def whole_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def kill(trained: TrainedPlan, name: str, chance: random.Random) -> str:
    """Begin an attempt and kill it: mostly at some step, now and then while it starts."""
    before = len(trained.attempts(name))
    with trained.begin(name) as process:
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0.5, 5))
        else:
            wait_for_steps(trained, name, process, chance)
        process.send_signal(signal.SIGKILL)
    attempt = trained.attempts(name)[before:]
    return f"killed at step {attempt[0][-1].index}" if attempt and attempt[0] else "killed early"


def wait_for_steps(
    trained: TrainedPlan, name: str, process: subprocess.Popen[str], chance: random.Random
) -> None:
    """Wait until the attempt has written some steps more, and then a few milliseconds."""
    steps, wanted = len(list(losses_and_norms(trained.attempts(name)))), chance.randint(1, 60)
    while (
        process.poll() is None
        and len(list(losses_and_norms(trained.attempts(name)))) < steps + wanted
    ):
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.03))


def losses_and_norms(attempts: list[list[Step]]) -> Iterator[tuple[int, tuple[float, float]]]:
    for attempt in attempts:
        for step in attempt:
            yield step.index, (step.loss, step.grad_norm)


def check_attempts(trained: TrainedPlan, name: str, undisturbed: Seen) -> None:
    """Every step of every attempt is the undisturbed run's, and few are lost by a kill.

    A step begins only when the save before it was begun, and the one before that was on disk.
    """
    for index, values in losses_and_norms(trained.attempts(name)):
        if values != undisturbed[index]:
            raise Violation(f"{name}: step {index} gave {values}, against {undisturbed[index]}")
    last, attempts = -1, trained.attempts(name)
    if (steps := dict(losses_and_norms(attempts))).keys() != undisturbed.keys():
        raise Violation(f"{name}: has {len(steps)} steps, against {len(undisturbed)}")
    for attempt in filter(None, attempts):
        first = attempt[0].index
        if not last // EVERY * EVERY - EVERY <= first <= last + 1:
            raise Violation(f"{name}: an attempt began at step {first} after step {last}")
        last = attempt[-1].index


def campaign(trained: TrainedPlan, kills: int, chance: random.Random) -> list[str]:
    """Kill the run so many times, and compare it with an undisturbed run; the step of each kill."""
    undisturbed = trained.undisturbed()
    kills_at = [kill(trained, "disturbed", chance) for _ in range(kills)]
    trained.finish("disturbed")
    check_attempts(trained, "disturbed", undisturbed)
    return kills_at


def main() -> int:
    """Run the campaign on every shape; exit code 1 at the first violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance, began = random.Random(asked.seed), time.monotonic()
    each = -(-asked.kills // len(SHAPES))
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            trained = TrainedPlan(Path(folder), plan_of(**dict[str, Any](shape)))
            for kills_at in campaign(trained, each, chance):
                print(f"{name:24}{kills_at}", flush=True)
    print(
        f"{each * len(SHAPES)} kills on {len(SHAPES)} meshes in {time.monotonic() - began:.0f} s:"
        " every step of every attempt was the undisturbed run's, to the bit"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the loop costs: its steps beside a bare `jax.jit` loop of the same program.

    python -m tests.bench.train_overhead [--turns 24]

The bare loop steps on one batch that lies on the device; it reads nothing and saves nothing. The
trainers' loop does all it ever does. Both take turns of ten steps in one process, and each turn is
compared with the bare turns on either side of it, because other work on the machine comes and
goes; the median of these ratios counts. What a checkpoint holds up is spread over the steps from
one to the next as a spec has it unless it says otherwise.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from orchestrator.values.model import Model
from orchestrator.values.run import Step
from orchestrator.values.spec import CheckpointOptions
from tests.trainer_plans import plan_of
from trainers import llama
from trainers.contract import Program, build, place
from trainers.data.batches import batch_source
from trainers.loop import Assignment, run

LIMIT = 0.02
EVERY = CheckpointOptions().every or 1
TURN = 10
SMALL = Model(
    name="small", layers=4, d_model=128, d_ff=384, heads=8, kv_heads=4, head_dim=16, vocab=512
)


@dataclass
class Bare:
    """A loop of nothing but the step; takes its turns when the other loop asks whether to stop."""

    program: Program
    turns_s: list[float] = field(default_factory=list)
    _asked: int = 0

    def __post_init__(self) -> None:
        batches = batch_source(self.program.plan)
        self._batch = place(self.program, lambda start, stop: batches.batch(0, range(start, stop)))
        self._state: Any = self.program.init(0)
        self.turn()
        self.turns_s.clear()

    def asked(self) -> bool:
        """Before every tenth step, ten of our own."""
        if self._asked % TURN == 0:
            self.turn()
        self._asked += 1
        return False

    def turn(self) -> None:
        """Time ten steps, after one that waits for whatever was on the device."""
        self._steps(1)
        began = time.perf_counter()
        self._steps(TURN)
        self.turns_s.append((time.perf_counter() - began) / TURN)

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._state, metrics = self.program.step(
                self._state, self._batch, *self.program.rate(0)
            )
        jax.block_until_ready(metrics)


def in_turns(program: Program, turns: int) -> tuple[list[float], list[float], float]:
    """Seconds a step of each bare turn and of each of the loop's, and of one checkpoint."""
    bare, steps = Bare(program), list[Step]()
    with tempfile.TemporaryDirectory() as folder:
        assignment = Assignment(
            directory=Path(folder),
            steps=turns * TURN + 1,
            emit=steps.append,
            checkpoint=CheckpointOptions(every=turns * TURN // 2, keep=1),
            stop=bare.asked,
        )
        run(program, assignment)
    # The last step of a turn ends when the bare turn after it has: it is left out.
    kept = [steps[turn * TURN + 1 : (turn + 1) * TURN - 1] for turn in range(turns)]
    means = [statistics.fmean(step.step_s - step.checkpoint_s for step in turn) for turn in kept]
    return bare.turns_s, means, max(step.checkpoint_s for step in steps)


def main() -> int:
    """Print the ratio and what it is made of; exit code 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=24)
    plan = replace(plan_of(SMALL, sequences=16, length=128), remat="none")
    program = build(llama, plan, jax.devices()[:1])
    bare_s, loop_s, checkpoint_s = in_turns(program, parser.parse_args().turns)
    around = [statistics.fmean(pair) for pair in pairwise(bare_s)]
    ratio = statistics.median(one / other for one, other in zip(loop_s, around, strict=True))
    step_s = statistics.median(bare_s)
    overhead = ratio - 1 + checkpoint_s / EVERY / step_s
    print(
        f"step of {plan.model.parameters / 1e6:.1f}M parameters on {jax.devices()[0].device_kind}:"
        f" bare {step_s:.4f} s, in the loop x {ratio:.4f}, checkpoint {checkpoint_s:.3f} s every"
        f" {EVERY} steps: overhead {overhead:+.2%} (limit {LIMIT:.0%})"
    )
    return int(overhead > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

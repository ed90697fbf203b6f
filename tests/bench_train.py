"""What the loop costs: its steps beside a bare `jax.jit` loop of the same program.

    python -m tests.bench_train [--rounds 6] [--steps 50]

The bare loop steps on one batch that lies on the device; it reads nothing, and saves nothing. The
trainers' loop does all it ever does: data from its thread, metering, a checkpoint on the way.
Both are timed in turns in one process. The fastest round of each counts: what slows a round down
is other work on the machine.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax

from orchestrator.stations.run import Step
from orchestrator.stations.spec import Checkpoint, Model
from tests.trainer_plans import plan_of
from trainers import llama
from trainers.contract import Program, place
from trainers.data.batches import batches_of
from trainers.loop import Assignment, run

LIMIT = 0.02
SMALL = Model(
    name="small", layers=4, d_model=128, d_ff=384, heads=8, kv_heads=4, head_dim=16, vocab=512
)


def bare_step_s(program: Program, steps: int) -> float:
    """Seconds a step of nothing but the step."""
    batches = batches_of(program.plan)
    batch = place(program, lambda start, stop: batches.batch(0, range(start, stop)))
    state, metrics = program.step(program.init(0), batch)
    jax.block_until_ready(metrics)
    began = time.perf_counter()
    for _ in range(steps):
        state, metrics = program.step(state, batch)
    jax.block_until_ready((state, metrics))
    return (time.perf_counter() - began) / steps


def loop_step_s(program: Program, steps: int) -> float:
    """Seconds a step of the trainers' loop, by its own meter, after the first."""
    measured: list[Step] = []
    with tempfile.TemporaryDirectory() as folder:
        assignment = Assignment(
            directory=Path(folder),
            steps=steps + 1,
            emit=measured.append,
            checkpoint=Checkpoint(every=steps, keep=1),
        )
        run(program, assignment)
    return sum(step.step_s for step in measured[1:]) / steps


def main() -> int:
    """Print both and their ratio; exit code 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    asked = parser.parse_args()
    plan = replace(plan_of(SMALL, sequences=16, length=128), remat="none")
    program = llama.build(plan, jax.devices()[:1])
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        rounds = [
            (bare_step_s(program, asked.steps), loop_step_s(program, asked.steps))
            for _ in range(asked.rounds)
        ]
    for bare_s, loop_s in rounds:
        print(f"bare {bare_s:.4f} s, loop {loop_s:.4f} s")
    bare_s, loop_s = (min(column) for column in zip(*rounds, strict=True))
    overhead = loop_s / bare_s - 1
    print(
        f"step of {plan.model.parameters / 1e6:.1f}M parameters on {jax.devices()[0].device_kind}:"
        f" bare {bare_s:.4f} s, loop {loop_s:.4f} s, overhead {overhead:+.1%} (limit {LIMIT:.0%})"
    )
    return int(overhead > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

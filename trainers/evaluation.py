"""The loss on held-out text, by the forward pass of a program. The state stays as it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from orchestrator.errors import SpecError
from orchestrator.types.run import Evaluation
from trainers.contract import Program, place
from trainers.data.held_out import HeldOut

State = dict[str, Any]
clock = time.perf_counter


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates after every so many steps, and after the last. `progressed` is called after each
    batch.
    """

    program: Program
    compiled: jax.stages.Compiled
    text: HeldOut
    every: int
    last: int
    progressed: Callable[[], None]

    def is_due(self, done: int) -> bool:
        return done % self.every == 0 or done == self.last

    def evaluate(self, state: State, done: int) -> Evaluation:
        """The mean loss over all predicted tokens. A batch is placed while one is on the device."""
        began, loss, tokens = clock(), 0.0, 0
        pending: dict[str, jax.Array] | None = None
        for number in range(self.text.batches):
            batch = self._batch(number)
            if pending is not None:
                loss, tokens = self._added(loss, tokens, pending)
            pending = self.compiled(state, batch)
        assert pending is not None
        loss, tokens = self._added(loss, tokens, pending)
        return Evaluation(
            steps_done=done, loss=loss / tokens, tokens=tokens, evaluation_s=clock() - began
        )

    def _batch(self, number: int) -> Any:
        return place(self.program, lambda start, stop: self.text.batch(number, range(start, stop)))

    def _added(self, loss: float, tokens: int, sums: dict[str, jax.Array]) -> tuple[float, int]:
        self.progressed()
        return loss + float(sums["loss_sum"]), tokens + int(sums["tokens"])


def compiled_evaluation(program: Program) -> jax.stages.Compiled:
    """The forward pass of a program, compiled ahead of time with the plan's options."""
    if program.evaluate is None:
        trainer = program.plan.trainer
        raise SpecError(f"run.evaluation: trainer {trainer} has no evaluation; leave it out")
    lowered = program.evaluate.lower(program.state, program.batch)
    return lowered.compile(compiler_options=program.compiler_options or None)

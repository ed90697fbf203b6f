"""The training loop, the same for every trainer. Knows JAX and the stations; no Ray, no MLflow.

Whatever kills it, the next attempt in the same directory goes on from the last whole checkpoint
with the same data, and gives the same losses to the bit.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from orchestrator.errors import SpecError
from orchestrator.types.plan import Plan
from orchestrator.types.run import Outcome, Startup, Step
from orchestrator.types.spec import CheckpointOptions
from trainers.checkpoint.checkpoints import Checkpoints
from trainers.contract import Program, build, load, place
from trainers.data.batch_source import BatchSource, batch_source
from trainers.data.prefetch import Prefetched
from trainers.data.resume import ResumedData, SequenceProgress
from trainers.meter import Meter
from trainers.multihost import StopVote, barrier
from trainers.xprof_trace import XprofTrace

State = dict[str, Any]
clock = time.perf_counter


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What is asked of one attempt at a run, on every process alike.

    directory         of the run; attempts in the same one continue it
    steps             of the whole run, those of earlier attempts among them
    emit              is handed each step, on every process, soon after it ended
    stop              asked before each step; when any process's says yes, all save and return
    profile_steps     are traced into `directory/profile`
    peak_flops_per_s  of one device in the compute type; None where unknown, and then no MFU
    folder            of the spec, where a relative path of its data begins
    verify_data       reads a token set through, and checks its sums, before the first step
    course            where the run stands in its data, if its batch may have changed on the way
    """

    directory: Path
    steps: int
    emit: Callable[[Step], None]
    checkpoint: CheckpointOptions
    stop: Callable[[], bool] = lambda: False
    profile_steps: range = range(0)
    peak_flops_per_s: float | None = None
    folder: Path = Path()
    verify_data: bool = False
    course: SequenceProgress | None = None


def train(plan: Plan, asked: Assignment) -> Outcome:
    """Run a plan with its trainer on all devices; ends with a checkpoint."""
    return run(build(load(plan.trainer), plan, jax.devices()), asked)


def run(program: Program, asked: Assignment) -> Outcome:
    """Run a program that is built; ends with a checkpoint."""
    began = _as_begun(program.plan, asked.course)
    batches = batch_source(began, asked.folder, verify=asked.verify_data)
    folder, keep = asked.directory / "checkpoints", asked.checkpoint.keep
    with (
        Checkpoints(folder, keep=keep, identity=_identity(began, batches)) as saved,
        XprofTrace(asked.directory / "profile", asked.profile_steps) as profile,
    ):
        compiled, compile_s = _compiled(program)
        barrier("every process has compiled")
        state, opening = _opened(program, saved, compile_s)
        barrier("every process has its state")
        batches = _onward(batches, program.plan, asked.course, opening.steps_done)
        todo = range(opening.steps_done, max(opening.steps_done, asked.steps))
        with Prefetched(lambda step: _placed(program, batches, step), todo) as feed:
            meter = Meter(program, asked.emit, opening, asked.peak_flops_per_s)
            loop = _Loop(compiled, feed, meter, saved, asked.checkpoint.every, profile)
            done = loop.run(state, todo, StopVote(asked.stop))
        return Outcome(steps_done=done, stopped=done < asked.steps, startup=opening)


@dataclass(frozen=True)
class _Loop:
    """The steps of one attempt."""

    compiled: jax.stages.Compiled
    feed: Prefetched[Any]
    meter: Meter
    saved: Checkpoints
    every: int
    profile: XprofTrace

    def run(self, state: State, todo: range, vote: StopVote) -> int:
        """Do the steps of `todo` until the vote carries; how many of the run are done then."""
        done = todo.start
        while done < todo.stop and not vote.carried():
            with self.profile.step(done, self.meter.flush):
                state = self._step(state, done)
            done += 1
            self.saved.check()
            if done % self.every == 0:
                self._save(state, done)
        self._save(state, done)
        self.saved.finish()
        return done

    def _step(self, state: State, index: int) -> State:
        began = clock()
        batch = self.feed.take()
        self.meter.waited(data_s=clock() - began)
        state, metrics = self.compiled(state, batch)
        self.meter.dispatched(index, metrics)
        return state

    def _save(self, state: State, done: int) -> None:
        """Save the state, once its last step is known to be finite."""
        self.meter.flush()
        if self.saved.latest != done:
            began = clock()
            self.saved.save(done, state)
            self.meter.waited(checkpoint_s=clock() - began)


def _placed(program: Program, batches: BatchSource, step: int) -> Any:
    return place(program, lambda start, stop: batches.batch(step, range(start, stop)))


def _compiled(program: Program) -> tuple[jax.stages.Compiled, float]:
    """The step, compiled ahead of time with the plan's options, and the seconds that took."""
    began = clock()
    lowered = program.step.lower(program.state, program.batch)
    options: dict[str, Any] = program.plan.compiler_options
    try:
        compiled = lowered.compile(compiler_options=options or None)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise SpecError(f"compiler_options: the compiler here refuses them: {reason}") from error
    return compiled, clock() - began


def _opened(program: Program, saved: Checkpoints, compile_s: float) -> tuple[State, Startup]:
    """The newest whole state, or a new one where none was ever saved."""
    began = clock()
    restored = saved.restore(program.state)
    state = restored.state if restored else program.init(program.plan.seed)
    jax.block_until_ready(state)
    opening = Startup(
        steps_done=restored.step if restored else 0,
        skipped=restored.skipped if restored else (),
        state_s=clock() - began,
        compile_s=compile_s,
    )
    return state, opening


def _as_begun(plan: Plan, course: SequenceProgress | None) -> Plan:
    """The plan with the batch that the run began with."""
    sequences = course.sequences if course else plan.batch.sequences
    return replace(plan, batch=replace(plan.batch, sequences=sequences))


def _onward(
    batches: BatchSource, plan: Plan, course: SequenceProgress | None, done: int
) -> BatchSource:
    """The batches of this attempt: they go on where the steps that are done have ended."""
    if course is None:
        return batches
    first, now = course.taken(done), plan.batch.sequences
    return ResumedData(source=batches, own=course.sequences, sequences=now, begin=done, first=first)


def _identity(plan: Plan, batches: BatchSource) -> dict[str, str | int]:
    """What decides which tokens a step sees: with another, a resumed run would be another run."""
    return {
        "data": batches.digest,
        "seed": plan.seed,
        "sequences": plan.batch.sequences,
        "length": plan.batch.length,
    }

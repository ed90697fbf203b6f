"""The training loop, the same for every trainer; it knows no Ray and no MLflow. If killed, the next
attempt continues from the last whole checkpoint, with the same data and the same losses to the bit.
"""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from orchestrator.errors import OrchError, ProgramFailed, SpecError
from orchestrator.processes import COMPILED, deepen_compiler_stacks
from orchestrator.values.plan import Plan
from orchestrator.values.profile import TRACES
from orchestrator.values.run import Outcome, Startup, Step
from orchestrator.values.spec import CheckpointOptions, EvaluationOptions
from trainers.checkpoint.checkpoints import Checkpoints, SaveLog, newest_step
from trainers.contract import Program, build, load, place
from trainers.data import batches as sources
from trainers.huggingface.read import new_state
from trainers.jax_private_api import key_programs_by
from trainers.meter import Evaluator, Meter, StepTraces
from trainers.multihost import StopVote, barrier, listen_on_node_address
from trainers.own_times import OwnTimes

_State = dict[str, Any]
_CHECKPOINTS = "checkpoints"  # in the directory of a run
_clock = time.perf_counter


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The work of one attempt at a run, the same on every process."""

    directory: Path  # the run's; attempts in the same one continue it
    steps: int  # of the whole run, with those of earlier attempts
    emit: Callable[[Step], None]  # receives each step, on every process, soon after it ends
    checkpoint: CheckpointOptions  # how often to save, and how many to keep; auto is the plan's
    # Called before each step; if any process returns True, all save and return.
    stop: Callable[[], bool] = lambda: False
    # Called with the steps that are done when another stage is to begin; waits for their save.
    next_stage: Callable[[int], None] = lambda _: None
    # Asked before each step: those that this process traces, into a folder of `directory/profile`.
    # `trace_kept` is then called with the folder; `program_text` is what it keeps of the program.
    traced: Callable[[], range] = lambda: range(0)
    trace_kept: Callable[[Path], object] = lambda _: None
    program_text: Callable[[jax.stages.Compiled], str] | None = None
    peak_flops_per_s: float | None = None  # of one device in the compute type; without it no MFU
    folder: Path = Path()  # the spec's, where a relative path of its data begins
    verify_data: bool = False  # read a token set through, and check its sums, before the first step
    data_progress: sources.DataProgress | None = None  # where the batch may have changed in the run
    saves: SaveLog | None = None  # which checkpoints count; None: all in `directory/checkpoints`
    evaluation: EvaluationOptions | None = None  # of held-out text; None: never
    progressed: Callable[[], None] = lambda: None  # is called after each batch of an evaluation


def train(plan: Plan, assignment: Assignment) -> Outcome:
    """Run a plan with its trainer on all devices, stage after stage; it ends with a checkpoint. A
    stage begins with the last checkpoint of the one before: if that is not whole, it goes back.
    """
    prepare_devices()
    done = newest_step(assignment.directory / _CHECKPOINTS, assignment.saves)
    while True:
        stage = plan.stage_of(done)
        last = min(stage.end_step, assignment.steps) if plan.stages else assignment.steps
        trainer = load(stage.trainer)
        try:
            program = build(trainer, stage, jax.devices())
        except OrchError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}".strip().removesuffix(":")
            raise ProgramFailed(f"program() of trainer {stage.trainer} raised {text}") from error
        outcome = run(program, replace(assignment, steps=last))
        done = outcome.steps_done
        if outcome.stopped or done >= assignment.steps:
            return outcome
        assignment.next_stage(done)


def prepare_devices() -> None:
    """Set up this process before JAX makes its devices; once more changes nothing."""
    listen_on_node_address()
    deepen_compiler_stacks(os.environ)
    share_compiled_programs()


def run(program: Program, assignment: Assignment) -> Outcome:
    """Run a program; it ends with a checkpoint."""
    plan, sequences = program.plan, program.plan.batch.sequences
    progress, begun_with = assignment.data_progress, sequences
    if progress is not None:  # the plan, or its stage, with the batch that the run began with
        begun_with = progress.original.stage_of(plan.first_step).batch.sequences
    original = replace(plan, batch=replace(plan.batch, sequences=begun_with))
    source = sources.batch_source(original, assignment.folder, verify=assignment.verify_data)
    # These decide which tokens each step sees: with others, a resumed run would be another run. So
    # is one whose evaluations are of other text.
    identity: dict[str, str | int] = {
        "data": source.digest,
        "seed": plan.seed,
        "sequences": begun_with,
        "length": plan.batch.length,
    }
    text = None
    if assignment.evaluation is not None:
        evaluation, folder = assignment.evaluation, assignment.folder
        text = sources.held_out(plan, evaluation, folder, verify=assignment.verify_data)
        identity["held_out"] = text.digest
    with (
        Checkpoints(
            assignment.directory / _CHECKPOINTS,
            keep=assignment.checkpoint.keep,
            identity=identity,
            saves=assignment.saves,
            stage=plan.stage.number if plan.stage else None,
        ) as checkpoints,
        StepTraces(
            assignment.directory / TRACES,
            assignment.traced,
            assignment.trace_kept,
            assignment.program_text,
        ) as traces,
    ):
        compiled, evaluator, compile_s = _compiled(program, assignment, text)
        barrier("every process has compiled")
        # The newest whole state, or a new one if none was ever saved.
        began = _clock()
        restored = checkpoints.restore(program.state, program.table_rows, program.layers)
        state = restored.state if restored else new_state(program, assignment.folder)
        jax.block_until_ready(state)
        begun, skipped = (restored.step, restored.skipped) if restored else (0, ())
        state_s = _clock() - began
        startup = Startup(steps_done=begun, skipped=skipped, state_s=state_s, compile_s=compile_s)
        barrier("every process has its state")
        if begun < plan.first_step:  # the checkpoint between two stages was not whole
            return Outcome(steps_done=begun, stopped=False, startup=startup)
        # Batches continue where the steps that are done end.
        seen = (begun - plan.first_step) * sequences
        if progress is not None:
            seen = progress.sequences_between(plan.first_step, begun)
        batches = sources.ResumedData(source, begun_with, sequences, begun, seen)

        def inputs(step: int) -> Any:
            batch = place(program, lambda start, stop: batches.batch(step, range(start, stop)))
            return batch, *program.rate(step)

        steps = range(begun, max(begun, assignment.steps))
        least_s = plan.forecast.step_s.lower
        with sources.Prefetched(inputs, steps) as feed, OwnTimes(least_s) as own:
            meter = Meter(program, assignment.emit, startup, assignment.peak_flops_per_s, own)
            every = assignment.checkpoint.every or plan.forecast.goodput.every_steps
            loop = _Loop(
                compiled, feed, meter, checkpoints, every, traces.of(compiled, plan), evaluator
            )
            done = loop.run(state, steps, StopVote(assignment.stop))
        return Outcome(steps_done=done, stopped=done < assignment.steps, startup=startup)


def _compiled(
    program: Program, assignment: Assignment, text: sources.HeldOut | None
) -> tuple[jax.stages.Compiled, Evaluator | None, float]:
    """Return the step and the evaluation, with the plan's options, and the seconds they took."""
    began, evaluator, lowered = _clock(), None, program.lowered()
    try:
        compiled = lowered.compile(compiler_options=program.compiler_options or None)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise SpecError(f"compiler_options: the compiler here refuses them: {reason}") from error
    if assignment.evaluation is not None and text is not None:
        every, last = assignment.evaluation.every, assignment.steps
        evaluator = Evaluator(program, text, every, last, assignment.progressed)
    return compiled, evaluator, _clock() - began


@dataclass(frozen=True)
class _Loop:
    compiled: jax.stages.Compiled
    feed: sources.Prefetched[Any]
    meter: Meter
    checkpoints: Checkpoints
    every: int
    traces: StepTraces
    evaluator: Evaluator | None

    def run(self, state: _State, steps: range, vote: StopVote) -> int:
        """Do the steps until the vote says stop; return how many steps of the run are done."""
        done = steps.start
        while done < steps.stop and not vote.says_stop():
            with self.traces.step(done, self.meter.flush):
                began = _clock()
                inputs = self.feed.take()
                data_s, began = _clock() - began, _clock()
                state, metrics = self.compiled(state, *inputs)
                # Where a device still has work, this call may wait for it.
                devices_s = _clock() - began + vote.waited_s
                self.meter.add_wait(data_s=data_s, devices_s=devices_s)
                self.meter.add_step(done, metrics)
            done += 1
            # Before a save, so that whoever continues from it has the evaluation too.
            if self.evaluator is not None and self.evaluator.is_due(done):
                self.meter.evaluate(partial(self.evaluator.evaluate, state, done))
            self.checkpoints.check()
            if done % self.every == 0:
                self._save(state, done)
        self._save(state, done)
        self.checkpoints.finish()
        return done

    def _save(self, state: _State, done: int) -> None:
        """Save the state, once its last step is known to be finite."""
        self.meter.flush()
        if self.checkpoints.latest != done:
            began = _clock()
            self.checkpoints.save(done, state)
            self.meter.add_wait(checkpoint_s=_clock() - began)


# Emulated devices: one process compiles a program, the others load it, and so do later runs

_MOST_BYTES = 1 << 30  # the programs that were used last stay


def share_compiled_programs() -> None:
    """Compile a program once where processes emulate devices on the cores of one machine; call this
    before the first. JAX keys CPU programs by process; here the machine stands for it.
    """
    folder = os.environ.get(COMPILED)
    if not folder:
        return
    # What this machine's processor can do: a program holds instructions that another may lack.
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    known = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    machine = "\n".join((platform.machine(), platform.processor(), *sorted(known)))
    if not key_programs_by(machine.encode()):
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_share_binary_between_hosts", True)

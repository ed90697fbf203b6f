"""Train on this machine's own devices, with no cluster and no tracking.

    python -m trainers SPEC RUN [--steps 200] [--emulate]

SPEC is a spec, which `orch plan` plans first, or a plan as `orch plan --json` prints it. RUN is the
directory of the run: its plan, checkpoints, traces, and one file of steps for each attempt. The
same command again continues the run.
"""

import argparse
import signal
import statistics
import subprocess
import sys
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import jax
import msgspec

from orchestrator.errors import OrchError, SpecError
from orchestrator.processes import MODULE
from orchestrator.storage.addresses import is_address
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import Outcome, Step
from orchestrator.values.spec import CheckpointOptions, EvaluationOptions
from trainers.loop import Assignment, train

_LAST = 10  # steps whose mean loss is compared with a limit


def main(argv: list[str]) -> int:
    """Train, show the steps and how it ended; return the exit code."""
    options, losses = _arguments(argv), deque[float](maxlen=_LAST)
    try:
        outcome = _train(_plan(options.spec, options.trainer), options, losses)
    except OrchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    how = "stopped on request" if outcome.stopped else "finished"
    print(f"{how} after {outcome.steps_done:,} steps, saved in {options.run / 'checkpoints'}")
    if options.loss_below is None:
        return 0
    if not losses:
        print("error: --loss-below: no step was left to do", file=sys.stderr)
        return 2
    mean, limit = statistics.fmean(losses), options.loss_below
    print(f"mean loss of the last {len(losses)} steps {mean:.3f}, against a limit of {limit}")
    return int(mean >= limit)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("spec", type=Path, metavar="SPEC", help="a spec (.yaml) or a plan (.json)")
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument("--trainer", help="in place of the one that the plan names")
    parser.add_argument("--steps", type=int, help="of the whole run; default: the plan's tokens")
    parser.add_argument("--emulate", action="store_true", help="rehearse on emulated CPU devices")
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep")
    parser.add_argument("--evaluate", type=int, metavar="N", help="steps between evaluations")
    parser.add_argument("--held-out", metavar="MANIFEST", help="the token set of evaluations")
    parser.add_argument("--held-out-sequences", type=int, default=512, help="of an evaluation")
    parser.add_argument("--show", type=int, default=10, help="steps between lines shown")
    parser.add_argument("--profile", metavar="A:B", help="trace steps A to B - 1")
    parser.add_argument("--peak-flops-per-s", type=float, help="of one device; then MFU is shown")
    parser.add_argument("--loss-below", type=float, help="exit 1 unless the last losses are")
    parser.add_argument("--verify-data", action="store_true", help="check the sums of a token set")
    return parser.parse_args(argv)


def _plan(path: Path, trainer: str | None) -> Plan:
    """The plan in a file, or that of a spec; for that trainer if one is named."""
    try:
        if path.suffix == ".json":
            text = path.read_text(encoding="utf-8")
        else:
            # Trainers import no planner, so it runs in a process of its own.
            command = [*MODULE, "orchestrator", "plan", str(path), "--json"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise SpecError(f"{path}: no plan:\n{result.stderr.strip()}")
            text = result.stdout
        plan = codec.from_json(text, Plan)
        return replace(plan, trainer=trainer) if trainer else plan
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise SpecError(f"{path}: not a plan: {error}") from error


def _train(plan: Plan, options: argparse.Namespace, losses: deque[float]) -> Outcome:
    if options.emulate:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", plan.devices)
    kind = "emulated devices" if options.emulate else jax.devices()[0].device_kind
    rehearsed = f"rehearsal of {plan.devices} x {plan.chip} on " if options.emulate else ""
    print(f"{plan.name}: {rehearsed}{len(jax.devices())} x {kind}, plan {codec.short(plan.digest)}")
    steps = options.steps or plan.total_steps
    options.run.mkdir(parents=True, exist_ok=True)
    (options.run / "plan.json").write_bytes(codec.to_json(plan))
    if options.profile is None:
        traced = range(0)
    else:
        try:
            start, stop = map(int, options.profile.split(":"))
        except ValueError:
            raise SpecError(f"--profile is {options.profile!r}, against A:B, as in 10:13") from None
        traced = range(start, stop)
    received: list[int] = []  # signals to stop; a second one kills as usual

    def note(signum: int, _: object) -> None:
        received.append(signum)
        signal.signal(signum, signal.SIG_DFL)

    for stopping in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stopping, note)
    number = len(list(options.run.glob("steps-*.jsonl")))  # of this attempt
    with (options.run / f"steps-{number:03d}.jsonl").open("x", encoding="utf-8") as record:
        assignment = Assignment(
            directory=options.run,
            steps=steps,
            emit=partial(_emit, record, losses, options.show, steps - 1),
            checkpoint=CheckpointOptions(every=options.every, keep=options.keep),
            stop=lambda: bool(received),
            traced=lambda: traced,
            peak_flops_per_s=options.peak_flops_per_s,
            folder=options.spec.parent,
            verify_data=options.verify_data,
            evaluation=_evaluation(plan, options),
        )
        return train(plan, assignment)


def _evaluation(plan: Plan, options: argparse.Namespace) -> EvaluationOptions | None:
    """When to evaluate, and on what: paths of options begin here, not at the spec."""
    if options.evaluate is None:
        return None
    if (options.held_out is None) != (plan.data.kind == "synthetic"):
        raise SpecError("--held-out: the manifest of a token set, and none for synthetic data")
    path = options.held_out
    if path and not is_address(path):
        path = str(Path(path).absolute())
    if min(options.evaluate, options.held_out_sequences) < 1:
        raise SpecError("--evaluate and --held-out-sequences: must be at least 1")
    return EvaluationOptions(
        path=path, every=options.evaluate, sequences=options.held_out_sequences
    )


def _emit(record: TextIO, losses: deque[float], every: int, last: int, step: Step) -> None:
    """Write every step as a line of the record, remember its loss, and print some steps."""
    losses.append(step.loss)
    record.write(codec.to_json(step).decode() + "\n")
    record.flush()
    if startup := step.startup:
        for skip in startup.skipped:
            print(f"warning: checkpoint {skip.step} is not whole and was set aside: {skip.why}")
        done = f"continued after {startup.steps_done:,} steps"
        print(
            f"{done if startup.steps_done else 'started'}: compiled in {startup.compile_s:.1f}"
            f" s, state ready in {startup.state_s:.1f} s, first step {step.step_s:.2f} s"
        )
    if step.index % every == 0 or step.index == last:
        rates = ""
        if step.tokens_per_s_per_chip and step.model_flops_per_s_per_chip:
            rates = (
                f"  {step.tokens_per_s_per_chip:9,.0f} tokens/s/chip"
                f"  {step.model_flops_per_s_per_chip / 1e12:8.3f} TFLOP/s/chip"
            )
        mfu = f"  MFU {step.mfu:.1%}" if step.mfu else ""
        print(
            f"step {step.index:6d}  loss {step.loss:.6f}  grad {step.grad_norm:8.4f}"
            f"  lr {step.learning_rate:.2e}  {step.step_s:7.3f} s{rates}{mfu}",
            flush=True,
        )
    if evaluation := step.own_evaluation:
        print(
            f"held-out loss {evaluation.loss:.6f}, perplexity {evaluation.perplexity:.4g},"
            f" of {evaluation.tokens:,} tokens in {evaluation.evaluation_s:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

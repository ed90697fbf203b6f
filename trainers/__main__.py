"""The command that trains on this machine's own devices, with no cluster and no tracking.

    python -m trainers SPEC RUN [--steps 200] [--emulate]

SPEC is a spec, which `orch plan` plans first, or a plan as `orch plan --json` prints it. RUN is the
directory of the run: checkpoints, traces, and the steps of each attempt as lines of a file of its
own. The same command again continues it.
"""

import argparse
import math
import signal
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import jax
import msgspec

from orchestrator.errors import OrchError, SpecError
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.run import Outcome, Startup, Step
from orchestrator.types.spec import CheckpointOptions
from trainers.loop import Assignment, train

LAST = 10  # steps whose mean loss is held against a limit


def main(argv: list[str]) -> int:
    """Train, show the steps, and say how it ended."""
    asked, losses = _arguments(argv), deque[float](maxlen=LAST)
    try:
        outcome = _train(_plan(asked.spec, asked.trainer), asked, losses)
    except OrchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    how = "stopped on request" if outcome.stopped else "finished"
    print(f"{how} after {outcome.steps_done:,} steps, saved in {asked.run / 'checkpoints'}")
    return 0 if asked.loss_below is None else _held(losses, asked.loss_below)


def _held(losses: Sequence[float], limit: float) -> int:
    """Say whether the last losses are below a limit; the exit code."""
    if not losses:
        print("error: --loss-below: no step was left to do", file=sys.stderr)
        return 2
    mean = statistics.fmean(losses)
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
    parser.add_argument("--steps", type=int, help="of the whole run; as the plan's tokens say")
    parser.add_argument("--emulate", action="store_true", help="rehearse on emulated CPU devices")
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep")
    parser.add_argument("--show", type=int, default=10, help="steps between lines shown")
    parser.add_argument("--profile", metavar="A:B", help="trace steps A to B - 1")
    parser.add_argument("--peak-flops-per-s", type=float, help="of one device; then MFU is shown")
    parser.add_argument("--loss-below", type=float, help="exit 1 unless the last losses are")
    parser.add_argument("--verify-data", action="store_true", help="check the sums of a token set")
    return parser.parse_args(argv)


def _plan(path: Path, trainer: str | None) -> Plan:
    """The plan in a file, or what `orch plan` makes of a spec; for that trainer if one is named."""
    try:
        text = path.read_text(encoding="utf-8") if path.suffix == ".json" else _planned(path)
        plan = codec.from_json(text, Plan)
        return replace(plan, trainer=trainer) if trainer else plan
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise SpecError(f"{path}: not a plan: {error}") from error


def _planned(spec: Path) -> str:
    command = [sys.executable, "-m", "orchestrator", "plan", str(spec), "--json"]
    planned = subprocess.run(command, capture_output=True, text=True, check=False)
    if planned.returncode:
        raise SpecError(f"{spec}: no plan:\n{planned.stderr.strip()}")
    return planned.stdout


def _train(plan: Plan, asked: argparse.Namespace, losses: deque[float]) -> Outcome:
    if asked.emulate:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", plan.devices)
    kind = "emulated devices" if asked.emulate else jax.devices()[0].device_kind
    rehearsed = f"rehearsal of {plan.devices} x {plan.chip} on " if asked.emulate else ""
    print(f"{plan.name}: {rehearsed}{len(jax.devices())} x {kind}, plan {codec.short(plan.digest)}")
    steps = asked.steps or math.ceil(plan.tokens / plan.batch.tokens)
    with _record(asked.run).open("x", encoding="utf-8") as record:
        assignment = Assignment(
            directory=asked.run,
            steps=steps,
            emit=_shown(record, losses, asked.show, last=steps - 1),
            checkpoint=CheckpointOptions(every=asked.every, keep=asked.keep),
            stop=_terminated(),
            profile_steps=_range(asked.profile),
            peak_flops_per_s=asked.peak_flops_per_s,
            folder=asked.spec.parent,
            verify_data=asked.verify_data,
        )
        return train(plan, assignment)


def _record(run: Path) -> Path:
    """The file for the steps of this attempt: the next number that is free."""
    run.mkdir(parents=True, exist_ok=True)
    return run / f"steps-{len(list(run.glob('steps-*.jsonl'))):03d}.jsonl"


def _shown(
    record: TextIO, losses: deque[float], every: int, *, last: int
) -> Callable[[Step], None]:
    """Keeps every step as a line of the record, the last losses, and shows some of them."""

    def emit(step: Step) -> None:
        losses.append(step.loss)
        record.write(codec.to_json(step).decode() + "\n")
        record.flush()
        if step.startup:
            _show_opening(step.startup, step.step_s)
        if step.index % every == 0 or step.index == last:
            print(_line(step), flush=True)

    return emit


def _show_opening(opening: Startup, first_step_s: float) -> None:
    for skip in opening.skipped:
        print(f"warning: checkpoint {skip.step} is not whole and was set aside: {skip.why}")
    begun = f"continued after {opening.steps_done:,} steps" if opening.steps_done else "begun"
    print(
        f"{begun}: compiled in {opening.compile_s:.1f} s, state ready in {opening.state_s:.1f} s,"
        f" first step {first_step_s:.2f} s"
    )


def _line(step: Step) -> str:
    rates = ""
    if step.tokens_per_s_per_chip and step.model_flops_per_s_per_chip:
        rates = (
            f"  {step.tokens_per_s_per_chip:9,.0f} tokens/s/chip"
            f"  {step.model_flops_per_s_per_chip / 1e12:8.3f} TFLOP/s/chip"
        )
    mfu = f"  MFU {step.mfu:.1%}" if step.mfu else ""
    return (
        f"step {step.index:6d}  loss {step.loss:.6f}  grad {step.grad_norm:8.4f}"
        f"  lr {step.learning_rate:.2e}  {step.step_s:7.3f} s{rates}{mfu}"
    )


def _terminated() -> Callable[[], bool]:
    """Whether SIGTERM or SIGINT has come; the second of either kills as usual."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return lambda: bool(received)


def _range(text: str | None) -> range:
    if text is None:
        return range(0)
    try:
        start, stop = map(int, text.split(":"))
    except ValueError:
        raise SpecError(f"--profile is {text!r}, against A:B, as in 10:13") from None
    return range(start, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

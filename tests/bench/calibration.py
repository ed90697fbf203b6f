"""Predicted against measured step time on this machine's CPU, over shapes of many kinds.

    python -m tests.bench.calibration [--steps 12] [--write] [NAME ...]

Each shape is measured as in the first rehearsal on a machine: first the operations, then the steps,
by the trainers' own loop in as many processes as the plan has. Only Ray is left out. Afterwards the
operations are measured once more: the load on a machine changes from minute to minute, and the two
predictions show by how much. The error is that of their mean. `--write` puts the table into
docs/calibrate.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.calibrate.measure import empty_profile, measured, this_machine
from orchestrator.network.rematerialization import text_of
from orchestrator.plan import calibrated, rehearsal
from orchestrator.plan.planner import make_plan
from orchestrator.ports import LOOPBACK, free_port
from orchestrator.render.formatting import percent, seconds
from orchestrator.render.score_screen import markdown
from orchestrator.render.screen_parts import Table, screen
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.spec import (
    Batch,
    Experiment,
    MeshRequest,
    Model,
    Pods,
    Precision,
    Resources,
    Spec,
)
from tests.bench.marked_block import with_block
from tests.conftest import ROOT

LIMIT = 0.25
LIMIT_S = 600
PAGE = ROOT / "docs" / "calibrate.md"
MARK = "bench-calibrate"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A small model on pods of so many emulated devices, each pod a process."""

    name: str
    width: int
    layers: int
    sequences: int
    length: int = 128
    pods: int = 1
    mesh: MeshRequest
    remat: str = "full"
    compute: str = "bf16"

    def plan(self) -> Plan:
        """Its plan on v5e slices with one host each."""
        heads = max(self.width // 16, 4)
        model = Model(
            name=self.name, layers=self.layers, d_model=self.width, d_ff=3 * self.width,
            heads=heads, kv_heads=heads // 2, head_dim=16, vocab=4 * self.width,
        )  # fmt: skip
        inside = [getattr(self.mesh, axis) or 1 for axis in ("data", "fsdp", "sequence", "tensor")]
        devices = inside[0] * inside[1] * inside[2] * inside[3]
        spec = Spec(
            name=self.name,
            experiment=Experiment(
                model=model,
                tokens=10**6,
                batch=Batch(sequences=self.sequences, length=self.length),
                precision=Precision(compute="fp32" if self.compute == "fp32" else "bf16"),
                remat=self.remat,
            ),
            resources=Resources(
                chip="v5e",
                topology={1: "1x1", 4: "2x2", 8: "2x4"}[devices],
                pods=Pods(min=self.pods, max=self.pods),
                mesh=self.mesh,
            ),
        )
        return make_plan(spec)


def mesh(data: int = 1, fsdp: int = 1, sequence: int = 1, tensor: int = 1) -> MeshRequest:
    return MeshRequest(data=data, fsdp=fsdp, sequence=sequence, tensor=tensor)


SHAPES = (
    Shape(name="one-device", width=256, layers=4, sequences=8, mesh=mesh()),
    Shape(name="one-process-fsdp", width=128, layers=4, sequences=16, mesh=mesh(fsdp=4)),
    Shape(name="one-process-wide", width=384, layers=3, sequences=8, mesh=mesh(data=4),
          remat="none"),
    Shape(name="one-process-tensor", width=256, layers=4, sequences=8, length=256,
          mesh=mesh(fsdp=2, tensor=2)),
    Shape(name="one-process-fp32", width=192, layers=4, sequences=16, compute="fp32",
          mesh=mesh(data=2, fsdp=2)),
    Shape(name="two-pods-fsdp", width=128, layers=4, sequences=32, pods=2, mesh=mesh(fsdp=4)),
    Shape(name="two-pods-tensor", width=256, layers=2, sequences=16, pods=2,
          mesh=mesh(fsdp=2, tensor=2)),
    Shape(name="two-pods-deep", width=128, layers=8, sequences=16, pods=2, remat="none",
          mesh=mesh(data=2, fsdp=2)),
    Shape(name="two-pods-long", width=128, layers=3, sequences=8, length=512, pods=2,
          mesh=mesh(fsdp=2, sequence=2)),
    Shape(name="four-pods", width=128, layers=4, sequences=16, pods=4,
          mesh=mesh(fsdp=2, tensor=2)),
)  # fmt: skip


def predicted(plan: Plan) -> Plan:
    """The plan with a profile that is measured now, for it alone."""
    empty = empty_profile(this_machine())
    return calibrated.with_profile(plan, measured(empty, calibrated.missing(plan, empty)))


def measured_steps_s(plan: Plan, steps: int) -> list[float]:
    """Seconds of each step but the first, as the trainers' loop measures them."""
    address = f"{LOOPBACK}:{free_port()}"
    environment = os.environ | rehearsal.environment(plan.devices // plan.hosts)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "plan.json"
        path.write_bytes(codec.to_json(plan))
        command = [sys.executable, "-m", "tests.bench.calibration", "--work", str(path), address]
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(number), str(steps)],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            for number in range(plan.hosts)
        ]
        try:
            for child in children:
                child.wait(LIMIT_S)
        finally:
            for child in children:
                child.kill()
        steps_s: list[float] = json.loads((Path(folder) / "steps.json").read_text())
    return steps_s[1:]


def work(path: Path, address: str, number: int, steps: int) -> None:
    """One process of a run. The first one writes the seconds of its steps into a file."""
    plan = codec.from_json(path.read_bytes(), Plan)
    os.environ["MEGASCALE_SLICE_ID"] = str(number * plan.pods // plan.hosts)
    import jax  # noqa: PLC0415  the parent does not need it

    from orchestrator.types.run import Step  # noqa: PLC0415
    from orchestrator.types.run_options import CheckpointOptions  # noqa: PLC0415
    from trainers.loop import Assignment, train  # noqa: PLC0415
    from trainers.multihost import barrier  # noqa: PLC0415

    if plan.hosts > 1:
        jax.distributed.initialize(address, plan.hosts, number)
    finished: list[Step] = []
    assignment = Assignment(
        directory=path.parent,
        steps=steps,
        emit=finished.append,
        checkpoint=CheckpointOptions(every=10 * steps, keep=1),
    )
    train(plan, assignment)
    if number == 0:
        steps_s = [step.step_s - step.checkpoint_s for step in finished]
        (path.parent / "steps.json").write_text(json.dumps(steps_s))
    if plan.hosts > 1:
        barrier("every process is done")


@dataclass(frozen=True, kw_only=True)
class Result:
    """A shape's two predictions, and the seconds of its measured steps."""

    shape: Shape
    before: Plan
    after: Plan
    steps_s: list[float]

    @property
    def measured_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def predicted_s(self) -> float:
        return statistics.mean(
            one.forecast.step_s.unoverlapped for one in (self.before, self.after)
        )

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    def row(self) -> tuple[str, ...]:
        plan, forecast = self.before, self.before.forecast
        axes = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1)
        after_s = self.after.forecast.step_s.unoverlapped
        return (
            str(self.shape.width), str(plan.model.layers),
            f"{plan.batch.sequences} x {plan.batch.length}", axes or "one device",
            str(plan.hosts), plan.precision.compute, text_of(plan.remat),
            seconds(forecast.step_s.unoverlapped), seconds(after_s), seconds(self.measured_s),
            f"{self.error * 100:+.0f} %",
        )  # fmt: skip


HEAD = ("width", "layers", "batch", "mesh", "processes", "compute", "remat", "predicted before",
        "and after", "measured", "error")  # fmt: skip


def errors(results: list[Result]) -> list[float]:
    return [abs(result.error) for result in results]


def verdict(results: list[Result]) -> str:
    """How many shapes are within the limit, and the errors."""
    within = sum(error <= LIMIT for error in errors(results))
    return (
        f"{within} of {len(results)} shapes within {percent(LIMIT)}; median error"
        f" {percent(statistics.median(errors(results)))}, worst {percent(max(errors(results)))}"
    )


def table(results: list[Result]) -> str:
    """The screen: every shape a line, and the verdict."""
    rows = [HEAD, *(result.row() for result in results)]
    return screen([Table(rows=rows, columns=">>><><<>>>>"), verdict(results)])


def page_block(results: list[Result]) -> str:
    """The same for docs/calibrate.md, with the date and the machine."""
    machine, load = this_machine(), os.getloadavg()[2]
    return (
        f"On {datetime.now(UTC):%Y-%m-%d}, on {machine.cores} cores of {machine.processor} (load"
        f" average of the last 15 minutes: {load:.1f}):\n\n"
        f"{markdown([HEAD, *(result.row() for result in results)])}\n{verdict(results)}.\n"
    )


def result_of(shape: Shape, steps: int) -> Result:
    before = predicted(shape.plan())
    steps_s = measured_steps_s(before, steps)
    result = Result(shape=shape, before=before, after=predicted(shape.plan()), steps_s=steps_s)
    print(f"{shape.name}: {result.error * 100:+.0f} %", file=sys.stderr, flush=True)
    return result


def main() -> int:
    """Print the table; exit code 1 if the error of a shape exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *(shape.name for shape in SHAPES)])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="into docs/calibrate.md")
    parser.add_argument("--work", nargs=4, metavar=("PLAN", "ADDRESS", "NUMBER", "STEPS"))
    options = parser.parse_args()
    if options.work:
        path, address, number, steps = options.work
        work(Path(path), address, int(number), int(steps))
        return 0
    if options.write and options.names:
        parser.error("--write is for a run of all shapes")
    shapes = [shape for shape in SHAPES if shape.name in options.names or not options.names]
    results = [result_of(shape, options.steps) for shape in shapes]
    print(table(results))
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_block(page, MARK, page_block(results)), encoding="utf-8")
    return int(any(error > LIMIT for error in errors(results)))


if __name__ == "__main__":
    sys.exit(main())

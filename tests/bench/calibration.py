"""Predicted against measured step time on this machine's CPU, over shapes of many kinds.

    python -m tests.bench.calibration [--steps 12] [NAME ...]

Each shape is measured as the first rehearsal on a machine is: its pieces and messages first, then
its step, by the trainers' own loop in as many processes as the plan has, joined as a rehearsal's
are. Only Ray is left out. After the steps all is measured once more: what other work on the machine
takes changes from minute to minute, and the difference shows by how much. The prediction is the
mean of both.
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
from pathlib import Path

from orchestrator.calibrate.measure import empty_profile, measured, this_machine
from orchestrator.plan import calibrated, rehearsal
from orchestrator.plan.planner import make_plan
from orchestrator.ports import LOOPBACK, free_port
from orchestrator.render.formatting import percent, seconds
from orchestrator.render.layout import Table, screen
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

LIMIT = 0.25
LIMIT_S = 600
ENDED = "every process is done"


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
        """The plan of it on v5e slices of a host each."""
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


def took(plan: Plan, steps: int) -> list[float]:
    """Seconds of each step but the first, as the trainers' loop measures them."""
    address = f"{LOOPBACK}:{free_port()}"
    environment = os.environ | rehearsal.environment(plan.devices // plan.hosts)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "plan.json"
        path.write_bytes(codec.to_json(plan))
        words = [sys.executable, "-m", "tests.bench.calibration", "--work", str(path), address]
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [*words, str(number), str(steps)],
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
        found: list[float] = json.loads((Path(folder) / "steps.json").read_text())
    return found[1:]


def work(path: Path, address: str, number: int, steps: int) -> None:
    """One process of a run; the first writes down what its steps took."""
    plan = codec.from_json(path.read_bytes(), Plan)
    os.environ["MEGASCALE_SLICE_ID"] = str(number * plan.pods // plan.hosts)
    import jax  # noqa: PLC0415  the parent needs none

    from orchestrator.types.run import Step  # noqa: PLC0415
    from orchestrator.types.spec import CheckpointOptions  # noqa: PLC0415
    from trainers.loop import Assignment, train  # noqa: PLC0415
    from trainers.multihost import barrier  # noqa: PLC0415

    if plan.hosts > 1:
        jax.distributed.initialize(address, plan.hosts, number)
    done: list[Step] = []
    asked = Assignment(
        directory=path.parent,
        steps=steps,
        emit=done.append,
        checkpoint=CheckpointOptions(every=10 * steps, keep=1),
    )
    train(plan, asked)
    if number == 0:
        taken = json.dumps([step.step_s - step.checkpoint_s for step in done])
        (path.parent / "steps.json").write_text(taken)
    if plan.hosts > 1:
        barrier(ENDED)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A shape's prediction beside what was measured."""

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
            str(plan.hosts), plan.precision.compute, plan.remat,
            seconds(forecast.step_s.unoverlapped), seconds(after_s), seconds(self.measured_s),
            f"{self.error * 100:+.0f} %",
        )  # fmt: skip


HEAD = ("width", "layers", "batch", "mesh", "processes", "compute", "remat", "predicted before",
        "and after", "measured", "error")  # fmt: skip


def table(held: list[Held]) -> str:
    """Every shape a line, and the figures that count."""
    errors = [abs(one.error) for one in held]
    within = sum(error <= LIMIT for error in errors)
    verdict = (
        f"{within} of {len(held)} shapes within {percent(LIMIT)}; median error"
        f" {percent(statistics.median(errors))}, worst {percent(max(errors))}"
    )
    return screen(
        [Table(rows=[HEAD, *(one.row() for one in held)], columns=">>><><<>>>>"), verdict]
    )


def main() -> int:
    """Print the table; exit code 1 when a shape is farther off than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *(shape.name for shape in SHAPES)])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--work", nargs=4, metavar=("PLAN", "ADDRESS", "NUMBER", "STEPS"))
    asked = parser.parse_args()
    if asked.work:
        path, address, number, steps = asked.work
        work(Path(path), address, int(number), int(steps))
        return 0
    held: list[Held] = []
    for shape in SHAPES:
        if not asked.names or shape.name in asked.names:
            before = predicted(shape.plan())
            steps_s = took(before, asked.steps)
            after = predicted(shape.plan())
            held.append(Held(shape=shape, before=before, after=after, steps_s=steps_s))
            print(f"{shape.name}: {held[-1].error * 100:+.0f} %", file=sys.stderr, flush=True)
    print(table(held))
    return int(any(abs(one.error) > LIMIT for one in held))


if __name__ == "__main__":
    sys.exit(main())

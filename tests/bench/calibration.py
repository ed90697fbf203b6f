"""Predicted against measured step time on this machine's CPU, over shapes of many kinds.

    python -m tests.bench.calibration [--write] [NAME ...]

Each shape is measured as before its first rehearsal: its step with few layers, in as many processes
as the plan has. The whole step, with all layers, is timed in the same rounds: the load on a machine
changes from second to second. Ray, and the loop's work outside the step, are left out. `--write`
puts the table into docs/calibrate.md.
"""

import argparse
import os
import statistics
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from orchestrator.formatting import percent, seconds
from orchestrator.network.rematerialization import text_of
from orchestrator.planning import calibrated
from orchestrator.planning.calibrated import ChipProfile
from orchestrator.planning.planner import make_plan
from orchestrator.run import calibrate
from orchestrator.run.calibrate import _SCHEMA, _measured_timings, _this_machine
from orchestrator.show.parts import Table, screen
from orchestrator.values.model import Model
from orchestrator.values.plan import Plan
from orchestrator.values.spec import (
    Batch,
    Experiment,
    MeshRequest,
    Pods,
    Precision,
    Resources,
    Spec,
)
from tests.bench.marked_block import markdown, with_block
from tests.conftest import ROOT

LIMIT = 0.25
WORK = "--work"
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
    Shape(name="two-pods-tensor", width=256, layers=4, sequences=16, pods=2,
          mesh=mesh(fsdp=2, tensor=2)),
    Shape(name="two-pods-deep", width=128, layers=8, sequences=16, pods=2, remat="none",
          mesh=mesh(data=2, fsdp=2)),
    Shape(name="two-pods-long", width=128, layers=3, sequences=8, length=512, pods=2,
          mesh=mesh(fsdp=2, sequence=2)),
    Shape(name="four-pods", width=128, layers=4, sequences=16, pods=4,
          mesh=mesh(fsdp=2, tensor=2)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Result:
    """A shape's plan with its prediction, and the measured seconds of its whole step."""

    shape: Shape
    plan: Plan
    measured_s: float

    @property
    def error(self) -> float:
        return self.plan.forecast.step_s.unoverlapped / self.measured_s - 1

    def row(self) -> tuple[str, ...]:
        plan = self.plan
        axes = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1)
        return (
            str(self.shape.width), str(plan.model.layers),
            f"{plan.batch.sequences} x {plan.batch.length}", axes or "one device",
            str(plan.hosts), plan.precision.compute, text_of(plan.remat),
            seconds(plan.forecast.step_s.unoverlapped), seconds(self.measured_s),
            f"{self.error * 100:+.0f} %",
        )  # fmt: skip


def result_of(shape: Shape) -> Result:
    """Measure a shape, with the whole step in the rounds of the shallow ones."""
    plan = shape.plan()
    matmul, step = _measured_timings(plan)
    shallow, whole = step.points[:-1], step.points[-1]
    profile = ChipProfile(
        schema=_SCHEMA,
        machine=_this_machine(),
        measured_on=f"{datetime.now(UTC):%Y-%m-%d}",
        timings=(matmul, replace(step, points=shallow)),
    )
    predicted = calibrated.with_profile(plan, profile)
    result = Result(shape=shape, plan=predicted, measured_s=whole[1])
    load = os.getloadavg()[0]
    print(
        f"{shape.name}: {result.error * 100:+.0f} %, load {load:.1f}", file=sys.stderr, flush=True
    )
    return result


def measure_with_whole_steps() -> None:
    """One of the processes that measure, with the plan's own depth as well."""
    from trainers import microbenchmarks  # noqa: PLC0415  the parent needs no JAX

    shallow = microbenchmarks._depths
    microbenchmarks._depths = lambda plan: (*shallow(plan), plan.model.layers)
    microbenchmarks.main()


HEAD = ("width", "layers", "batch", "mesh", "processes", "compute", "remat", "predicted",
        "measured", "error")  # fmt: skip


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
    return screen([Table(rows=rows, columns=">>><><<>>>"), verdict(results)])


def page_block(results: list[Result]) -> str:
    """The same for docs/calibrate.md, with the date and the machine."""
    machine, load = _this_machine(), os.getloadavg()[2]
    return (
        f"On {datetime.now(UTC):%Y-%m-%d}, on {machine.cores} cores of {machine.processor} (load"
        f" average of the last 15 minutes: {load:.1f}):\n\n"
        f"{markdown([HEAD, *(result.row() for result in results)])}\n{verdict(results)}.\n"
    )


def main() -> int:
    """Print the table; exit code 1 if the error of a shape exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *(shape.name for shape in SHAPES)])
    parser.add_argument("--write", action="store_true", help="into docs/calibrate.md")
    options = parser.parse_args()
    if options.write and options.names:
        parser.error("--write is for a run of all shapes")
    shapes = [shape for shape in SHAPES if shape.name in options.names or not options.names]
    calibrate._COMMAND = (sys.executable, "-m", "tests.bench.calibration", WORK)
    results = [result_of(shape) for shape in shapes]
    print(table(results))
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_block(page, MARK, page_block(results)), encoding="utf-8")
    return int(any(error > LIMIT for error in errors(results)))


if __name__ == "__main__":
    if WORK in sys.argv:
        sys.argv.remove(WORK)
        measure_with_whole_steps()
    sys.exit(main())

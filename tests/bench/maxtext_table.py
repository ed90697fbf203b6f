"""`make bench-maxtext`: our program and MaxText's for the runs of maxtext_plans.

Both are compiled by the same TPU compiler for the same topology, and read in the same way: bytes at
the peak, FLOPs, and the seconds that the compiler schedules. Equal are model, batch, sharding and
recomputation; MaxText's program has the compiler flags of its recipe, ours those of its plan. What
is found is recorded, row by row, in compiled_maxtext.json; docs/maxtext-bench.md shows it.

    python -m tests.bench.maxtext_table --python MAXTEXT/bin/python --only v6e-8
    python -m tests.bench.maxtext_table --ours    # ours again, with MaxText's of the record
    python -m tests.bench.maxtext_table --only "" # no row: write the page again
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import orchestrator as orch
from orchestrator.errors import OrchError
from orchestrator.formatting import GIB
from orchestrator.interop.maxtext.exported_run import run_of
from orchestrator.proving.compiled import ProgramSummary
from orchestrator.proving.compiler import (
    _environment,
    compile_plan,
    compile_request,
)
from orchestrator.proving.hlo.collectives import DeviceMesh
from orchestrator.proving.hlo.program import program_of
from orchestrator.proving.hlo.summary import summarize
from orchestrator.proving.platforms import platform_of
from orchestrator.reading.examples import yaml_text
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.proof import ScheduleRates
from tests.bench.maxtext_plans import ROWS, MaxTextPlan
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "maxtext-bench.md"
RECORD = Path(__file__).with_name("compiled_maxtext.json")
FAST_MEMORY = "--xla_tpu_scoped_vmem_limit_kib"  # of one fusion; recipes that set none have ours
BEYOND_HBM = "--xla_tpu_no_crash_on_oom=true"  # compile what the memory cannot hold, as ours is
# Programs agree, so that what is exported is the run that was planned, within these shares.
SAME_PEAK, SAME_FLOPS = 0.10, 0.02
BROKEN = "routed_bias_update_rate="  # MaxText 0.2.5 adds its update to an array of another shape
OUTERMOST = "data"  # MaxText's mesh axis that joins slices


@dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """A step of one device. Seconds are the compiler's estimates and the links' rates."""

    date: str
    compile_s: float
    peak_bytes: float
    flops: float
    dcn_bytes: float
    total_s: float
    products_s: float
    kernels_s: float
    copies_s: float
    other_s: float
    exposed_s: float
    unpriced: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    ours: CompiledStep
    maxtext: CompiledStep


def plan_of_run(row: MaxTextPlan) -> Plan:
    """The plan of the same run."""
    found = orch.import_maxtext([" ".join(row.words)], device=row.device, slices=row.slices)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(yaml_text([found.values]), encoding="utf-8")
        return orch.plan(path)


def step_of(summary: ProgramSummary, peak_bytes: float, compile_s: float) -> CompiledStep:
    schedule = summary.schedule
    assert schedule is not None
    return CompiledStep(
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        compile_s=compile_s,
        peak_bytes=peak_bytes,
        flops=sum(summary.flops.values()),
        dcn_bytes=sum(send.payload_bytes for send in summary.sends),
        total_s=schedule.total_s,
        products_s=schedule.products_s,
        kernels_s=schedule.kernels_s,
        copies_s=schedule.copies_s,
        other_s=schedule.other_s,
        exposed_s=schedule.exposed_s,
        unpriced=schedule.unpriced,
    )


def our_step(plan: Plan) -> CompiledStep:
    """Ours, also where the chip's memory cannot hold it."""
    request = replace(compile_request(plan), options=dict(platform_of(plan).beyond_hbm))
    result = compile_plan(request, lambda _: None)
    if result.compiled is None:
        assert result.failure
        raise OrchError(result.failure.message)
    compiled = result.compiled
    return step_of(compiled.summary, compiled.memory.peak, compiled.compile_s)


def maxtext_words(row: MaxTextPlan, plan: Plan) -> tuple[str, ...]:
    """What `orch export maxtext` says of the plan, but with the compiler flags of its recipe."""
    run = run_of(plan)
    ours = (option for option in run.options if option.startswith(FAST_MEMORY))
    named = (*ours, *row.flags, BEYOND_HBM)
    flags = {flag.partition("=")[0]: flag for flag in named}
    return (
        *(word for word in run.words if not word.startswith(BROKEN)),
        f"compile_topology={run.topology}", f"compile_topology_num_slices={run.slices}",
        f"compile_xla_flags={' '.join(flags.values())}",
    )  # fmt: skip


def maxtext_step(row: MaxTextPlan, plan: Plan, python: str) -> CompiledStep:
    """MaxText's, by a process in its own environment."""
    with TemporaryDirectory() as folder:
        program = compile_program(Path(folder), maxtext_words(row, plan), python)
    summary = maxtext_summary(program.text, program.found, row.slices, plan)
    return step_of(summary, program.found["peak_bytes"], program.found["compile_s"])


@dataclass(frozen=True)
class MaxTextProgram:
    """A compiled program's text, and what maxtext_program says of it."""

    text: str
    found: dict[str, Any]


def compile_program(folder: Path, words: tuple[str, ...], python: str) -> MaxTextProgram:
    """Compile a run of MaxText into a folder, in the environment of `python`."""
    done = subprocess.run(
        [python, "-m", "tests.bench.maxtext_program", str(folder), *words],
        cwd=ROOT, env=_environment(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise OrchError(f"MaxText did not compile:\n{done.stderr[-3000:]}")
    return read_program(folder)


def read_program(folder: Path) -> MaxTextProgram:
    text = (folder / "program.txt").read_text(encoding="utf-8")
    return MaxTextProgram(text, json.loads((folder / "program.json").read_bytes()))


def maxtext_summary(text: str, found: dict[str, Any], slices: int, plan: Plan) -> ProgramSummary:
    rates = platform_of(plan).rates(plan)
    assert rates is not None
    return summary_of(MaxTextProgram(text, found), slices, plan.model.layers, rates)


def summary_of(
    program: MaxTextProgram, slices: int, layers: int, rates: ScheduleRates
) -> ProgramSummary:
    """Read MaxText's program as ours is read. Slices are the outer part of its first axis."""
    found = program.found
    in_slice = {**found["axes"], OUTERMOST: found["axes"][OUTERMOST] // slices}
    dimensions = len(rates.torus.lengths)
    shared = rates.torus.devices_per_chip > 1
    places = tuple(
        tuple([*at[: dimensions - 1], at[-1]] if shared else at[:dimensions])
        for at in found["places"]
    )
    return summarize(
        program_of(program.text),
        DeviceMesh(in_slice),
        DeviceMesh({"pods": slices}),
        layers,
        rates,
        places,
    )


# --- the record and the page


def read_record() -> dict[str, Pair]:
    return codec.from_json(RECORD.read_bytes(), dict[str, Pair]) if RECORD.exists() else {}


def compile_row(row: MaxTextPlan, python: str, *, ours_alone: bool) -> Pair:
    plan, record = plan_of_run(row), read_record()
    recorded = record.get(str(row)) if ours_alone else None
    maxtext = recorded.maxtext if recorded else maxtext_step(row, plan, python)
    pair = Pair(ours=our_step(plan), maxtext=maxtext)
    record[str(row)] = pair
    ordered = {str(row): record[str(row)] for row in ROWS if str(row) in record}
    RECORD.write_text(codec.to_pretty_json(ordered), encoding="utf-8")
    return pair


COLUMNS: tuple[tuple[str, Callable[[CompiledStep], str]], ...] = (
    ("peak GiB", lambda step: f"{step.peak_bytes / GIB:.2f}"),
    ("TFLOP", lambda step: f"{step.flops / 1e12:,.0f}"),
    ("products s", lambda step: f"{step.products_s:.3f}"),
    ("kernels s", lambda step: f"{step.kernels_s:.3f}"),
    ("copies s", lambda step: f"{step.copies_s:.3f}"),
    ("other s", lambda step: f"{step.other_s:.3f}"),
    ("exposed s", lambda step: f"{step.exposed_s:.3f}"),
    ("DCN GB", lambda step: f"{step.dcn_bytes / 1e9:.3f}"),
    ("scheduled s", lambda step: f"{step.total_s:.3f}"),
)


def cells(pair: Pair) -> list[str]:
    """Ours / MaxText's, and what ours takes longer or needs more."""
    both = [f"{show(pair.ours)} / {show(pair.maxtext)}" for _, show in COLUMNS]
    time, memory = ratios(pair)
    return [*both, f"{time - 1:+.1%}", f"{memory - 1:+.1%}"]


def ratios(pair: Pair) -> tuple[float, float]:
    """Ours over MaxText's: scheduled seconds, bytes at the peak."""
    ours, theirs = pair.ours, pair.maxtext
    return ours.total_s / theirs.total_s, ours.peak_bytes / theirs.peak_bytes


def agrees(pair: Pair) -> bool:
    """Whether MaxText's program needs the memory and the FLOPs of ours."""
    flops = pair.ours.flops / pair.maxtext.flops
    return abs(ratios(pair)[1] - 1) <= SAME_PEAK and abs(flops - 1) <= SAME_FLOPS


def page() -> str:
    """docs/maxtext-bench.md."""
    record = read_record()
    head = ("run", "compiled", *(name for name, _ in COLUMNS), "time", "memory")
    lines = [
        "# Against MaxText's program",
        "",
        "Written by `make bench-maxtext`: MaxText 0.2.5 and the trainer `llama`, compiled for the",
        "same TPU slice by the same compiler and read in the same way. MaxText's run is the output",
        "of `orch export maxtext` for our plan, with the compiler flags of its recipe in place of",
        "ours; the fast memory of a fusion is ours where the recipe sets none. The options of our",
        "plans that hide sums of gradients would serve MaxText's program, too.",
        "",
        "Cells are ours / MaxText's, per device and step; seconds are those of the compiler's",
        "schedule ([proof.md](proof.md#the-schedule)), which promises no step time. A device is a",
        "chip, on tpu7x half of one. Every run recomputes whole layers.",
        "",
        *summary(record),
        "",
        "DeepSeek-V3 needs more memory, since the gradients of its experts are made from gathered",
        "matrices and turned copies of them, 21 GiB each for a layer. MaxText repeats more FLOPs.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(
            f"| {' | '.join([short(row), record[str(row)].ours.date, *cells(record[str(row)])])} |"
            for row in ROWS
            if str(row) in record
        ),
        "",
        "The runs as MaxText's keys:",
        "",
        *(f"- {short(row)}: `{' '.join(row.words)}`" for row in ROWS),
    ]
    return "\n".join(lines) + "\n"


def short(row: MaxTextPlan) -> str:
    return f"{row.title}, {row.device}"


def summary(record: dict[str, Pair]) -> list[str]:
    """How far the goal is: no row slower, none with more memory."""
    if not record:
        return [f"- 0 of {len(ROWS)} runs are compiled"]
    times, memories = zip(*map(ratios, record.values()), strict=True)
    unpriced = sorted({name for p in record.values() for name in p.ours.unpriced})
    theirs = sorted({name for p in record.values() for name in p.maxtext.unpriced})
    agreed = sum(map(agrees, record.values()))
    faster, smaller = (sum(ratio <= 1 for ratio in ones) for ones in (times, memories))
    kernels = f"ours {', '.join(unpriced) or 'none'}; MaxText's {', '.join(theirs) or 'none'}"
    return [
        f"- {len(record)} of {len(ROWS)} runs are compiled",
        f"- ours is not slower in {faster}, {median(times) - 1:+.1%} in the median",
        f"- ours needs no more memory in {smaller}",
        f"- {agreed} agree: the peak within {SAME_PEAK:.0%}, FLOPs within {SAME_FLOPS:.0%}",
        f"- without a price: {kernels}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="of an environment with MaxText")
    parser.add_argument("--only", metavar="TEXT", help="rows whose description contains the text")
    parser.add_argument(
        "--ours", action="store_true", help="keep MaxText's program where the record has it"
    )
    options = parser.parse_args()
    chosen = ROWS if options.only is None else [r for r in ROWS if options.only in str(r)]
    for row in chosen if options.only != "" else ():
        try:
            pair = compile_row(row, options.python, ours_alone=options.ours)
        except OrchError as error:
            print(f"{row}: {error}", file=sys.stderr, flush=True)
            continue
        print(row, *cells(pair), sep="  ", flush=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""`make bench-schedule`: what MaxText's programs are scheduled to take, and its runs took.

The TPU compiler of this project compiles MaxText 0.2.5 with the configuration and the flags of each
published run of schedule_runs. The program is priced as a proof prices ours. What is found is
recorded, row by row, in scheduled_runs.json; docs/schedule-bench.md shows it.

    python -m tests.bench.schedule_table --python MAXTEXT/bin/python --minutes 20
    python -m tests.bench.schedule_table --price    # programs that are kept, with today's prices
    python -m tests.bench.schedule_table --only ""  # no row: write the page again

A row that is recorded with the same words and compiler is not compiled again.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import FOLDER
from orchestrator.errors import OrchError
from orchestrator.evidence.score.published_runs import PUBLISHED, read
from orchestrator.evidence.score.samples import Sample, samples
from orchestrator.formatting import GIB
from orchestrator.proving.compare import _program_kinds
from orchestrator.proving.platforms import rates_of
from orchestrator.values import codec
from tests.bench.marked_block import markdown
from tests.bench.maxtext_plans import MaxTextPlan
from tests.bench.maxtext_table import (
    BEYOND_HBM,
    CompiledStep,
    MaxTextProgram,
    compile_program,
    read_program,
    step_of,
    summary_of,
)
from tests.bench.schedule_runs import ROWS
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "schedule-bench.md"
RECORD = Path(__file__).with_name("scheduled_runs.json")
LEARNED = FOLDER / "schedule.toml"
PROGRAMS = ROOT / "build" / "schedule"
COMPILER = version("libtpu")
UNSEEN = ROOT / "tests" / "unseen_runs.csv"
SAME_FLOPS = 0.04  # TOP says so too
INSIDE = 0.8  # of the runs: the interval of a schedule
TOP = """\
# The schedule against measured steps

Written by `make bench-schedule`: MaxText 0.2.5 with the configuration, the policy and the compiler
flags of published runs, compiled for their slices by this project's TPU compiler, and priced as a
proof prices our programs ([how](proof.md#the-schedule)). Today's MaxText and compiler stand for
those of each run: the published revisions do not import with this JAX. The runs are rows of
`orchestrator/catalog/published_runs.csv` and `tests/unseen_runs.csv`, which name their sources.

A program is judged if it computes the FLOPs of its run within 4 %.
"""
BOTTOM = """\
Seconds are those of one step and device, by kind. `FLOPs` are the program's over the run's by our
count, less one; `expected` and `lower` are our forecast of the same run.

## What was wrong

Errors of the first programs, as prices changed on 27 November 2026:

| run | compiler's estimates | passes by their bytes | products by their FLOPs |
|---|---:|---:|---:|
| mx_v5e_16b_1x | +20.4% | +8.4% | -1.2% |
| mx_v5e_16b_2x | +18.9% | +6.2% | -3.4% |
| mx_v5e_32b_1x | +17.0% | +12.9% | +6.2% |
| mx_v5e_64b_1x | +6.9% | +1.3% | +1.6% |
| mx_v5e_128b_full | +38.8% | +17.8% | +13.7% |
| mx_v5p_128b_1x256 | +21.1% | +8.7% | +8.5% |
| mx_v5p_128b_2x256 | +9.3% | +2.2% | +4.0% |
| mx_v5p_256b_1x1024 | +15.8% | +4.6% | +5.4% |
| mx_v5p_llama2-70b | +5.8% | +3.6% | -0.8% |
| tr_v6e_llama3.1-8b_1x_8_20250715 | +4.9% | -5.4% | +7.5% |
| tr_iron_llama3.1-70b_64_bf16_8192 | -10.2% | -12.2% | +1.8% |

- The compiler's estimates of passes, relayouts and fused products are far above its own bundles
  ([proof](proof.md#the-schedule)).
- Its estimates of large products reach 92 to 97 % of the peak on every chip. Published runs reach
  69 to 72 % on v6e and tpu7x, and 86 to 88 % on v5e and v5p.
- The backward kernel of tokamax had no formula, and the forward one a wrong count.
- Two transfers on the same links took turns: a small sum waited for the whole ring beside it, 0.4 s
  of `mx_v5e_128b_full`. Links carry packets of both.
- Other prices of transfers stay: programs with synchronous gathers and sums over one, two and three
  torus axes, on sparse cores and in rings agree with their runs. Schedules with `tensor` are 4 to
  14 % too long: today's programs gather activations for the gradients of weights, and wait for the
  rings of small products. In `tr_v6e_llama3.1-8b_1x_8_20250715` 0.4 s wait for the host.

## What it does not say

The shares of the peak of products and kernels are learned by `make score` from published runs,
among them most of these. No program with sequence or expert parallelism, of a mixture, in int8 or
fp8 is compiled here, and none with fewer tokens per device than the catalog's `schedule.toml` says.
The 512B on 512 v5p is left out: `tensor` 16 does not lie on the 8x8x8 that MaxText knows for its
slice. Waits of slices for one another are not in a schedule: runs on two slices take 2.6 to 3.3 %
longer than on one, their programs do not.
"""
# A run without data, storage and checkpoints.
_ALONE = ("run_name=x", "dataset_type=synthetic", "enable_checkpointing=false")


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """A program's schedule, and what is measured, expected and bounded of the same run.

    `input` is a digest of the words and the compiler. `priced` is the day of the prices.
    """

    input: str
    priced: str
    scheduled: CompiledStep
    measured_s: float
    expected_s: float
    lower_s: float
    flops: float  # that the run computes on a device, by our count

    @property
    def repeated(self) -> float:
        """Return the share that the program computes more than the run."""
        return self.scheduled.flops / self.flops - 1

    @property
    def error(self) -> float:
        return self.scheduled.total_s / self.measured_s - 1


def is_same_program(run: ScheduledRun) -> bool:
    """Return whether the program computes what the run computed: then its schedule is judged. Where
    memory is full, this compiler repeats products that the run cannot have repeated.
    """
    return abs(run.repeated) <= SAME_FLOPS


@cache
def measured_runs() -> dict[str, Sample]:
    """Return the published runs by their id, whether `expected` has learned from them or not."""
    usable, _ = samples([*read(PUBLISHED), *read(UNSEEN)])
    return {sample.run.id: sample for sample in usable}


@cache
def unseen_titles() -> frozenset[str]:
    return frozenset(row["id"] for row in read(UNSEEN))


def words_of(row: MaxTextPlan) -> tuple[str, ...]:
    return (
        *row.words, *_ALONE, f"compile_topology={row.device}",
        f"compile_topology_num_slices={row.slices}",
        f"compile_xla_flags={' '.join((*row.flags, BEYOND_HBM))}",
    )  # fmt: skip


def input_of(row: MaxTextPlan) -> str:
    return codec.short(codec.digest([*words_of(row), COMPILER]))


def scheduled_run(row: MaxTextPlan, program: MaxTextProgram) -> ScheduledRun:
    sample = measured_runs()[row.title]
    layout = sample.layout
    topology = catalog.topology(layout.chip, row.device)
    rates = rates_of(layout.chip, topology, layout.precision.compute)
    efficiency = catalog.efficiency(sample.run.chip, sample.run.compute)
    assert rates
    assert efficiency
    summary = summary_of(program, row.slices, layout.model.layers, rates)
    return ScheduledRun(
        input=input_of(row),
        priced=f"{datetime.now(UTC):%Y-%m-%d}",
        scheduled=step_of(summary, program.found["peak_bytes"], program.found["compile_s"]),
        measured_s=sample.measured_s,
        expected_s=sample.expected_s(efficiency),
        lower_s=sample.lower_s,
        flops=sum(float(line.inputs.get("flops", 0.0)) for line in sample.lines),
    )


# --- programs and the record


def kept_program(folder: Path, row: MaxTextPlan) -> MaxTextProgram | None:
    """Return the program that was compiled from the same input, if it is kept."""
    program = folder / f"{row.title}.{input_of(row)}"
    return read_program(program) if program.exists() else None


def new_program(folder: Path, row: MaxTextPlan, python: str) -> MaxTextProgram:
    part = folder / f"{row.title}.part"
    rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    program = compile_program(part, words_of(row), python)
    part.rename(folder / f"{row.title}.{input_of(row)}")
    return program


def read_record() -> dict[str, ScheduledRun]:
    return codec.from_json(RECORD.read_bytes(), dict[str, ScheduledRun]) if RECORD.exists() else {}


def write(row: MaxTextPlan, found: ScheduledRun) -> None:
    record = read_record() | {row.title: found}
    ordered = {row.title: record[row.title] for row in ROWS if row.title in record}
    RECORD.write_text(codec.to_pretty_json(ordered), encoding="utf-8")


# --- what is learned: the interval

HEAD = """\
# How well the compiler's schedule says what a step takes. Written by `make bench-schedule` from the
# runs of docs/schedule-bench.md: change the runs, never the numbers.
"""


def judged_of(record: dict[str, ScheduledRun]) -> dict[str, ScheduledRun]:
    return {title: run for title, run in record.items() if is_same_program(run)}


def learned(record: dict[str, ScheduledRun]) -> str:
    """Return the text of the catalog's schedule.toml."""
    judged = judged_of(record)
    kinds: set[str] = set()
    tokens = []
    for title in judged:
        run, layout = measured_runs()[title].run, measured_runs()[title].layout
        mesh = {axis: int(size) for axis, size in layout.mesh.items()}
        kinds |= _program_kinds(
            run.chip, mesh, run.model, run.compute, layout.remat, run.microbatches
        )
        tokens.append(run.sequences * run.length / int(layout.devices))
    return f"""{HEAD}
[score]
date = "{max(run.priced for run in judged.values())}"
compiler = "{COMPILER}"
spread = {spread_of(judged):.4f}
least_tokens = {min(tokens):.0f}
kinds = [{listed(sorted(kinds))}]
rows = [{listed(judged)}]
"""


def spread_of(runs: dict[str, ScheduledRun]) -> float:
    """Return the half width of the interval in which four of five runs are."""
    deviations = [abs(np.log1p(run.error)) for run in runs.values()]
    return float(np.quantile(deviations, INSIDE, method="higher"))


def listed(names: Iterable[str]) -> str:
    return "".join(f'\n    "{name}",' for name in names) + "\n"


# --- the page

COLUMNS: tuple[tuple[str, Callable[[ScheduledRun], str]], ...] = (
    ("measured s", lambda run: f"{run.measured_s:.3f}"),
    ("scheduled s", lambda run: f"{run.scheduled.total_s:.3f}"),
    ("error", lambda run: f"{run.error:+.1%}"),
    ("products", lambda run: f"{run.scheduled.products_s:.3f}"),
    ("kernels", lambda run: f"{run.scheduled.kernels_s:.3f}"),
    ("copies", lambda run: f"{run.scheduled.copies_s:.3f}"),
    ("other", lambda run: f"{run.scheduled.other_s:.3f}"),
    ("exposed", lambda run: f"{run.scheduled.exposed_s:.3f}"),
    ("expected s", lambda run: f"{run.expected_s:.3f}"),
    ("lower s", lambda run: f"{run.lower_s:.3f}"),
    ("FLOPs", lambda run: f"{run.repeated:+.1%}"),
    ("peak GiB", lambda run: f"{run.scheduled.peak_bytes / GIB:.1f}"),
)


def cells(run: ScheduledRun) -> list[str]:
    return [show(run) for _, show in COLUMNS]


def page(record: dict[str, ScheduledRun]) -> str:
    """Return docs/schedule-bench.md."""
    judged = judged_of(record)
    below = [title for title, run in judged.items() if run.scheduled.total_s < run.lower_s]
    unpriced = sorted({name for run in record.values() for name in run.scheduled.unpriced})
    scores = [("error", "median", "ninetieth percentile", "largest", "mean, with its sign")]
    for name, errors in (
        ("scheduled", [run.error for run in judged.values()]),
        (
            "`expected` of the same runs",
            [run.expected_s / run.measured_s - 1 for run in judged.values()],
        ),
    ):
        off = np.abs(errors)
        ends = f"{np.median(off):.1%}", f"{np.quantile(off, 0.9):.1%}", f"{max(off):.1%}"
        scores.append((name, *ends, f"{np.mean(errors):+.1%}"))
    unseen = [abs(run.error) for title, run in judged.items() if title in unseen_titles()]
    new = f"{len(unseen)} of them, {np.median(unseen):.1%} off in the median" if unseen else "none"
    head = ("run", *(name for name, _ in COLUMNS))
    others = [(title, *cells(run)) for title, run in record.items() if title not in judged]
    left_out = [
        "These programs repeat products that the run cannot have repeated: their memory is full,",
        "with today's MaxText and compiler. They are in no figure above.",
        "",
        markdown([head, *others]),
    ]  # fmt: skip
    return "\n".join([
        TOP,
        f"- {len(record)} of {len(ROWS)} programs are compiled, {len(judged)} of them are judged",
        f"- four of five schedules are within {np.expm1(spread_of(judged)):.0%} of the measurement",
        f"- below `lower` of its run: {', '.join(below) or 'none'}",
        f"- no constant was learned from: {new}",
        f"- without a price: {', '.join(unpriced) or 'nothing'}",
        "",
        markdown(scores),
        markdown([head, *((title, *cells(run)) for title, run in judged.items())]),
        *(left_out if others else ()),
        BOTTOM,
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="of an environment with MaxText")
    parser.add_argument("--only", metavar="TEXT", help="rows whose description contains the text")
    parser.add_argument("--minutes", type=float, default=20, help="start no row after so many")
    parser.add_argument("--price", action="store_true", help="price kept programs, compile none")
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="where they are kept")
    options = parser.parse_args()
    began, left = time.monotonic(), 0
    for row in () if options.only == "" else ROWS:
        if options.only and options.only not in f"{row.title} {row}":
            continue
        recorded = read_record().get(row.title)
        is_known = recorded is not None and recorded.input == input_of(row)
        program = kept_program(options.programs, row)
        if program is None and not is_known and not options.price:
            if time.monotonic() - began > 60 * options.minutes:
                left += 1
                continue
            try:
                program = new_program(options.programs, row, options.python)
            except OrchError as error:
                print(f"{row.title}: {error}", file=sys.stderr, flush=True)
        if program and (options.price or not is_known):
            found = scheduled_run(row, program)
            write(row, found)
            print(row.title, *cells(found), sep="  ", flush=True)
    record = read_record()
    PAGE.write_text(page(record), encoding="utf-8")
    LEARNED.write_text(learned(record), encoding="utf-8")
    if left:
        print(f"{left} rows are left: run it again to go on", file=sys.stderr)


if __name__ == "__main__":
    main()

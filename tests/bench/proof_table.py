"""`make bench-proof`: forecasts of the plans of proof_rows against the compilers.

Each row compiles the trainer's step for a real topology: a minute or two on one core. What the
compiler says is recorded, row by row, in compiled_plans.json; docs/proof-bench.md compares it with
today's forecast. The proof cache has what was compiled, so a bench that was stopped continues.

    python -m tests.bench.proof_table --only tinyllama    # rows whose description contains the text
    python -m tests.bench.proof_table --gpus              # rows of GPUs: `make setup GPU=1`
    python -m tests.bench.proof_table --only ""           # no row: write the page again
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median

from orchestrator import catalog
from orchestrator.errors import OrchError
from orchestrator.formatting import GIB
from orchestrator.planning.planner import make_plan
from orchestrator.proving.compare import _reported_bytes, _ticks_share
from orchestrator.proving.verdict import prove
from orchestrator.values import codec
from orchestrator.values.plan import Forecast, Plan
from orchestrator.values.proof import Proof
from tests.bench.marked_block import with_block
from tests.bench.proof_rows import ROWS, BenchPlan, model_named
from tests.conftest import ROOT

PAGE, GPU_PAGE = ROOT / "docs" / "proof-bench.md", ROOT / "docs" / "proof-gpus.md"
RECORD = Path(__file__).with_name("compiled_plans.json")
MEMORY_SHARE, PAYLOAD_SHARE, FLOPS_SHARE = 0.05, 0.02, 0.02
MIXTURE_MEMORY_SHARE = 0.10
SCALARS_BYTES = 4096
# Rows compiled before have attention by blocks of 512 and two backward kernels, with other FLOPs.
KERNELS_SINCE = "2026-11-22 22:35"
# Rows compiled before gather a tied table once for both of its uses.
TABLES_SINCE = "2026-11-23 06:00"


@dataclass(frozen=True, kw_only=True)
class CompiledPlan:
    """What the compiler says of a row, by whom and when. `payload_bytes`: by group of axes.

    `date` has the minute since 2026-11-22 15:00. For rows compiled before 2026-11-22, the
    peak is recorded and nothing else, to 0.01 GiB.
    """

    date: str
    versions: dict[str, str]
    peak_bytes: float
    fits: bool
    crosses_as_planned: bool
    compile_s: float
    flops: float | None = None
    payload_bytes: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row's program and its forecast. Ratios are forecast over compiled."""

    row: BenchPlan
    compiled: CompiledPlan
    plan: Plan
    payload_bytes: dict[str, float]

    @property
    def forecast(self) -> Forecast:
        return self.plan.forecast

    @property
    def memory(self) -> float:
        return self.forecast.memory_bytes_per_device / self.compiled.peak_bytes

    @property
    def flops(self) -> float | None:
        counted = sum(
            _ticks_share(self.plan, line.kind) * line.inputs.get("flops", 0.0)
            for line in self.forecast.time
        )
        return counted / self.compiled.flops if self.compiled.flops else None

    @property
    def payload(self) -> tuple[str, float] | None:
        """The group of axes that the forecast misses most, and its ratio; None where the row's tied
        table was gathered once.
        """
        model = model_named(self.row.model)
        if self.compiled.payload_bytes is None:
            return None
        if model.tied and self.compiled.date < TABLES_SINCE:
            return None
        reported = _reported_bytes(model)
        missed = {
            name: self.payload_bytes.get(name, 0.0) - size
            for name, size in self.compiled.payload_bytes.items()
        }
        ratios = {
            name: 1 + by * (abs(by) > reported) / self.compiled.payload_bytes[name]
            for name, by in missed.items()
        }
        return max(ratios.items(), key=lambda pair: abs(pair[1] - 1))

    @property
    def memory_share(self) -> float:
        """How far the forecast of memory may be off."""
        return MIXTURE_MEMORY_SHARE if model_named(self.row.model).moe else MEMORY_SHARE

    @property
    def is_former(self) -> bool:
        """Whether attention was another when the row was compiled."""
        return self.compiled.date < KERNELS_SINCE

    @property
    def agrees(self) -> bool:
        """Within the goals, of what is recorded."""
        return (
            abs(self.memory - 1) <= self.memory_share
            and (self.flops is None or abs(self.flops - 1) <= FLOPS_SHARE)
            and (self.payload is None or abs(self.payload[1] - 1) <= PAYLOAD_SHARE)
        )


# --- the record


def compiled_plan(proof: Proof, age_s: float | None) -> CompiledPlan:
    """What is recorded of a proof."""
    payload: dict[str, float] = defaultdict(float)
    for collective in proof.collectives:
        payload[group(collective.link, collective.axes)] += collective.bytes_per_step
    return CompiledPlan(
        date=f"{datetime.fromtimestamp(time.time() - (age_s or 0), UTC):%Y-%m-%d %H:%M}",
        versions=proof.versions,
        peak_bytes=proof.peak_hbm_bytes_per_device,
        fits=proof.fits,
        flops=proof.flops_per_device,
        payload_bytes={name: size for name, size in payload.items() if size > SCALARS_BYTES},
        crosses_as_planned=proof.crosses_as_planned,
        compile_s=proof.compile_s,
    )


def group(link: str, axes: Iterable[str]) -> str:
    return f"{link} {'x'.join(axes)}"


def read_record() -> dict[str, CompiledPlan]:
    """Row → what was compiled."""
    return codec.from_json(RECORD.read_bytes(), dict[str, CompiledPlan]) if RECORD.exists() else {}


def compile_row(row: BenchPlan, hlo: Path | None) -> None:
    """Compile a row, or find it in the cache, and record what the compiler says."""
    spec = row.spec()
    proven = prove(spec, make_plan(spec), hlo=hlo)
    record = {**read_record(), str(row): compiled_plan(proven.proof, proven.age_s)}
    ordered = {str(row): record[str(row)] for row in ROWS if str(row) in record}
    RECORD.write_text(codec.to_pretty_json(ordered), encoding="utf-8")


def results() -> list[Result]:
    """The recorded rows with the forecasts of today."""
    record = read_record()
    return [result_of(row, record[str(row)]) for row in ROWS if str(row) in record]


@cache
def planned(row: BenchPlan) -> Plan:
    return make_plan(row.spec())


def result_of(row: BenchPlan, compiled: CompiledPlan) -> Result:
    """Return a row's forecast with its program."""
    plan = planned(row)
    payload: dict[str, float] = defaultdict(float)
    for line in plan.forecast.time:
        if one := line.collective:
            # An axis of one device leaves no trace in a program.
            axes = (axis for axis in one.axes if plan.mesh[axis] > 1)
            payload[group(one.link, axes)] += _ticks_share(plan, line.kind) * one.bytes_per_step
    return Result(row=row, compiled=compiled, plan=plan, payload_bytes=payload)


# --- the page

HEAD = ("plan", "compiled", "peak GiB", "forecast", "ratio", "FLOPs", "payload", "s")


def page() -> str:
    """docs/proof-bench.md."""
    from tests.bench import proof_serving as serving  # noqa: PLC0415  it records as this file does

    rows = results()
    versions = sorted({", ".join(map(" ".join, r.compiled.versions.items())) for r in rows})
    lines = [
        "# Forecast against compiler",
        "",
        "Written by `make bench-proof`. `python -m tests.bench.proof_table --only TEXT` compiles",
        "the rows that contain a text.",
        "",
        *(f"- compiled with {version}" for version in versions),
        "",
        "Peaks are those of one device. Ratios are forecast over compiled; the payload's ratio is",
        "for the group of axes that the forecast misses most. A mesh is data.fsdp.sequence.tensor",
        "within a pod, for mixtures data.expert.fsdp.sequence.tensor, and .fsdp_dcn where pods",
        "share weights. After a slash come the stages of a pipeline over pods and in each pod,",
        "and the chunks of a stage. Pods of GPUs are NVLink domains. The last column is the",
        "seconds to compile, on a machine with other work.",
        "",
        "Each row was compiled with the trainer of its date, and is compared with the forecast of",
        f"today. Before {KERNELS_SINCE} attention had other kernels, so FLOPs of those rows are",
        f"off by up to 3 %. Before {TABLES_SINCE} a tied table was gathered once for both of its",
        "uses; such rows show no payload. Rows of 2026-11-20 record only the peak.",
        "",
        *(f"- {line}" for line in summary(rows)),
        "",
        "The rows of GPUs are in [their own table](proof-gpus.md#the-bench).",
        "",
        *table([row for row in rows if not is_of_gpus(row.row)]),
        "",
        "## Serving",
        "",
        "Prefill and decoding of [serving specs](serving.md#proof), with tokens of a prompt and of",
        "an answer and requests in work. Written by `python -m tests.bench.proof_serving`.",
        "",
        *serving.table(),
    ]
    return "\n".join(lines) + "\n"


def table(rows: list[Result]) -> list[str]:
    written = [HEAD, ("---",) * len(HEAD), *map(cells, rows)]
    return [f"| {' | '.join(texts)} |" for texts in written]


def write_pages() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    gpus = "\n".join(table([row for row in results() if is_of_gpus(row.row)])) + "\n"
    of_gpus = with_block(GPU_PAGE.read_text(encoding="utf-8"), "proof bench", gpus)
    GPU_PAGE.write_text(of_gpus, encoding="utf-8")


def summary(rows: list[Result]) -> list[str]:
    """How many rows meet the goals."""
    several = [row for row in rows if row.row.pods > 1]
    pure = sum(row.compiled.crosses_as_planned for row in several)
    misses = [abs(row.memory - 1) for row in rows]
    agree = sum(row.agrees for row in rows)
    goals = (
        f"memory {MEMORY_SHARE:.0%}, mixtures {MIXTURE_MEMORY_SHARE:.0%},"
        f" payload {PAYLOAD_SHARE:.0%} on every group of axes"
    )
    missing = len(ROWS) - len(rows)
    former = [str(row.row) for row in rows if not row.agrees and row.is_former]
    return [
        f"{agree} of {len(rows)} rows agree ({goals}, FLOPs {FLOPS_SHARE:.0%})",
        *([f"disagree, with other attention kernels: {'; '.join(former)}"] if former else []),
        f"memory is off by {median(misses):.1%} in the median and by {max(misses):.1%} at most",
        f"only planned data crosses pods in {pure} of {len(several)} plans of several pods",
        f"{missing} of the {len(ROWS)} plans of the bench are still to be compiled",
        *([gpu_summary(gpus)] if (gpus := [row for row in rows if is_of_gpus(row.row)]) else []),
    ]


def is_of_gpus(row: BenchPlan) -> bool:
    return catalog.chip(row.chip).xla_gpu is not None


def gpu_summary(rows: list[Result]) -> str:
    memory = [abs(row.memory - 1) for row in rows]
    flops = [abs(row.flops - 1) for row in rows if row.flops]
    payload = [abs(row.payload[1] - 1) for row in rows if row.payload]
    return (
        f"{len(rows)} of the rows are of GPUs: memory off by {median(memory):.1%} in the median and"
        f" {max(memory):.1%} at most, FLOPs by {max(flops):.2%} and payload by {max(payload):.2%}"
        " at most"
    )


def cells(result: Result) -> tuple[str, ...]:
    """A row of the table."""
    name, ratio = result.payload or ("", None)
    return (
        f"{result.row}{'' if result.compiled.fits else ' (does not fit)'}",
        result.compiled.date,
        f"{result.compiled.peak_bytes / GIB:.2f}",
        f"{result.forecast.memory_bytes_per_device / GIB:.2f}",
        f"{result.memory:.3f}",
        f"{result.flops:.4f}" if result.flops else "",
        f"{ratio:.4f} {name}" if ratio else "",
        f"{result.compiled.compile_s:.0f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="TEXT", help="rows whose description contains the text")
    parser.add_argument("--gpus", action="store_true", help="only rows of GPUs")
    parser.add_argument("--hlo", type=Path, help="compile again; a folder for the programs' text")
    options = parser.parse_args()
    if options.hlo:
        options.hlo.mkdir(parents=True, exist_ok=True)
    chosen = ROWS if options.only is None else [r for r in ROWS if options.only in str(r)]
    chosen = [row for row in chosen if not options.gpus or is_of_gpus(row)]
    for row in chosen if options.only != "" else ():
        try:
            compile_row(row, options.hlo)
        except OrchError as error:
            print(f"{row}: {error}", file=sys.stderr, flush=True)
            continue
        print(*cells(result_of(row, read_record()[str(row)])), sep="  ", flush=True)
    write_pages()
    print(*summary(results()), sep="\n")


if __name__ == "__main__":
    main()

"""The rows of serving of `make bench-proof`: prefill and decoding compiled, against the ledger.

python -m tests.bench.proof_serving --only h100    # rows whose description contains the text
"""

import argparse
import sys
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.formatting import GIB
from orchestrator.proving.verdict import prove_program
from orchestrator.run.serving import plan_serving
from orchestrator.serving.programs import served_programs
from orchestrator.values import codec
from orchestrator.values.program import ServedProgram
from tests.bench.proof_table import CompiledPlan, compiled_plan, group, write_pages
from tests.conftest import ROOT

RECORD = Path(__file__).with_name("compiled_serving.json")
# model, chip, topology, types of weights and cache, tokens of prompt and answer, requests in work
ROWS = (
    "llama3-70b v5e 4x4 int8 int8 8192 512 32",
    "qwen3-32b v6e 2x4 bf16 bf16 2048 1024 128",
    "deepseek-v3 tpu7x 2x2x4 fp8 bf16 4096 1024 80",
    "mixtral-8x7b v6e 2x4 bf16 bf16 2048 512 128",
    "gemma3-27b v6e 2x4 bf16 bf16 8192 1024 64",
    "llama3-8b v5p 2x2x1 bf16 fp8 1024 1024 256",
    "qwen3-235b-a22b tpu7x 2x2x2 fp8 fp8 4096 1024 128",
    "llama3-8b v5e 2x2 bf16 bf16 1024 256 32",
    "llama3-70b h100 8 fp8 fp8 8192 512 32",
    "qwen3-32b h100 2 bf16 bf16 2048 1024 64",
    "mixtral-8x7b b200 2 bf16 bf16 2048 512 128",
    "deepseek-v3 h200 8 fp8 bf16 4096 1024 16",
)


def programs(row: str) -> tuple[ServedProgram, ServedProgram]:
    model, chip, topology, weights, cache, prompt, output, concurrency = row.split()
    changes = {
        "serve.model": model, "serve.weights": weights, "serve.kv_cache": cache,
        "serve.prompt": prompt, "serve.output": output, "serve.concurrency": concurrency,
        "resources.chip": chip, "resources.topology": topology,
    }  # fmt: skip
    spec = ROOT / "specs" / "serve_llama3_70b_v5e.yaml"
    return served_programs(plan_serving(spec, [f"{key}={value}" for key, value in changes.items()]))


def record() -> dict[str, CompiledPlan]:
    return codec.from_json(RECORD.read_bytes(), dict[str, CompiledPlan]) if RECORD.exists() else {}


def compile_row(row: str) -> None:
    for program in programs(row):
        name = f"{row} {program.phase}"
        proven = prove_program(program)
        known = record() | {name: compiled_plan(proven.proof, proven.age_s)}
        RECORD.write_text(codec.to_pretty_json(dict(sorted(known.items()))), encoding="utf-8")
        forecast = program.forecast.memory_bytes_per_device / proven.proof.peak_hbm_bytes_per_device
        print(name, f"{forecast:.3f}", proven.proof.disagreements, flush=True)


def table() -> list[str]:
    """Rows of the page: what each program takes, and the ledger over it."""
    head = "served", "program", "compiled", "peak GiB", "forecast", "ratio", "FLOPs", "payload", "s"
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    known = record()
    for row in ROWS:
        for program in programs(row):
            compiled = known.get(f"{row} {program.phase}")
            if compiled is None or not compiled.flops:
                continue
            forecast = program.forecast
            flops = sum(line.inputs.get("flops", 0.0) for line in forecast.time) / compiled.flops
            sent = {
                group(line.collective.link, line.collective.axes): 0.0
                for line in forecast.time
                if line.collective
            }
            for line in forecast.time:
                if line.collective:
                    name = group(line.collective.link, line.collective.axes)
                    sent[name] += line.collective.bytes_per_step
            ratios = {
                name: sent.get(name, 0.0) / size
                for name, size in (compiled.payload_bytes or {}).items()
            }
            worst = max(ratios.items(), key=lambda pair: abs(pair[1] - 1), default=("", 1.0))
            ours = forecast.memory_bytes_per_device
            cells = (
                row, program.phase, compiled.date, f"{compiled.peak_bytes / GIB:.2f}",
                f"{ours / GIB:.2f}", f"{ours / compiled.peak_bytes:.3f}", f"{flops:.4f}",
                f"{worst[1]:.4f} {worst[0]}".strip(), f"{compiled.compile_s:.0f}",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    for row in ROWS:
        if parser.parse_args().only in row:
            try:
                compile_row(row)
            except OrchError as error:
                print(f"{row}: {error}", file=sys.stderr, flush=True)
    write_pages()


if __name__ == "__main__":
    main()

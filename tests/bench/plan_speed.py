"""`make bench`: how fast the search prices candidates, and what `orch plan` costs a person.

Seconds are printed for a feeling; what counts are the ratios, both sides measured in this run.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from orchestrator.planning.search import (
    SearchRequest,
    layout_of_choice,
    search,
    search_request,
)
from orchestrator.planning.time import step_time, time_lines
from tests.example_specs import chosen, spec_of

ROOT = Path(__file__).parents[2]
IMPORTS = [sys.executable, "-c", "import numpy, yaml, jsonschema"]
PLAN = [str(Path(sys.executable).with_name("orch")), "plan", "specs/llama3_70b_4pod.yaml"]
ROUNDS = 7

CASES = {
    "70B, 4 pods of 16x20x28": spec_of(),
    "70B, 1 pod of 16x16x16": spec_of(topology="16x16x16", pods=1),
    "405B, 8 pods of 16x20x28": spec_of("llama3-405b", sequences=2048, pods=8),
    "8B, 18,432 tpu7x devices": spec_of(
        "llama3-8b", sequences=2048, chip="tpu7x", topology="16x24x24", pods=1
    ),
}


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def processor_seconds(command: list[str]) -> float:
    """Seconds that a command computes, which other work on the machine changes little."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime


def seconds_of_imports_and_plan(rounds: int = ROUNDS) -> tuple[float, float]:
    """Least processor seconds of the bare imports and of `orch plan`, taken in turns."""
    pairs = [(processor_seconds(IMPORTS), processor_seconds(PLAN)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def price_one_by_one(ask: SearchRequest, most: int) -> int:
    """The baseline: a ledger for each candidate, as an exhaustive planner would write it."""
    candidates = search(ask).candidates
    for row in range(min(most, len(candidates))):
        layout = layout_of_choice(ask, candidates.choice(row))
        step_time(layout, time_lines(layout))
    return min(most, len(candidates))


def main() -> None:
    print(f"{'search':28} {'enumerated':>11} {'priced':>8} {'seconds':>8} {'priced/s':>10}")
    for name, spec in CASES.items():
        ask = search_request(spec)
        found = search(ask)
        best = min(seconds(partial(chosen, ask)) for _ in range(ROUNDS))
        priced = len(found.candidates)
        print(f"{name:28} {found.enumerated:11,} {priced:8,} {best:8.3f} {priced / best:10,.0f}")
    ask = search_request(spec_of())
    count = price_one_by_one(ask, 300)
    alone = count / seconds(partial(price_one_by_one, ask, 300))
    print(f"one candidate at a time: {alone:,.0f} priced/s")
    bare, plan = seconds_of_imports_and_plan()
    ratio = f"ratio {plan / bare:.2f} (at most 3)"
    print(f"processor seconds: orch plan {plan:.3f}, bare imports {bare:.3f}: {ratio}")


if __name__ == "__main__":
    main()

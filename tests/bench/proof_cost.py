"""What `orch prove` costs compared with compiling the same step and reading nothing of it.

    python -m tests.bench.proof_cost [--spec FILE] [--rounds N]

Both compile in a process of their own, in turns; no proof is cached. The processor's seconds count,
which other work on the machine changes little. Exit code 1 above the limit.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator import reading
from orchestrator.planning.planner import make_plan
from orchestrator.proving.compiler import _environment, compile_request
from orchestrator.values import codec

SPEC = Path("specs/llama3_70b_4pod.yaml")
BARE = [sys.executable, "-m", "tests.bench.bare_compile"]
PROVE = [sys.executable, "-m", "orchestrator", "prove"]
LIMIT = 1.3


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a command and all that it starts."""

    processor_s: float
    wall_s: float

    def __str__(self) -> str:
        return f"{self.processor_s:.1f} s of the processor in {self.wall_s:.1f} s"


def cost(command: list[str], given: bytes, settings: Mapping[str, str]) -> Cost:
    """Run a command to its end, with its standard input."""
    began_s = time.perf_counter()
    with tempfile.TemporaryFile() as stdin:
        stdin.write(given)
        stdin.seek(0)
        process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, env=settings)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Cost(processor_s=usage.ru_utime + usage.ru_stime, wall_s=time.perf_counter() - began_s)


def main() -> int:
    """Print both costs of each round, and the least ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    request = codec.to_json(compile_request(make_plan(reading.load(options.spec))))
    ratios = []
    for number in range(options.rounds):
        bare = cost(BARE, request, _environment(os.environ))
        with tempfile.TemporaryDirectory() as empty:
            settings = os.environ | {"XDG_CACHE_HOME": empty}
            proof = cost([*PROVE, str(options.spec)], b"", settings)
        ratios.append(proof.processor_s / bare.processor_s)
        print(f"round {number + 1}: orch prove {proof}, the bare compile {bare}", flush=True)
    print(f"orch prove takes {min(ratios):.3f} times the bare compile (at most {LIMIT})")
    return int(min(ratios) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

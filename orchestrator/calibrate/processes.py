"""Runs the processes that measure. They never outlive the call that started them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator.errors import MeasurementFailed
from orchestrator.plan import rehearsal
from orchestrator.ports import LOOPBACK, free_port
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmark, BenchmarkRequest, BenchmarkResult

COMMAND = (sys.executable, "-m", "trainers.microbenchmarks")
REQUEST, RESULT = "request.json", "result.json"
LIMIT_S = 600.0
LAST_LINES = 5
# A shell's settings for real runs, which would change the measurement.
IGNORED_PREFIXES = ("JAX_", "LIBTPU_", "MEGASCALE_", "RAY_", "XLA_")


def run(
    benchmarks: tuple[Benchmark, ...], *, processes: int, devices: int | None
) -> BenchmarkResult:
    """Time the benchmarks in so many processes.

    Together they emulate `devices` CPU devices; None takes the machine's own devices.
    """
    address = f"{LOOPBACK}:{free_port()}" if processes > 1 else ""
    request = BenchmarkRequest(benchmarks=benchmarks, processes=processes, address=address)
    environment = clean_environment(devices and devices // processes)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / REQUEST).write_bytes(codec.to_json(request))
        first, *_ = [
            stack.enter_context(process(folder, number, environment)) for number in range(processes)
        ]
        try:
            status = first.wait(LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise MeasurementFailed(
                f"this machine was not measured within {LIMIT_S / 60:.0f} minutes"
            ) from error
        if status:
            raise MeasurementFailed(f"this machine cannot be measured:\n{last_lines(folder)}")
        return codec.from_json((folder / RESULT).read_bytes(), BenchmarkResult)


@contextmanager
def process(
    folder: Path, number: int, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """One process, with what it prints in the folder; it is killed at the end."""
    with (folder / f"{number}.log").open("wb") as log:
        started = subprocess.Popen(
            [*COMMAND, str(folder / REQUEST), str(folder / RESULT), str(number)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait()


def clean_environment(emulated: int | None) -> dict[str, str]:
    own = {key: text for key, text in os.environ.items() if not key.startswith(IGNORED_PREFIXES)}
    return own if emulated is None else own | rehearsal.environment(emulated)


def last_lines(folder: Path) -> str:
    """The end of what the first process printed."""
    text = (folder / "0.log").read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-LAST_LINES:])

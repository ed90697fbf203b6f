"""Runs the processes that measure. They never outlive the call that started them."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

from orchestrator.errors import MeasurementFailed
from orchestrator.plan import rehearsal
from orchestrator.ports import LOOPBACK, free_port
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmark, BenchmarkReply, BenchmarkRequest

COMMAND = (sys.executable, "-m", "trainers.microbenchmarks")
LIMIT_S = 600.0
LAST_LINES = 5
# A shell's settings for real runs, which would change the measurement.
IGNORED_PREFIXES = ("JAX_", "LIBTPU_", "MEGASCALE_", "RAY_", "XLA_")
Process = subprocess.Popen[bytes]


def run(
    benchmarks: tuple[Benchmark, ...], *, processes: int, devices: int | None
) -> Iterator[BenchmarkReply]:
    """Time the benchmarks in so many processes; yield the replies of the first as they come.

    Together they emulate `devices` CPU devices; None takes the machine's own devices.
    """
    address = f"{LOOPBACK}:{free_port()}" if processes > 1 else ""
    environment = clean_environment(os.environ, devices and devices // processes)
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(processes)]
        started = [stack.enter_context(process(environment, log)) for log in logs]
        deadline = threading.Timer(LIMIT_S, lambda: [kill(one) for one in started])
        stack.callback(deadline.cancel)
        deadline.daemon = True
        deadline.start()
        for number, one in enumerate(started):
            send(one, BenchmarkRequest(
                benchmarks=benchmarks, process=number, processes=processes, address=address
            ))  # fmt: skip
        first = started[0]
        assert first.stdout is not None
        for line in first.stdout:
            reply = codec.from_json(line, BenchmarkReply)
            if reply.error:
                raise MeasurementFailed(f"this machine cannot be measured: {reply.error}")
            yield reply
        if first.wait():
            raise MeasurementFailed(last_lines(first, logs[0]))


@contextmanager
def process(environment: dict[str, str], log: IO[bytes]) -> Iterator[Process]:
    """One process in a session of its own; it is killed with its children at the end."""
    started = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        kill(started)
        started.wait()
        for stream in (started.stdin, started.stdout):
            with suppress(BrokenPipeError):
                assert stream is not None
                stream.close()


def kill(one: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(one.pid, signal.SIGKILL)


def send(one: Process, request: BenchmarkRequest) -> None:
    assert one.stdin is not None
    with suppress(BrokenPipeError):  # it has died; its exit code is read later
        one.stdin.write(codec.to_json(request) + b"\n")
        one.stdin.flush()


def clean_environment(inherited: Mapping[str, str], emulated: int | None) -> dict[str, str]:
    kept = {key: value for key, value in inherited.items() if not key.startswith(IGNORED_PREFIXES)}
    return kept if emulated is None else kept | rehearsal.environment(emulated)


def last_lines(first: Process, log: IO[bytes]) -> str:
    """How the process ended, and the end of its log."""
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
    head = f"the process that measures ended with exit code {first.returncode}"
    return "\n".join([head, *lines])

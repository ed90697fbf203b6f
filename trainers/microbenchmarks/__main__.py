"""One of the processes that measure a machine.

    python -m trainers.microbenchmarks < request.json

It reads a BenchmarkRequest and writes lines of BenchmarkReply.
"""

import os
import sys
import threading
from collections.abc import Callable

import jax

from orchestrator.types import codec
from orchestrator.types.chip_profile import BenchmarkReply, BenchmarkRequest, Devices
from trainers.microbenchmarks.timing import timings
from trainers.multihost import meet

Write = Callable[[BenchmarkReply], None]


def main() -> None:
    """Answer the request. Replies have a descriptor of their own: libraries print to stdout."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(reply: BenchmarkReply) -> None:
        replies.write(codec.to_json(reply) + b"\n")

    status = 1
    try:
        request = codec.from_json(sys.stdin.buffer.readline(), BenchmarkRequest)
        threading.Thread(target=exit_with_parent, daemon=True).start()
        answer(request, write if request.process == 0 else lambda _: None)
        status = 0
    except Exception as error:  # noqa: BLE001  the parent reports any error
        write(BenchmarkReply(error=f"{type(error).__name__}: {error}"))
    finally:
        leave(status)


def answer(request: BenchmarkRequest, write: Write) -> None:
    """Report the devices, then time all benchmarks, in step with the other processes."""
    if request.processes > 1:
        jax.distributed.initialize(
            request.address,
            request.processes,
            request.process,
            coordinator_bind_address=request.address,
        )
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    platform, kind = devices[0].platform, devices[0].device_kind
    write(BenchmarkReply(devices=Devices(platform=platform, kind=kind, count=len(devices))))
    for timing in timings(
        request.benchmarks, devices, lambda one: write(BenchmarkReply(compiled=one))
    ):
        write(BenchmarkReply(timing=timing))
    if request.processes > 1:
        meet("benchmarks are done")


def exit_with_parent() -> None:
    """The parent keeps our standard input open for as long as it lives."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    leave(1)


def leave(status: int) -> None:
    """Exit without waiting for JAX's threads."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()

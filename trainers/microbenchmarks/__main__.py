"""One of the processes that measure a machine.

    python -m trainers.microbenchmarks REQUEST.json RESULT.json PROCESS

Process 0 writes the result. An error ends the process with exit code 1 and a traceback.
"""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

import jax

from orchestrator.types import codec
from orchestrator.types.chip_profile import BenchmarkRequest, BenchmarkResult
from trainers.microbenchmarks.timing import timings
from trainers.multihost import barrier


def main() -> None:
    """Run, and exit without waiting for JAX's threads."""
    request, result, process = sys.argv[1:]
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    status = 1
    try:
        run(Path(request), Path(result), int(process))
        status = 0
    except Exception:  # noqa: BLE001  the parent shows its last lines
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def run(request_path: Path, result_path: Path, process: int) -> None:
    """Time all benchmarks, in step with the other processes."""
    request = codec.from_json(request_path.read_bytes(), BenchmarkRequest)
    if request.processes > 1:
        jax.distributed.initialize(
            request.address, request.processes, process, coordinator_bind_address=request.address
        )
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    result = BenchmarkResult(
        platform=devices[0].platform,
        device_kind=devices[0].device_kind,
        devices=len(devices),
        timings=tuple(timings(request.benchmarks, devices)),
    )
    if process == 0:
        result_path.write_bytes(codec.to_json(result))
    if request.processes > 1:
        barrier("benchmarks are done")


def exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()

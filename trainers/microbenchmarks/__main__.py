"""One of the processes that measure a machine.

    python -m trainers.microbenchmarks RESULT.json [PLAN.json ADDRESS PROCESS]

Process 0 writes the result. An error ends the process with exit code 1 and a traceback.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import jax

from orchestrator.parent import end_with_parent
from orchestrator.types import codec
from orchestrator.types.chip_profile import Measurements, Timing
from orchestrator.types.plan import Plan
from trainers.compile_cache import share_compiled_programs
from trainers.microbenchmarks.operations import device_timings, timed
from trainers.microbenchmarks.steps import step_timing
from trainers.multihost import barrier


def main() -> None:
    """Measure, and exit without waiting for JAX's threads."""
    end_with_parent(lambda: os._exit(1))
    status = 1
    try:
        measure(*sys.argv[1:])
        status = 0
    except Exception:  # noqa: BLE001  the parent shows its last lines
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def measure(result: str, *how: str) -> None:
    """Time one device's operations, or a plan's step."""
    timings = tuple(rehearsal_timings(*how) if how else device_timings())
    if jax.process_index() == 0:
        device = jax.local_devices()[0]
        measured = Measurements(
            platform=device.platform, device_kind=device.device_kind, timings=timings
        )
        Path(result).write_bytes(codec.to_json(measured))
    barrier("the machine is measured")


def rehearsal_timings(path: str, address: str, process: str) -> Iterator[Timing]:
    """A large matmul on all cores, in the first process alone; the step in all together."""
    plan = codec.from_json(Path(path).read_bytes(), Plan)
    share_compiled_programs()
    if plan.hosts > 1:
        jax.distributed.initialize(
            address, plan.hosts, int(process), coordinator_bind_address=address
        )
    if process == "0":
        yield timed("matmul", plan.precision.compute)
    barrier("matmuls are measured")
    yield step_timing(plan)


if __name__ == "__main__":
    main()

"""One of two processes that run the toy together.

    python -m tests.one_of_two RANK PORT RUN STOP COMPILED

The second process wants to stop before the step STOP; the first never does. Prints what this
process saw, as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
from jax._src import compiler

from orchestrator.processes import COMPILED
from orchestrator.storage.addresses import file_digest
from orchestrator.values import codec
from orchestrator.values.run import Step
from orchestrator.values.spec import CheckpointOptions
from tests.test_loop import STEPS, stop_before, toy_plan_of, toy_program
from trainers.checkpoint import step_folders
from trainers.loop import Assignment, run, share_compiled_programs


def compiled_for_both() -> list[str]:
    """The names of the programs of both processes that this one compiles from here on."""
    names: list[str] = []
    plain = compiler.backend_compile_and_load

    def compile_and_load(backend: Any, module: Any, devices: Any, *more: Any) -> Any:
        if len({device.process_index for device in devices}) > 1:
            names.append(str(module.operation.attributes["sym_name"]))
        return plain(backend, module, devices, *more)

    setattr(compiler, "backend_compile_and_load", compile_and_load)  # noqa: B010
    return names


def main(rank: int, port: int, folder: Path, stop_at: int, shared: str) -> None:
    """Train on two devices of each process."""
    compiled = compiled_for_both()
    os.environ[COMPILED] = shared  # empty: each compiles for itself
    share_compiled_programs()
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    steps: list[Step] = []
    assignment = Assignment(
        directory=folder,
        steps=STEPS,
        emit=steps.append,
        checkpoint=CheckpointOptions(every=3, keep=3),
        stop=stop_before(stop_at if rank == 1 else STEPS + 1),
    )
    summed: list[str] = []

    def noted_digest(path: Path) -> str:
        summed.append(str(path))
        return file_digest(path)

    setattr(step_folders, "file_digest", noted_digest)  # noqa: B010
    outcome = run(toy_program(toy_plan_of(data=4)), assignment)
    losses = [step.loss for step in steps]
    told = {"losses": losses, "outcome": json.loads(codec.to_json(outcome)), "summed": summed}
    print(json.dumps(told | {"compiled": compiled}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])

"""Compile a MaxText run ahead of time, in an environment that has MaxText: run as a script.

    PYTHON -m tests.bench.maxtext_program FOLDER KEY=VALUE ...

It writes program.txt, the text of the compiled step, and program.json: bytes at the peak, seconds
of compilation, the mesh, and the torus coordinates of the devices of one slice in the mesh's order.
The environment must be the compiler's own, as `orchestrator.proving.compiler.environment` makes it.
"""

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from jax.experimental import xla_metadata

from orchestrator.proving.jax_private_api import program_text

# What needs a newer Python or JAX than the project has, and no run here uses.
sys.modules |= dict.fromkeys(("maxtext.kernels.mhc", "maxtext.kernels.mhc.api"), MagicMock())
if not hasattr(xla_metadata, "must_fuse_call"):
    xla_metadata.must_fuse_call = MagicMock()  # type: ignore[attr-defined]
# A run without data, storage and checkpoints: only its step counts.
ALONE = (
    "log_config=false", "base_output_directory=out", "skip_jax_distributed_system=true",
)  # fmt: skip


def main(folder: Path, words: list[str]) -> None:
    train_compile: Any = import_module("maxtext.trainers.pre_train.train_compile")
    compile_step = train_compile.jit_and_compile

    def compile_and_leave(*arguments: Any, **others: Any) -> None:
        began = time.perf_counter()
        compiled = compile_step(*arguments, **others)
        mesh = arguments[3]
        in_slice = [
            device for device in mesh.devices.flat if getattr(device, "slice_index", 0) == 0
        ]
        found = {
            "compile_s": time.perf_counter() - began,
            "peak_bytes": compiled.memory_analysis().peak_memory_in_bytes,
            "axes": dict(mesh.shape),
            "places": [[*device.coords, device.core_on_chip] for device in in_slice],
        }
        (folder / "program.txt").write_text(program_text(compiled), encoding="utf-8")
        (folder / "program.json").write_text(json.dumps(found), encoding="utf-8")
        os._exit(0)  # MaxText would go on with the program, and libtpu's threads never end

    train_compile.jit_and_compile = compile_and_leave
    base = Path(train_compile.__file__).parents[2] / "configs" / "base.yml"
    train_compile.main(["train_compile", str(base), *ALONE, *words])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

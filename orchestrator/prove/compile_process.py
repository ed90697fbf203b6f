"""Prove room: the child process. It alone knows JAX and the trainers; it compiles and reports.

    python -m orchestrator.prove.compile_process < asked.json

The answer goes out as lines of JSON: `{"stage": ...}` as it gets there, `{"answer": ...}` at last.
libtpu writes to the standard streams as it likes, so the answer has a descriptor of its own.
"""

import json
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from orchestrator.errors import OrchError
from orchestrator.prove.compiled import (
    PACKAGES,
    Compiled,
    CompiledMemory,
    CompileFailure,
    CompileRequest,
    CompileResult,
)
from orchestrator.prove.hlo.program import program_of
from orchestrator.prove.hlo.replica_groups import DeviceMesh
from orchestrator.prove.hlo.report import read
from orchestrator.prove.targets import target
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from trainers.contract import Program, build, load
from trainers.mesh import mesh_of

RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
BEYOND_HBM = {"xla_tpu_no_crash_on_oom": True}
clock = time.perf_counter
Say = Callable[[dict[str, Any]], None]


def main() -> None:
    """Read what is asked, answer it."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    status = 1
    try:
        asked = codec.from_json(sys.stdin.buffer.readline(), CompileRequest)
        threading.Thread(target=_die_with_the_parent, daemon=True).start()
        say({"answer": codec.to_json(answer(asked, say)).decode()})
        status = 0
    finally:
        if status:
            traceback.print_exc()
        _leave(status)


def _die_with_the_parent() -> None:
    """The parent holds our standard input open; when that ends, nobody waits for the answer."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    _leave(1)


def _leave(status: int) -> None:
    """End here and now: neither the waiting thread nor libtpu's own have anything to finish."""
    sys.stderr.flush()
    os._exit(status)


def answer(asked: CompileRequest, say: Say) -> CompileResult:
    """The plan compiled and read, or why it would not compile."""
    plan = codec.from_json(asked.plan, Plan)
    try:
        return CompileResult(compiled=_compiled(plan, asked, say))
    except OrchError as error:
        return CompileResult(failed=CompileFailure(said=str(error), by="trainer"))
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        return CompileResult(failed=CompileFailure(said=str(error), by="compiler"))


def _compiled(plan: Plan, asked: CompileRequest, say: Say) -> Compiled:
    """Lower the trainer's step for the plan's real topology, compile it, read its text."""
    say({"stage": "laying out"})
    name, options = target(plan)
    devices = topologies.get_topology_desc(name, "tpu", **options).devices
    say({"stage": "tracing"})
    program = build(load(asked.trainer), plan, devices)
    lowered = program.step.lower(program.state, program.batch)
    say({"stage": "compiling"})
    began = clock()
    settings: dict[str, Any] = {**plan.compiler_options, **(BEYOND_HBM if asked.beyond_hbm else {})}
    executable = lowered.compile(compiler_options=settings or None)
    compile_s = clock() - began
    say({"stage": "reading"})
    text = executable.as_text() or ""
    if asked.text_path:
        Path(asked.text_path).write_text(text, encoding="utf-8")
    return Compiled(
        memory=_memory(executable.memory_analysis()),
        reading=read(program_of(text), _mesh(plan, program), plan.model.layers),
        compile_s=compile_s,
        compiler_memory_bytes=_most_memory_bytes(),
        versions={package: metadata.version(package) for package in PACKAGES},
    )


def _mesh(plan: Plan, program: Program) -> DeviceMesh:
    """The mesh of one slice: the compiled program numbers devices as the trainer's mesh does."""
    devices = list(program.mesh.devices.flat)
    planned = {device: place for place, device in enumerate(mesh_of(plan, devices).devices.flat)}
    in_slice = plan.devices // plan.pods
    places = tuple(planned[device] % in_slice for device in devices[:in_slice])
    axes = {axis.name: axis.size for axis in plan.axes if axis.link == "ici"}
    return DeviceMesh(axes, None if places == tuple(range(in_slice)) else places)


def _memory(analysis: Any) -> CompiledMemory:
    return CompiledMemory(
        peak=analysis.peak_memory_in_bytes,
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes,
        aliased=analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        code=analysis.generated_code_size_in_bytes,
        host=analysis.host_argument_size_in_bytes + analysis.host_temp_size_in_bytes,
    )


def _most_memory_bytes() -> float:
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT_BYTES)


if __name__ == "__main__":
    main()

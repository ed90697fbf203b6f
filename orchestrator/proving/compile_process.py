"""Compile one plan, in a process of its own: the only one here that imports JAX and the trainers.
It takes a CompileRequest as JSON, and writes lines of JSON: `{"stage": ...}`, then `{"result":
...}`. They go to a descriptor of their own, because libtpu writes to the standard streams.
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
from jax.sharding import Mesh, NamedSharding

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.planning.layout import passes_in_flight
from orchestrator.proving import compiled
from orchestrator.proving.hlo.collectives import DeviceMesh
from orchestrator.proving.hlo.operations import planned_exchanges, program_mesh
from orchestrator.proving.hlo.program import program_of
from orchestrator.proving.hlo.summary import summarize
from orchestrator.proving.jax_private_api import answer_for_cudnn, program_text
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.program import AnyPlan, ServedProgram
from trainers.contract import load, lower
from trainers.mesh import mesh_of

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
_clock = time.perf_counter
_Send = Callable[[dict[str, Any]], None]


def main() -> None:
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message).encode() + b"\n")

    def end_with_parent() -> None:
        """The parent keeps our standard input open; when it closes, nobody waits for the result."""
        while os.read(sys.stdin.fileno(), 1):
            pass
        _exit_now(1)

    status = 1
    try:
        request = codec.from_json(sys.stdin.buffer.readline(), compiled.CompileRequest)
        threading.Thread(target=end_with_parent, daemon=True).start()
        kind: type[AnyPlan] = ServedProgram if request.serves else Plan
        plan = codec.from_json(request.plan, kind)
        try:
            result = compiled.CompileResult(compiled=_compiled(plan, request, send))
        except (OrchError, jax.errors.JaxRuntimeError, NotImplementedError) as error:
            refused = isinstance(error, OrchError)
            failure = compiled.CompileFailure(
                message=str(error), by="trainer" if refused else "compiler"
            )
            result = compiled.CompileResult(failure=failure)
        send({"result": codec.to_json(result).decode()})
        status = 0
    finally:
        if status:
            traceback.print_exc()
        _exit_now(status)


def _exit_now(status: int) -> None:
    """Neither the waiting thread nor libtpu's own have anything to finish."""
    sys.stderr.flush()
    os._exit(status)


def _compiled(plan: AnyPlan, request: compiled.CompileRequest, send: _Send) -> compiled.Compiled:
    """Lower the trainer's step for the plan's real topology, compile it, read its text."""
    opened = compiled.opened_files()
    send({"stage": "laying out"})
    topology = topologies.get_topology_desc(
        request.topology, request.platform, **request.topology_options
    )
    send({"stage": "tracing"})
    answer_for_cudnn()
    lowered, mesh = lower(load(plan.trainer), plan, topology.devices)
    send({"stage": "compiling"})
    began = _clock()
    settings: dict[str, Any] = {**plan.compiler_options, **request.options}
    executable = lowered.compile(compiler_options=settings or None)
    compile_s = _clock() - began
    send({"stage": "reading"})
    text = program_text(executable)
    if request.text_path:
        Path(request.text_path).write_text(text, encoding="utf-8")
    if mesh is None:  # that of the arguments, if they name one
        shardings = jax.tree.leaves(executable.input_shardings)
        named = (place.mesh for place in shardings if isinstance(place, NamedSharding))
        meshes = (place for place in named if isinstance(place, Mesh))
        mesh = next(meshes, None) or mesh_of(plan, topology.devices)
    devices = list(mesh.devices.flat)
    rates, places = request.rates, list[tuple[int, ...]]()
    if rates and not rates.torus.switched:
        dies, axes = rates.torus.devices_per_chip > 1, len(rates.torus.lengths)
        for device in devices[: plan.devices_per_slice]:
            die = (device.core_on_chip,) if dies else ()
            places.append((*device.coords[: axes - len(die)], *die))
    # The compiled program numbers devices as its own mesh does.
    planned = {device: place for place, device in enumerate(mesh_of(plan, devices).devices.flat)}
    is_gpu = devices[0].platform == "gpu"
    staged = plan.pipeline if isinstance(plan, Plan) else None
    peak_memory = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES)
    return compiled.Compiled(
        memory=_memory(executable.memory_analysis()),
        summary=summarize(
            program_of(text),
            program_mesh(plan, (planned[device] for device in devices), whole=is_gpu),
            DeviceMesh({axis.name: axis.size for axis in plan.axes if axis.link == "dcn"}),
            plan.model.layers,
            rates,
            tuple(places),
            planned_exchanges(plan),
            int(passes_in_flight(staged.stages, staged.chunks, staged.microbatches))
            if staged
            else None,
        ),
        compile_s=compile_s,
        compiler_memory_bytes=peak_memory,
        versions={package: metadata.version(package) for package in request.packages},
        code=compiled.loaded_code(plugins.trainer_entry_point(plan.trainer).module, opened),
    )


def _memory(analysis: Any) -> compiled.CompiledMemory:
    return compiled.CompiledMemory(
        peak=analysis.peak_memory_in_bytes,
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes,
        aliased=analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        code=analysis.generated_code_size_in_bytes,
        host=analysis.host_argument_size_in_bytes + analysis.host_temp_size_in_bytes,
    )


if __name__ == "__main__":
    main()

"""Compiled programs in numbers, for tests that need no compiler."""

from dataclasses import replace

from orchestrator.planning.planner import make_plan
from orchestrator.proving.compiled import (
    CacheEntry,
    Compiled,
    CompiledCollective,
    CompiledMemory,
    DcnSend,
    ProgramSummary,
    _LoadedCode,
)
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Buffer
from orchestrator.values.spec import MeshRequest, Spec
from tests.example_specs import spec_of
from tests.schedules import schedule

VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}


def spec() -> Spec:
    """A small plan of everything: two pods, four axes, copied kv heads."""
    return spec_of(
        "llama3-8b",
        sequences=64,
        length=4096,
        chip="v5e",
        topology="8x8",
        pods=2,
        mesh=MeshRequest(data=2, fsdp=2, sequence=1, tensor=16),
        remat="full",
    )


def as_forecast(plan: Plan) -> Compiled:
    """A program that is what the Forecast of the plan says, to the byte."""
    forecast = plan.forecast
    moved = [line.collective for line in forecast.time if line.collective]
    flops = {line.name: line.inputs["flops"] for line in forecast.time if "flops" in line.inputs}
    attention = sum(count for name, count in flops.items() if name.startswith("attention"))
    return Compiled(
        memory=CompiledMemory(
            peak=forecast.memory_bytes_per_device,
            arguments=2e9,
            outputs=2e9,
            aliased=2e9,
            temporaries=1e9,
            code=1e7,
            host=0.0,
        ),
        summary=ProgramSummary(
            live_bytes={"parameters": 1e9, "optimizer": 2e9, "working set": 1e9},
            peak_at="trainers/llama/model.py:105 (mlp_part) dot_general",
            buffers=(Buffer(name="parameters.layers.up", shape="f32[32,64]", bytes=2e8),),
            collectives=tuple(
                CompiledCollective(
                    axes=tuple(axis for axis in exchange.axes if plan.mesh[axis] > 1),
                    kind=exchange.kind,
                    dtype=exchange.dtype,
                    payload_bytes=exchange.bytes_per_step,
                    calls=exchange.calls_per_step,
                    executed_kind=exchange.kind,
                    executed_bytes=exchange.bytes_per_step,
                )
                for exchange in moved
                if exchange.link == "ici"
            ),
            sends=tuple(
                DcnSend(
                    name="psum.1_0",
                    kind=exchange.kind,
                    dtype=exchange.dtype,
                    payload_bytes=exchange.bytes_per_step,
                    padding_bytes=1e3,
                    calls=32,
                    places=("trainers/llama/collectives.py:80 (reduced)",),
                    in_backward=exchange.kind != "all-gather",
                    is_stored=exchange.kind == "all-gather",
                    axes=exchange.axes,
                )
                for exchange in moved
                if exchange.link == "dcn"
            ),
            flops={
                "matrix products": sum(flops.values()) - attention,
                "splash fwd": attention / 2,
                "splash dq": attention / 2,
            },
            uncounted=(),
            schedule=schedule(),
        ),
        compile_s=30.0,
        compiler_memory_bytes=1.5e9,
        versions=VERSIONS,
        code=_LoadedCode(modules={}, data={}, packages={}),
    )


def recorded(
    refusal: str | None = None, peak: float | None = None
) -> tuple[Spec, Plan, CacheEntry]:
    """The small plan, and a program that is as forecast but for its peak."""
    asked = spec()
    plan = make_plan(asked)
    program = as_forecast(plan)
    if peak is not None:
        program = replace(program, memory=replace(program.memory, peak=peak))
    return asked, plan, CacheEntry(compiled=program, refusal=refusal)

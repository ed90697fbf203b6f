"""Small plans for tests of trainers, written by hand: no search is involved."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from math import ceil, prod
from typing import Any, Literal

import msgspec
import pytest

from orchestrator.network.decoder import decoder
from orchestrator.network.mesh_axes import AXES, DCN_AXES, link_of, ways
from orchestrator.planning import flops
from orchestrator.values.model import Model
from orchestrator.values.plan import Plan, PlannedPipeline
from orchestrator.values.spec import DataSource, Optimizer, Precision
from tests.goodputs import NO_LOSS

TINY = Model(name="tiny", layers=2, d_model=32, d_ff=64, heads=8, kv_heads=4, head_dim=8, vocab=64)
FP32 = Precision(parameters="fp32", compute="fp32", gradients="fp32", optimizer="fp32")
QUICK = Optimizer(peak_lr=1e-2, warmup_steps=2, clip_norm=1.0)


def few(cases: Iterable[Any]) -> list[Any]:
    """Every third case; the others take minutes together, and belong to `make test-slow`."""
    return [
        pytest.param(case, marks=() if number % 3 == 0 else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def but_slow(cases: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """All cases; some, whose parts other cases have too, belong to `make test-slow`."""
    return [pytest.param(case, marks=pytest.mark.slow if case in slow else ()) for case in cases]


def plan_of(
    model: Model = TINY,
    *,
    sequences: int = 16,
    length: int = 32,
    microbatches: int = 1,
    spans: dict[str, list[dict[str, Any]]] | None = None,
    **changes: Any,
) -> Plan:
    """A plan of that model; mesh axes (`data=2`, ...) and any other field of Plan by name."""
    mesh = {axis: changes.pop(axis, 1) for axis in AXES}
    axes = [
        {"name": axis, "size": size, "link": link_of([axis]),
         "spans": (spans or {}).get(axis, [])}
        for axis, size in mesh.items()
    ]  # fmt: skip
    replicas = ways(mesh, "batch")
    fields = {
        "model": {**asdict(model), "parameters": flops.parameters(model),
                  "active_parameters": flops.active_parameters(model)},
        "batch": {
            "sequences": sequences, "length": length, "tokens": sequences * length,
            "requested_sequences": sequences, "sequences_per_replica": sequences // replicas,
            "microbatches": microbatches,
        },
        "tokens": 100 * sequences * length,
        "pods": prod(mesh[axis] for axis in DCN_AXES), "mesh": mesh, "axes": axes,
        "chips": prod(mesh.values()), "devices": prod(mesh.values()),
    }  # fmt: skip
    plan = msgspec.convert({**_rest(), **fields}, Plan)
    return replace(plan, **changes)


def pipelined(
    model: Model = TINY,
    *,
    chunks: int = 1,
    microbatches: int = 4,
    weight_gather: Literal["per_step", "per_layer"] = "per_layer",
    **more: Any,
) -> Plan:
    """A plan of a pipeline, with as few empty places as there can be; mesh and fields by name."""
    stages = more.get("pipeline", 1) * more.get("pipeline_dcn", 1)
    pattern = len(decoder(model).segments[0].stacks)
    repeats = ceil(model.layers / (pattern * stages * chunks))
    pipeline = PlannedPipeline(
        stages=stages, chunks=chunks, microbatches=microbatches,
        layers_per_chunk=pattern * repeats,
        empty_layers=pattern * repeats * stages * chunks - model.layers,
        weight_gather=weight_gather,
    )  # fmt: skip
    return replace(plan_of(model, microbatches=microbatches, **more), pipeline=pipeline)


def _rest() -> dict[str, Any]:
    """Fields of Plan that no trainer's program depends on, and defaults for some that do."""
    zero = {"lower": 0.0, "unoverlapped": 0.0}
    figures = ("mfu", "mfu_6p", "step_s", "tokens_per_s", "days", "chip_hours")
    forecast = {
        **dict.fromkeys(figures, zero),
        "memory_bytes_per_device": 0.0, "hbm_bytes_per_device": 0.0, "fits": True,
        "memory": [{"name": "", "lines": [], "bytes": 0.0}], "time": [], "bound": "",
        "bound_by": 0.0, "peak_flops_per_s": 0.0, "model_flops_per_step": 0.0,
        "mfu_definition": "", "goodput": asdict(NO_LOSS),
        "dollars": None, "dollars_per_chip_hour": None,
    }  # fmt: skip
    return {
        "schema": 6, "digest": "0" * 64, "name": "test", "trainer": "llama",
        "ledger_describes_trainer": True, "spec_digest": "0" * 64,
        "overrides": [], "run_steps": None, "optimizer": asdict(QUICK),
        "precision": asdict(FP32), "remat": "full",
        "data": asdict(DataSource()), "seed": 0, "compiler_options": {}, "chip": "v5p",
        "topology": "4x4x4", "hosts": 1, "groups": {},
        "gradient_reduction": "at_end", "loss_chunk_tokens": 1024,
        "chip_profile": None, "forecast": forecast,
        "search": {"enumerated": 1, "realizable": 1, "priced": 1, "alike": 0, "rule": ""},
        "warnings": [],
    }  # fmt: skip

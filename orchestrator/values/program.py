"""A program that serves, as the compiler gets it. Plain values, no JAX."""

from dataclasses import asdict
from typing import Any, Literal

from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.model import Model
from orchestrator.values.plan import Estimate, LedgerLine, MemoryPhase, MeshAxis, Plan
from orchestrator.values.serving import StoredType
from orchestrator.values.spec import Precision


class ProgramForecast(Value):
    """Bytes of a device, and seconds of one pass at the peaks of the chip."""

    memory_bytes_per_device: float
    hbm_bytes_per_device: float
    host_memory_bytes_per_chip: float = 0.0
    memory: tuple[MemoryPhase, ...]
    time: tuple[LedgerLine, ...]
    step_s: Estimate


class ServedProgram(Value):
    """One pass of a serving plan on one of its slices: `prefill` works on `tokens` of a prompt in
    each part of the attention, `decode` on one token of each of its `sequences`. The cache has
    `positions` for each of these. What tells programs apart is in `digest`.
    """

    name: str
    phase: Literal["prefill", "decode"]
    model: Model
    precision: Precision = Precision(parameters="bf16")
    weights: StoredType
    kv_cache: StoredType
    sequences: int
    positions: int
    tokens: int
    expert_ways: int
    chip: str
    chip_definition: dict[str, Any] | None = None
    topology: str
    pods: int = 1
    chips: int
    devices: int
    mesh: dict[str, int]
    axes: tuple[MeshAxis, ...]
    compiler_options: dict[str, bool | int | float | str]
    forecast: ProgramForecast
    trainer: str = "trainers.llama.serving:lowered"
    ledger_describes_trainer: bool = True
    stage: None = None
    pipeline: None = None

    @property
    def digest(self) -> str:
        values = asdict(self)
        del values["name"], values["forecast"]
        return codec.digest(values)

    @property
    def devices_per_slice(self) -> int:
        return self.devices // self.pods


AnyPlan = Plan | ServedProgram  # what a compiler gets

"""What the compile process receives and reports, before anything is compared with a forecast."""

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.prove.loaded_code import LoadedCode
from orchestrator.types.proof import Buffer
from orchestrator.types.schedule import Schedule, ScheduleRates

PACKAGES = ("jax", "jaxlib", "libtpu")  # whose versions a compiled program depends on
PRODUCTS, REPEATED = "matrix products", "repeated by the compiler"  # what computes its FLOPs
GROUPED_MATMUL = "grouped matmul"  # the kernel that multiplies by experts, each its own rows


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """A plan as JSON, its topology as the compiler names it, and the file for the program's text.

    `rates` price its schedule; without them it has none. `beyond_hbm`: compile even what the chip's
    memory cannot hold, to see what it needs.
    """

    plan: str
    topology: str
    topology_options: dict[str, Any]
    rates: ScheduleRates | None
    text_path: str | None = None
    beyond_hbm: bool = False


@dataclass(frozen=True, kw_only=True)
class CompiledMemory:
    """Bytes of one device. `peak` is the most that is in use at once."""

    peak: float
    arguments: float
    outputs: float
    aliased: float
    temporaries: float
    code: float
    host: float


@dataclass(frozen=True, kw_only=True)
class CompiledCollective:
    """Alike collectives of one step and device: what the trainer means, and what runs."""

    axes: tuple[str, ...]
    kind: str
    dtype: str
    payload_bytes: float
    calls: float
    executed_kind: str
    executed_bytes: float


@dataclass(frozen=True, kw_only=True)
class DcnSend:
    """One operation that sends to other pods, and the trainer's lines that ask for it.

    `in_backward`: it depends on a backward pass, as gradients do. `is_stored`: on no computation
    with tokens, as weights do.
    """

    name: str
    kind: str
    dtype: str
    payload_bytes: float
    padding_bytes: float
    calls: float
    places: tuple[str, ...]
    in_backward: bool
    is_stored: bool
    axes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProgramSummary:
    """What the text of a program shows. `live_bytes`: what is alive at the peak, by class.

    `flops` are of one device and step, by what computes them; `uncounted` kernels have no formula.
    `schedule` is None where the chip's clock is not known.
    """

    live_bytes: dict[str, float]
    peak_at: str
    buffers: tuple[Buffer, ...]
    collectives: tuple[CompiledCollective, ...]
    sends: tuple[DcnSend, ...]
    flops: dict[str, float]
    uncounted: tuple[str, ...]
    schedule: Schedule | None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One compiled program in numbers, with seconds, memory and versions of the compilation.

    `code` is what made the program and read it.
    """

    memory: CompiledMemory
    summary: ProgramSummary
    compile_s: float
    compiler_memory_bytes: float
    versions: dict[str, str]
    code: LoadedCode


@dataclass(frozen=True, kw_only=True)
class CompileFailure:
    """Why nothing was compiled: the message of the trainer or of the compiler.

    `exit_code` is set where the process died; `message` is then all that it wrote.
    """

    message: str
    by: Literal["trainer", "compiler"]
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompileResult:
    """What the compile process answers: one of the two."""

    compiled: Compiled | None = None
    failure: CompileFailure | None = None


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """A compiled program, and the compiler's message if it refused it."""

    compiled: Compiled
    refusal: str | None = None

"""Prove room: what the child reports of a compiled program, before any forecast is looked at."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.proof import Buffer

PACKAGES = ("jax", "jaxlib", "libtpu")  # whose versions a compiled program depends on
PRODUCTS, REPEATED = "matrix products", "repeated by the compiler"  # what computes its FLOPs


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What the child is asked. `text_path`: where the program's text is kept, if anywhere.

    `beyond_hbm`: compile even what the chip's memory cannot hold, to learn what it needs.
    """

    plan: str
    trainer: str
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
    """Collectives alike, of one step and device: what was meant, and what runs."""

    axes: tuple[str, ...]
    kind: str
    dtype: str
    payload_bytes: float
    calls: float
    executed_kind: str
    executed_bytes: float


@dataclass(frozen=True, kw_only=True)
class DcnSend:
    """What is sent to other pods: by which operation, and where the trainer asks for it."""

    name: str
    kind: str
    dtype: str
    payload_bytes: float
    padding_bytes: float
    calls: float
    places: tuple[str, ...]
    in_backward: bool


@dataclass(frozen=True, kw_only=True)
class ProgramSummary:
    """What the text of a program says. `live_bytes`: what is held at the peak, by class.

    `flops` are of one device and step, by what computes them; `uncounted` kernels have no formula.
    """

    live_bytes: dict[str, float]
    peak_at: str
    buffers: tuple[Buffer, ...]
    collectives: tuple[CompiledCollective, ...]
    sent: tuple[DcnSend, ...]
    flops: dict[str, float]
    uncounted: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One compiled program in numbers, and what it took to compile it."""

    memory: CompiledMemory
    reading: ProgramSummary
    compile_s: float
    compiler_memory_bytes: float
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class CompileFailure:
    """Why nothing was compiled: the words of the trainer or of the compiler.

    `exit_code` where the compiler died of it, and `said` is then what it wrote last.
    """

    said: str
    by: Literal["trainer", "compiler"]
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompileResult:
    """What the child answers: one of the two."""

    compiled: Compiled | None = None
    failed: CompileFailure | None = None


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """What is worth keeping: a compiled program, and what the compiler said if it refused it."""

    compiled: Compiled
    refusal: str | None = None

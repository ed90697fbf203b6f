"""The input and output of the compile process, before anything is compared with a forecast."""

import hashlib
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any, Literal

from msgspec import field

from orchestrator.plugins import source
from orchestrator.values.codec import Value
from orchestrator.values.proof import Buffer, Schedule, ScheduleRates

_STANDARD = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
_SITE = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
_INSTALLED = [*_STANDARD, *_SITE]
_PROJECT = ("orchestrator", "trainers")
_PYTHON = "python"
_WRITES = os.O_WRONLY | os.O_RDWR
_STARTED_S = time.time()  # of this process, nearly


class _LoadedCode(Value):
    """Digests of modules and of `data` files by `module:path`, and versions of packages."""

    modules: dict[str, str]
    data: dict[str, str]
    packages: dict[str, str]

    def is_current(self) -> bool:
        """Whether a process that starts now would load the same."""
        for name, digest in (self.modules | self.data).items():
            module, _, path = name.partition(":")
            file = source(module)
            try:
                now = _file_digest(file.parent / path if path else file) if file else None
            except OSError:  # it is missing now
                now = None
            if now != digest:
                return False
        return all(version(name) == number for name, number in self.packages.items())


def opened_files() -> set[str]:
    """The paths that Python code of this process opens to read from now on; the set grows."""
    paths: set[str] = set()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not arguments[2] & _WRITES:
            path = arguments[0]
            if isinstance(path, (str, bytes)):
                paths.add(os.fsdecode(path))

    sys.addaudithook(hear)
    return paths


def loaded_code(trainer_module: str, opened: Iterable[str]) -> _LoadedCode:
    """Return the modules that this process loaded for a trainer, and files it opened near."""
    own_packages = {*_PROJECT, trainer_module.partition(".")[0]}
    files, installed = dict[str, Path](), set[str]()
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        if not (spec and spec.origin and spec.has_location):
            continue
        name, path = spec.name, Path(spec.origin)  # `__main__` has the name of its file
        top = name.partition(".")[0]
        if top in own_packages or not _is_below(path, _INSTALLED):
            files[name] = path
        elif _is_below(path, _SITE):
            installed.add(top)
    packages = metadata.packages_distributions()
    names = {name for module in installed for name in packages.get(module, ())}
    # Opened files next to a module or below it that are neither modules nor installed.
    folders = {path.parent: name for name, path in sorted(files.items(), reverse=True)}
    modules, data = set(files.values()), dict[str, str]()
    for name in list(opened):  # reading them may open more
        path = Path(name).absolute()
        if path.suffix == ".pyc":
            with suppress(ValueError):  # bytecode that stands alone
                path = Path(source_from_cache(path))
        folder = next((parent for parent in path.parents if parent in folders), None)
        if folder is None or path in modules or not path.is_file():
            continue
        if not _is_below(path, _INSTALLED) or _is_below(folder, _SITE):
            place = f"{folders[folder]}:{path.relative_to(folder).as_posix()}"
            data[place] = _loaded_digest(path)
    return _LoadedCode(
        modules={name: _loaded_digest(path) for name, path in sorted(files.items())},
        data=dict(sorted(data.items())),
        packages={name: version(name) for name in [*sorted(names), _PYTHON]},
    )


def version(package: str) -> str:
    """The version of an installed package; empty if this machine lacks it."""
    if package == _PYTHON:
        return platform.python_version()
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _is_below(path: Path, folders: Iterable[str]) -> bool:
    return any(path != Path(folder) and path.is_relative_to(folder) for folder in folders)


def _loaded_digest(path: Path) -> str:
    """The digest of a file that this process has read; of no file if it was edited since."""
    return "" if path.stat().st_mtime > _STARTED_S else _file_digest(path)


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


PRODUCTS, REPEATED = "matrix products", "repeated by the compiler"  # what computes its FLOPs
GROUPED_MATMUL = "grouped matmul"  # the kernel that multiplies by experts, each its own rows


class CompileRequest(Value):
    """A plan as JSON, its devices as the compiler of a platform names them, and the file for the
    program's text. The plan `serves` where it is a ServedProgram. `rates` price its schedule, if
    given. `options` are set in addition to the plan's; versions of `packages` are noted.
    """

    plan: str
    serves: bool = False
    topology: str
    topology_options: dict[str, Any]
    rates: ScheduleRates | None
    platform: str = "tpu"
    packages: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    text_path: str | None = None


class CompiledMemory(Value):
    """Bytes of one device. `peak` is the most that is in use at once."""

    peak: float
    arguments: float
    outputs: float
    aliased: float
    temporaries: float
    code: float
    host: float


class CompiledCollective(Value):
    """Alike collectives of one step and device: what the trainer means, and what runs."""

    axes: tuple[str, ...]
    kind: str
    dtype: str
    payload_bytes: float
    calls: float
    executed_kind: str
    executed_bytes: float


class DcnSend(Value):
    """An operation that sends to other pods, with the trainer's lines. `in_backward`: it depends on
    a backward pass, as gradients do; `is_stored`: on no tokens, as weights do. `line` is the line
    of the ledger after which the trainer names it, if it does.
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
    line: str = ""


class ProgramSummary(Value):
    """The contents of a program's text; `live_bytes` by class, at the peak; `flops` per device and
    step. `uncounted` kernels have no formula. `schedule` is None where the chip's clock is unknown.
    """

    live_bytes: dict[str, float]
    peak_at: str
    buffers: tuple[Buffer, ...]
    collectives: tuple[CompiledCollective, ...]
    sends: tuple[DcnSend, ...]
    flops: dict[str, float]
    uncounted: tuple[str, ...]
    schedule: Schedule | None


class Compiled(Value):
    """One compiled program, what compiling it took, and as `code` what made and read it."""

    memory: CompiledMemory
    summary: ProgramSummary
    compile_s: float
    compiler_memory_bytes: float
    versions: dict[str, str]
    code: _LoadedCode


class CompileFailure(Value):
    """Why nothing was compiled. With an `exit_code` the process died, after writing `message`."""

    message: str
    by: Literal["trainer", "compiler"]
    exit_code: int | None = None


class CompileResult(Value):
    """What the compile process answers: one of the two."""

    compiled: Compiled | None = None
    failure: CompileFailure | None = None


class CacheEntry(Value):
    """A compiled program, and the compiler's message if it refused it."""

    compiled: Compiled
    refusal: str | None = None

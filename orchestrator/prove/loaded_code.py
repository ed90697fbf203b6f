"""The code that a compile process loads: digests of its files, and versions of its packages.

The process records it at its end. A cached proof holds the record, and another process checks it
without importing anything: each module is looked for again, so that a file that takes the place of
another counts too.

A file counts by its content if it belongs to this project, to the trainer's package, or to no
installed package. Every other module counts by the version of its package.
"""

import hashlib
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

from orchestrator.plugins import source

STANDARD = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
SITE = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
INSTALLED = [*STANDARD, *SITE]
PROJECT = ("orchestrator", "trainers")
PYTHON = "python"
WRITES = os.O_WRONLY | os.O_RDWR
STARTED_S = time.time()  # of this process, nearly


@dataclass(frozen=True, kw_only=True)
class LoadedCode:
    """`modules`: module → sha256 of its file. `packages`: installed package → its version.

    `data`: `module:path` → sha256 of another file, with a path relative to the module's folder.
    """

    modules: dict[str, str]
    data: dict[str, str]
    packages: dict[str, str]

    def is_current(self) -> bool:
        """Whether a process that starts now would load the same."""
        return (
            all(_digest(source(name)) == digest for name, digest in self.modules.items())
            and all(_digest(_data_file(name)) == digest for name, digest in self.data.items())
            and all(version(name) == number for name, number in self.packages.items())
        )


class OpenedFiles:
    """The files that Python code of this process opens to read, from now on."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not arguments[2] & WRITES:
            path = arguments[0]
            if isinstance(path, (str, bytes)):
                self.paths.add(os.fsdecode(path))


def loaded_code(trainer_module: str, opened: Iterable[str]) -> LoadedCode:
    """What this process has loaded for a trainer, and the files beside it that it opened."""
    own_packages = {*PROJECT, trainer_module.partition(".")[0]}
    files, installed = dict[str, Path](), set[str]()
    for name, path in _modules():
        top = name.partition(".")[0]
        if top in own_packages or not _is_below(path, INSTALLED):
            files[name] = path
        elif _is_below(path, SITE):
            installed.add(top)
    return LoadedCode(
        modules={name: _loaded_digest(path) for name, path in sorted(files.items())},
        data=dict(sorted(_data(files, opened))),
        packages=_versions(installed) | {PYTHON: version(PYTHON)},
    )


def version(package: str) -> str:
    """The version of an installed package; empty if this machine lacks it."""
    if package == PYTHON:
        return platform.python_version()
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _modules() -> Iterator[tuple[str, Path]]:
    """Every loaded module that has a file. The name of `__main__` is that of its file."""
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        if spec and spec.origin and spec.has_location:
            yield spec.name, Path(spec.origin)


def _is_below(path: Path, folders: Iterable[str]) -> bool:
    return any(path != Path(folder) and path.is_relative_to(folder) for folder in folders)


def _versions(modules: set[str]) -> dict[str, str]:
    packages = metadata.packages_distributions()
    names = {name for module in modules for name in packages.get(module, ())}
    return {name: version(name) for name in sorted(names)}


def _data(files: dict[str, Path], opened: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Opened files that lie beside a module or below it, and are neither modules nor installed."""
    folders = {path.parent: name for name, path in sorted(files.items(), reverse=True)}
    modules = set(files.values())
    for path in map(_source_file, opened):
        folder = next((parent for parent in path.parents if parent in folders), None)
        if folder is None or path in modules or not path.is_file():
            continue
        if not _is_below(path, INSTALLED) or _is_below(folder, SITE):
            yield f"{folders[folder]}:{path.relative_to(folder).as_posix()}", _loaded_digest(path)


def _source_file(opened: str) -> Path:
    """The file itself, or the source of a compiled one."""
    path = Path(opened).absolute()
    if path.suffix != ".pyc":
        return path
    try:
        return Path(source_from_cache(path))
    except ValueError:  # bytecode that stands alone
        return path


def _data_file(name: str) -> Path | None:
    module, _, path = name.partition(":")
    beside = source(module)
    return beside.parent / path if beside else None


def _loaded_digest(path: Path) -> str:
    """The digest of a file that this process has read; of no file if it was edited since."""
    return "" if path.stat().st_mtime > STARTED_S else _file_digest(path)


def _digest(path: Path | None) -> str | None:
    try:
        return _file_digest(path) if path else None
    except OSError:
        return None


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

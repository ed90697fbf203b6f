"""The sources that a compiled program depends on: modules that import one another, by their text.

Nothing is imported. Modules of installed packages are left out, because their versions identify
them, except those of the packages that the closure starts from.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.plugins import source

INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}


def digests(roots: Sequence[str]) -> dict[str, str]:
    """Module → sha256 of its file: the roots, and all that they import, directly or not."""
    packages = {root.partition(".")[0] for root in roots}
    sums: dict[str, str] = {}
    todo = list(roots)
    while todo:
        module = todo.pop()
        path = source(module)
        if module in sums or path is None or not _is_followed(module, path, packages):
            continue
        text = path.read_bytes()
        sums[module] = hashlib.sha256(text).hexdigest()
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        todo += _imports(ast.parse(text), package)
    return dict(sorted(sums.items()))


def are_current(recorded: dict[str, str]) -> bool:
    """Whether every module still has the source whose sha256 was recorded."""
    return all(_digest(module) == digest for module, digest in recorded.items())


def _digest(module: str) -> str | None:
    path = source(module)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path else None


def _is_followed(module: str, path: Path, packages: set[str]) -> bool:
    if path.suffix != ".py":
        return False
    is_installed = not INSTALLED.isdisjoint(map(str, path.parents))
    return module.partition(".")[0] in packages or not is_installed


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Every module that an import names, wherever in the text it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, [parents, node.module or ""]))
            for alias in node.names:  # a module of that package, or a name in it
                inner = f"{base}.{alias.name}"
                yield inner if source(inner) else base

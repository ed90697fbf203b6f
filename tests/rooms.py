"""The rooms as a table, and who imports whom, read from the syntax alone."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BOTTOM = frozenset({"types", "errors", "ports"})
ARITHMETIC = BOTTOM | {"catalog", "plan"}
KNOWN_OF_A_RUN = ARITHMETIC | {"journal", "report"}
ABOVE = KNOWN_OF_A_RUN | {
    "calibrate",
    "doctor",
    "spec",
    "launch",
    "prove",
    "tracking",
    "explain",
    "render",
    "score",
    "study",
}
# Processes of their own, which alone know what they were started for.
CHILDREN = tuple(
    f"orchestrator.{name}" for name in ("calibrate.child", "doctor.child", "prove.compile_process")
)

# Room → the other rooms it may import. Imports point one way; strangers share no row.
ROOMS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "ports": frozenset(),
    "types": frozenset(),
    "catalog": BOTTOM,
    "plan": BOTTOM | {"catalog"},
    "journal": ARITHMETIC,
    "report": ARITHMETIC | {"journal"},
    "explain": ARITHMETIC,
    "doctor": BOTTOM,
    "score": ARITHMETIC,
    "render": KNOWN_OF_A_RUN,
    "study": KNOWN_OF_A_RUN,
    "spec": KNOWN_OF_A_RUN,
    "launch": KNOWN_OF_A_RUN,
    "prove": KNOWN_OF_A_RUN,
    "calibrate": ARITHMETIC,
    "tracking": KNOWN_OF_A_RUN,
    "__main__": frozenset({"cli"}),
    "lifecycle": ABOVE,
    "api": ABOVE | {"lifecycle"},
    "cli": ABOVE | {"api", "lifecycle"},
    "drive": ABOVE,
    "trainers": BOTTOM | {"plan"},
}

# Outside package → the modules that may know it, each with everything below it.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "click": ("orchestrator.cli",),
    "jax": ("trainers", *CHILDREN),
    "jsonschema": ("orchestrator.spec",),
    "mlflow": ("orchestrator.tracking.mlflow",),
    "msgspec": ("orchestrator", "trainers"),
    "numpy": ("orchestrator", "trainers"),
    "optax": ("trainers",),
    "orbax": ("trainers",),
    "ray": ("orchestrator.launch",),
    "referencing": ("orchestrator.spec",),
    "rich": ("orchestrator.cli", "orchestrator.render"),
    "tensorstore": ("trainers",),
    "trainers": (
        "trainers",
        "orchestrator.drive",
        "orchestrator.calibrate.child",
        "orchestrator.prove.compile_process",
    ),
    "yaml": ("orchestrator.spec",),
}

# Arithmetic reads no file, no clock and no dice.
ARITHMETIC_ONLY = ("orchestrator.errors", "orchestrator.types", "orchestrator.plan")
EFFECTS = {"datetime", "io", "os", "pathlib", "random", "shutil", "subprocess", "sys", "tempfile"}
EFFECTS |= {"asyncio", "http", "logging", "socket", "ssl", "threading", "time", "urllib"}

# The modules that a person starts: they alone print and exit.
SPEAKERS: tuple[str, ...] = ("orchestrator.cli", "orchestrator.drive", *CHILDREN)
SPEAKERS += ("orchestrator.launch.preflight_job",)
SPEAKERS += (
    "orchestrator.launch.local_supervisor",
    "orchestrator.launch.attempt",
    "trainers.data.pack",
)
SPEECH = frozenset({"print", "input", "exit", "quit", "SystemExit"})
SPEECH_OF_MODULES = frozenset(
    {("sys", "exit"), ("sys", "stdout"), ("sys", "stderr"), ("os", "_exit")}
)


@dataclass(frozen=True, kw_only=True)
class Import:
    """One name that a module imports, wherever in the module that stands."""

    place: str
    importer: str
    imported: str


def sources(root: Path, *folders: str) -> list[Path]:
    """Every Python file of the folders."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def module_name(root: Path, path: Path) -> str:
    """`orchestrator/spec/__init__.py` is `orchestrator.spec`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_within(module: str, places: tuple[str, ...]) -> bool:
    """Whether the module is one of the places or lies below one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def room_of(module: str) -> str:
    """`orchestrator.plan.search` lies in `plan`; `trainers` is one room."""
    parts = module.split(".")
    if module == "orchestrator":
        return "api"
    return "trainers" if parts[0] == "trainers" else parts[1] if len(parts) > 1 else ""


def imports_of(root: Path, path: Path) -> Iterator[Import]:
    """What a file imports: at its top, inside functions, relatively, for types, or by a string."""
    importer = module_name(root, path)
    package = importer.split(".") if path.stem == "__init__" else importer.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for imported in _imported(node, package):
            place = f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}"
            yield Import(place=place, importer=importer, imported=imported)


def _imported(node: ast.AST, package: list[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func).split(".")[-1]
        names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        yield from map(str, names if called in {"import_module", "__import__"} else ())


def violation(edge: Import) -> str | None:
    """What is wrong with an import; None when it is allowed."""
    top = edge.imported.split(".")[0]
    if top == "orchestrator":
        broken = _room_broken(room_of(edge.importer), room_of(edge.imported))
    elif top in sys.stdlib_module_names:
        pure = is_within(edge.importer, ARITHMETIC_ONLY)
        broken = f"arithmetic alone needs no {top}" if pure and top in EFFECTS else None
    elif top in OUTSIDE:
        known = is_within(edge.importer, OUTSIDE[top])
        broken = None if known else f"{top} is known to {', '.join(OUTSIDE[top])} alone"
    else:
        broken = f"no room knows {top}: name the one that does in OUTSIDE"
    return broken and f"{edge.place}: {edge.importer} imports {edge.imported}: {broken}"


def _room_broken(here: str, there: str) -> str | None:
    unknown = {here, there} - ROOMS.keys()
    if unknown:
        return f"no such room: {', '.join(sorted(unknown))}: give it a row in ROOMS"
    if here == there or there in ROOMS[here]:
        return None
    return f"{here} may import {', '.join(sorted(ROOMS[here])) or 'no room'}"


def violations(root: Path) -> list[str]:
    """Every import under the root that breaks the rules."""
    edges = [e for p in sources(root, "orchestrator", "trainers") for e in imports_of(root, p)]
    return [found for found in map(violation, edges) if found]


def speech_of(path: Path) -> list[int]:
    """The lines on which a file prints, exits or takes hold of the standard streams."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Name) and node.id in SPEECH)
        or (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in SPEECH_OF_MODULES
        )
    ]


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, each also without a plural s."""
    found = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return found | {word.removesuffix("s") for word in found}

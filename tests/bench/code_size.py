"""The size and shape of the code, for docs/design.md.

python -m tests.bench.code_size [CHECKOUT]
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

PACKAGES = ("orchestrator", "trainers")
LONG_FUNCTION, SMALL_FILE = 30, 60
CORE = ("values", "network", "catalog", "planning", "proving", "journal", "run", "launch", "drive")
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def main(checkout: Path) -> None:
    """Print the lines of each package, and what makes code hard to find."""
    files = sorted(path for name in PACKAGES for path in (checkout / name).rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines: Counter[str] = Counter()
    for path, text in texts.items():
        lines[package(path.relative_to(checkout))] += len(text.splitlines())
    for name, count in sorted(lines.items()):
        print(f"{name:36}{count:>8,}")
    classes = Counter(node.name for node in nodes(trees) if isinstance(node, ast.ClassDef))
    functions = [node for node in nodes(trees) if isinstance(node, ast.FunctionDef)]
    code = sum(code_lines(text, trees[path]) for path, text in texts.items())
    for title, value in (
        ("all lines", sum(lines.values())),
        ("lines of the core", sum(lines[f"orchestrator.{name}"] for name in CORE)),
        ("lines of code", code),
        ("files", len(files)),
        (
            "files of 60 lines or fewer",
            sum(len(t.splitlines()) <= SMALL_FILE for t in texts.values()),
        ),
        ("classes", classes.total()),
        ("class names shared", sum(count > 1 for count in classes.values())),
        ("functions over 30 lines", sum(length(node) > LONG_FUNCTION for node in functions)),
        ("functions with one caller", len(functions_with_one_caller(trees))),
        ("public names used in one file only", len(public_names_of_one_file(trees))),
        ("imports inside functions", sum(text.count("noqa: PLC0415") for text in texts.values())),
    ):
        print(f"{title:36}{value:>8,}")


def functions_with_one_caller(trees: dict[Path, ast.Module]) -> list[str]:
    """Return the functions at the top of a file whose name occurs once elsewhere.

    Names are compared as text: a method or a variable of the same name counts as a caller.
    """
    uses: Counter[str] = Counter()
    for node in nodes(trees):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
    return [
        f"{path}:{node.name}"
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and uses[node.name] == 1
    ]


def public_names_of_one_file(trees: dict[Path, ast.Module]) -> list[str]:
    """Return functions, classes and constants without `_` that no other file names.

    Commands are named by users, and `main` by whoever starts the program.
    """
    files_of: dict[str, set[Path]] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            names = (
                [node.id] if isinstance(node, ast.Name)
                else [node.attr] if isinstance(node, ast.Attribute)
                else [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom)
                else []
            )  # fmt: skip
            for name in names:
                files_of.setdefault(name, set()).add(path)
    return [
        f"{path}:{name}"
        for path, tree in trees.items()
        for node in tree.body
        for name in defined(node)
        if not name.startswith("_") and name != "main" and files_of.get(name, set()) <= {path}
    ]


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a file defines; none for a command."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [] if any("command" in ast.unparse(d) for d in node.decorator_list) else [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def package(path: Path) -> str:
    """`orchestrator.planning` for a file below it; files at the top count together."""
    return ".".join(path.parts[:2]) if len(path.parts) > 2 else f"{path.parts[0]}, top"


def nodes(trees: dict[Path, ast.Module]) -> Iterator[ast.AST]:
    for tree in trees.values():
        yield from ast.walk(tree)


def length(function: ast.FunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that hold code: no blank line, no comment, no docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)

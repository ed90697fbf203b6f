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
LONG_FUNCTION = 30
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
        print(f"{name:28}{count:>8,}")
    classes = Counter(node.name for node in nodes(trees) if isinstance(node, ast.ClassDef))
    names = Counter(path.name for path in files if not path.name.startswith("__"))
    functions = [node for node in nodes(trees) if isinstance(node, ast.FunctionDef)]
    code = sum(code_lines(text, trees[path]) for path, text in texts.items())
    for title, value in (
        ("all lines", sum(lines.values())),
        ("lines of code", code),
        ("files", len(files)),
        ("classes", classes.total()),
        ("class names shared", sum(count > 1 for count in classes.values())),
        ("file names repeated", sum(count > 1 for count in names.values())),
        ("functions over 30 lines", sum(length(node) > LONG_FUNCTION for node in functions)),
    ):
        print(f"{title:28}{value:>8,}")


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

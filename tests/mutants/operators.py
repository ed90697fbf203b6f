"""Small faults in a source file: each is a change of one place that a test should notice.

A mutant has a key that stays the same while its function does: file, function, operator, text.
"""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

SYNCS = {"fsync", "sync", "sync_folder"}
# What a person reads on a terminal or in a log is not tested sentence by sentence.
UNTESTED_CALLS = {"print", "print_exc"}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
# Their changed comparison is their negation.
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
Change = tuple[str, int, int, str]  # operator, first and last offset in bytes, new text


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of a file: the bytes from `start` to `stop` become `after`."""

    path: str
    function: str
    operator: str
    line: int
    start: int
    stop: int
    before: str
    after: str
    occurrence: int
    digest: str  # of the function, so that a result counts until it changes

    @property
    def key(self) -> str:
        """What names the mutant in lists; the number tells equal texts of one function apart."""
        text = " ".join(self.before.split())
        number = f" #{self.occurrence}" if self.occurrence else ""
        return f"{self.path} {self.function} | {self.operator} | {text}{number}"

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.after.encode() + source[self.stop :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    found: list[Mutant] = []
    lines = _line_starts(source)
    for name, function in _functions(ast.parse(source), ""):
        seen: Counter[tuple[str, str]] = Counter()
        text = ast.get_source_segment(source.decode(), function) or ""
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        negated = {
            id(condition) for node in _own_nodes(function) for condition in _conditions(node)
        }
        for node in _own_nodes(function):
            if id(node) in negated and _is_opposite(node):
                continue  # to negate it is the same change
            for operator, start, stop, after in _changes(node, source, lines):
                before = source[start:stop].decode()
                found.append(
                    Mutant(
                        path=path,
                        function=name,
                        operator=operator,
                        line=source.count(b"\n", 0, start) + 1,
                        start=start,
                        stop=stop,
                        before=before,
                        after=after,
                        occurrence=seen[operator, before],
                        digest=digest,
                    )
                )
                seen[operator, before] += 1
    return sorted(found, key=lambda mutation: (mutation.start, mutation.operator))


def _line_starts(source: bytes) -> list[int]:
    return [0, *(match.end() for match in re.finditer(rb"\n", source))]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions and the methods, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    for statement in function.body:
        yield from ast.walk(statement)


def _changes(node: ast.AST, source: bytes, lines: list[int]) -> Iterator[Change]:
    """The changes that begin at a node."""

    def offsets(one: ast.expr | ast.stmt) -> tuple[int, int]:
        assert one.end_lineno is not None
        assert one.end_col_offset is not None
        return (
            lines[one.lineno - 1] + one.col_offset,
            lines[one.end_lineno - 1] + one.end_col_offset,
        )

    def between(left: ast.expr, right: ast.expr) -> tuple[int, int]:
        return offsets(left)[1], offsets(right)[0]

    def text(start: int, stop: int) -> str:
        return source[start:stop].decode()

    if operator := _removable(node):
        assert isinstance(node, ast.stmt)
        yield operator, *offsets(node), "pass"
    for condition in _conditions(node):
        yield "negate a condition", *offsets(condition), f"not ({text(*offsets(condition))})"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        pattern, new = COMPARISONS[type(node.ops[0])]
        start, stop = between(node.left, node.comparators[0])
        yield "change a comparison", start, stop, re.sub(pattern, new, text(start, stop), count=1)
    elif isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        start, stop = between(node.values[0], node.values[1])
        yield "swap and, or", start, stop, re.sub(rf"\b{old}\b", new, text(start, stop), count=1)
    elif isinstance(node, ast.BinOp) and _adds_a_number(node):
        old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
        start, stop = between(node.left, node.right)
        yield "swap plus, minus", start, stop, text(start, stop).replace(old, new, 1)


def _adds_a_number(node: ast.BinOp) -> bool:
    sides = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
    numbers = [side for side in sides if isinstance(side, int | float)]
    return isinstance(node.op, ast.Add | ast.Sub) and bool(numbers)


def _removable(node: ast.AST) -> str | None:
    """The operator that removes a statement; None when none does."""
    if isinstance(node, ast.Raise):
        return "skip a raise"
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return None
    called = node.value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name in UNTESTED_CALLS:
        return None
    return "drop a sync" if name in SYNCS else "remove a call"


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [] if isinstance(node.test, ast.Constant) else [node.test]
    return list(node.ifs) if isinstance(node, ast.comprehension) else []


def _is_opposite(condition: ast.AST) -> bool:
    return (
        isinstance(condition, ast.Compare)
        and len(condition.ops) == 1
        and isinstance(condition.ops[0], OPPOSITES)
    )

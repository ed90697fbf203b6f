"""Which source lines, and which line of the ledger, an instruction of a compiled program is from,
also one that the compiler makes and names none for.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar, get_args

from orchestrator.proving.hlo.dataflow import RENDEZVOUS
from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction
from orchestrator.values.plan import LineKind
from orchestrator.values.proof import OTHER_LINE

Lines = tuple[str, ...]  # source lines, the outermost call first
Kind = Literal["product", "kernel", "copy", "other"]
_UNKNOWN = "no source line"  # a line that no instruction nearby names
# What moves data and computes nothing, alone or inside a fusion.
_RELAYOUTS = {"copy", "transpose", "reshape", "concatenate", "pad", "slice", "dynamic-slice"}
_RELAYOUTS |= {"dynamic-update-slice", "reverse", "gather"}
NOTHING = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "iota", "broadcast"}
NOTHING |= {"fusion", "convert", "maximum", "select", "compare", "after-all"}

_Origin = TypeVar("_Origin")
_SCOPE = re.compile(r"(?<=[/(])\w+(?=[/)])")  # of `jit(step)/transpose(jvp(matmul))/dot_general`
_LEDGER = frozenset(get_args(LineKind))
_RECOMPUTED = {"matmul": "matmul_recompute", "attention": "attention_recompute"}


def last_line(lines: Lines) -> str:
    return lines[-1] if lines else _UNKNOWN


def only_moves(opcodes: set[str]) -> bool:
    return bool(opcodes & _RELAYOUTS) and opcodes <= _RELAYOUTS | NOTHING


def named_line(op_name: str) -> str:
    """The line after which the trainer names an operation, the innermost of several; or nothing."""
    scopes: list[str] = _SCOPE.findall(op_name)
    named = [scope for scope in scopes if scope in _LEDGER]
    if named and "rematted_computation" in scopes:
        return _RECOMPUTED.get(named[-1], named[-1])
    return named[-1] if named else ""


@dataclass
class Origins:
    """The origins of one computation's instructions; `exchanges` has the ledger's line of a
    collective that the compiler made, which names nothing: its payload does.
    """

    program: HloProgram
    where: Computation
    exchanges: Mapping[str, str]
    _lines: dict[str, Lines] = field(default_factory=dict)
    _ledger: dict[str, str] = field(default_factory=dict)

    def lines(self, op: Instruction) -> Lines:
        if op.name not in self._lines:
            self._lines[op.name] = self._origin(op, self.said_lines) or ()
        return self._lines[op.name]

    def said_lines(self, op: Instruction) -> Lines:
        return self.program.sources.program_lines(op.frame)

    def ledger(self, op: Instruction) -> str:
        if op.name not in self._ledger:
            self._ledger[op.name] = self._origin(op, self.said_ledger) or OTHER_LINE
        return self._ledger[op.name]

    def said_ledger(self, op: Instruction) -> str:
        if named := named_line(op.op_name):
            return named
        if op.op_name and op.opcode != "constant":
            return OTHER_LINE
        return self.exchanges.get(op.quoted(RENDEZVOUS) or op.name, "")

    def _origin(self, op: Instruction, said: Callable[[Instruction], _Origin]) -> _Origin | None:
        """What an instruction or its fusion says, or else the nearest operand, then reader."""
        for near in (lambda at: at.operands, lambda at: self._readers[at.name]):
            seen, todo = {op.name}, deque([op])
            while todo:
                at = todo.popleft()
                parts = [at]
                if at.opcode == "fusion":
                    [fused] = self.program.called(at)
                    parts += reversed(fused.instructions.values())
                if origin := next(filter(None, map(said, parts)), None):
                    return origin
                new = [name for name in near(at) if name in self.where.instructions]
                todo += [self.where.instructions[name] for name in new if name not in seen]
                seen |= set(new)
        return None

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        readers: dict[str, list[str]] = defaultdict(list)
        for instruction in self.where.instructions.values():
            for operand in instruction.operands:
                readers[operand].append(instruction.name)
        return readers

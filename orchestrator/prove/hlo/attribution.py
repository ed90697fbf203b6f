"""The source lines of every instruction, also of those that the compiler makes and names none for.

An instruction's own lines come first, then those of what a fusion contains, then of the nearest
instruction of its computation that it reads from, then of the nearest that reads it.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import cached_property

from orchestrator.prove.hlo.program import Computation, HloProgram, Instruction

Lines = tuple[str, ...]


class Attribution:
    """Lines of the instructions of one computation, the outermost first."""

    def __init__(self, program: HloProgram, where: Computation) -> None:
        self.program, self.where = program, where
        self.known: dict[str, Lines] = {}

    def lines(self, one: Instruction) -> Lines:
        if one.name not in self.known:
            self.known[one.name] = (
                self._own(one)
                or self._nearest(one, lambda at: at.operands)
                or self._nearest(one, lambda at: self._readers[at.name])
            )
        return self.known[one.name]

    def _own(self, one: Instruction) -> Lines:
        if lines := self.program.sources.program_lines(one.frame):
            return lines
        if one.opcode != "fusion":
            return ()
        [fused] = self.program.called(one)
        inner = (self.program.sources.program_lines(x.frame) for x in _from_root(fused))
        return next(filter(None, inner), ())

    def _nearest(self, one: Instruction, near: Callable[[Instruction], Iterable[str]]) -> Lines:
        seen, todo = {one.name}, deque([one])
        while todo:
            at = todo.popleft()
            for name in near(at):
                other = self.where.instructions.get(name)
                if other is None or name in seen:
                    continue
                if lines := self._own(other):
                    return lines
                seen.add(name)
                todo.append(other)
        return ()

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        readers: dict[str, list[str]] = defaultdict(list)
        for one in self.where.instructions.values():
            for operand in one.operands:
                readers[operand].append(one.name)
        return readers


def _from_root(fused: Computation) -> list[Instruction]:
    """What a fusion contains, its result first."""
    return list(fused.instructions.values())[::-1]

"""Parse HLO text into computations of instructions with shapes, without interpreting them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from typing import Any

_NAME = re.compile(r'(\d+) "(.*)"$')
_LOCATION = re.compile(r"(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)")
_FRAME = re.compile(r"(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}")
_TABLES = {"FileNames": _NAME, "FunctionNames": _NAME}
_TABLES |= {"FileLocations": _LOCATION, "StackFrames": _FRAME}
_NO_TRAINERS = ("/jax/", "/lib/python", "/site-packages/", "/orchestrator/")
_CALLER = "contract.py"  # it lowers every trainer's step
_LIBRARIES = {"jax", "jaxlib", "flax", "orchestrator"}


@dataclass(frozen=True)
class _SourceLine:
    file: str
    function: str
    line: int


@dataclass(frozen=True)
class _SourceTables:
    """The tables at a module's head: each frame's line, and its parent's number + 1, or zero."""

    frames: dict[int, tuple[_SourceLine, int]] = field(default_factory=dict)

    def stack(self, frame: int | None) -> list[_SourceLine]:
        places = []
        while frame in self.frames:
            place, parent = self.frames[frame]
            places.append(place)
            frame = parent - 1 if parent > 1 else None
        return places

    def program_lines(self, frame: int | None) -> tuple[str, ...]:
        """The lines that led to an instruction, the outermost first: those of a trainer, or else
        those of packages other than the libraries that trace programs.
        """
        stack: list[_SourceLine] = []
        for place in reversed(self.stack(frame)):
            if place in stack:  # a loop's body repeats the calls around it
                del stack[stack.index(place) :]
            stack.append(place)
        of_trainer = tuple(filter(None, map(_trainer_line, stack)))
        if of_trainer:
            return of_trainer
        # `maxtext/layers/decoders.py:62 (apply)` of an installed package other than a library
        places = [(place, place.file.rpartition("/site-packages/")[2]) for place in stack]
        return tuple(
            f"{inside}:{place.line} ({place.function})"
            for place, inside in places
            if inside != place.file and inside.split("/")[0] not in _LIBRARIES
        )

    def trainer_line(self, frame: int | None) -> str:
        """Return the innermost line of the trainer that led to an instruction, or an empty text."""
        return next(filter(None, map(_trainer_line, self.stack(frame))), "")


def _trainer_line(place: _SourceLine) -> str:
    """`trainers/llama/collectives.py:62 (reduced)`; empty for a line of a library or of orch."""
    file = place.file
    _, folder, inside = file.rpartition("trainers/")
    path = ""
    if folder and inside != _CALLER:
        path = f"{folder}{inside}"
    elif not folder and file.startswith("/") and not any(part in file for part in _NO_TRAINERS):
        path = "/".join(file.rsplit("/", 2)[1:])  # a trainer from elsewhere: its last folder
    function = place.function.replace("<locals>.", "")
    return f"{path}:{place.line} ({function})" if path else ""


_NAMED = re.compile(r"  (ROOT )?%([\w.\-]+) = ")
_HEADING = re.compile(r"(ENTRY )?%([\w.\-]+) \(")
_CLOSING = re.compile(r"\}(, execution_thread=\"\w+\")?")
_OPCODE = re.compile(r"([\w\-]+)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_BITS = re.compile(r"[a-z]+(\d+)")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")


@dataclass(frozen=True)
class Array:
    """One array; `layout` as written: dimensions from minor to major, tiles, memory space."""

    dtype: str
    dimensions: tuple[int, ...]
    layout: str = ""

    @cached_property
    def elements(self) -> int:
        return prod(self.dimensions)

    @property
    def bytes(self) -> float:
        return self.elements * _bits(self.dtype) / 8

    @property
    def is_in_hbm(self) -> bool:
        match = _SPACE.search(self.layout)
        return not match or int(match[1]) == 0  # the memory that a layout does not name

    @cached_property
    def padded_bytes(self) -> float:
        """Bytes in memory, where the minor dimensions are padded to whole tiles."""
        minor_first = [int(d) for d in self.layout.split(":")[0].split(",") if d.isdigit()]
        sizes = [self.dimensions[d] for d in reversed(minor_first)] or list(self.dimensions)
        tiles = _TILE.search(self.layout)
        tile = numbers(tiles[1]) if tiles else ()
        for back, length in enumerate(reversed(tile), start=1):
            if back <= len(sizes):
                sizes[-back] = ceil(sizes[-back] / length) * length
        return prod(sizes) * _bits(self.dtype) / 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction. `shape`, and `rest` behind the operands, are as written."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    arguments: str
    rest: str
    is_root: bool

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        found = _ARRAY.findall(self.shape)
        return tuple(Array(dtype, numbers(sizes), layout) for dtype, sizes, layout in found)

    @cached_property
    def op_name(self) -> str:
        """Its place in the traced program, by jax's scopes; empty where none is given."""
        return self.quoted("op_name")

    @cached_property
    def frame(self) -> int | None:
        match = re.search(r"stack_frame_id=(\d+)", self.rest)
        return int(match[1]) if match else None

    @cached_property
    def called(self) -> tuple[str, ...]:
        if "=%" not in self.rest and "={%" not in self.rest:
            return ()
        plain = _QUOTED.sub('""', self.rest)
        branches = [name for match in _BRANCHES.findall(plain) for name in _OPERAND.findall(match)]
        return (*_CALLED.findall(plain), *branches)

    def attribute(self, key: str) -> str:
        """Return the value of `key=value` up to the next comma or space, or an empty text."""
        match = re.search(rf"\b{key}=([^\s,]*)", self.rest)
        return match[1] if match else ""

    def braced(self, key: str) -> str:
        """The text between the braces of `key={...}`, with inner braces."""
        start = self.rest.find(f"{key}={{")
        return _enclosed(self.rest, start + len(key) + 1) if start >= 0 else ""

    def quoted(self, key: str) -> str:
        match = re.search(rf'\b{key}="([^"]*)"', self.rest)
        return match[1] if match else ""


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: dict[str, Instruction]
    root: Instruction

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {
            int(instruction.arguments): instruction
            for instruction in self.instructions.values()
            if instruction.opcode == "parameter"
        }

    def operand(self, instruction: Instruction, place: int) -> Instruction:
        return self.instructions[instruction.operands[place]]


@dataclass(frozen=True)
class HloProgram:
    """A module. `partitions` are the devices of one slice."""

    computations: dict[str, Computation]
    entry: Computation
    partitions: int
    sources: _SourceTables = field(default_factory=_SourceTables)

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                yield computation, instruction

    def called(self, instruction: Instruction) -> list[Computation]:
        return [self.computations[name] for name in instruction.called]


def program_of(text: str) -> HloProgram:
    lines = text.splitlines()
    computations, entry = {}, ""
    heading: re.Match[str] | None = None
    body: list[str] = []
    for line in lines:
        if heading is None:
            if line.endswith("{") and (match := _HEADING.match(line)):
                heading, body = match, []
        elif _CLOSING.fullmatch(line):
            name, instructions = heading[2], {part.name: part for part in map(_instruction, body)}
            roots = [part for part in instructions.values() if part.is_root]
            assert roots, f"computation {name} has no root"
            computations[name] = Computation(name, instructions, roots[-1])
            entry = name if heading[1] else entry
            heading = None
        elif _NAMED.match(line):
            body.append(line)
        else:
            body[-1] += line  # strings inside an instruction may have line breaks
    partitions = re.search(r"\bnum_partitions=(\d+)", lines[0])
    # The tables, which come before the first computation.
    rows: dict[str, list[Any]] = {table: [] for table in _TABLES}
    table = ""
    for line in lines[1:]:
        if line in rows:
            table = line
        elif line.endswith("{"):
            break
        elif table and (match := _TABLES[table].match(line)):
            rows[table].append(match.groups())
    files, functions = dict(rows["FileNames"]), dict(rows["FunctionNames"])
    places = {
        location: _SourceLine(files[file], functions[function], int(line))
        for location, file, function, line in rows["FileLocations"]
    }
    frames = {int(frame): (places[at], int(up)) for frame, at, up in rows["StackFrames"]}
    return HloProgram(
        computations=computations,
        entry=computations[entry],
        partitions=int(partitions[1]) if partitions else 1,
        sources=_SourceTables(frames),
    )


def _instruction(line: str) -> Instruction:
    start = _NAMED.match(line)
    assert start is not None
    shape = start.end()  # a tuple ends with its closing bracket, another shape before a space
    is_tuple = line[shape] == "("
    after_shape = shape + len(_enclosed(line, shape)) + 2 if is_tuple else line.index(" ", shape)
    opcode = _OPCODE.match(line, after_shape + 1)
    assert opcode is not None, line[:200]
    arguments = _enclosed(line, opcode.end() - 1)
    return Instruction(
        name=start[2],
        shape=line[shape:after_shape],
        opcode=opcode[1],
        operands=tuple(_OPERAND.findall(arguments)) if opcode[1] != "constant" else (),
        arguments=arguments,
        rest=line[opcode.end() + len(arguments) + 1 :],
        is_root=bool(start[1]),
    )


def _enclosed(text: str, start: int) -> str:
    """The text between the bracket at `start` and the one that closes it."""
    opening = text[start]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for match in re.finditer(rf"[{re.escape(opening + closing)}]", text[start:]):
        depth += 1 if match[0] == opening else -1
        if depth == 0:
            return text[start + 1 : start + match.start()]
    raise ValueError(f"a bracket is never closed: {text[start : start + 80]}")


def _bits(dtype: str) -> int:
    """Bits of an element: bf16 16, f8e4m3fn 8, pred 8; tokens and opaque values have 0."""
    if dtype in {"token", "opaque"}:
        return 0
    match = _BITS.match(dtype)
    return int(match[1]) if match else 8


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)

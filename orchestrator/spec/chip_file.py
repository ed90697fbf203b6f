"""Reads a chip from a TOML file of the user's own, and says everything that is wrong with it.

The file has the keys of a chip of the catalog. A source may be any text.
"""

import pathlib
import re
import tomllib
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import Chip
from orchestrator.spec.instance import Path, SpecInstance, instance_of
from orchestrator.spec.nodes import Entry, Mapping, Node, Scalar, Sequence
from orchestrator.spec.problem import Problem, SpecPosition, SpecProblems, SpecText
from orchestrator.spec.schema import chip_schema, chip_validator
from orchestrator.spec.source import read
from orchestrator.spec.validate import validate

HEADER = re.compile(r"\s*\[([\w.-]+)\]")
KEY = re.compile(r"\s*([\w-]+)\s*=\s*")
NEEDED_PEAKS = ("bf16", "fp32")


def read_chip(path: pathlib.Path) -> tuple[Chip, dict[str, Any]]:
    """The chip of a file, named after it, and the file's content."""
    source = read(path)
    try:
        content = tomllib.loads("\n".join(source.lines))
    except tomllib.TOMLDecodeError as error:
        raise SpecProblems([_not_toml(source, str(error))]) from None
    file = instance_of(_mapping(content, (), _positions(source)), chip_schema())
    validate(file, chip_validator())
    if not file.problems:
        _check(file, path.stem)
    if file.problems:
        raise SpecProblems(file.problems)
    return catalog.defined(path.stem, content), content


def _not_toml(source: SpecText, message: str) -> Problem:
    """Its place is a part of the parser's message, unless it is the end of the file."""
    reason, _, position = message.partition(" (at ")
    numbers = [int(number) for number in re.findall("[0-9]+", position)]
    line, col = numbers if len(numbers) == 2 else (len(source.lines), 1)
    return SpecPosition(source, line, col).problem("not-toml", reason=reason)


def _check(file: SpecInstance, name: str) -> None:
    """Add what the schema cannot say."""
    if name in catalog.chips():
        file.reject((), file.fields[()].node.place.problem("chip-name", name=name))
    for peak in NEEDED_PEAKS:
        if peak not in file.value["peak_flops_per_s"]:
            place = file.fields["peak_flops_per_s",].key_place
            key = f"peak_flops_per_s.{peak}"
            file.reject((key,), place.problem("chip-peak", key, peak=peak))
    axes = file.value["torus_axes"]
    shapes: list[tuple[Path, list[int]]] = [(("largest_slice",), file.value["largest_slice"])]
    for index, shape in enumerate(file.value["slices"]["listed"]):
        shapes.append((("slices", "listed", index), shape))
    for path, shape in shapes:
        if len(shape) != axes:
            key = ".".join(map(str, path))
            place = file.fields[path].node.place
            fields = {"dimensions": len(shape), "axes": axes, "example": [1] * axes}
            file.reject(path, place.problem("chip-dimensions", key, **fields))


Positions = dict[tuple[str, ...], SpecPosition]


def _positions(source: SpecText) -> Positions:
    """Where each key at the beginning of a line stands."""
    positions: Positions = {(): SpecPosition(source, 1, 1)}
    section: tuple[str, ...] = ()
    for number, line in enumerate(source.lines, start=1):
        if header := HEADER.match(line):
            section = tuple(header[1].split("."))
            positions[section] = SpecPosition(source, number, header.start(1) + 1)
        elif key := KEY.match(line):
            positions[*section, key[1]] = SpecPosition(source, number, key.start(1) + 1)
    return positions


def _mapping(table: dict[str, Any], path: tuple[str, ...], positions: Positions) -> Mapping:
    entries = {}
    for key, value in table.items():
        inside = (*path, key)
        positions.setdefault(inside, positions[path])
        entries[key] = Entry(positions[inside], _node(value, inside, positions))
    return Mapping(positions[path], entries)


def _node(value: Any, path: tuple[str, ...], positions: Positions) -> Node:
    """A value of TOML as the loader of specs has it: a text at its place."""
    place = positions[path]
    if isinstance(value, dict):
        return _mapping(value, path, positions)
    if isinstance(value, list):
        return Sequence(place, [_node(item, path, positions) for item in value])
    if isinstance(value, str):
        return Scalar(place, value, plain=False)
    return Scalar(place, str(value).lower() if isinstance(value, bool) else str(value), plain=True)

"""Loads a file as a Spec."""

import pathlib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.reading.checks import (
    SECTIONS,
    check,
    check_stages,
    check_topology,
    has_scheme,
    written_out,
)
from orchestrator.reading.inputs import check_data, check_start
from orchestrator.reading.instance import (
    KeyPath,
    ResolvedSpec,
    SpecInstance,
    default,
    instance_of,
    validate,
)
from orchestrator.reading.nodes import Entry, Mapping, Node, Scalar, SequenceNode, parse, read
from orchestrator.reading.overrides import apply
from orchestrator.reading.problems import (
    FileReference,
    Problem,
    SpecPosition,
    SpecProblems,
    SpecText,
    named_by,
)
from orchestrator.reading.schema import KEYS_IN_FILES, chip_schema, chip_validator, schema_field
from orchestrator.values.model import Model
from orchestrator.values.spec import AUTO_TOPOLOGY, Spec

# Reads a chip from a TOML file of the user's own, and says everything that is wrong with it.


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
    shapes: list[tuple[KeyPath, list[int]]] = [(("largest_slice",), file.value["largest_slice"])]
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
        return SequenceNode(place, [_node(item, path, positions) for item in value])
    if isinstance(value, str):
        return Scalar(place, value, plain=False)
    return Scalar(place, str(value).lower() if isinstance(value, bool) else str(value), plain=True)


HUGGINGFACE = "huggingface"
CONFIG, CHIP_FILE = f"experiment.model.{HUGGINGFACE}", "resources.chip.file"


def load(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec of a file with `--set` overrides; `SpecProblems` has everything that is wrong."""
    root, problems = parse(read(path))
    _refuse_study(root)
    problems += apply(root, overrides)
    return spec_of(root, problems, path.parent, tuple(overrides))


def is_study(path: Path) -> bool:
    """Whether a file is about a study; a file that cannot be read is for the loader to refuse."""
    try:
        root, _ = parse(read(path))
    except SpecProblems:
        return False
    return isinstance(root, Mapping) and "study" in root.entries


def _refuse_study(root: Node) -> None:
    """Report a study in place of a spec, or one without its section, as one mistake."""
    if not isinstance(root, Mapping):
        return
    for key, code in (("study", "is-a-study"), ("vary", "study-without-study")):
        if key in root.entries:
            raise SpecProblems([root.entries[key].key_place.problem(code, key)])


def spec_of(
    root: Node, problems: Sequence[Problem], folder: Path, overrides: tuple[str, ...]
) -> Spec:
    """The spec of nodes, whose paths are relative to the folder; `problems` come with the nodes."""
    file = instance_of(root)
    validate(file)
    resolved = ResolvedSpec(file)
    check(resolved)
    check_stages(resolved)
    chip, definition, in_chip = _chip(resolved, folder)
    if chip:
        check_topology(resolved, chip)
    configured, in_config = _config_model(resolved, folder)
    all_problems = [*problems, *file.problems, *in_config, *in_chip]
    if all_problems or chip is None:
        raise SpecProblems(all_problems)
    resolved.values["resources"] |= {"chip": chip.name, "chip_definition": definition}
    spec = _spec(resolved.values, configured, overrides)
    check_start(spec, resolved, folder)
    check_data(spec, resolved, folder)
    return spec


def _chip(
    resolved: ResolvedSpec, folder: Path
) -> tuple[Chip | None, dict[str, Any] | None, list[Problem]]:
    """The chip, with the content of its file if it has its own; or what is wrong with that file."""
    chip = resolved["resources.chip"]
    if isinstance(chip, str):
        return catalog.chip(chip), None, []
    if not isinstance(chip, dict) or "file" not in chip:
        return None, None, []
    if has_scheme(chip["file"]):
        return None, None, [_not_a_path(resolved, CHIP_FILE)]
    try:
        return *read_chip(folder / chip["file"]), []
    except SpecProblems as error:
        return None, None, named_by(_reference(resolved, CHIP_FILE), error.problems)


def _config_model(resolved: ResolvedSpec, folder: Path) -> tuple[Model | None, list[Problem]]:
    """The model of a config.json, or what is wrong with that file."""
    model = resolved["experiment.model"]
    if not isinstance(model, dict) or HUGGINGFACE not in model:
        return None, []
    if has_scheme(model[HUGGINGFACE]):
        return None, [_not_a_path(resolved, CONFIG)]
    from orchestrator.reading import huggingface  # noqa: PLC0415  most specs name a model

    try:
        return huggingface.model_of(folder / model[HUGGINGFACE], model.get("name")), []
    except SpecProblems as error:
        return None, named_by(_reference(resolved, CONFIG), error.problems)


def _not_a_path(resolved: ResolvedSpec, key: str) -> Problem:
    return _reference(resolved, key).place.problem("no-file-system", key)


def _reference(resolved: ResolvedSpec, key: str) -> FileReference:
    return FileReference(resolved.place(tuple(key.split("."))), key)


def _spec(values: dict[str, Any], configured: Model | None, overrides: tuple[str, ...]) -> Spec:
    """Legal values as a Spec, with what the file abbreviates written out."""
    sections = {
        "experiment": _experiment(values["experiment"], configured),
        "resources": _resources(values["resources"]),
        "run": _renamed(values.get("run", {})),
        "overrides": overrides,
    }
    given = {key: value for key, value in values.items() if key != "schema"}
    return msgspec.convert(given | sections, Spec)


def _experiment(experiment: dict[str, Any], configured: Model | None) -> dict[str, Any]:
    model = experiment["model"]
    if isinstance(model, str):
        model = msgspec.to_builtins(catalog.model(model))
    elif configured:
        model = msgspec.to_builtins(configured)
    unnamed = {"name": default(schema_field(("experiment", "model", "name")) or {})}
    return experiment | _stages(experiment) | {"model": unnamed | model}


def _stages(experiment: dict[str, Any]) -> dict[str, Any]:
    """The stages written out. The experiment's own sections are those of the first."""
    if "stages" not in experiment:
        return {}
    stages = written_out(experiment)
    tokens = sum(one["tokens"] for one in stages)
    first = {name: stages[0][name] for name in SECTIONS}
    return {**first, "tokens": tokens, "stages": stages}


def _resources(resources: dict[str, Any]) -> dict[str, Any]:
    pods, mesh = resources.get("pods"), resources.get("mesh", "auto")
    long_form: dict[str, Any] = {"topology": str(resources.get("topology", AUTO_TOPOLOGY))}
    if isinstance(pods, int):
        long_form["pods"] = {"min": pods, "max": pods}
    long_form["mesh"] = {} if mesh == "auto" else {axis: _axis_size(n) for axis, n in mesh.items()}
    long_form["failures"] = _renamed(resources.get("failures", {}))
    return resources | long_form


def _axis_size(size: int | str) -> int | None:
    return None if isinstance(size, str) else size


def _renamed(section: dict[str, Any]) -> dict[str, Any]:
    """A section of a file with the keys of its value."""
    keys = {in_file: key for key, in_file in KEYS_IN_FILES.items()}
    return {keys.get(key, key): value for key, value in section.items()}

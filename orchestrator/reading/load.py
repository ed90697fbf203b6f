"""Loads a file as a Spec, with the files that it names: a model's config, a chip of one's own."""

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.reading.checks import SECTIONS, check, check_topology, has_scheme, written_out
from orchestrator.reading.inputs import check_inputs
from orchestrator.reading.instance import KeyPath, SpecInstance, dotted
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
from orchestrator.reading.schema import (
    AUTO,
    KEYS_IN_FILES,
    chip_schema,
    default_of,
    schema_field,
    spec_schema,
)
from orchestrator.values.model import Model
from orchestrator.values.spec import AUTO_TOPOLOGY, Spec

_T = TypeVar("_T")
_CONFIG, _CHIP_FILE = "experiment.model.huggingface", "resources.chip.file"


def load(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """Return the spec of a file with `--set` overrides; `SpecProblems` has all that is wrong."""
    root, problems = parse(read(path))
    if isinstance(root, Mapping):  # a study, or one without its section, is one mistake
        if study := root.entries.get("study"):
            message = "makes it a study, must be a spec"
            hint = "orch plan, orch submit and orch report take studies"
            raise SpecProblems([study.key_place.problem("is-a-study", "study", message, hint)])
        if vary := root.entries.get("vary"):
            message = "belongs to a study, must be below study"
            hint = "for example study: {kind: sweep, base: my-run.yaml, vary: ...}"
            code = "study-without-study"
            raise SpecProblems([vary.key_place.problem(code, "vary", message, hint)])
    problems += apply(root, overrides)
    return spec_of(root, problems, path.parent, tuple(overrides))


def is_study(path: Path) -> bool:
    """Return whether a file is a study; one that cannot be read is for the loader to refuse."""
    try:
        root, _ = parse(read(path))
    except SpecProblems:
        return False
    return isinstance(root, Mapping) and "study" in root.entries


def spec_of(
    root: Node, problems: Sequence[Problem], folder: Path, overrides: tuple[str, ...]
) -> Spec:
    """Return the spec of nodes, whose paths are relative to the folder, or raise `SpecProblems`.

    `problems` come with the nodes.
    """
    file = SpecInstance(root, spec_schema())
    check(file)
    chip, definition, elsewhere = _chip(file, folder)
    if chip:
        check_topology(file, chip)
    model = file["experiment.model"]
    if isinstance(model, dict) and "huggingface" in model:
        name = model.get("name")
        model, wrong = _named_file(file, _CONFIG, lambda path: _config_model(folder / path, name))
        elsewhere = [*wrong, *elsewhere]
    if found := [*problems, *file.problems, *elsewhere]:
        raise SpecProblems(found)
    assert chip is not None
    if isinstance(model, str):
        model = catalog.model(model)
    file.values["resources"] |= {"chip": chip.name, "chip_definition": definition}
    spec = _spec(file.values, msgspec.to_builtins(model), overrides)
    check_inputs(spec, file, folder)
    return spec


def _chip(
    file: SpecInstance, folder: Path
) -> tuple[Chip | None, dict[str, Any] | None, list[Problem]]:
    """Return the chip, the content of its file if it has its own, and that file's problems."""
    chip = file["resources.chip"]
    if isinstance(chip, str):
        return catalog.chip(chip), None, []
    if not isinstance(chip, dict) or "file" not in chip:
        return None, None, []
    found, wrong = _named_file(file, _CHIP_FILE, lambda path: read_chip(folder / path))
    return *(found or (None, None)), wrong


def _named_file(
    file: SpecInstance, key: str, reader: Callable[[str], _T]
) -> tuple[_T | None, list[Problem]]:
    """Return what a file is that a key names, or what is wrong with it."""
    path, place = file[key], file.place(key)
    if has_scheme(path):
        message = (
            "is an address, must be a path: it is read when the spec is, which opens no connection"
        )
        return None, [
            place.problem("no-file-system", key, message, "copy the file beside the spec")
        ]
    try:
        return reader(path), []
    except SpecProblems as error:
        return None, named_by(FileReference(place, key), error.problems)


def _config_model(path: Path, name: str | None) -> Model:
    from orchestrator.reading import huggingface  # noqa: PLC0415  most specs name a model

    return huggingface.model_of(path, name)


def _spec(values: dict[str, Any], model: dict[str, Any], overrides: tuple[str, ...]) -> Spec:
    """Return legal values as a Spec, with what the file abbreviates written out."""
    experiment, resources = dict(values["experiment"]), dict(values["resources"])
    experiment["model"] = {"name": default_of(schema_field("experiment", "model", "name")), **model}
    if "stages" in experiment:  # the experiment's own sections are those of the first
        stages = written_out(experiment)
        experiment |= {name: stages[0][name] for name in SECTIONS} | {"stages": stages}
        experiment["tokens"] = sum(stage["tokens"] for stage in stages)
    pods, mesh = resources.get("pods"), resources.get("mesh", AUTO)
    if isinstance(pods, int):
        resources["pods"] = {"min": pods, "max": pods}
    sizes = {} if mesh == AUTO else mesh
    resources["mesh"] = {axis: None if size == AUTO else size for axis, size in sizes.items()}
    resources["topology"] = str(resources.get("topology", AUTO_TOPOLOGY))
    resources["failures"] = _renamed(resources.get("failures", {}))
    sections = {
        "experiment": experiment,
        "resources": resources,
        "run": _renamed(values.get("run", {})),
        "overrides": overrides,
    }
    given = {key: value for key, value in values.items() if key != "schema"}
    return msgspec.convert(given | sections, Spec)


def _renamed(section: dict[str, Any]) -> dict[str, Any]:
    """Return a section of a file with the keys of its value."""
    keys = {in_file: key for key, in_file in KEYS_IN_FILES.items()}
    return {keys.get(key, key): value for key, value in section.items()}


# Reads a chip from a TOML file of the user's own, and says everything that is wrong with it.

_HEADER = re.compile(r"\s*\[([\w.-]+)\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=\s*")
_Positions = dict[KeyPath, SpecPosition]


def read_chip(path: Path) -> tuple[Chip, dict[str, Any]]:
    """Return the chip of a file, named after it, and the file's content."""
    source = read(path)
    try:
        content = tomllib.loads("\n".join(source.lines))
    except tomllib.TOMLDecodeError as error:
        # its place is a part of the parser's message, unless it is the end of the file
        reason, _, position = str(error).partition(" (at ")
        numbers = [int(number) for number in re.findall("[0-9]+", position)]
        line, col = numbers if len(numbers) == 2 else (len(source.lines), 1)
        place = SpecPosition(source, line, col)
        raise SpecProblems([place.problem("not-toml", "", f"is not TOML: {reason}")]) from None
    file = SpecInstance(_toml_node(content, (), _positions(source)), chip_schema())
    if not file.problems:
        _check_chip(file, path.stem)
    if file.problems:
        raise SpecProblems(file.problems)
    return catalog.defined(path.stem, content), content


def _check_chip(file: SpecInstance, name: str) -> None:
    """Add what the schema cannot say."""
    if name in catalog.chips():
        message = f"is called {name}, must not be called like a chip of the catalog"
        place = file.fields[()].node.place
        file.reject((), place.problem("chip-name", "", message, "rename the file"))
    for peak in ("bf16", "fp32"):
        if peak not in file.value["peak_flops_per_s"]:
            key, place = f"peak_flops_per_s.{peak}", file.fields["peak_flops_per_s",].key_place
            hint = f'for example {peak} = {{ value = 1e14, source = "datasheet" }}'
            file.reject((key,), place.problem("chip-peak", key, "is missing, must be a rate", hint))
    axes, listed = file.value["torus_axes"], file.value["slices"]["listed"]
    shapes: dict[KeyPath, list[int]] = {("largest_slice",): file.value["largest_slice"]}
    shapes |= {("slices", "listed", index): shape for index, shape in enumerate(listed)}
    for path, shape in shapes.items():
        if len(shape) != axes:
            message = f"has {len(shape)} dimensions, must have as many as torus_axes: {axes}"
            file.report(dotted(path), "chip-dimensions", message, f"for example {[1] * axes}")


def _positions(source: SpecText) -> _Positions:
    """Return where each key at the beginning of a line stands."""
    positions: _Positions = {(): SpecPosition(source, 1, 1)}
    section: tuple[str, ...] = ()
    for number, line in enumerate(source.lines, start=1):
        if header := _HEADER.match(line):
            section = tuple(header[1].split("."))
            positions[section] = SpecPosition(source, number, header.start(1) + 1)
        elif key := _KEY.match(line):
            positions[*section, key[1]] = SpecPosition(source, number, key.start(1) + 1)
    return positions


def _toml_node(value: Any, path: KeyPath, positions: _Positions) -> Node:
    """Return a value of TOML as the loader of specs has it: a text at its place."""
    place = positions[path]
    if isinstance(value, dict):
        entries = {}
        for key, inside in value.items():
            at = positions.setdefault((*path, key), place)
            entries[key] = Entry(at, _toml_node(inside, (*path, key), positions))
        return Mapping(place, entries)
    if isinstance(value, list):
        return SequenceNode(place, [_toml_node(item, path, positions) for item in value])
    if isinstance(value, str):
        return Scalar(place, value, plain=False)
    return Scalar(place, str(value).lower() if isinstance(value, bool) else str(value), plain=True)

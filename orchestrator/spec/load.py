"""Loads a file as a Spec."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.catalog import Chip
from orchestrator.spec.checks import check, check_topology, has_scheme
from orchestrator.spec.chip_file import read_chip
from orchestrator.spec.instance import instance_of
from orchestrator.spec.nodes import Mapping, Node, parse
from orchestrator.spec.overrides import apply
from orchestrator.spec.problem import FileReference, Problem, SpecProblems, named_by
from orchestrator.spec.resolved import ResolvedSpec, default
from orchestrator.spec.schema import KEYS_IN_FILES, field
from orchestrator.spec.source import read
from orchestrator.spec.stages import SECTIONS, check_stages, written_out
from orchestrator.spec.starting_weights import check_start
from orchestrator.spec.training_data import check_data
from orchestrator.spec.validate import validate
from orchestrator.types.model import Model
from orchestrator.types.spec import AUTO_TOPOLOGY, Spec

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
    from orchestrator.spec import huggingface  # noqa: PLC0415  most specs name a model

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
    unnamed = {"name": default(field(("experiment", "model", "name")) or {})}
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

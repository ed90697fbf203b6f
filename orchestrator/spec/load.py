"""Loads a file as a Spec."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.catalog import Chip
from orchestrator.spec import huggingface
from orchestrator.spec.checks import check, check_topology
from orchestrator.spec.chip_file import read_chip
from orchestrator.spec.instance import written
from orchestrator.spec.nodes import Mapping, Node, parse
from orchestrator.spec.overrides import apply
from orchestrator.spec.problem import Problem, SpecProblems
from orchestrator.spec.request import SpecRequest, default
from orchestrator.spec.schema import field
from orchestrator.spec.source import read
from orchestrator.spec.validate import judge
from orchestrator.types.spec import Model, Spec

HUGGINGFACE = "huggingface"


def load(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec of a file with `--set` overrides; `SpecProblems` has everything that is wrong."""
    root, problems = parse(read(path))
    _hold_no_study(root)
    problems += apply(root, overrides)
    return meant(root, problems, path.parent, tuple(overrides))


def _hold_no_study(root: Node) -> None:
    """Report a study in place of a spec as one mistake."""
    if isinstance(root, Mapping) and "study" in root.entries:
        place = root.entries["study"].key_place
        raise SpecProblems([place.problem("is-a-study", "study")])


def meant(
    root: Node, problems: Sequence[Problem], folder: Path, overrides: tuple[str, ...]
) -> Spec:
    """The spec that nodes mean, whose paths begin in the folder; `problems` are known before."""
    spec = written(root)
    judge(spec)
    asked = SpecRequest(spec)
    check(asked)
    chip, definition, in_chip = _chip(asked, folder)
    if chip:
        check_topology(asked, chip)
    configured, in_config = _configured(asked, folder)
    found = [*problems, *spec.problems, *in_config, *in_chip]
    if found or chip is None:
        raise SpecProblems(found)
    asked.values["resources"] |= {"chip": chip.name, "chip_definition": definition}
    return _spec(asked.values, configured, overrides)


def _chip(
    asked: SpecRequest, folder: Path
) -> tuple[Chip | None, dict[str, Any] | None, list[Problem]]:
    """The chip, with the content of its file if it has its own; or what is wrong with that file."""
    chip = asked["resources.chip"]
    if isinstance(chip, str):
        return catalog.chip(chip), None, []
    if not isinstance(chip, dict) or "file" not in chip:
        return None, None, []
    try:
        return *read_chip(folder / chip["file"]), []
    except SpecProblems as error:
        return None, None, error.problems


def _configured(asked: SpecRequest, folder: Path) -> tuple[Model | None, list[Problem]]:
    """The model of the config.json that is named, or what is wrong with that file."""
    model = asked["experiment.model"]
    if not isinstance(model, dict) or HUGGINGFACE not in model:
        return None, []
    file, length = folder / model[HUGGINGFACE], asked["experiment.batch.length"]
    try:
        return huggingface.model_of(file, model.get("name"), length), []
    except SpecProblems as error:
        return None, error.problems


def _spec(values: dict[str, Any], configured: Model | None, overrides: tuple[str, ...]) -> Spec:
    """Legal values as a Spec, with what the file abbreviates written out."""
    sections = {
        "experiment": _experiment(values["experiment"], configured),
        "resources": _resources(values["resources"]),
        "run": _renamed(values.get("run", {}), "hang_limit", "hang_limit_s"),
        "overrides": overrides,
    }
    kept = {key: value for key, value in values.items() if key != "schema"}
    return msgspec.convert(kept | sections, Spec)


def _experiment(experiment: dict[str, Any], configured: Model | None) -> dict[str, Any]:
    model = experiment["model"]
    if isinstance(model, str):
        model = msgspec.to_builtins(catalog.model(model))
    elif configured:
        model = msgspec.to_builtins(configured)
    unnamed = {"name": default(field(("experiment", "model", "name")) or {})}
    return experiment | {"model": unnamed | model}


def _resources(resources: dict[str, Any]) -> dict[str, Any]:
    pods, mesh = resources.get("pods"), resources.get("mesh", "auto")
    written_out: dict[str, Any] = {"topology": str(resources["topology"])}
    if isinstance(pods, int):
        written_out["pods"] = {"min": pods, "max": pods}
    written_out["mesh"] = {} if mesh == "auto" else {axis: _chosen(n) for axis, n in mesh.items()}
    return resources | written_out


def _chosen(size: int | str) -> int | None:
    return None if isinstance(size, str) else size


def _renamed(section: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in section.items()}

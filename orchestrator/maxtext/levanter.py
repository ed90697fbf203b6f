"""Turns a configuration of Levanter, a YAML file of sections, into the content of a spec.

Every key is used, known not to matter, or refused by name with its line. Defaults are those of
Levanter's own classes; batch, steps and the rates, whose defaults differ between releases, have to
be written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import yaml

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.maxtext.conversion import ImportedSpec
from orchestrator.maxtext.levanter_keys import LevanterKeys
from orchestrator.maxtext.levanter_model import length_of, model_of
from orchestrator.maxtext.levanter_training import optimizer_of, precision_of, remat_of
from orchestrator.maxtext.names import CHIPS
from orchestrator.maxtext.recipe import RecipeProblems
from orchestrator.maxtext.yaml_bounds import check_bounded

# The mesh in releases before `trainer.mesh`, in which slices share weights if nothing else is said.
OLDER = {
    "axis_resources", "batch_axis", "fsdp_axis", "model_axis_size", "parameter_axis_resources",
    "replica_dcn_axis_size", "replica_ici_axis_size", "tensor_parallel_axes",
}  # fmt: skip
BATCH_AXES = {"token": "data"}  # what is split like a batch anyway
# Axes of trainer.mesh → ours.
AXES = {"replica": "data", "data": "fsdp", "context": "sequence", "model": "tensor"}
Included = Callable[[str], str | None]


def convert_levanter(
    sources: Sequence[tuple[str, str]] | str,
    device: str | None,
    slices: int | None = None,
    vocab: int | None = None,
    included: Included = lambda _: None,
) -> ImportedSpec:
    """The spec of a configuration; `RecipeProblems` lists every key that it cannot say.

    Each source has a name and a text: YAML, or words key=value that override what is before them.
    `included` is the text of a file that `!include` names, where there is one.
    """
    named = [("", sources)] if isinstance(sources, str) else sources
    keys = _keys(named, included)
    chip, topology = _slice(keys, device)
    pods, devices = slices or 1, catalog.topology(chip, topology).chips * chip.devices
    steps, length = keys.whole("trainer", "num_train_steps"), length_of(keys)
    mesh = _mesh(keys, devices, pods)
    model = model_of(keys, vocab)
    apart = mesh.get("sequence", 1) * mesh.get("tensor", 1)
    batch = _batch(keys, length, devices * pods // apart)
    experiment: dict[str, Any] = {
        "model": model,
        "tokens": batch["sequences"] * length * steps,
        "batch": batch,
        "optimizer": optimizer_of(keys, steps),
        "precision": precision_of(keys),
        "remat": remat_of(keys),
    }
    if seed := keys.whole("trainer", "seed", 0):
        experiment["seed"] = seed
    if keys.get("", "epoch", 0):
        keys.note("epoch: a run whose data ends before its steps do ends there; the spec does not")
    irrelevant = keys.check_rest()
    if keys.problems:
        raise RecipeProblems(keys.problems, keys.refused)
    resources = {"chip": chip.name, "topology": topology, "pods": pods, "mesh": mesh}
    name = f"{model['name']}-{chip.name}-{pods}x"
    values = {"name": name, "experiment": experiment, "resources": resources}
    return ImportedSpec(values=values, notes=tuple(keys.notes), irrelevant=irrelevant)


# --- the sources


def _keys(sources: Sequence[tuple[str, str]], included: Included) -> LevanterKeys:
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for name, text in sources:
        if name == "words":
            _override(values, text)
            continue
        found, lines = _read(text, included)
        values |= found
        places |= {key: f"{name}:{line}" for key, line in lines.items() if name}
    return LevanterKeys(values, places)


def _read(text: str, included: Included) -> tuple[dict[str, Any], dict[str, int]]:
    """The sections of a YAML file, and the line of each key."""

    class Loader(yaml.SafeLoader):
        """YAML as Levanter writes it: `!include FILE` stands for a section of another file."""

    def include(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
        named = loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else ""
        found = included(str(named))
        if found is None:
            return {}
        check_bounded(found)
        return yaml.safe_load(found)

    Loader.add_constructor("!include", include)
    try:
        check_bounded(text)
        values = yaml.load(text, Loader)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(f"not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(values, Mapping) or not isinstance(root, yaml.MappingNode):
        raise SpecError("not a configuration of Levanter: it has no sections")
    return {str(key): value for key, value in values.items()}, dict(_lines(root))


def _lines(root: yaml.MappingNode) -> Iterator[tuple[str, int]]:
    """Keys of the file and of its sections, each with its line."""
    for node, value in root.value:
        yield str(node.value), node.start_mark.line + 1
        for key, _ in value.value if isinstance(value, yaml.MappingNode) else ():
            yield f"{node.value}.{key.value}", key.start_mark.line + 1


def _override(values: dict[str, Any], words: str) -> None:
    """Set what words such as trainer.seed=1 say."""
    for word in words.split():
        name, equals, text = word.removeprefix("--").partition("=")
        section, dot, key = name.rpartition(".")
        if not equals or "." in section:
            raise SpecError(f"{word}: must be KEY=VALUE, such as trainer.num_train_steps=100")
        inside = values.setdefault(section, {}) if dot else values
        if not isinstance(inside, dict):
            raise SpecError(f"{word}: {section} is no section")
        try:
            inside[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise SpecError(f"{word}: is not YAML") from error


# --- the chips, the mesh, the batch


def _slice(keys: LevanterKeys, name: str | None) -> tuple[catalog.Chip, str]:
    """The chip and one slice of it: v4-64, v5litepod-256, v6e-256."""
    kind, _, size = str(name or "").partition("-")
    if kind not in CHIPS:
        keys.problems.append(
            f"device type {name}: a configuration of Levanter names no chips; say --device-type"
            f" v6e-256, or another of {', '.join(CHIPS)}"
        )
        return catalog.chip("v5p"), "2x2x1"
    chip = catalog.chip(CHIPS[kind])
    try:
        text = size if "x" in size else f"{chip.slices.names[0]}-{size}"
        return chip, str(catalog.topology(chip, text))
    except SpecError as error:
        keys.problems.append(f"device type {name}: {error}")
        return catalog.chip("v5p"), "2x2x1"


def _mesh(keys: LevanterKeys, devices: int, pods: int) -> dict[str, int]:
    """The axes inside a slice, and how many slices share one copy of the weights."""
    if keys.section("trainer").get("mesh") is not None:
        return _newer_mesh(keys, devices, pods)
    sizes = {
        "replica": keys.whole("trainer", "replica_ici_axis_size", 1),
        "model": keys.whole("trainer", "model_axis_size", 1),
    }
    copies = keys.whole("trainer", "replica_dcn_axis_size", 1)
    for key in ("axis_resources", "parameter_axis_resources"):
        said = keys.get("trainer", key, {})
        if not isinstance(said, dict) or not said.items() <= BATCH_AXES.items():
            keys.refuse(f"trainer.{key}", "is not served: fsdp_axis and model_axis_size are")
    if not keys.section("trainer").keys() & OLDER:
        copies = pods
    return _sizes(keys, "trainer.model_axis_size", devices, sizes) | _across(keys, pods, copies)


def _newer_mesh(keys: LevanterKeys, devices: int, pods: int) -> dict[str, int]:
    """Of `trainer.mesh`: one axis of a slice takes what the others leave."""
    said = keys.get("trainer", "mesh", {})
    axes = said.get("axes") or {} if isinstance(said, dict) else {}
    across = said.get("dcn_axes") or {} if isinstance(said, dict) else {}
    if (
        not isinstance(said, dict)
        or said.keys() - {"axes", "dcn_axes"}
        or not isinstance(axes, dict)
        or not isinstance(across, dict)
        or axes.keys() - AXES.keys()
        or across.keys() - {"replica_dcn"}
        or not all(type(one) is int for one in (*axes.values(), *across.values()))
    ):
        keys.refuse("trainer.mesh", f"must have axes of {', '.join(AXES)} and dcn_axes.replica_dcn")
        return {"data": 1, "fsdp": devices}
    copies = across.get("replica_dcn", -1)
    sizes = {name: size for name, size in axes.items() if size != -1}
    if [name for name, size in axes.items() if size == -1] not in ([], ["data"]):
        keys.refuse("trainer.mesh", "data alone may be -1")
    found = _sizes(keys, "trainer.mesh", devices, sizes)
    return found | _across(keys, pods, pods if copies == -1 else copies)


def _sizes(keys: LevanterKeys, key: str, devices: int, given: Mapping[str, int]) -> dict[str, int]:
    """Our axes, of which fsdp takes what is left."""
    others = {AXES[name]: size for name, size in given.items() if name != "data"}
    taken = prod(others.values())
    left = given.get("data", devices // taken if taken > 0 else 0)
    if min(taken, left, *others.values(), 1) < 1 or taken * left != devices:
        keys.refuse(key, f"must divide the {devices} devices of a slice")
        return {"data": 1, "fsdp": devices}
    mesh = {"data": 1, "fsdp": left} | others
    return {axis: size for axis, size in mesh.items() if size > 1 or axis in ("data", "fsdp")}


def _across(keys: LevanterKeys, pods: int, copies: int) -> dict[str, int]:
    """The slices that share one copy of the weights, of which there are `copies`."""
    if copies < 1 or pods % copies:
        keys.refuse("trainer.replica_dcn_axis_size", f"must divide the {pods} slices")
        return {}
    return {"fsdp_dcn": pods // copies} if pods > copies else {}


def _batch(keys: LevanterKeys, length: int, rows: int) -> dict[str, int]:
    """The batch of a step, and in how many parts `rows` groups of devices take it."""
    if isinstance(keys.get("trainer", "train_batch_size"), list):
        keys.refuse("trainer.train_batch_size", "is a schedule: experiment.stages says one")
        return {"sequences": 1, "length": length, "microbatches": 1}
    sequences = keys.whole("trainer", "train_batch_size")
    at_once = keys.whole("trainer", "per_device_parallelism", -1)
    if at_once < 1:
        return {"sequences": sequences, "length": length, "microbatches": 1}
    if sequences % (at_once * rows):
        keys.refuse(
            "trainer.per_device_parallelism",
            f"{at_once} on {rows} devices must divide the batch of {sequences}",
        )
    parts = max(sequences // (at_once * rows), 1)
    return {"sequences": sequences, "length": length, "microbatches": parts}

"""Turns a recipe into the content of a spec."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.interop.maxtext.recipe import Recipe, RecipeProblems
from orchestrator.interop.maxtext.shape import (
    StepCounts,
    in_catalog,
    model_of,
    remat_of_keys,
    steps_of,
    training_of,
)
from orchestrator.interop.maxtext.used_keys import AXES, CHIPS, UsedKeys

SPEC_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
FUSED = ("autoselected", "flash", "cudnn_flash_te")
COMPILER_PREFIX = "xla_"
NEARLY_WHOLE = 1e-6  # sequences: shares of a device are rounded


@dataclass(frozen=True, kw_only=True)
class ImportedSpec:
    """The content of a spec, where it differs from its recipe, and the keys that do not matter."""

    values: Mapping[str, Any]
    notes: tuple[str, ...]
    irrelevant: tuple[str, ...]


def convert(recipe: Recipe, device: str | None = None, slices: int | None = None) -> ImportedSpec:
    """The spec of a recipe; `RecipeProblems` lists every key that it cannot say.

    `device` and `slices` say which chips, where the recipe does not: v6e-256, tpu7x-4x8x8.
    """
    keys = UsedKeys(recipe)
    pods = slices or recipe.slices or max(keys.whole("compile_topology_num_slices"), 1)
    kind = device or recipe.device or keys["compile_topology"]
    chip, topology = _slice(keys, kind)
    steps = steps_of(keys)
    model = in_catalog(model_of(keys))
    experiment = {
        "model": model,
        **_batch(keys, catalog.topology(chip, topology).chips * chip.devices * pods, steps),
        **training_of(keys, steps),
        "remat": remat_of_keys(keys, latent="latent" in model, gated=model["gated"]),
    }
    if options := _compiler_options(recipe, chip):
        experiment["compiler_options"] = options
    if seed := keys.whole("init_weights_seed"):
        experiment["seed"] = seed
    resources = {
        "chip": chip.name,
        "topology": topology,
        "pods": pods,
        "mesh": _mesh(keys, chip, topology, pods),
    }
    _check_attention(keys)
    name = _name(keys, f"{model['name']}-{chip.name}-{pods}x")
    irrelevant = keys.check_rest()
    if keys.problems:
        raise RecipeProblems(keys.problems, keys.refused)
    values = {"name": name, "experiment": experiment, "resources": resources}
    if steps.run < steps.planned:
        values["run"] = {"steps": steps.run}
    return ImportedSpec(values=values, notes=tuple(keys.notes), irrelevant=irrelevant)


def _name(keys: UsedKeys, otherwise: str) -> str:
    """The run's name, where it may be that of a spec."""
    name = str(keys["run_name"] or "")
    return name if SPEC_NAME.fullmatch(name) else otherwise


# --- the chips


def _slice(keys: UsedKeys, name: Any) -> tuple[Chip, str]:
    """The chip, and one slice: v5e-256, v5litepod-256, v5p-128, tpu7x-4x8x8."""
    fallback = catalog.chip("v5p"), "2x2x1"
    if not name:
        keys.problems.append(
            "no chips: the recipe has no --device-type and no compile_topology; say which, for"
            " example --device-type v6e-256 --slices 2"
        )
        return fallback
    kind, _, size = str(name).partition("-")
    if kind not in CHIPS:
        keys.problems.append(f"device type {name}: must begin with one of {', '.join(CHIPS)}")
        return fallback
    chip = catalog.chip(CHIPS[kind])
    text = size if "x" in size else f"{chip.slices.names[0]}-{size}"
    try:
        return chip, str(catalog.topology(chip, text))
    except SpecError as error:
        keys.problems.append(f"device type {name}: {error}")
        return fallback


def _mesh(keys: UsedKeys, chip: Chip, topology: str, pods: int) -> dict[str, int]:
    """The sizes of the axes inside a slice, and of the weights' axis between slices."""
    devices = catalog.topology(chip, topology).chips * chip.devices
    sizes = _sizes(keys, "ici", devices)
    across = _sizes(keys, "dcn", pods)
    for axis in set(across) - {"data", "fsdp"}:
        if across[axis] > 1:
            keys.refuse(f"dcn_{AXES[axis][0]}_parallelism", "only data and fsdp may cross slices")
    mesh = {axis: size for axis, size in sizes.items() if size > 1 or axis in ("data", "fsdp")}
    if across["fsdp"] > 1:
        mesh["fsdp_dcn"] = across["fsdp"]
    return mesh


def _sizes(keys: UsedKeys, link: str, devices: int) -> dict[str, int]:
    """Each axis as the product of MaxText's; one of theirs may be -1, which is what is left."""
    theirs = {one: f"{link}_{one}_parallelism" for names in AXES.values() for one in names}
    given = {one: keys.whole(key, 1) for one, key in theirs.items()}
    for one, size in given.items():
        if size < 1 and size != -1:
            keys.refuse(theirs[one], "must be at least 1, or -1")
    open_axes = [one for one, size in given.items() if size == -1]
    known = prod(size for size in given.values() if size != -1)
    if len(open_axes) > 1:
        keys.refuse(theirs[open_axes[1]], "only one axis may be -1")
    elif open_axes:
        given[open_axes[0]] = max(devices // max(known, 1), 1)
    if prod(max(size, 1) for size in given.values()) != devices:
        shown = " x ".join(f"{one} {size}" for one, size in given.items() if size != 1)
        keys.problems.append(f"{link} parallelism: {shown or '1'} is not {devices}")
    return {ours: prod(given[one] for one in names) for ours, names in AXES.items()}


# --- the batch and the compiler


def _batch(keys: UsedKeys, devices: int, steps: StepCounts) -> dict[str, Any]:
    """The global batch of MaxText's batch of a JAX device, and the tokens of all steps."""
    microbatches = max(keys.whole("gradient_accumulation_steps", 1), 1)
    wanted = keys.number("per_device_batch_size") * devices * microbatches
    sequences = round(wanted)
    if sequences < 1 or abs(wanted - sequences) > NEARLY_WHOLE:
        keys.refuse("per_device_batch_size", f"{wanted:g} sequences a step are no whole number")
        sequences = 1
    length = keys.whole("max_target_length")
    batch = {"sequences": sequences, "length": length, "microbatches": microbatches}
    return {"tokens": sequences * length * steps.planned, "batch": batch}


def _check_attention(keys: UsedKeys) -> None:
    if keys["attention"] not in FUSED:
        keys.refuse("attention", f"must be one of {', '.join(FUSED)}: attention is a fused kernel")
    for key in ("optimizer_memory_host_offload", "parameter_memory_host_offload"):
        if keys.is_on(key):
            keys.refuse(key, "is not served: only activations are offloaded")


def _compiler_options(recipe: Recipe, chip: Chip) -> dict[str, Any]:
    """The compiler's options, but for those that every plan on the chip has."""
    known = {name: one.value for name, one in chip.libtpu.options.items()} if chip.libtpu else {}
    return {
        name: setting.value
        for name, setting in recipe.flags.items()
        if name.startswith(COMPILER_PREFIX)
        and setting.value is not None
        and (name not in known or setting.value != known[name])
    }

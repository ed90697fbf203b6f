"""Turns a recipe into the content of a spec."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import Chip
from orchestrator.errors import SpecError
from orchestrator.maxtext.model_shape import model_of
from orchestrator.maxtext.recipe import Recipe, RecipeProblems
from orchestrator.maxtext.used_keys import UsedKeys
from orchestrator.network import maxtext_policies
from orchestrator.network.rematerialization import Policy, remat_of

TYPES = {"float32": "fp32", "bfloat16": "bf16"}
QUANTIZED = ("fp8", "int8")
PLACES = ("device", "offload", "remat")
# Axes inside a slice, of ours and of MaxText's.
AXES = {
    "data": ("data",),
    "fsdp": ("fsdp", "fsdp_transpose"),
    "sequence": ("context", "sequence"),
    "tensor": ("tensor", "tensor_sequence", "tensor_transpose"),
    "expert": ("expert",),
}
# What xpk and MaxText call chips, as the catalog does.
CHIPS = {"v4": "v4", "v5litepod": "v5e", "v5e": "v5e", "v5p": "v5p", "v6e": "v6e", "tpu7x": "tpu7x"}
ADAM = ("adamw", "adam_pax")  # the same states, and one update of each weight
FUSED = ("autoselected", "flash", "cudnn_flash_te")
COMPILER_PREFIX = "xla_"


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
    pods = slices or recipe.slices or keys.whole("compile_topology_num_slices", 1)
    name = device or recipe.device or keys["compile_topology"]
    chip, topology = _slice(keys, name)
    experiment = {
        "model": model_of(keys),
        **_batch(keys, chip, topology, pods),
        **_training(keys),
        "remat": _remat(keys),
    }
    if options := _compiler_options(recipe):
        experiment["compiler_options"] = options
    resources = {
        "chip": chip.name,
        "topology": topology,
        "pods": pods,
        "mesh": _mesh(keys, chip, topology, pods),
    }
    _check_attention(keys)
    irrelevant = keys.check_rest()
    if keys.problems:
        raise RecipeProblems(keys.problems)
    spec = {"name": _name(experiment["model"], chip, pods), "experiment": experiment}
    return ImportedSpec(
        values={**spec, "resources": resources}, notes=tuple(keys.notes), irrelevant=irrelevant
    )


def _name(model: Mapping[str, Any], chip: Chip, pods: int) -> str:
    return f"{model['name']}-{chip.name}-{pods}x"


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


# --- the training


def _batch(keys: UsedKeys, chip: Chip, topology: str, pods: int) -> dict[str, Any]:
    """The global batch of MaxText's batch of a JAX device, and the tokens of all steps."""
    devices = catalog.topology(chip, topology).chips * chip.devices * pods
    microbatches = keys.whole("gradient_accumulation_steps", 1)
    sequences = keys.number("per_device_batch_size") * devices * microbatches
    if sequences != int(sequences) or sequences < 1:
        keys.refuse("per_device_batch_size", f"{sequences:g} sequences a step are no whole number")
    length, steps = keys.whole("max_target_length"), keys.whole("steps")
    batch = {
        "sequences": max(int(sequences), 1),
        "length": length,
        "microbatches": max(microbatches, 1),
    }
    return {"tokens": batch["sequences"] * length * max(steps, 1), "batch": batch}


def _training(keys: UsedKeys) -> dict[str, Any]:
    """The optimizer, its schedule, and the types."""
    if keys["opt_type"] not in ADAM:
        keys.refuse("opt_type", f"must be one of {', '.join(ADAM)}")
    steps, rate = keys.whole("steps"), float(keys.number("learning_rate"))
    optimizer = {
        "peak_lr": rate,
        "end_lr": rate * float(keys.number("cosine_learning_rate_final_fraction")),
        "warmup_steps": int(steps * keys.number("warmup_steps_fraction")),
        "beta1": float(keys.number("adam_b1")),
        "beta2": float(keys.number("adam_b2")),
        "epsilon": float(keys.number("adam_eps")),
        "weight_decay": float(keys.number("adam_weight_decay")),
        "z_loss": float(keys.number("z_loss_multiplier", 0.0)),
    }
    clip = keys.number("gradient_clipping_threshold")
    if clip > 0:
        optimizer["clip_norm"] = float(clip)
    else:
        keys.note("gradient_clipping_threshold=0: the plan's optimizer clips at a norm of 1")
    return {"optimizer": optimizer, "precision": _precision(keys)}


def _precision(keys: UsedKeys) -> dict[str, str]:
    types = {"compute": _compute(keys), "parameters": _type(keys, "weight_dtype")}
    keys.accept("grad_dtype")  # what is sent between devices is bf16 in either
    first_moment = _type(keys, "mu_dtype") if keys.is_on("mu_dtype") else types["parameters"]
    if first_moment != types["parameters"]:
        keys.note(f"mu_dtype={keys['mu_dtype']}: the plan has both moments in the type of weights")
    return {**types, "optimizer": types["parameters"]}


def _compute(keys: UsedKeys) -> str:
    """The type of matrix multiplications: quantized, or that of activations."""
    of_activations, name = _type(keys, "dtype"), str(keys["quantization"] or "")
    for quantized in QUANTIZED:
        if name == quantized or name.startswith(f"{quantized}_"):
            return quantized
    if name:
        keys.refuse("quantization", f"must be one of {', '.join(QUANTIZED)}, fp8_full, or off")
    return of_activations


def _type(keys: UsedKeys, key: str) -> str:
    name = keys.word(key)
    if name not in TYPES:
        keys.refuse(key, f"must be one of {', '.join(TYPES)}")
    return TYPES.get(name, "bf16")


def _remat(keys: UsedKeys) -> Any:
    """The policy, by name or tensor by tensor."""
    name = keys.word("remat_policy")
    tensors = {one: keys[one] for one in maxtext_policies.TENSORS if keys[one] is not None}
    if name == "custom":
        return _written(_custom(keys, tensors))
    if name not in maxtext_policies.NAMED:
        keys.refuse("remat_policy", f"must be one of {', '.join(maxtext_policies.NAMED)}, custom")
        return "full"
    if any(place in ("device", "offload") for one, place in tensors.items()):
        keys.note(f"remat_policy={name}: the places of single tensors have no effect")
    return _written(maxtext_policies.NAMED[name])


def _custom(keys: UsedKeys, tensors: Mapping[str, Any]) -> Policy:
    for tensor, place in tensors.items():
        if place not in PLACES:
            keys.refuse(tensor, f"must be one of {', '.join(PLACES)}")
    known = {tensor: place for tensor, place in tensors.items() if place in PLACES}
    return maxtext_policies.custom(known)


def _written(policy: Policy) -> Any:
    remat = remat_of(policy)
    return remat if isinstance(remat, str) else asdict(remat)


def _check_attention(keys: UsedKeys) -> None:
    if keys["attention"] not in FUSED:
        keys.refuse("attention", f"must be one of {', '.join(FUSED)}: attention is a fused kernel")
    for key in ("optimizer_memory_host_offload", "parameter_memory_host_offload"):
        if keys.is_on(key):
            keys.refuse(key, "is not served: only activations are offloaded")


def _compiler_options(recipe: Recipe) -> dict[str, Any]:
    return {
        name: setting.value
        for name, setting in recipe.flags.items()
        if name.startswith(COMPILER_PREFIX) and setting.value is not None
    }

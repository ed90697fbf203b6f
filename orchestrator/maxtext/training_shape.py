"""The training of a MaxText run as a spec has it: optimizer, schedule, types, recomputation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.maxtext.used_keys import UsedKeys
from orchestrator.network import maxtext_policies
from orchestrator.network.rematerialization import POLICIES, Policy, remat_of, treatments

TYPES = {"float32": "fp32", "bfloat16": "bf16"}
QUANTIZED = ("fp8", "int8")
PLACES = ("device", "offload", "remat")
DIGITS = 12  # of a rate that is a share of another
ADAM = ("adamw", "adam_pax")  # the same states, and one update of each weight


@dataclass(frozen=True)
class StepCounts:
    """The steps that the schedule of the learning rate is made for, and those that are run."""

    planned: int
    run: int


def steps_of(keys: UsedKeys) -> StepCounts:
    """Each is the other's where one is -1."""
    run, planned = keys.whole("steps"), keys.whole("learning_rate_schedule_steps", -1)
    planned = run if planned == -1 else planned
    run = planned if run == -1 else run
    if run < 1 or planned < 1:
        keys.refuse("steps", "must be positive")
    if run > planned:
        keys.note(f"the last {run - planned} steps have a learning rate of 0: they are left out")
    return StepCounts(planned=max(planned, 1), run=max(min(run, planned), 1))


def training_of(keys: UsedKeys, steps: StepCounts) -> dict[str, Any]:
    """The optimizer, its schedule, and the types."""
    if keys["opt_type"] not in ADAM:
        keys.refuse("opt_type", f"must be one of {', '.join(ADAM)}")
    optimizer = {
        **_schedule(keys, steps),
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


def _schedule(keys: UsedKeys, steps: StepCounts) -> dict[str, Any]:
    """How the learning rate rises and falls, over all steps of the schedule."""
    rate, kind = float(keys.number("learning_rate")), keys.word("lr_schedule_type")
    last = float(f"{rate * keys.number(_final_fraction(keys)):.{DIGITS}g}")
    warmup = int(steps.planned * keys.number("warmup_steps_fraction"))
    said = {"peak_lr": rate, "end_lr": last, "warmup_steps": warmup}
    if kind == "cosine":
        keys.accept("wsd_decay_steps_fraction", "wsd_decay_style")
        return said
    if kind != "wsd":
        keys.refuse("lr_schedule_type", "must be cosine or wsd")
    falling = int(steps.planned * keys.number("wsd_decay_steps_fraction"))
    if falling not in (0, steps.planned - warmup):
        keys.refuse("wsd_decay_steps_fraction", "the rate must fall at no step, or at all")
    if falling and keys["wsd_decay_style"] == "cosine":
        return said
    return said | {"decay": "linear" if falling else "constant"}


def _final_fraction(keys: UsedKeys) -> str:
    """The key of the last rate, which older releases call by another name."""
    older = "cosine_learning_rate_final_fraction"
    return older if keys[older] is not None else "learning_rate_final_fraction"


def _precision(keys: UsedKeys) -> dict[str, str]:
    types = {"compute": _compute(keys), "parameters": _type(keys, "weight_dtype")}
    keys.accept("grad_dtype")  # devices send gradients in the type of activations in either
    sent = {"gradients": "fp32"} if types["compute"] == "fp32" else {}
    moments = {"optimizer": types["parameters"]}
    first = _type(keys, "mu_dtype") if keys.is_on("mu_dtype") else types["parameters"]
    if first != types["parameters"]:
        moments["first_moment"] = first
    return {**types, **sent, **moments}


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


def remat_of_keys(keys: UsedKeys, *, latent: bool, gated: bool) -> Any:
    """The policy for such a model, by name or tensor by tensor."""
    one = _policy(keys)
    written = treatments(one, latent=latent, gated=gated)
    for name, known in POLICIES.items():
        if treatments(known, latent=latent, gated=gated) == written:
            return name
    remat = remat_of(one)
    return remat if isinstance(remat, str) else asdict(remat)


def _policy(keys: UsedKeys) -> Policy:
    name = keys.word("remat_policy")
    tensors = {one: keys[one] for one in maxtext_policies.TENSORS if keys[one] is not None}
    if name == "custom":
        return _custom(keys, tensors)
    if name == "none":
        keys.note("remat_policy=none: MaxText recomputes each layer of a scan, as with full")
        return POLICIES["full"]
    if name not in maxtext_policies.NAMED:
        keys.refuse("remat_policy", f"must be one of {', '.join(maxtext_policies.NAMED)}, custom")
        return POLICIES["full"]
    if any(keys.is_given(one) and place != "remat" for one, place in tensors.items()):
        keys.note(f"remat_policy={name}: the places of single tensors have no effect")
    return maxtext_policies.NAMED[name]


def _custom(keys: UsedKeys, tensors: Mapping[str, Any]) -> Policy:
    for tensor, place in tensors.items():
        if place not in PLACES:
            keys.refuse(tensor, f"must be one of {', '.join(PLACES)}")
    known = {tensor: place for tensor, place in tensors.items() if place in PLACES}
    return maxtext_policies.custom(known)

"""Optimizer, types and recomputation of a configuration of Levanter as a spec has them."""

from typing import Any

from orchestrator.maxtext.levanter_keys import LevanterKeys

# jmp's words for the types of parameters, of computation and of outputs.
ROLES = {"p": "p", "params": "p", "c": "c", "compute": "c", "o": "o", "output": "o"}
TYPES = {"f32": "fp32", "float32": "fp32", "full": "fp32", "bf16": "bf16", "bfloat16": "bf16"}
QUANTIZED = ("fp8", "int8")
USUAL = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8}  # of Levanter's AdamConfig
SCHEDULES = ("cosine", "linear", "constant")
POLICIES = {True: "full", False: "none", "save_all": "none", "offload": "offload_input"}


def optimizer_of(keys: LevanterKeys, steps: int) -> dict[str, Any]:
    """Adam and its schedule: a warm-up, then one fall or none."""
    if (kind := keys.get("optimizer", "type", "adam")) != "adam":
        keys.refuse("optimizer.type", f"is {kind}, must be adam")
    if keys.get("optimizer", "weight_decay") is None:
        keys.refuse(
            "optimizer.weight_decay",
            "is missing; its default was 0, and now is 0.1: 'optimizer.weight_decay=…' says it",
        )
    rate = keys.number("optimizer", "learning_rate")
    return {
        "peak_lr": rate,
        "end_lr": rate * keys.number("optimizer", "min_lr_ratio", 0.1),
        **_schedule(keys, steps),
        **{key: keys.number("optimizer", key, USUAL[key]) for key in USUAL},
        "weight_decay": keys.number("optimizer", "weight_decay", 0.0),
        "clip_norm": _clip_norm(keys) or 1.0,
        "z_loss": keys.number("", "z_loss_weight", 0.0),
    }


def _schedule(keys: LevanterKeys, steps: int) -> dict[str, Any]:
    name = keys.get("optimizer", "lr_schedule", "cosine")
    if name not in SCHEDULES:
        keys.refuse("optimizer.lr_schedule", f"must be {', '.join(SCHEDULES)}")
    older = keys.number("optimizer", "warmup_ratio", 0.01)
    warmup = _steps(keys.number("optimizer", "warmup", older), steps)
    if _steps(keys.number("optimizer", "cycle_length", steps), steps) != steps:
        keys.refuse("optimizer.cycle_length", "must be all steps: the rate falls once")
    if keys.get("optimizer", "cycles", 1) != 1:
        keys.refuse("optimizer.cycles", "must be 1: the rate falls once")
    keys.accept("optimizer", "rewarmup")  # of later cycles
    decay = keys.get("optimizer", "decay")
    if decay is not None and name != "constant":
        falling = _steps(keys.number("optimizer", "decay", 1.0), steps)
        if falling != steps - warmup:
            keys.refuse("optimizer.decay", "must be all steps after the warm-up")
    return {"warmup_steps": warmup, **({} if name == "cosine" else {"decay": name})}


def _steps(share: float, steps: int) -> int:
    """A number of steps, or a share of them."""
    return int(share if share > 1 else share * steps)


def _clip_norm(keys: LevanterKeys) -> float:
    """The norm at which gradients are clipped; 0 where they are not, which null says too."""
    written = keys.section("optimizer")
    none = "max_grad_norm" in written and written["max_grad_norm"] is None
    norm = keys.number("optimizer", "max_grad_norm", 0.0 if none else 1.0)
    if not norm:
        keys.note("max_grad_norm: the plan's optimizer clips at a norm of 1")
    return norm


def precision_of(keys: LevanterKeys) -> dict[str, str]:
    """Of jmp's words: one type, or p= of parameters and c= of computation."""
    words = str(keys.get("trainer", "mp", "f32"))
    pairs = [part.partition("=")[::2] for part in words.split(",")] if "=" in words else []
    types = {ROLES.get(role.strip(), ""): name.strip() for role, name in pairs} or {"p": words}
    if "" in types or "p" not in types or not TYPES.keys() >= set(types.values()):
        keys.refuse("trainer.mp", f"{words}: must be f32, bf16, or p=f32,c=bfloat16")
        return {}
    names = {"compute": TYPES[types.get("c", types["p"])], "parameters": TYPES[types["p"]]}
    sent = {"gradients": "fp32"} if names["compute"] == "fp32" else {}
    return {**names, **_quantized(keys), **sent, "optimizer": names["parameters"]}


def _quantized(keys: LevanterKeys) -> dict[str, str]:
    """The type of the blocks' matrix multiplications, where it is another one."""
    said = keys.get("trainer", "quantization", {})
    on = [key for key, value in said.items() if value] if isinstance(said, dict) else ["?"]
    if not on:
        return {}
    if len(on) > 1 or on[0] not in QUANTIZED:
        keys.refuse("trainer.quantization", f"must be one of {', '.join(QUANTIZED)}: true")
        return {}
    return {"compute": on[0]}


def remat_of(keys: LevanterKeys) -> str:
    value = keys.get("model", "gradient_checkpointing", True)
    if isinstance(value, bool | str) and value in POLICIES:
        return POLICIES[value]
    keys.refuse(
        "model.gradient_checkpointing",
        f"{value}: must be true, false, offload or save_all; each block's input is stored",
    )
    return "full"

"""Turns a configuration of Levanter, a YAML file of sections, into the content of a spec.

Every key is used, known not to matter, or refused by name. Defaults are those of Levanter's own
classes; batch, steps and the rates, whose defaults differ between releases, have to be written.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.maxtext.conversion import ImportedSpec
from orchestrator.maxtext.names import CHIPS
from orchestrator.maxtext.recipe import RecipeProblems

# Keys that a plan does not need, of the whole file and of its sections.
IRRELEVANT = {
    "": {"data", "hf_save_path", "hf_save_steps", "hf_upload", "out_dir", "eval_harness"},
    "model": {
        "attn_backend", "flash_attention_block_size", "gradient_checkpointing_block_size",
        "initializer_range", "reference_checkpoint", "scan_layers", "tokenizer",
        "use_flash_attention",
    },
    "trainer": {
        "batch_axis", "checkpointer", "fsdp_axis", "id", "load_checkpoint", "load_checkpoint_path",
        "log_dir", "max_eval_batches", "per_device_eval_parallelism", "ray",
        "require_accelerator", "run_base_dir", "shutdown_at_exit", "steps_per_eval",
        "tensor_parallel_axes", "tracker", "wandb", "profiler", "profiler_num_steps",
        "profiler_start_step", "jax_config",
    },
    "optimizer": {"type"},
}  # fmt: skip
# Sizes of tokenizers, from their models' configurations.
VOCABULARIES = {
    "meta-llama/Llama-2": 32_000,
    "NousResearch/Llama-2": 32_000,
    "huggyllama/llama": 32_000,
    "meta-llama/Meta-Llama-3": 128_256,
    "meta-llama/Llama-3": 128_256,
    "mistralai/Mistral-7B": 32_000,
}
# Keys of its LlamaConfig → ours, and their defaults.
SIZES = {
    "num_layers": ("layers", 32),
    "hidden_dim": ("d_model", 4096),
    "intermediate_dim": ("d_ff", 11_008),
    "num_heads": ("heads", 32),
    "num_kv_heads": ("kv_heads", 32),
}
LENGTH = 2048
# Keys of its Llama3RotaryEmbeddingsConfig → ours, and their defaults.
LLAMA_3 = {
    "factor": ("factor", 8.0),
    "low_freq_factor": ("low_frequency_factor", 1.0),
    "high_freq_factor": ("high_frequency_factor", 4.0),
    "original_max_position_embeddings": ("original_length", 8192),
}
THETAS = {"default": 10_000.0, "llama3": 500_000.0}
# jmp's words for the types of parameters, of computation and of outputs.
ROLES = {"p": "p", "params": "p", "c": "c", "compute": "c", "o": "o", "output": "o"}
TYPES = {"f32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"}
ADAM = ("beta1", "beta2", "epsilon")
USUAL = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8}  # of Levanter's AdamConfig


class _Loader(yaml.SafeLoader):
    """YAML as Levanter writes it: `!include FILE` stands for a section of another file."""


_Loader.add_constructor("!include", lambda _loader, _node: {})


class _Keys:
    """The keys of a configuration, and what is wrong with them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values, self.problems, self.used = values, list[str](), set[str]()
        self.refused: list[str] = []

    def get(self, section: str, key: str, otherwise: Any = None) -> Any:
        name = f"{section}.{key}" if section else key
        self.used.add(name)
        inside = self.values.get(section) if section else self.values
        value = inside.get(key) if isinstance(inside, Mapping) else None
        return otherwise if value is None else value

    def number(self, section: str, key: str, otherwise: float | None = None) -> float:
        """A number that has to be positive where nothing else is meant by leaving it out."""
        value = self.get(section, key, otherwise)
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.refuse(f"{section}.{key}", "is missing" if value is None else "must be a number")
            return 1.0
        if not -1e18 < number < 1e18:
            self.refuse(f"{section}.{key}", "must be a number")
            return 1.0
        if otherwise is None and number <= 0:
            self.refuse(f"{section}.{key}", "must be positive")
            return 1.0
        return number

    def whole(self, section: str, key: str, otherwise: int | None = None) -> int:
        number = self.number(section, key, otherwise)
        if number != int(number):
            self.refuse(f"{section}.{key}", "must be a whole number")
        return int(number)

    def refuse(self, key: str, why: str) -> None:
        self.refused.append(key)
        self.problems.append(f"{key}: {why}")

    def rest(self) -> tuple[str, ...]:
        """The keys that do not matter; all others that nothing used are refused."""
        irrelevant = []
        for name, value in self.values.items():
            inside = value if isinstance(value, Mapping) and name in IRRELEVANT else {}
            names = [(name, key) for key in inside] if inside else [("", name)]
            for section, key in names:
                full = f"{section}.{key}" if section else key
                if key in IRRELEVANT[section]:
                    irrelevant.append(full)
                elif full not in self.used and full not in IRRELEVANT:
                    self.refuse(full, "is not served")
        return tuple(irrelevant)


def convert_levanter(
    text: str, device: str | None, slices: int | None = None, vocab: int | None = None
) -> ImportedSpec:
    """The spec of a configuration; `RecipeProblems` lists every key that it cannot say."""
    try:
        values = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(values, Mapping):
        raise SpecError("not a configuration of Levanter: it has no sections")
    keys = _Keys({str(key): value for key, value in values.items()})
    chip, topology = _slice(keys, device)
    pods, found = slices or 1, catalog.topology(chip, topology)
    steps, length = keys.whole("trainer", "num_train_steps"), keys.whole("model", "seq_len", LENGTH)
    sequences = keys.whole("trainer", "train_batch_size")
    tensor = keys.whole("trainer", "model_axis_size", 1)
    devices = found.chips * chip.devices
    if tensor < 1 or devices % tensor:
        keys.refuse("trainer.model_axis_size", f"must divide the {devices} devices of a slice")
        tensor = 1
    experiment: dict[str, Any] = {
        "model": _model(keys, vocab),
        "tokens": sequences * length * steps,
        "batch": {
            "sequences": sequences,
            "length": length,
            "microbatches": _microbatches(keys, sequences, devices * pods // tensor),
        },
        "optimizer": _optimizer(keys, steps),
        "precision": _precision(keys),
        "remat": _remat(keys),
    }
    if seed := keys.whole("trainer", "seed", 0):
        experiment["seed"] = seed
    mesh = {"data": 1, "fsdp": devices // tensor, **({"tensor": tensor} if tensor > 1 else {})}
    for axis in ("replica_ici_axis_size", "replica_dcn_axis_size"):
        if keys.whole("trainer", axis, 1) not in (1, pods if "dcn" in axis else 1):
            keys.refuse(f"trainer.{axis}", "must be 1, or of dcn the number of slices")
    irrelevant = keys.rest()
    if keys.problems:
        raise RecipeProblems(keys.problems, keys.refused)
    resources = {"chip": chip.name, "topology": topology, "pods": pods, "mesh": mesh}
    name = f"{experiment['model']['name']}-{chip.name}-{pods}x"
    notes = [] if pods == 1 else ["slices share no weights: each has all of them"]
    if not _clip_norm(keys):
        notes.append("max_grad_norm: the plan's optimizer clips at a norm of 1")
    values = {"name": name, "experiment": experiment, "resources": resources}
    return ImportedSpec(values=values, notes=tuple(notes), irrelevant=irrelevant)


def _slice(keys: _Keys, name: str | None) -> tuple[catalog.Chip, str]:
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


def _model(keys: _Keys, vocab: int | None) -> dict[str, Any]:
    kind = keys.get("model", "type")
    if kind != "llama":
        keys.refuse("model.type", f"is {kind}, must be llama")
    sizes = {ours: keys.whole("model", key, usual) for key, (ours, usual) in SIZES.items()}
    if min(sizes.values()) < 1 or sizes["d_model"] % sizes["heads"]:
        keys.refuse("model.num_heads", "must divide hidden_dim, and all sizes be positive")
        sizes |= {"d_model": 1, "heads": 1}
    head = keys.whole("model", "head_dim", sizes["d_model"] // sizes["heads"])
    if keys.get("model", "activation_function", "silu") != "silu":
        keys.refuse("model.activation_function", "must be silu")
    for key, only in (("use_bias", False), ("use_layer_norm_weight", True), ("upcast_attn", False)):
        if keys.get("model", key, only) is not only:
            keys.refuse(f"model.{key}", f"must be {str(only).lower()}")
    return {
        "name": "llama",
        **sizes,
        "head_dim": head,
        "vocab": _vocabulary(keys) if vocab is None else vocab,
        "gated": True,
        "tied": bool(keys.get("model", "tie_word_embeddings", False)),
        "norm_epsilon": keys.number("model", "layer_norm_epsilon", 1e-5),
        **_rope(keys),
    }


def _vocabulary(keys: _Keys) -> int:
    tokenizer = str(keys.get("data", "tokenizer", ""))
    for begin, size in VOCABULARIES.items():
        if tokenizer.startswith(begin):
            return size
    keys.refuse("data.tokenizer", "is missing or not known; say its words with --vocab")
    return 1


def _rope(keys: _Keys) -> dict[str, Any]:
    rope = keys.get("model", "rope", {})
    rope = rope if isinstance(rope, Mapping) else {"type": rope}
    kind = rope.get("type", "default")
    known = {"type", "theta", *(LLAMA_3 if kind == "llama3" else ())}
    if kind not in THETAS or rope.keys() - known:
        keys.refuse("model.rope", f"must be of type {' or '.join(THETAS)}, with its own keys alone")
        return {}
    numbers = {"theta": ("rope_theta", THETAS[kind]), **(LLAMA_3 if kind == "llama3" else {})}
    said = {ours: rope.get(key, usual) for key, (ours, usual) in numbers.items()}
    if not all(isinstance(one, int | float) for one in said.values()):
        keys.refuse("model.rope", "must have numbers")
        return {}
    theta = float(said.pop("rope_theta"))
    return {"rope_theta": theta, **({"rope_scaling": {"kind": kind, **said}} if said else {})}


def _microbatches(keys: _Keys, sequences: int, devices: int) -> int:
    """Of a batch that goes in parts; all of it at once where `per_device_parallelism` is -1."""
    at_once = keys.whole("trainer", "per_device_parallelism", -1)
    if at_once < 1:
        return 1
    if sequences % (at_once * devices):
        keys.refuse("trainer.per_device_parallelism", f"{at_once} on {devices} devices must divide"
                    f" the batch of {sequences}")  # fmt: skip
    return max(sequences // (at_once * devices), 1)


def _optimizer(keys: _Keys, steps: int) -> dict[str, Any]:
    if (kind := keys.get("optimizer", "type", "adam")) != "adam":
        keys.refuse("optimizer.type", f"is {kind}, must be adam")
    schedule = keys.get("optimizer", "lr_schedule", "cosine")
    if schedule not in ("cosine", "linear", "constant"):
        keys.refuse("optimizer.lr_schedule", "must be cosine, linear or constant")
    if keys.number("optimizer", "cooldown", 0.0):
        keys.refuse("optimizer.cooldown", "must be 0")
    older = keys.number("optimizer", "warmup_ratio", 0.01)
    warmup = keys.number("optimizer", "warmup", older)
    rate = keys.number("optimizer", "learning_rate")
    if keys.get("optimizer", "weight_decay") is None:
        keys.refuse("optimizer.weight_decay", "is missing; its default was 0, and now is 0.1")
    return {
        "peak_lr": rate,
        "end_lr": rate * keys.number("optimizer", "min_lr_ratio", 0.1),
        "warmup_steps": int(warmup if warmup > 1 else warmup * steps),
        **{key: keys.number("optimizer", key, USUAL[key]) for key in ADAM},
        "weight_decay": keys.number("optimizer", "weight_decay", 0.0),
        "clip_norm": _clip_norm(keys) or 1.0,
        "z_loss": keys.number("", "z_loss_weight", 0.0),
        **({} if schedule == "cosine" else {"decay": schedule}),
    }


def _clip_norm(keys: _Keys) -> float:
    """The norm at which gradients are clipped; 0 where they are not, which null says too."""
    optimizer = keys.values.get("optimizer")
    written = optimizer if isinstance(optimizer, Mapping) else {}
    none = "max_grad_norm" in written and written["max_grad_norm"] is None
    return keys.number("optimizer", "max_grad_norm", 0.0 if none else 1.0)


def _precision(keys: _Keys) -> dict[str, str]:
    """Of jmp's words: one type, or p= of parameters and c= of computation."""
    words = str(keys.get("trainer", "mp", "f32"))
    pairs = [part.partition("=")[::2] for part in words.split(",")] if "=" in words else []
    types = {ROLES.get(role.strip(), ""): name.strip() for role, name in pairs} or {"p": words}
    if "" in types or not types.keys() >= {"p"} or not TYPES.keys() >= set(types.values()):
        keys.refuse("trainer.mp", f"{words}: must be f32, bf16, or p=f32,c=bfloat16")
        return {}
    names = {"compute": TYPES[types.get("c", types["p"])], "parameters": TYPES[types["p"]]}
    sent = {"gradients": "fp32"} if names["compute"] == "fp32" else {}
    return {**names, **sent, "optimizer": names["parameters"]}


def _remat(keys: _Keys) -> str:
    value = keys.get("model", "gradient_checkpointing", True)
    if not isinstance(value, bool):
        keys.refuse("model.gradient_checkpointing", "must be true or false")
    return "full" if value is not False else "none"

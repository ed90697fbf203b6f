"""The schema in words: what a field must hold, and what to write instead of a wrong value."""

from difflib import SequenceMatcher, get_close_matches
from typing import Any

from orchestrator.reading.nodes import Mapping, Misread, Node, Scalar, as_written, respellings
from orchestrator.reading.problems import SHOWN_VALUE, Correction, shortened
from orchestrator.reading.schema import (
    Schema,
    alternatives,
    constants,
    homes,
    kind,
    meaning,
    properties,
    resolved,
    scalar_types,
    validator,
)

# Each is looked for among the legal keys of the place where it stands.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "batch_size": ("sequences",),
    "global_batch_size": ("sequences",),
    "train_batch_size": ("sequences",),
    "seq_len": ("length",),
    "seq_length": ("length",),
    "sequence_length": ("length",),
    "max_seq_len": ("length",),
    "context_length": ("length",),
    "microbatch": ("microbatches",),
    "num_microbatches": ("microbatches",),
    "grad_accum": ("microbatches",),
    "accumulation_steps": ("microbatches",),
    "gradient_accumulation": ("microbatches",),
    "gradient_accumulation_steps": ("microbatches",),
    "lr": ("peak_lr",),
    "learning_rate": ("peak_lr",),
    "max_lr": ("peak_lr",),
    "min_lr": ("end_lr",),
    "warmup": ("warmup_steps",),
    "schedule": ("decay",),
    "lr_schedule": ("decay",),
    "wd": ("weight_decay",),
    "eps": ("epsilon", "norm_epsilon"),
    "rms_norm_eps": ("norm_epsilon",),
    "grad_clip": ("clip_norm",),
    "clip_grad": ("clip_norm",),
    "max_grad_norm": ("clip_norm",),
    "gradient_clipping": ("clip_norm",),
    "b1": ("beta1",),
    "b2": ("beta2",),
    "dp": ("data",),
    "data_parallel": ("data",),
    "replica": ("data",),
    "tp": ("tensor",),
    "model": ("tensor",),
    "tensor_parallel": ("tensor",),
    "sp": ("sequence",),
    "cp": ("sequence",),
    "context": ("sequence",),
    "dcn_fsdp": ("fsdp_dcn",),
    "zero": ("fsdp",),
    "num_layers": ("layers",),
    "n_layers": ("layers",),
    "num_hidden_layers": ("layers",),
    "depth": ("layers",),
    "dim": ("d_model",),
    "hidden_size": ("d_model",),
    "hidden_dim": ("d_model",),
    "embed_dim": ("d_model",),
    "n_embd": ("d_model",),
    "ffn_dim": ("d_ff",),
    "mlp_dim": ("d_ff",),
    "intermediate_size": ("d_ff",),
    "num_heads": ("heads",),
    "n_heads": ("heads",),
    "num_attention_heads": ("heads",),
    "n_kv_heads": ("kv_heads",),
    "num_kv_heads": ("kv_heads",),
    "num_key_value_heads": ("kv_heads",),
    "vocab_size": ("vocab",),
    "tie_word_embeddings": ("tied",),
    "tie_embeddings": ("tied",),
    "slices": ("pods",),
    "num_slices": ("pods",),
    "replicas": ("pods",),
    "accelerator": ("chip",),
    "accelerator_type": ("topology",),
    "tpu": ("chip",),
    "gpu": ("chip",),
    "shape": ("topology",),
    "price": ("dollars_per_chip_hour",),
    "cost": ("dollars_per_chip_hour",),
    "max_steps": ("steps",),
    "num_steps": ("steps",),
    "train_steps": ("steps",),
    "output_dir": ("storage",),
    "checkpoints": ("checkpoint",),
    "env": ("secrets",),
    "timeout": ("hang_limit",),
    "interval": ("every",),
    "save_every": ("every",),
    "remat_policy": ("remat",),
    "checkpointing": ("remat",),
    "gradient_checkpointing": ("remat",),
    "activation_checkpointing": ("remat",),
    "dtype": ("precision", "compute"),
    "params": ("parameters",),
    "weights": ("parameters",),
    "activations": ("compute",),
    "grads": ("gradients",),
    "moments": ("optimizer",),
    "xla_flags": ("compiler_options",),
    "dataset": ("data",),
    "tokens": ("path",),
    "manifest": ("path",),
    "files": ("path",),
    "tracking_uri": ("uri",),
    "mlflow": ("tracking", "uri"),
    "ray": ("cluster", "address"),
    "ray_address": ("address",),
}


# Values, looked for among the legal ones of their key.
VALUE_SYNONYMS = {
    "trillium": "v6e",
    "ironwood": "tpu7x",
    "tpu7": "tpu7x",
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "float32": "fp32",
    "f32": "fp32",
    "single": "fp32",
    "half": "bf16",
    "save_qkv_proj": "keep_qkv",
    "qkv_proj_offloaded": "offload_qkv",
}


AS_LIKELY = 0.05  # a name that is so much less similar than the nearest is not meant
FEW = 3  # so many names are suggested


def values_meant(text: str, legal: list[str]) -> list[str]:
    """The legal values that others call so, the likeliest first: those that begin so, or the most
    similar. A path such as meta-llama/Llama-3.1-8B ends with the name.
    """
    name = text.lower().strip().rpartition("/")[2]
    if known := VALUE_SYNONYMS.get(name.removeprefix("tpu").strip(" -_")):
        return [known] if known in legal else []
    begun = [one for one in legal if name and one.startswith(name)]
    close = get_close_matches(name, begun or legal, FEW, cutoff=0.0 if begun else 0.6)
    similar = [SequenceMatcher(None, one, name).ratio() for one in close]
    return [
        one
        for one, ratio in zip(close, similar, strict=True)
        if begun or ratio > similar[0] - AS_LIKELY
    ]


def synonym(key: str, legal: list[str]) -> str | None:
    """The legal key that another program calls so."""
    plain = key.lower().replace("-", "_")
    return next((one for one in SYNONYMS.get(plain, ()) if one in legal), None)


BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
NOUNS = {
    "boolean": "true or false",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
}
ALMOST_EQUAL = 0.9  # a key beside it that is this similar is likelier than the same key elsewhere
MANY = 10  # a longer list is not repeated where the nearest names are suggested
SECTIONS = ("experiment", "resources", "run", "cluster", "tracking")


def must(schema: Schema, *, brief: bool = False) -> str:
    """What a field must hold; where it is to be brief, without a long list of names."""
    whole = resolved(schema)
    if "title" in whole:
        return str(whole["title"])
    if "anyOf" in whole:
        return " or ".join(must(one, brief=brief) for one in alternatives(whole))
    if listed := constants(whole):
        if brief and len(listed) > MANY:
            return "a known name"
        return ("one of " if len(listed) > 1 else "") + ", ".join(map(plain, listed))
    if whole.get("type") == "object":
        return f"a mapping of {', '.join(properties(whole)) or 'names to values'}"
    bounds = [f"{words} {whole[key]:,}" for key, words in BOUNDS.items() if key in whole]
    return ", ".join(filter(None, (NOUNS[whole["type"]], " and ".join(bounds))))


def shown(node: Node, schema: Schema) -> str:
    """What a field holds, as a message repeats it; what may be a secret is not repeated."""
    if not isinstance(node, Scalar):
        return "a mapping" if isinstance(node, Mapping) else "a list"
    if schema.get("writeOnly"):
        return "something else"
    return shortened(node.text) if node.plain else f'"{shortened(node.text)}"'


def suggestion(
    path: tuple[str | int, ...], schema: Schema, node: Node | None = None
) -> Correction | None:
    """A legal value instead of an illegal or missing one: what was meant, or an example."""
    if isinstance(node, Scalar) and not schema.get("writeOnly"):
        meant = likely(schema, node)
        if meant:
            quoted = meant[0] == node.text and not node.plain
            return Correction("unquoted" if quoted else "meant", meant[0], tuple(meant[1:]))
    value = example(schema)
    key = f"{path[-1]}: " if path and isinstance(path[-1], str) else ""
    return None if value is None else Correction("example", f"{key}{plain(value)}")


def likely(schema: Schema, node: Scalar) -> list[str]:
    """The legal values that were probably meant, the likeliest first."""
    if not 0 < len(node.text) <= SHOWN_VALUE:
        return []
    listed = [value for one in alternatives(schema) for value in map(plain, constants(one))]
    if listed and (meant := values_meant(node.text, listed)):
        return meant
    return [text for text in respellings(node.text) if is_legal(text, schema)][:1]


def is_legal(text: str, schema: Schema) -> bool:
    """Whether a field could hold this text, without quotes."""
    types = scalar_types(schema)
    value = as_written(text, types)
    if may_mean_either(types) and isinstance(value, str):
        return False  # it needs quotes, or no other spelling
    if not text.isprintable() or not validator().evolve(schema=schema).is_valid(value):
        return False
    try:
        meaning(value, kind(schema))
    except Misread:
        return False
    return True


def may_mean_either(types: set[str]) -> bool:
    """Whether a field holds text as well as truth values, so that text may be mistaken for one."""
    return types >= {"boolean", "string"}


def example(schema: Schema) -> Any:
    """A legal value; None when the schema suggests none."""
    whole = resolved(schema)
    several = [value for one in whole.get("anyOf", ()) if (value := example(one)) is not None]
    candidates = [*whole.get("examples", ())]
    candidates += [whole[key] for key in ("default", "minimum") if key in whole]
    candidates += [*constants(whole), *several]
    inside = {key: example(one) for key, one in properties(whole).items()}
    required = {key: inside[key] for key in whole.get("required", ())}
    return candidates[0] if candidates else required or inside or None


def key_suggestion(key: str, legal: list[str], *, in_spec: bool = True) -> Correction:
    """What to write instead of an unknown key; in a spec, it may belong elsewhere."""
    if key.isdigit():
        return Correction("commas")
    if key in SECTIONS and key not in legal:
        return Correction("top")
    if len(key) > SHOWN_VALUE:
        return Correction("remove")
    elsewhere = homes(key) if in_spec else []
    if key in elsewhere:
        return Correction("top")
    beside = get_close_matches(key.lower(), legal, 1, cutoff=ALMOST_EQUAL)
    meant = [synonym(key, legal), *beside, *elsewhere, meant_key(key, legal)]
    return next((Correction("meant", one) for one in meant if one), Correction("remove"))


def meant_key(key: str, legal: list[str]) -> str | None:
    """The legal key that was probably meant."""
    if len(key) > SHOWN_VALUE:
        return None
    if known := synonym(key, legal):
        return known
    close = get_close_matches(key.lower(), legal, 1)
    longer = [one for one in legal if one.startswith(key.lower())]
    return next(iter(close + longer), None)


def plain(value: Any) -> str:
    """A JSON value as a spec has it on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(inside)}" for key, inside in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return str(value)

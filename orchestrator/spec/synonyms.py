"""Keys and values as others call them, and what a spec calls them."""

from difflib import SequenceMatcher, get_close_matches

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

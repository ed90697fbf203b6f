"""A recipe's keys, over those of its model and MaxText's defaults; a conversion uses them up."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from textwrap import shorten
from typing import Any

from orchestrator.interop.maxtext.recipe import Recipe, Setting

# MaxText's keys that do not change what a plan is about: its memory, its time and its price.


NAMES = frozenset(
    """
    add_bos add_eos allow_split_physical_axes async_checkpointing base_output_directory
    checkpoint_period cost_estimate_flops_fwd cost_estimate_flops_bwd custom_mesh data_sharding
    data_shuffle_seed dataset_name dataset_path dataset_type decode_sampling_strategy
    dense_init_scale dump_hlo dump_step enable_data_shuffling enable_diloco enable_dropout
    enable_goodput_recording enable_jax_profiler enable_tensorboard enable_tf_data_service
    enable_wandb eval_interval eval_per_device_batch_size eval_steps force_unroll gcs_metrics
    grain_train_files grain_worker_count hardware hf_access_token hf_path
    inference_server input_data_sharding_logical_axes jax_cache_dir jax_debug_log_modules
    jax_distributed_initialization_timeout load_full_state_path log_config log_period
    logical_axis_rules matmul_precision max_corpus_chars max_num_checkpoints_to_keep mesh_axes
    metrics_file model_call_mode monitor_goodput monitor_step_time_deviation
    override_model_config param_scan_axis per_layer_metrics prng_impl profile_cleanly
    profile_periodically_period profiler profiler_steps record_internal_nn_metrics
    reuse_example_batch save_config_to_gcs save_checkpoint_on_completion
    save_checkpoint_on_start scan_layers sharding_tolerance skip_first_n_steps_for_profiler
    skip_jax_distributed_system stack_trace_interval_seconds stack_trace_to_cloud
    steps_per_eval target_eval_loss tokenize_eval_data tokenize_train_data tokenizer_path
    tokenizer_type train_data_columns train_split upload_all_profiler_results use_iota_embed
    use_tokamax_splash use_tokamax_gmm use_vertex_tensorboard value_proj_bias
    vertex_tensorboard_project vertex_tensorboard_region vocab_tiling_ag_once wandb_project_name
    wandb_run_name megablox sparse_matmul use_custom_sort_vjp use_ragged_sort use_gmm_v2
    use_gather_mosaic_kernel merge_gating_gmm shard_mode trainable_position_size
    cast_logits_to_fp32 logits_dot_in_fp32 float32_logits float32_qk_product float32_weight_sum
    float32_gate_logits normalize_embedding_logits max_position_embeddings
    use_multimodal rope_interleave mscale image_placeholder fused_qkv fused_mlp
    internal_compile internal_compile_num_devices compile_xla_flags compiled_trainstep_file
    adamw_mask goodput_upload_interval_seconds num_vocab_tiling
    use_splash_scheduler dq_reduction_steps use_max_logit_estimate fsdp_shard_on_exp
    shard_exp_on_fsdp use_2d_fsdp_sharding moe_fsdp_use_two_stage_all_gather
    dense_fsdp_use_two_stage_all_gather
    enable_pathways_goodput enable_single_controller force_q_layout
    weight_quantization_calibration_method act_quantization_calibration_method
    bwd_quantization_calibration_method use_qwix_quantization
    """.split()  # noqa: SIM905  a list of a hundred words reads best as text
)
# Kernel blocks, checkpoints, profiles, data pipelines, evaluation, inference, vision.
PATTERNS = re.compile(
    r"(?:local_)?sa_.*|.*_tile_.*|checkpoint_.*|enable_.*(?:checkpoint|ckpt).*|profile.*|grain_.*|hf_.*|eval_.*"
    r"|tokenizer_.*|dataset_.*|.*_for_vit|vision_.*|image_.*|inference_.*|prefill_.*|decode_.*"
    r"|goodput_.*|vertex_.*|ragged_.*|wandb_.*|xprof_.*|.*_logical_axis_rules|colocated_.*|mtc_.*"
    r"|multi_tier_.*|local_checkpoint_.*|elastic_.*|stack_trace_.*|jax_.*"
)


def is_irrelevant(key: str) -> bool:
    """Whether a key may have any value."""
    return key in NAMES or PATTERNS.fullmatch(key) is not None


# base.yml, where a plan is about it.
DEFAULTS: dict[str, Any] = {
    "adam_b1": 0.9,
    "adam_b2": 0.95,
    "adam_eps": 1e-8,
    "adam_weight_decay": 0.1,
    "attention": "autoselected",
    "attention_type": "global",
    "base_emb_dim": 2048,
    "base_mlp_dim": 7168,
    "base_moe_mlp_dim": -1,
    "base_num_decoder_layers": 16,
    "base_num_kv_heads": 16,
    "base_num_query_heads": 16,
    "capacity_factor": -1.0,
    "dcn_data_parallelism": -1,
    "decoder_block": "llama2",
    "dtype": "bfloat16",
    "global_parameter_scale": 1,
    "grad_dtype": "float32",
    "gradient_accumulation_steps": 1,
    "gradient_clipping_threshold": 1.0,
    "head_dim": 128,
    "ici_fsdp_parallelism": -1,
    "learning_rate": 3e-5,
    "learning_rate_final_fraction": 0.1,
    "lr_schedule_type": "cosine",
    "logits_via_embedding": False,
    "max_target_length": 2048,
    "mlp_activations": ["silu", "linear"],
    "model_name": "default",
    "normalization_layer_epsilon": 1e-5,
    "num_experts": 1,
    "num_experts_per_tok": 1,
    "opt_type": "adamw",
    "per_device_batch_size": 12.0,
    "remat_policy": "full",
    "rope_max_timescale": 10_000,
    "rope_type": "default",
    "routed_scaling_factor": 1.0,
    "steps": 150_001,
    "vocab_size": 32_000,
    "warmup_steps_fraction": 0.1,
    "weight_dtype": "float32",
    "wsd_decay_steps_fraction": 0.1,
    "wsd_decay_style": "linear",
}
# What a spec has in place of a key that is not served.
INSTEAD = {
    "load_parameters_path": (
        "is not served: MaxText's checkpoints are not read; experiment.start in the spec names a"
        " Hugging Face folder, and the rest imports without this key"
    ),
}
LARGEST, SHOWN = 1e18, 120
# What switches a key off: nothing is lost where such a key is not served.
OFF: tuple[Any, ...] = (None, False, "", 0, -1, [], {}, "default", "none", "disabled", "remat")


@cache
def models() -> dict[str, dict[str, Any]]:
    """MaxText's models by name, each with its keys."""
    return _table("models.toml")


@cache
def base_values() -> dict[str, list[Any]]:
    """Values of base.yml that switch nothing on, by key."""
    return _table("base_values.toml")


def _table(name: str) -> dict[str, Any]:
    text = files("orchestrator.interop.maxtext").joinpath(name).read_text(encoding="utf-8")
    return tomllib.loads(text)


class UsedKeys:
    """The values of keys, what is wrong with them, and what else should be known.

    `problems` are told to people; `refused` are the keys that most of them are about.
    """

    def __init__(self, recipe: Recipe) -> None:
        name = str(recipe.get("model_name", "default"))
        self._given, self._model = recipe.keys, models().get(name, {})
        self._base = recipe.base
        self._used: set[str] = set()
        self.problems: list[str] = []
        self.refused: list[str] = []
        self.notes: list[str] = []
        if name not in (*models(), "default"):
            self.refuse("model_name", f"is not known; known: {', '.join(models())}")

    def __getitem__(self, key: str) -> Any:
        """The value of a key: of the recipe, its model, its base or the defaults; None without."""
        self._used.add(key)
        if key in self._given:
            return self._given[key].value
        usual = self._base[key].value if key in self._base else DEFAULTS.get(key)
        return self._model.get(key, usual)

    def is_given(self, key: str) -> bool:
        """Whether the recipe itself says it."""
        return key in self._given

    def accept(self, *keys: str) -> None:
        """Let keys have any value."""
        self._used.update(keys)

    def word(self, key: str) -> str:
        """A value that is one of some names."""
        return str(self[key])

    def number(self, key: str, unset: float | None = None) -> float:
        """A number; what is none is refused, and counts as 1. `unset` where it is not on."""
        value = self[key]
        if unset is not None and not value:
            return unset
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, "must be a number")
            return 1
        if not -LARGEST < value < LARGEST:  # nor is it no number
            self.refuse(key, "is too large")
            return 1
        return value

    def whole(self, key: str, unset: int = 0) -> int:
        """A whole number; `unset` where nobody gives one."""
        if self[key] is None:
            return unset
        value = self.number(key)
        if value != int(value):
            self.refuse(key, "must be a whole number")
        return int(value)

    def is_on(self, key: str) -> bool:
        """Whether a key is switched on."""
        return self[key] not in OFF

    def refuse(self, key: str, why: str) -> None:
        """A value that no spec can say."""
        setting = self._given.get(key)
        if setting is None and key in self._model:
            setting = Setting(self._model[key], f"model {self['model_name']}")
        setting = setting or self._base.get(key)
        self.refused.append(key)
        place = f"{setting.place}: " if setting and setting.place else ""
        written = shorten(f"{key}={setting.value}" if setting else key, SHOWN)
        if setting and "$" in str(setting.value) and key not in INSTEAD:
            why = f"is set outside of the script; add its value as another source, '{key}=…'"
        self.problems.append(f"{place}{written}: {why}")

    def note(self, text: str) -> None:
        """What the spec says otherwise than the recipe."""
        self.notes.append(text)

    def check_rest(self) -> tuple[str, ...]:
        """Refuse every key that is on and was not used; the keys that no plan is about."""
        irrelevant = []
        for key, setting in {**self._base, **self._of_model(), **self._given}.items():
            if key in self._used:
                continue
            if is_irrelevant(key):
                irrelevant.append(key)
            elif setting.value not in OFF and not self._is_default(key, setting.value):
                self.refuse(key, INSTEAD.get(key, "is not served"))
        return tuple(sorted(irrelevant))

    def _of_model(self) -> dict[str, Setting]:
        return {key: Setting(value, "") for key, value in self._model.items()}

    @staticmethod
    def _is_default(key: str, value: Any) -> bool:
        """Whether it says what holds without it: one way, a file that adds to the defaults, or the
        value of base.yml itself.
        """
        one_way = key.endswith("_parallelism") and value == 1
        is_base = (key, value) == ("base_config", "base.yml")
        plain = list(value) if isinstance(value, tuple) else value
        known = (*base_values().get(key, ()), *((DEFAULTS[key],) if key in DEFAULTS else ()))
        return one_way or is_base or plain in known


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

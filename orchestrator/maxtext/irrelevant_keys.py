"""MaxText's keys that do not change what a plan is about: its memory, its time and its price."""

import re

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

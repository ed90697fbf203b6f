"""The published runs whose MaxText programs `make bench-schedule` compiles, by their recipes.

`title` is the id of a run in the catalog or in tests/unseen_runs.csv, which names its source. Words
and flags are those of the recipe at that source; the base model of 2023 is written out by its
sizes, since MaxText's own has others now. Left out are keys about files and logs, and the flag
`xla_sc_disjoint_spmem`, which this compiler does not have. The first rows decide.
"""

from tests.bench.maxtext_plans import MaxTextPlan, run

# --- flags, by the names of MaxText's benchmarks/xla_flags_library.py

_DENSE_VMEM = ("--xla_tpu_scoped_vmem_limit_kib=98304",)
_OVERLAP = (
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "--xla_tpu_data_parallel_opt_different_sized_ops=true",
)
_FUSED_GATHERS = (
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "--xla_tpu_overlap_compute_collective_tc=true",
    "--xla_enable_async_all_gather=true",
)
_LAYOUT = (
    "--xla_tpu_use_minor_sharding_for_major_trivial_input=true",
    "--xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1",
    "--xla_tpu_assign_all_reduce_scatter_layout=true",
)
_SPARSE_SUMS = (
    "--xla_tpu_enable_async_collective_fusion_fuse_all_reduce=false",
    "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    "--xla_tpu_enable_all_reduce_offload_tracing=true",
    "--xla_tpu_use_tc_device_shape_on_sc=true",
    "--xla_sc_enable_instruction_fusion=false",
    "--xla_sc_disable_megacore_partitioning=true",
)
_OFFLOAD = (
    "--xla_tpu_enable_all_experimental_scheduler_features=true",
    "--xla_tpu_enable_scheduler_memory_pressure_tracking=true",
    "--xla_tpu_host_transfer_overlap_limit=24",
    "--xla_tpu_aggressive_opt_barrier_removal=ENABLED",
    "--xla_lhs_prioritize_async_depth_over_stall=ENABLED",
    "--xla_tpu_enable_ag_backward_pipelining=true",
    "--xla_should_allow_loop_variant_parameter_in_chain=ENABLED",
    "--xla_should_add_loop_invariant_op_in_chain=ENABLED",
    "--xla_max_concurrent_host_send_recv=100",
    "--xla_tpu_scheduler_percent_shared_memory_limit=100",
    "--xla_latency_hiding_scheduler_rerun=2",
)
_NO_PIECES = ("--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",)
_70B_FLAGS = (*_DENSE_VMEM, *_LAYOUT, *_OVERLAP, *_FUSED_GATHERS, *_OFFLOAD)
_8B_128_FLAGS = (*_DENSE_VMEM, *_LAYOUT, *_OVERLAP, *_FUSED_GATHERS, *_SPARSE_SUMS, *_OFFLOAD)
_8B_FLAGS = (*_8B_128_FLAGS, *_NO_PIECES)
_LLAMA_2_FLAGS = (*_DENSE_VMEM, *_FUSED_GATHERS, *_SPARSE_SUMS)
_GPT_3_FLAGS = (
    *_DENSE_VMEM, *_FUSED_GATHERS, *_OVERLAP,
    "--xla_tpu_use_bundle_aware_cost_model_for_fusions=false",
)  # fmt: skip
_GEMMA_3_FLAGS = ("--xla_tpu_scoped_vmem_limit_kib=122880",)
_V5E_FLAGS = (*_OVERLAP, *_FUSED_GATHERS)
_V5P_FLAGS = (
    "--xla_tpu_megacore_fusion_allow_ags=false",
    "--xla_enable_async_collective_permute=true",
    "--xla_tpu_enable_ag_backward_pipelining=true",
    *_OVERLAP,
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "--xla_tpu_overlap_compute_collective_tc=true",
    "--xla_enable_async_all_gather=true",
)
_IRONWOOD_70B_FLAGS = (
    "--xla_tpu_scoped_vmem_limit_kib=61440",
    "--xla_tpu_bf16_emission_mode=NATIVE_EMISSION",
    "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    "--xla_tpu_use_single_sparse_core_for_all_gather_offload=true",
)
_GEMMA_4_FLAGS = (
    "--xla_tpu_scoped_vmem_limit_kib=65536",
    "--xla_tpu_bf16_emission_mode=NATIVE_EMISSION",
    "--xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_2d_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_3d_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter=true",
    "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    "--xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true",
    "--xla_tpu_enable_sparse_core_reduce_scatter_v2=true",
    "--xla_tpu_use_single_sparse_core_for_all_gather_offload=true",
    "--xla_tpu_use_tc_device_shape_on_sc=true",
    "--xla_sc_disable_megacore_partitioning=true",
    "--xla_enable_async_all_gather=true",
    "--xla_tpu_prefer_async_allgather_to_allreduce=true",
    "--xla_tpu_enable_latency_hiding_layer_scheduler=true",
    "--xla_tpu_enable_layer_scheduler_for_dependent_collectives=true",
    "--xla_tpu_scheduler_percent_shared_memory_limit=150",
    "--xla_tpu_enable_sparse_core_collective_aggregator=true",
    "--xla_tpu_enable_all_gather_offload_tracing=true",
)

# --- words

_BLOCKS = (
    "attention=flash sa_block_q=2048 sa_block_kv=2048 sa_block_kv_compute=2048"
    " sa_block_q_dkv=2048 sa_block_kv_dkv=2048 sa_block_kv_dkv_compute=2048"
)
_ONE_KERNEL = f"{_BLOCKS} sa_block_q_dq=2048 sa_block_kv_dq=2048 sa_use_fused_bwd_kernel=true"
_INPUTS = (
    "remat_policy=custom decoder_layer_input=offload query_proj=offload key_proj=offload"
    " value_proj=offload"
)
_RESULT = "out_proj=offload"
_8B = f"model_name=llama3.1-8b max_target_length=8192 use_iota_embed=true {_ONE_KERNEL}"
_70B = f"model_name=llama3.1-70b max_target_length=8192 use_iota_embed=true {_ONE_KERNEL}"
_MISTRAL = f"model_name=mistral-7b max_target_length=8192 use_iota_embed=true {_ONE_KERNEL}"
_OLDER_BLOCKS = "attention=flash sa_block_q=1024 sa_block_q_dkv=2048 sa_block_q_dq=2048"
_GEMMA_3 = (
    "model_name=gemma3-12b max_target_length=32768 per_device_batch_size=1 num_vocab_tiling=16"
    " use_iota_embed=true attention=flash remat_policy=custom decoder_layer_input=device"
    " sa_block_q=1024 sa_block_kv=1024 sa_block_kv_compute=1024 sa_block_q_dkv=512"
    " sa_block_kv_dkv=2048 sa_block_kv_dkv_compute=512 sa_block_q_dq=1024 sa_block_kv_dq=1024"
)
_TOKAMAX = (
    "use_iota_embed=true attention=flash use_tokamax_splash=true sa_use_fused_bwd_kernel=true"
    " sa_q_layout=SEQ_MINOR sa_k_layout=SEQ_MINOR sa_v_layout=HEAD_DIM_MINOR"
)
_IRONWOOD_70B = (
    "model_name=llama3.1-70b max_target_length=8192 per_device_batch_size=2 mu_dtype=bfloat16"
    " remat_policy=custom decoder_layer_input=device context=device query_proj=device"
    f" key_proj=device value_proj=device qkv_proj=device {_TOKAMAX} {_BLOCKS}"
)
_GEMMA_4 = (
    "model_name=gemma4-31b max_target_length=8192 per_device_batch_size=4 num_vocab_tiling=8"
    f" remat_policy=custom out_proj=device mlpwo=device {_TOKAMAX}"
    " sa_block_q=2048 sa_block_kv=2048 sa_block_kv_compute=512 sa_block_q_dkv=1024"
    " sa_block_kv_dkv=2048 sa_block_kv_dkv_compute=1024 sa_block_q_dq=1024 sa_block_kv_dq=1024"
    " use_splash_scheduler=true local_use_splash_scheduler=false local_sa_block_q=1024"
    " local_sa_block_kv=1024 local_sa_block_kv_compute=512 local_sa_block_q_dkv=1024"
    " local_sa_block_kv_dkv=2048 local_sa_block_kv_dkv_compute=1024"
    " ici_fsdp_parallelism=16 ici_fsdp_transpose_parallelism=8"
    " dense_fsdp_use_two_stage_all_gather=true"
)


def _base(layers: int, width: int, inner: int, heads: int) -> str:
    """Return the base model of 2023 in today's keys."""
    return (
        f"base_emb_dim={width} base_mlp_dim={inner} base_num_decoder_layers={layers}"
        f" base_num_query_heads={heads} base_num_kv_heads={heads} head_dim=256 vocab_size=32768"
        " mlp_activations=['relu'] logits_via_embedding=true use_iota_embed=true"
        " max_target_length=2048 attention=flash"
    )


def _v5e(model: str, batch: int) -> str:
    return f"{model} per_device_batch_size={batch} remat_policy=full ici_fsdp_parallelism=256"


def _with_tensor(model: str, batch: int, remat: str, fsdp: int, tensor: int) -> str:
    return (
        f"{model} per_device_batch_size={batch} remat_policy={remat}"
        f" ici_fsdp_parallelism={fsdp} ici_tensor_parallelism={tensor}"
    )


def _alone(model: str, batch: int, policy: str, fsdp: int) -> str:
    """Return a run whose one slice has `fsdp` only."""
    return f"{model} per_device_batch_size={batch} {policy} ici_fsdp_parallelism={fsdp}"


_16B, _64B = _base(32, 5120, 32768, 32), _base(64, 10240, 32768, 32)
_32B, _128B = _base(32, 10240, 32768, 32), _base(64, 10240, 65536, 64)
_256B = _base(64, 20480, 65536, 64)
_LLAMA_2 = "model_name=llama2-70b max_target_length=4096 use_iota_embed=true"
_FULL = "remat_policy=full"

ROWS: tuple[MaxTextPlan, ...] = (
    run("mx_v5p_128b_1x256", "v5p-256", _with_tensor(_128B, 2, "minimal", 16, 8), _V5P_FLAGS),
    run("tr_v6e_llama3.1-8b_1x_8_20250715", "v6e-8",
        _alone(_8B, 3, f"{_INPUTS} {_RESULT}", 8), _8B_FLAGS),
    run("mx_v5e_16b_1x", "v5e-256", _v5e(_16B, 6), _V5E_FLAGS),
    run("mx_v5p_32b_1x128", "v5p-128", _with_tensor(_32B, 8, "minimal", 16, 4), _V5P_FLAGS),
    run("tr_iron_llama3.1-70b_64_bf16_8192", "tpu7x-128",
        f"{_IRONWOOD_70B} ici_fsdp_parallelism=128", _IRONWOOD_70B_FLAGS),
    run("mx_v5e_64b_1x", "v5e-256", _v5e(_64B, 2), _V5E_FLAGS),
    run("tr_v6e_llama3.1-70b_1x_128_20250715", "v6e-128",
        _alone(_70B, 4, _INPUTS, 128), _70B_FLAGS),
    run("mx_v5p_128b_2x256", "v5p-256",
        _with_tensor(_128B, 2, "minimal", 16, 8), _V5P_FLAGS, slices=2),
    run("tr_v6e_gemma3-12b_1x_256_20251018", "v6e-256",
        f"{_GEMMA_3} ici_fsdp_parallelism=256", _GEMMA_3_FLAGS),
    run("mx_v5e_16b_2x", "v5e-256", _v5e(_16B, 6), _V5E_FLAGS, slices=2),
    run("tr_iron_gemma4-31b_64_bf16_8192", "tpu7x-128", _GEMMA_4, _GEMMA_4_FLAGS),
    run("mx_v5p_128b_1x512", "v5p-512", _with_tensor(_128B, 2, "minimal", 32, 8), _V5P_FLAGS),
    run("mx_v5e_128b_full", "v5e-256", _with_tensor(_128B, 1, "full", 16, 16), _V5E_FLAGS),
    run("mx_v5p_llama2-70b", "v5p-128",
        f"{_alone(_LLAMA_2, 4, 'remat_policy=save_dot_except_mlpwi', 64)} attention=flash",
        ("--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true", *_V5P_FLAGS)),
    run("mx_v5p_256b_1x1024", "v5p-1024",
        _with_tensor(_256B, 1, "minimal", 64, 8), _V5P_FLAGS),
    run("mx_v5e_llama2-70b", "v5e-256",
        f"{_alone(_LLAMA_2, 2, 'remat_policy=qkv_proj_offloaded', 256)} attention=flash",
        _V5E_FLAGS),
    run("mx_v5e_32b_1x", "v5e-256", _v5e(_32B, 4), _V5E_FLAGS),
    run("mx_v5p_32b_2x128", "v5p-128",
        _with_tensor(_32B, 8, "minimal", 16, 4), _V5P_FLAGS, slices=2),
    run("tr_v6e_gpt3-175b_1x_256_20250321", "v6e-256",
        f"{_alone('model_name=gpt3-175b', 3, _FULL, 256)} {_OLDER_BLOCKS}", _GPT_3_FLAGS),
    run("tr_v6e_mistral-7b_1x_8_20250321", "v6e-8",
        _alone(_MISTRAL, 6, f"{_INPUTS} {_RESULT}", 8), _8B_FLAGS),
    run("tr_v6e_llama2-70b_1x_256_20250321", "v6e-256",
        f"{_LLAMA_2} per_device_batch_size=2 {_OLDER_BLOCKS} remat_policy=qkv_proj_offloaded"
        " ici_fsdp_parallelism=1 ici_fsdp_transpose_parallelism=256", _LLAMA_2_FLAGS),
    run("tr_v6e_llama3.1-70b_1x_32_20250715", "v6e-32",
        f"{_alone(_70B, 2, _INPUTS, 32)} weight_dtype=bfloat16", (*_70B_FLAGS, *_NO_PIECES)),
    run("tr_v6e_llama3.1-8b_1x_128_20250715", "v6e-128",
        _alone(_8B, 4, f"{_INPUTS} {_RESULT}", 128), _8B_128_FLAGS),
    run("tr_v6e_gemma3-12b_2x_512_20251018", "v6e-256",
        f"{_GEMMA_3} ici_fsdp_parallelism=1 ici_fsdp_transpose_parallelism=256",
        _GEMMA_3_FLAGS, slices=2),
    run("tr_v6e_llama3.1-8b_1x_32_20250715", "v6e-32",
        _alone(_8B, 3, f"{_INPUTS} {_RESULT}", 32), _8B_FLAGS),
)  # fmt: skip

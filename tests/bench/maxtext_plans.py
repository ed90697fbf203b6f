"""The runs that `make bench-maxtext` compiles with both trainers."""

from dataclasses import dataclass

# What published recipes for v6e set for runs without tensor parallelism (tpu-recipes,
# training/trillium).
TRILLIUM = (
    "--xla_tpu_scoped_vmem_limit_kib=98304",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_megacore_fusion_allow_ags=false",
    "--xla_enable_async_collective_permute=true",
    "--xla_tpu_enable_ag_backward_pipelining=true",
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "--xla_tpu_data_parallel_opt_different_sized_ops=true",
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "--xla_tpu_overlap_compute_collective_tc=true",
    "--xla_enable_async_all_gather=true",
)


@dataclass(frozen=True)
class MaxTextPlan:
    """A run in MaxText's words: model, batch, sharding and policy are equal in both programs.

    `flags` are the compiler's, of its recipe; ours are the plan's own.
    """

    title: str
    device: str
    slices: int
    words: tuple[str, ...]
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.slices} x {self.device}: {' '.join(self.words)}"


def run(
    title: str, device: str, words: str, flags: tuple[str, ...] = (), slices: int = 1
) -> MaxTextPlan:
    return MaxTextPlan(title, device, slices, tuple(words.split()), flags)


EIGHT = "model_name=llama3.1-8b max_target_length=8192 attention=flash"
SEVENTY = "model_name=llama3.1-70b max_target_length=8192 attention=flash"
SIXTEEN = (
    "base_emb_dim=6144 base_num_query_heads=24 base_num_kv_heads=24 base_mlp_dim=24576"
    " base_num_decoder_layers=32 head_dim=256 vocab_size=32768 mlp_activations=['gelu']"
    " max_target_length=2048 attention=flash"
)
MIXTRAL = "model_name=mixtral-8x7b max_target_length=4096 attention=flash"
DROPLESS = "sparse_matmul=True megablox=True"
FULL = "remat_policy=full"
ROWS = (
    run("8B, fsdp 8", "v6e-8",
        f"{EIGHT} per_device_batch_size=3 {FULL} ici_fsdp_parallelism=8", TRILLIUM),
    run("8B, fsdp 256", "v6e-256",
        f"{EIGHT} per_device_batch_size=3 {FULL} ici_fsdp_parallelism=256", TRILLIUM),
    run("70B, fsdp 256", "v6e-256",
        f"{SEVENTY} per_device_batch_size=1 {FULL} ici_fsdp_parallelism=256", TRILLIUM),
    run("8B, two slices, fsdp 256", "v6e-256",
        f"{EIGHT} per_device_batch_size=3 {FULL} ici_fsdp_parallelism=256"
        " dcn_data_parallelism=2", TRILLIUM, slices=2),
    run("16B, fsdp 256", "v5e-256",
        f"{SIXTEEN} per_device_batch_size=6 {FULL} ici_fsdp_parallelism=256"),
    run("16B, two slices, fsdp 256", "v5e-256",
        f"{SIXTEEN} per_device_batch_size=6 {FULL} ici_fsdp_parallelism=256"
        " dcn_data_parallelism=2", slices=2),
    run("70B, fsdp 16, tensor 8", "v5p-256",
        f"{SEVENTY} per_device_batch_size=2 {FULL} ici_fsdp_parallelism=16"
        " ici_tensor_parallelism=8"),
    run("70B, two slices, fsdp 16, tensor 8", "v5p-256",
        f"{SEVENTY} per_device_batch_size=2 {FULL} ici_fsdp_parallelism=16"
        " ici_tensor_parallelism=8 dcn_data_parallelism=2", slices=2),
    run("405B, fsdp 64, tensor 8", "v5p-1024",
        "model_name=llama3.1-405b max_target_length=8192 attention=flash"
        f" per_device_batch_size=1 {FULL} ici_fsdp_parallelism=64 ici_tensor_parallelism=8"),
    run("8B of 65,536 tokens, fsdp 64", "v5p-128",
        "model_name=llama3.1-8b max_target_length=65536 attention=flash"
        f" per_device_batch_size=1 {FULL} ici_fsdp_parallelism=64"),
    run("70B, fsdp 128", "tpu7x-128",
        f"{SEVENTY} per_device_batch_size=2 {FULL} ici_fsdp_parallelism=128"),
    run("Mixtral 8x7B, dropless, fsdp 128", "v5p-256",
        f"{MIXTRAL} per_device_batch_size=8 {FULL} ici_fsdp_parallelism=128 {DROPLESS}"),
    run("Mixtral 8x7B, capacity 1.25, fsdp 128", "v5p-256",
        f"{MIXTRAL} per_device_batch_size=8 {FULL} ici_fsdp_parallelism=128"
        " sparse_matmul=False capacity_factor=1.25"),
    run("Qwen3-235B, dropless, fsdp 512", "tpu7x-512",
        "model_name=qwen3-235b-a22b max_target_length=4096 attention=flash"
        f" per_device_batch_size=8 {FULL} ici_fsdp_parallelism=512 {DROPLESS}"),
    run("DeepSeek-V3, dropless, fsdp 512", "v5p-1024",
        "model_name=deepseek3-671b max_target_length=8192 attention=flash"
        f" per_device_batch_size=2 {FULL} ici_fsdp_parallelism=512 {DROPLESS}"),
)  # fmt: skip

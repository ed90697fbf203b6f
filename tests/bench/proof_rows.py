"""The plans that `make bench-proof` compiles."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator import catalog
from orchestrator.network.mesh_axes import OPTIONAL_AXES
from orchestrator.planning.feasibility import usable_axes
from orchestrator.reading.huggingface import model_of
from orchestrator.values.model import MixtureOfExperts, Model
from orchestrator.values.spec import MeshRequest, Precision, Spec
from tests.example_specs import spec_of
from tests.huggingface_configs import EXACT, EXPERTS

# Networks that the catalog lacks, for their head sizes, their MLPs and their tables.
MODELS = {
    model.name: model
    for model in (
        Model(
            name="tinyllama", layers=22, d_model=2048, d_ff=5632, heads=32, kv_heads=4,
            head_dim=64, vocab=32000,
        ),
        Model(
            name="four-layers-of-64", layers=4, d_model=2048, d_ff=8192, heads=32, kv_heads=8,
            head_dim=64, vocab=32768,
        ),
        Model(
            name="four-layers-of-80", layers=4, d_model=2560, d_ff=8192, heads=32, kv_heads=8,
            head_dim=80, vocab=32768,
        ),
        Model(
            name="two-layers-of-8b", layers=2, d_model=4096, d_ff=14336, heads=32, kv_heads=8,
            head_dim=128, vocab=128256,
        ),
        Model(
            name="heads-of-80", layers=32, d_model=2560, d_ff=10240, heads=32, kv_heads=32,
            head_dim=80, vocab=51200, gated=False,
        ),
        Model(
            name="heads-of-96", layers=32, d_model=3072, d_ff=8192, heads=32, kv_heads=32,
            head_dim=96, vocab=32064,
        ),
        Model(
            name="heads-of-256", layers=28, d_model=3072, d_ff=24576, heads=16, kv_heads=16,
            head_dim=256, vocab=256128, tied=True,
        ),
        Model(
            name="ungated-13b", layers=40, d_model=5120, d_ff=20480, heads=40, kv_heads=40,
            head_dim=128, vocab=50304, gated=False,
        ),
        Model(
            name="ungated-32b", layers=48, d_model=8192, d_ff=32768, heads=64, kv_heads=8,
            head_dim=128, vocab=128256, gated=False,
        ),
        Model(
            name="mixtral-8x7b-capacity", layers=32, d_model=4096, d_ff=14336, heads=32, kv_heads=8,
            head_dim=128, vocab=32000,
            moe=MixtureOfExperts(experts=8, top_k=2, capacity_factor=1.25),
        ),
        Model(
            name="128-experts", layers=48, d_model=2048, d_ff=6144, heads=32, kv_heads=4,
            head_dim=128, vocab=151936, moe=MixtureOfExperts(experts=128, top_k=8, d_ff=768),
        ),
        Model(
            name="128-experts-capacity", layers=48, d_model=2048, d_ff=6144, heads=32, kv_heads=4,
            head_dim=128, vocab=151936,
            moe=MixtureOfExperts(experts=128, top_k=8, d_ff=768, capacity_factor=1.0),
        ),
        Model(
            name="64-experts-and-2-shared", layers=27, d_model=2048, d_ff=10944, heads=16,
            kv_heads=16, head_dim=128, vocab=102400,
            moe=MixtureOfExperts(experts=64, top_k=6, d_ff=1408, shared_experts=2, dense_layers=1),
        ),
    )
}  # fmt: skip
PRECISIONS = {
    "": Precision(),
    "bf16": Precision(parameters="bf16", optimizer="bf16"),
    "bf16-parameters": Precision(parameters="bf16"),
    "fp8": Precision(compute="fp8"),
}


@cache
def model_named(name: str) -> Model:
    """A network from above, one that Hugging Face publishes, or one of the catalog."""
    for configs in (EXACT, EXPERTS):
        if name in configs:
            return published(name, configs[name][0])
    return MODELS.get(name) or catalog.model(name)


def published(name: str, config: dict[str, Any]) -> Model:
    """The model of a config.json."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return model_of(path, name.lower().replace(".", "-"))


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """One row: sizes of data, fsdp, sequence and tensor, for mixtures with expert after data, and
    of fsdp_dcn where pods share weights; and sequences a step of that length. A pipeline has stages
    over pods, stages in each pod, and chunks of a stage.
    """

    model: str
    chip: str
    topology: str
    pods: int
    mesh: tuple[int, ...]
    sequences: int
    length: int
    remat: str
    precision: str
    pipeline: tuple[int, ...] = ()

    def spec(self) -> Spec:
        model = model_named(self.model)
        sizes = dict.fromkeys(OPTIONAL_AXES, 1)
        sizes |= dict(zip((*usable_axes(model), "fsdp_dcn"), self.mesh, strict=False))
        sizes |= dict(zip(_PIPELINE, self.pipeline, strict=False))
        return spec_of(
            model,
            sequences=self.sequences,
            length=self.length,
            tolerance=0.0,
            chip=self.chip,
            topology=self.topology,
            pods=self.pods,
            mesh=MeshRequest(**sizes),
            remat=self.remat,
            precision=PRECISIONS[self.precision],
        )

    def __str__(self) -> str:
        pods = f"{self.pods} x " if self.pods > 1 else ""
        mesh = "/".join(".".join(map(str, part)) for part in (self.mesh, self.pipeline) if part)
        batch = f"{self.sequences} x {self.length}"
        parts = (f"{pods}{self.topology} {mesh}", batch, self.remat, self.precision)
        return f"{self.model} {self.chip} {', '.join(filter(None, parts))}"


def bench_plan(text: str) -> BenchPlan:
    """`llama3-8b v5e 1 8x8 1.16.1.4 64 4096 full`: as the rows below are written."""
    model, chip, pods, topology, split, sequences, length, remat, *precision = text.split()
    mesh, *pipeline = (tuple(map(int, part.split("."))) for part in split.split("/"))
    return BenchPlan(
        model=model,
        chip=chip,
        topology=topology,
        pods=int(pods),
        mesh=mesh,
        sequences=int(sequences),
        length=int(length),
        remat=remat,
        precision=" ".join(precision),
        pipeline=pipeline[0] if pipeline else (),
    )


# The same for GPUs: pods are NVLink domains.
GPU_ROWS = (
    "llama3-8b h100 1 8 1.8.1.1 16 8192 full",
    "llama3-8b h100 8 8 1.8.1.1 128 8192 keep_attention",
    "llama3-8b h100 64 8 1.8.1.1 1024 8192 full",
    "llama3-8b a100 2 8 1.8.1.1 32 4096 full",
    "llama3-8b a100 8 8 2.4.1.1 128 2048 keep_qkv",
    "llama3-8b h200 4 8 1.8.1.1 64 8192 keep_mlp",
    "llama3-8b b200 1 8 1.8.1.1 32 8192 none",
    "llama3-8b b300 16 8 1.8.1.1 512 8192 none",
    "llama3-8b gb200 1 72 9.8.1.1 144 8192 none",
    "llama3-8b gb300 2 64 1.64.1.1 512 8192 none",
    "llama-1b h100 1 8 8.1.1.1 64 4096 none",
    "llama3-70b h100 32 8 1.8.1.1.4 256 4096 full",
    "llama3-70b h200 16 8 1.4.1.2.2 128 8192 full",
    "llama3-70b b200 8 8 1.8.1.1 64 8192 full",
    "llama3-70b gb200 4 64 1.32.1.2 256 8192 keep_attention",
    "llama3-70b gb300 1 64 1.64.1.1 64 8192 keep_qkv",
    "llama3-70b h100 4 8 1.4.1.2.4 32 8192 full",
    "llama3-405b gb200 8 64 1.64.1.1 512 8192 full",
    "llama3-405b gb300 32 64 1.16.1.4 1024 8192 full",
    "llama3-405b h100 256 8 1.1.1.8.32 256 8192 full",
    "llama3-405b h100 2048 8 1.1.1.8.32 2048 8192 full",
    "llama3-405b b300 128 8 1.8.1.1.8 1024 8192 full",
    "mixtral-8x7b-capacity h100 16 8 1.8.1.1.1.4 128 4096 full",
    "mixtral-8x7b-capacity b200 8 8 1.8.1.1.1 64 4096 full",
    "128-experts-capacity gb200 1 64 1.16.4.1.1 256 4096 full",
    "gemma3-27b h100 8 8 1.8.1.1.8 64 8192 full",
    "Qwen3-8B h100 4 8 1.8.1.1 64 4096 keep_qkv",
    "Mistral-7B-v0.1 h200 2 8 1.8.1.1 32 16384 full",
    "llama3-8b h100 2 8 1.4.2.1 8 32768 full",
    "llama3-8b h100 1 8 1.2.1.4 16 8192 full",
    "llama3-8b h100 1 8 1.8.1.1 16 8192 full fp8",
    # pipelines: /stages over pods.stages in a pod.chunks
    "llama3-405b h100 128 8 1.1.1.8.8/16.1.8 256 8192 keep_qkv",
    "llama3-8b b200 1 8 1.4.1.1/1.2.2 32 8192 full",
    "mixtral-8x7b-capacity h100 8 8 1.2.4.1.1/4.1.1 128 4096 full",
)

_PIPELINE = "pipeline_dcn", "pipeline", "pipeline_chunks"
# model, chip, pods, topology, data.fsdp.sequence.tensor(.fsdp_dcn)(/pipeline), sequences, length,
# remat, types
ROWS = tuple(
    bench_plan(row)
    for row in (
        "llama3-8b v5e 1 8x8 1.16.1.4 64 4096 full",
        "llama3-8b v5e 4 8x16 2.64.1.1 1024 4096 keep_mlp",
        "llama3-8b v5e 2 16x16 2.32.1.4 512 8192 keep_attention",
        "llama3-8b v6e 2 8x8 1.64.1.1 256 4096 keep_qkv",
        "llama3-8b v6e 1 16x16 2.16.8.1 64 32768 full",
        "llama3-8b v6e 1 8x8 1.8.1.8 64 8192 none",
        "llama3-8b v5p 1 4x4x4 1.64.1.1 256 8192 none",
        "llama3-8b v5p 3 4x4x8 4.8.1.4 384 4096 full",
        "llama3-8b tpu7x 1 4x4x4 1.32.1.4 256 8192 keep_qkv",
        "llama3-8b tpu7x 8 2x4x4 8.8.1.1 1024 4096 full",
        "llama3-70b v5p 1 8x8x8 1.128.1.4 512 4096 full",
        "llama3-70b v5p 2 8x8x16 2.64.2.4 512 8192 keep_qkv",
        "llama3-70b v5p 4 16x20x28 35.8.4.8 1120 4096 keep_mlp",
        "llama3-70b v5p 1 8x16x16 1.8.32.8 32 131072 full",
        "llama3-70b v6e 4 16x16 1.64.1.4 512 4096 full",
        "llama3-70b v5e 8 16x16 1.32.1.8 1024 4096 full",
        "llama3-70b tpu7x 1 8x8x8 2.128.1.4 1024 8192 keep_mlp",
        "llama3-70b tpu7x 2 8x8x8 1.64.1.16 256 8192 keep_attention",
        "llama3-405b v5p 1 16x16x16 1.512.1.8 1024 8192 full",
        "llama3-405b v5p 8 16x20x28 35.8.4.8 2240 8192 full",
        "llama3-70b v6e 8 16x16 2.16.2.4 512 8192 keep_attention",
        "llama3-405b tpu7x 2 16x16x16 2.256.1.16 1024 8192 keep_attention",
        # heads that are not 128 wide, other MLPs, tied tables
        "tinyllama v5p 1 4x4x8 1.128.1.1 1024 2048 none",
        "four-layers-of-64 v5e 1 4x4 1.16.1.1 64 2048 keep_qkv",
        "four-layers-of-80 v5e 1 4x4 1.16.1.1 64 2048 keep_qkv",
        "two-layers-of-8b v6e 1 2x4 1.8.1.1 24 8192 full",
        "heads-of-80 v5e 1 4x8 1.32.1.1 64 2048 keep_qkv",
        "heads-of-96 v6e 1 4x4 1.16.1.1 64 4096 keep_attention",
        "heads-of-256 v5p 1 2x4x4 1.32.1.1 64 4096 keep_mlp",
        "ungated-32b v5e 1 16x16 1.256.1.1 256 4096 full",
        "ungated-13b v5p 1 4x4x4 1.16.1.4 64 2048 keep_mlp",
        "llama-1b v5e 1 4x4 1.4.1.4 64 4096 none",
        # bf16 parameters
        "llama-3b v5e 1 4x8 1.16.1.2 128 4096 keep_attention bf16-parameters",
        "llama3-8b v5e 1 8x8 1.64.1.1 64 4096 keep_qkv bf16",
        # 8, 16 and 32 sequences a device
        "llama3-8b v5p 1 4x4x4 1.64.1.1 512 8192 full",
        "llama2-7b v5p 1 4x4x4 1.64.1.1 1024 4096 keep_attention",
        "llama-1b v6e 1 4x4 1.16.1.1 512 2048 full",
        "tinyllama v5e 1 4x4 1.16.1.1 512 2048 full",
        # weights copied to every device
        "llama-1b v6e 1 4x4 16.1.1.1 16 2048 full",
        # weights shared between pods
        "llama3-405b v6e 2 16x16 1.256.1.1.2 512 8192 offload_input",
        # other families: windows, caps, biases, norms of queries and keys or after sublayers
        "gemma3-27b v6e 1 16x16 1.256.1.1 256 8192 keep_attention",
        "gemma-2-9b v6e 1 4x8 1.32.1.1 32 8192 full",
        "gemma-3-1b-pt v5e 1 4x4 1.16.1.1 64 4096 keep_qkv",
        "Qwen3-8B v5e 1 8x8 1.64.1.1 64 4096 keep_qkv",
        "Qwen2-7B v5p 1 4x4x4 1.16.1.4 128 8192 full",
        "OLMo-2-1124-7B v5p 1 4x4x4 1.64.1.1 256 4096 keep_mlp",
        "Mistral-7B-v0.1 v6e 1 8x8 1.32.2.1 64 16384 full",
        "Phi-3-mini-4k-instruct v5e 1 4x8 1.32.1.1 64 4096 keep_attention",
        "phi-4 v6e 1 8x8 1.64.1.1 64 8192 keep_attention",
        "SmolLM2-1.7B v5e 1 4x4 1.16.1.1 128 2048 none",
        # Mixtures of experts: data.expert.fsdp.sequence.tensor
        "mixtral-8x7b v5p 1 4x4x4 1.1.64.1.1 256 4096 full",
        "mixtral-8x7b v6e 1 16x16 1.1.256.1.1 1024 4096 offload_input",
        "mixtral-8x22b v5p 2 8x8x8 1.1.512.1.1 2048 4096 keep_attention",
        "mixtral-8x7b-capacity v5p 1 4x4x4 1.8.8.1.1 256 4096 full",
        "mixtral-8x7b-capacity v6e 2 16x16 2.8.16.1.1 1024 4096 full",
        "128-experts tpu7x 1 4x4x4 1.1.128.1.1 512 4096 keep_qkv",
        "128-experts-capacity v5p 1 4x4x4 1.16.4.1.1 256 4096 full",
        "64-experts-and-2-shared v5p 1 2x2x4 1.1.8.1.2 64 4096 full",
        # pipelines within a slice and between two
        "llama3-8b v5p 1 2x4x4 1.8.1.2/1.2.2 64 8192 full",
        "llama3-8b v5p 2 2x2x4 1.8.1.2/2.1.2 64 8192 full",
        # latent attention
        "DeepSeek-V2-Lite v5p 1 4x4x4 1.1.64.1.1 256 4096 full",
        *GPU_ROWS,
    )
)

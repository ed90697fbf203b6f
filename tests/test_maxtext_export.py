"""Plans as runs of MaxText: the keys mean the same plan, and what has no key is refused by name."""

import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import orchestrator as api
from orchestrator import catalog
from orchestrator.interop.maxtext.conversion import comparable, model_of
from orchestrator.interop.maxtext.exported_keys import (
    _keys_of_model,
    _shape_of,
    _share,
    model_of_plan,
)
from orchestrator.interop.maxtext.exported_run import NotForMaxText, run_of, script_of
from orchestrator.interop.maxtext.recipe import Recipe, Setting
from orchestrator.interop.maxtext.used_keys import UsedKeys
from orchestrator.reading.examples import yaml_text
from orchestrator.values.model import LatentDimensions, RopeScaling
from orchestrator.values.plan import Plan
from tests.conftest import ROOT, TRAINING_SPECS, RunOrch
from tests.shipped_plans import shipped_plan

SPECS = TRAINING_SPECS
# MaxText has neither fewer heads than parts, nor our token sets, nor such a mixture.
REFUSED = {
    "llama3_405b_8pod": {"resources.mesh.tensor"},
    "llama3_405b_stages": {"experiment.stages", "resources.mesh.tensor"},
    "tiny_stages": {"experiment.stages"},
    "llama3_70b_3slice": {"resources.mesh.tensor"},
    "llama3_70b_4pod": {"resources.mesh.tensor"},
    "own_sources": {"experiment.data.kind"},
    "llama3_405b_herd_8k": {"resources.chip", "resources.mesh.pipeline_dcn"},
    "llama3_405b_herd_16k": {"resources.chip", "resources.mesh.pipeline_dcn"},
    "llama3_405b_herd_128k": {
        "resources.chip",
        "resources.mesh.pipeline_dcn",
        "resources.mesh.sequence_dcn",
    },
    "tiny_mixture": {
        "experiment.model.d_ff",
        "experiment.model.moe.dense_layers",
        "experiment.model.moe.shared_experts",
        "experiment.model.moe.z_loss",
    },
}
SMALL = """
name: small
experiment:
  model: {layers: 2, d_model: 256, d_ff: 512, heads: 8, kv_heads: 4, head_dim: 32, vocab: 512}
  tokens: 1M
  batch: {sequences: 32, length: 128, microbatches: 1}
  remat: full
resources: {chip: v5e, topology: 2x4, mesh: {fsdp: 8}}
"""


def small(folder: Path) -> Path:
    file = folder / "small.yaml"
    file.write_text(SMALL)
    return file


def refused(spec: Path, *overrides: str) -> set[str]:
    with pytest.raises(NotForMaxText) as error:
        api.export_maxtext(spec, overrides)
    return {key.key for key in error.value.unsaid}


def again(script: str, folder: Path) -> Plan:
    """The plan of what is read from a script."""
    file = folder / "again.yaml"
    file.write_text(yaml_text([api.import_maxtext([script]).values]))
    return api.plan(file)


def without(plan: Plan) -> dict[str, object]:
    """What two plans of the same run share: all but their names, and tokens beyond whole steps."""
    model = (comparable(model_of_plan(plan)), plan.model.parameters)
    batch = asdict(plan.batch) | {"requested_sequences": 0}
    forecast = plan.forecast
    same = {"optimizer", "precision", "remat", "data", "seed", "compiler_options", "chip", "name"}
    same |= {"topology", "pods", "mesh", "axes", "groups", "run_steps", "total_steps"}
    return {
        "model": model,
        "batch": batch,
        "memory": forecast.memory,
        "time": forecast.time,
        "step": forecast.step_s,
        **{name: getattr(plan, name) for name in same},
    }


# Planning these takes seconds.
SLOW = {"deepseek_v3_tpu7x", "mixtral_8x7b_v5p", "llama3_70b_3slice"}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in SPECS
    ],
)
def test_what_is_exported_comes_back_as_the_same_plan(path: Path, tmp_path: Path) -> None:
    plan = shipped_plan(path)
    if path.stem in REFUSED:
        with pytest.raises(NotForMaxText) as error:
            run_of(plan)
        assert {key.key for key in error.value.unsaid} == REFUSED[path.stem]
    else:
        assert without(again(script_of(run_of(plan)), tmp_path)) == without(plan)


_SMALL = "layers: 6, d_model: 128, d_ff: 256, heads: 8, head_dim: 16, vocab: 512, tied: true"
GPT_3 = (
    f"{{{_SMALL}, kv_heads: 8, gated: false, norm: layer, learned_positions: 256, qkv_bias: true,"
    " output_bias: true, mlp_bias: true}"
)
GEMMA_4 = (
    f"{{{_SMALL}, kv_heads: 4, activation: gelu, embedding_scale: true, norm_placement: both,"
    " qk_norm: head, value_norm: true, attention_scale: 1.0, layer_scale: true, window: 64,"
    " window_pattern: LLLLLG, global_head_dim: 32, global_kv_heads: 2, global_rotary_share: 0.5,"
    " keys_as_values: true, local_rope_theta: 10000,"
    " moe: {experts: 8, top_k: 2, d_ff: 64, with_mlp: true}}"
)


@pytest.mark.parametrize(
    "overrides",
    [
        ("experiment.batch.microbatches=4",),
        ("resources.mesh.tensor=4", "resources.mesh.fsdp=2"),
        ("resources.mesh.sequence=2", "resources.mesh.fsdp=4"),
        ("resources.mesh.data=2", "resources.mesh.fsdp=4"),
        ("resources.pods=4", "resources.mesh.fsdp_dcn=2"),
        ("experiment.remat={block_input: offload, query: keep, up: offload}",),
        ("experiment.remat={key: keep, attention: keep, mlp_input: keep}",),
        ("experiment.remat=none",),
        ("experiment.precision={parameters: bf16, optimizer: bf16}",),
        ("experiment.precision={compute: fp32, gradients: fp32}",),
        ("experiment.precision.compute=int8",),
        ("experiment.precision.first_moment=bf16",),
        ("experiment.optimizer={decay: constant, warmup_steps: 7}",),
        ("experiment.optimizer={decay: linear, warmup_steps: 100, z_loss: 0.001}",),
        ("experiment.optimizer={end_lr: 8e-7, warmup_steps: 10, clip_norm: 0.5}",),
        ("experiment.model.activation=gelu", "experiment.model.gated=false"),
        ("experiment.model.activation=relu", "experiment.model.gated=false"),
        (f"experiment.model={GPT_3}",),
        (f"experiment.model={GEMMA_4}",),
        ("experiment.model.qk_norm=head",),
        ("experiment.model.qkv_bias=true",),
        ("experiment.model.rope_scaling={kind: llama3, factor: 8.0}",),
        ("experiment.model.rope_scaling={kind: yarn, factor: 4.0, original_length: 64}",),
        ("experiment.model.moe={experts: 8, top_k: 2, d_ff: 128}", "resources.mesh={expert: 8}"),
        ("experiment.model.tied=true", "experiment.seed=7", "run.steps=20"),
        ("experiment.compiler_options={xla_tpu_a: true, xla_tpu_b: 3, xla_tpu_c: x}",),
        ("experiment.batch={sequences: 24, length: 128}", "resources.mesh={fsdp: 1, tensor: 4}"),
    ],
    ids=lambda overrides: overrides[0].removeprefix("experiment."),
)
def test_each_choice_of_a_spec_comes_back(overrides: tuple[str, ...], tmp_path: Path) -> None:
    spec = small(tmp_path)
    plan = api.plan(spec, overrides)
    assert without(again(script_of(run_of(plan)), tmp_path)) == without(plan)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("experiment.optimizer.name=adafactor", "experiment.optimizer.name"),
        ("experiment.optimizer.name=muon", "experiment.optimizer.name"),
        ("experiment.precision.optimizer=int8", "experiment.precision.optimizer"),
        ("experiment.precision.optimizer=bf16", "experiment.precision.optimizer"),
        ("experiment.precision.gradients=fp32", "experiment.precision.gradients"),
        ("experiment.model.norm=layer", "experiment.model.norm"),
        ("experiment.model.norm_placement=both", "experiment.model.norm_placement"),
        ("experiment.model.qk_norm=heads", "experiment.model.qk_norm"),
        ("experiment.model.rotary_share=0.5", "experiment.model.rotary_share"),
        ("experiment.model.window=64", "experiment.model.window"),
        ("experiment.model.activation=relu2", "experiment.model.activation"),
        ("experiment.model.attention_scale=0.5", "experiment.model.attention_scale"),
        ("experiment.data={kind: tokens, path: m.json}", "experiment.data.kind"),
        ("experiment.model.mlp_bias=true", "experiment.model.mlp_bias"),
        ("resources.mesh={tensor: 8}", "resources.mesh.tensor"),
    ],
)  # fmt: skip
def test_what_maxtext_cannot_say_is_refused_by_name(
    override: str, key: str, tmp_path: Path
) -> None:
    assert key in refused(small(tmp_path), override)


def test_a_refusal_says_where_the_key_stands(tmp_path: Path) -> None:
    """Its line, that of its section where a default is meant, or the override."""
    spec = small(tmp_path)
    with pytest.raises(NotForMaxText) as error:
        api.export_maxtext(spec, ("experiment.model.norm=layer", "experiment.seed=3"))
    assert [(key.key, key.place) for key in error.value.unsaid] == [
        ("experiment.model.norm", "--set:1:18")
    ]
    text = SMALL.replace("fsdp: 8}", "tensor: 8}")
    spec.write_text(text)
    with pytest.raises(NotForMaxText) as error:
        api.export_maxtext(spec)
    line = text.splitlines().index(next(line for line in text.splitlines() if "tensor" in line)) + 1
    assert error.value.unsaid[0].place.startswith(f"{spec}:{line}:")


def test_the_script_is_one_that_a_shell_reads(tmp_path: Path, orch: RunOrch) -> None:
    done = orch("export", "maxtext", str(small(tmp_path)), "--set", "resources.pods=2")
    line = done.stdout.replace("\\\n", " ")
    create = next(command for command in line.splitlines() if command.startswith("xpk"))
    words = shlex.split(create)
    assert {"--device-type=v5litepod-8", "--num-slices=2", "--workload=small"} <= {*words}
    assert "compile_topology=v5e-8 compile_topology_num_slices=2" in done.stdout


def test_a_slice_is_called_as_xpk_calls_it(tmp_path: Path) -> None:
    """By its shape where several have as many chips; MaxText's compiler knows the usual one."""
    chips = ("resources.chip=v5p", "resources.mesh={fsdp: 64}", "experiment.batch.sequences=64")
    usual = api.export_maxtext(small(tmp_path), (*chips, "resources.topology=4x4x4"))
    assert (usual.device, usual.topology) == ("v5p-4x4x4", "v5p-128")
    long = (*chips[:1], "resources.mesh={fsdp: 256}", "experiment.batch.sequences=256")
    other = api.export_maxtext(small(tmp_path), (*long, "resources.topology=4x4x16"))
    assert (other.device, other.topology) == ("v5p-4x4x16", "")


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("llama3-8b", "llama3-8b"),
        ("llama3-405b", "llama3.1-405b"),  # MaxText refuses the name of its file llama3-405b
        ("mixtral-8x7b", "mixtral-8x7b"),
        ("qwen3-8b", "qwen3-8b"),
        ("gemma3-27b", "gemma3-27b"),
        ("deepseek-v3", "deepseek3-671b"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("gemma4-31b", "gemma4-31b"),
        ("gemma4-26b-a4b", "gemma4-26b"),
        ("gpt3-175b", "gpt3-175b"),
        ("mistral-7b", "default"),
    ],
)
def test_a_model_has_maxtexts_name_where_it_has_one(name: str, theirs: str) -> None:
    keys = _keys_of_model(catalog.model(name))
    assert keys["model_name"] == theirs
    assert _shape_of(keys) == comparable(catalog.model(name))


def test_a_capacity_is_exported_without_sparse_products() -> None:
    mixture = catalog.model("mixtral-8x7b")
    assert mixture.moe is not None
    limited = replace(mixture, moe=replace(mixture.moe, capacity_factor=1.25))
    keys = _keys_of_model(limited)
    assert (keys["model_name"], keys["sparse_matmul"]) == ("mixtral-8x7b", False)
    assert _shape_of(keys) == comparable(limited)
    assert "sparse_matmul" not in _keys_of_model(mixture)


LATENT = LatentDimensions(query_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)


@pytest.mark.parametrize("factor", [40.0, 32.0])
@pytest.mark.parametrize("share", [0.707, 1.0, 0.5])
def test_scores_that_grow_come_back(share: float, factor: float) -> None:
    """A published share of YaRN's growth is MaxText's mscale, whatever the factor is."""
    lite = catalog.model("deepseek-v3")
    growth = 0.1 * share * math.log(factor) + 1
    model = replace(
        lite, latent=LATENT, attention_scale=192**-0.5 * growth**2,
        rope_scaling=RopeScaling(
            kind="yarn", factor=factor, original_length=4096, attention_factor=1.0
        ),
    )  # fmt: skip
    keys = _keys_of_model(model)
    assert keys.get("mscale", 1.0) == share
    assert _shape_of(keys | {"model_name": "deepseek2-16b"}) is not None
    found = model_of(UsedKeys(Recipe({key: Setting(value, "") for key, value in keys.items()})))
    assert found["attention_scale"] == pytest.approx(model.attention_scale, rel=1e-9)


@pytest.mark.parametrize(
    ("overrides", "tiles"),
    [
        ((), 1),
        (("experiment.batch.length=8192",), 32),
        (("experiment.batch.length=8192", "experiment.batch.microbatches=2"), 16),
        (("experiment.batch.length=8192", "resources.mesh={fsdp: 2, tensor: 4}"), 64),
        (
            (
                "experiment.batch={sequences: 48, length: 8192}",
                "resources={chip: v5e, topology: 4x4, mesh: {fsdp: 16}}",
            ),
            32,
        ),
    ],
    ids=str,
)
def test_the_loss_is_made_in_as_many_parts_as_ours(
    overrides: tuple[str, ...], tiles: int, tmp_path: Path
) -> None:
    """A part has no more logits than the plan counts; 24 of 16 devices would gather the batch."""
    words = "experiment.model.vocab=131072" if tiles > 1 else "experiment.model.vocab=512"
    keys = run_of(api.plan(small(tmp_path), (words, *overrides))).keys
    assert keys.get("num_vocab_tiling", 1) == tiles
    assert keys["per_device_batch_size"] * keys["max_target_length"] % tiles == 0


@pytest.mark.parametrize("whole", [7, 240, 512, 8960, 17_920, 3_576_279])
def test_a_share_is_the_whole_number_that_maxtext_takes_of_it(whole: int) -> None:
    for part in {1, 3, whole // 7, whole // 3, whole - 1, whole, 5 * whole}:
        assert int(whole * _share(part, whole)) == part
        assert math.isclose(_share(part, whole), part / whole)


@pytest.mark.parametrize("pods", [1, 2])
def test_the_loss_stays_whole_where_it_fits(pods: int, tmp_path: Path) -> None:
    """MaxText's parts are of the whole batch: devices, and slices, would exchange them."""
    long = ("experiment.model.vocab=131072", "experiment.batch.length=8192")
    for sequences, tiled in ((32, True), (8, False)):
        batch = f"experiment.batch.sequences={sequences * pods}"
        keys = run_of(api.plan(small(tmp_path), (*long, f"resources.pods={pods}", batch))).keys
        assert ("num_vocab_tiling" in keys) == tiled


def test_the_kernel_has_our_blocks(tmp_path: Path) -> None:
    """So that it computes as many FLOPs; along a window, where there is one."""
    long = run_of(api.plan(small(tmp_path), ("experiment.batch.length=8192",))).keys
    assert (long["sa_block_q"], long["sa_block_kv_dkv"]) == (1024, 2048)
    assert long["sa_use_fused_bwd_kernel"] is True
    assert not [key for key in long if key.startswith("local_sa")]
    windowed = run_of(api.plan(ROOT / "specs" / "gemma3_27b_v6e.yaml")).keys
    assert windowed["local_sa_block_q"] == 512
    assert windowed["sa_block_q"] == 1024

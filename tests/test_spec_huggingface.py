"""Specs: models by their Hugging Face config.json."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.network.decoder import decoder
from orchestrator.reading.huggingface import config_of
from orchestrator.reading.load_study import load_study
from orchestrator.reading.problems import Problem, SpecProblems
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model, RopeScaling
from tests.conftest import HoldGolden
from tests.huggingface_configs import (
    DEEPSEEK_V3,
    EXACT,
    EXPERTS,
    GEMMA_4_WITH_EXPERTS,
    GPT_2,
    LLAMA_3_1,
    QWEN_2,
    QWEN_3,
    REPORTED,
    gemma_4,
    gpt_oss,
    shape,
)
from tests.spec_texts import MINIMAL, load_text, problems_of, write

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 32768,
}
ABSENT = object()


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A config with some keys changed, added, or absent."""
    return {key: value for key, value in (config | changes).items() if value is not ABSENT}


def spec_of(folder: Path, config: Any, named: str = "") -> Path:
    """A spec beside a config.json that it names."""
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    (folder / "config.json").write_text(text, encoding="utf-8")
    model = f"{{huggingface: config.json{named}}}"
    return write(folder, MINIMAL.replace("llama3-8b", model))


def model_of(folder: Path, config: dict[str, Any], named: str = "") -> Model:
    """The model that a config.json becomes."""
    text = spec_of(folder, config, named).read_text(encoding="utf-8")
    return load_text(folder, text).experiment.model


def problems_in(folder: Path, config: Any) -> list[Problem]:
    """What is wrong with a config.json."""
    return problems_of(spec_of(folder, config))


def test_the_published_config_is_the_catalog_s_model(tmp_path: Path) -> None:
    """Llama 3 8B by its config has the shape of Llama 3 8B by its name."""
    named = catalog.model("llama3-8b")
    assert model_of(tmp_path, LLAMA, ", name: llama3-8b") == named
    assert model_of(tmp_path, LLAMA).name == "llama"


def test_a_mistral_without_a_window_is_read(tmp_path: Path) -> None:
    """The second family has the same shape by other defaults."""
    named = catalog.model("mistral-7b")
    assert model_of(tmp_path, MISTRAL, ", name: mistral-7b") == named
    assert model_of(tmp_path, MISTRAL).name == "mistral"


@pytest.mark.parametrize(
    ("name", "config"),
    [("gemma4-31b", gemma_4()), ("gemma4-26b-a4b", GEMMA_4_WITH_EXPERTS)],
)
def test_gemma_4_is_the_catalog_s(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    """But for the weight of the load-balancing loss, which no config says."""
    found, known = model_of(tmp_path, config, f", name: {name}"), catalog.model(name)
    moe = known.moe and replace(known.moe, balance_loss=0.0)
    assert found == replace(known, moe=moe)


def test_gemma_4_without_proportional_rope_turns_whole_heads(tmp_path: Path) -> None:
    """What a config says of global layers is all of it."""
    kinds = {kind: {"rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
    model = model_of(tmp_path, gemma_4(rope_parameters=kinds))
    assert (model.global_rotary_share, model.rope_theta) == (1.0, 1e4)


def test_gpt_2_is_read(tmp_path: Path) -> None:
    """By its own names of keys; the MLP is four times as wide as the stream."""
    long = GPT_2 | {"n_positions": 8192}
    model = model_of(tmp_path, long)
    assert (model.d_ff, model.learned_positions, model.kv_heads) == (6400, 8192, 25)
    assert decoder(replace(model, learned_positions=1024)).parameters == 1_557_611_200
    assert decoder(model).blocks[0].attention.rotary is None
    assert model_of(tmp_path, long | {"n_inner": 4096}).d_ff == 4096
    assert model_of(tmp_path, long | {"activation_function": "relu"}).activation == "relu"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (changed(GPT_2, resid_pdrop=ABSENT), "resid_pdrop"),  # a tenth where it is left out
        (GPT_2 | {"n_head": 7}, "n_embd"),
        (GPT_2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (gemma_4(hidden_size_per_layer_input=256), "hidden_size_per_layer_input"),
        (gemma_4(num_kv_shared_layers=20), "num_kv_shared_layers"),
        (gemma_4(use_bidirectional_attention="all"), "use_bidirectional_attention"),
    ],
)
def test_other_kinds_of_gpt_and_gemma_are_refused(
    config: dict[str, Any], key: str, tmp_path: Path
) -> None:
    """By the names that the config has."""
    assert key in {problem.key for problem in problems_in(tmp_path, config)}


def test_sequences_are_no_longer_than_learned_positions(tmp_path: Path) -> None:
    """A token beyond the last position would have none."""
    [problem] = problems_in(tmp_path, GPT_2 | {"n_positions": 64})
    assert (problem.key, problem.code) == ("experiment.batch.length", "too-few-positions")


def test_what_a_config_leaves_out_has_the_default_of_its_family(tmp_path: Path) -> None:
    """Old configs say less: kv heads, head width, RoPE and epsilon are what they were then."""
    absent = dict.fromkeys(
        ["num_key_value_heads", "rope_theta", "rms_norm_eps", "tie_word_embeddings"], ABSENT
    )
    model = model_of(tmp_path, changed(LLAMA, **absent))
    assert (model.kv_heads, model.head_dim) == (32, 128)
    assert (model.rope_theta, model.norm_epsilon, model.tied) == (10_000.0, 1e-6, False)
    mistral = changed(MISTRAL, num_key_value_heads=ABSENT)
    assert model_of(tmp_path, mistral).kv_heads == 8


def test_a_head_may_have_a_width_of_its_own(tmp_path: Path) -> None:
    """Heads need not make up d_model."""
    assert model_of(tmp_path, changed(LLAMA, head_dim=64)).head_dim == 64
    assert model_of(tmp_path, changed(LLAMA, head_dim=None)).head_dim == 128


def test_the_newer_form_of_rope_is_read(tmp_path: Path) -> None:
    """`rope_parameters` has what `rope_theta` had."""
    rope = {"rope_type": "default", "rope_theta": 250000.0}
    config = changed(LLAMA, rope_theta=ABSENT, rope_scaling=ABSENT, rope_parameters=rope)
    assert model_of(tmp_path, config).rope_theta == 250_000.0
    assert model_of(tmp_path, changed(LLAMA, rope_scaling={"type": "default"})).rope_theta == 5e5


@pytest.mark.parametrize("name", EXACT)
def test_published_models_have_their_published_parameters(name: str, tmp_path: Path) -> None:
    """To the last one."""
    config, parameters = EXACT[name]
    assert decoder(model_of(tmp_path, config)).parameters == parameters


@pytest.mark.parametrize("name", EXPERTS)
def test_mixtures_have_their_published_parameters(name: str, tmp_path: Path) -> None:
    """All, and those that one token uses, as far as they are published."""
    config, billions, active = EXPERTS[name]
    network = decoder(model_of(tmp_path, config))
    assert network.parameters / 1e9 == pytest.approx(billions, rel=5e-4)
    assert network.active_parameters / 1e9 == pytest.approx(active, rel=2e-3)


def test_deepseek_v3_has_the_parameters_of_its_checkpoint(tmp_path: Path) -> None:
    """To the last one, without the layer that predicts further tokens."""
    model = model_of(tmp_path, DEEPSEEK_V3)
    assert decoder(model).parameters == 671_026_419_200
    assert model.mtp_layers == 1
    assert model.latent == LatentDimensions(
        query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )
    assert (model.head_dim, model.kv_heads, model.moe) == (
        192,
        128,
        MixtureOfExperts(
            experts=256, top_k=8, d_ff=2048, shared_experts=1, dense_layers=3, router="sigmoid",
            scale=2.5, groups=8, top_groups=4, balance_loss=0.001, balance_bias=0.001,
        ),
    )  # fmt: skip


def test_yarn_of_deepseek_grows_scores(tmp_path: Path) -> None:
    """Shares of its growth: of turned numbers over that of all, and the latter twice in scores."""
    model = model_of(tmp_path, DEEPSEEK_V3)
    growth = 0.1 * math.log(40) + 1
    assert model.attention_scale == pytest.approx(192**-0.5 * growth**2)
    assert model.rope_scaling
    assert model.rope_scaling.attention_factor == 1.0
    uneven = DEEPSEEK_V3["rope_scaling"] | {"mscale": 0.707}
    model = model_of(tmp_path, DEEPSEEK_V3 | {"rope_scaling": uneven})
    turned = 0.0707 * math.log(40) + 1
    assert model.rope_scaling
    assert model.rope_scaling.attention_factor == pytest.approx(turned / growth)
    plain = model_of(tmp_path, DEEPSEEK_V3 | {"rope_scaling": None})
    assert plain.attention_scale is None


@pytest.mark.parametrize("name", ["DeepSeek-V2-Lite", "DeepSeek-V2", "DeepSeek-V3"])
@pytest.mark.parametrize("shares", [(0.707, 0.707), (1.0, 1.0), (0.707, 1.0), (1.0, 0.3), None])
def test_a_config_of_deepseek_comes_back(
    tmp_path: Path, name: str, shares: tuple[float, float] | None
) -> None:
    """YaRN's shares too: of turned vectors, and of all, which also scales scores."""
    given = dict(zip(("mscale", "mscale_all_dim"), shares or (None, None), strict=True))
    published = EXPERTS[name][0]
    model = model_of(tmp_path, published | {"rope_scaling": published["rope_scaling"] | given})
    written = config_of(model, 4096, "bf16")
    assert written["architectures"] == published["architectures"]
    assert [written["rope_scaling"].get(key) for key in given] == list(given.values())
    again = model_of(tmp_path, written)
    assert again.attention_scale == model.attention_scale
    assert again.latent == model.latent


def test_a_scale_of_scores_is_a_share_of_growth(tmp_path: Path) -> None:
    """Of any model with latent attention; one whose scores shrink has no config."""
    model = replace(model_of(tmp_path, DEEPSEEK_V3), attention_scale=0.123456789)
    again = model_of(tmp_path, config_of(model, 4096, "bf16"))
    assert again.attention_scale == pytest.approx(0.123456789, rel=1e-8)
    assert again.rope_scaling
    assert again.rope_scaling.attention_factor == pytest.approx(1.0, rel=1e-8)
    with pytest.raises(SpecError):
        config_of(replace(model, attention_scale=0.01), 4096, "bf16")


def test_the_ways_of_deepseek_to_choose_experts(tmp_path: Path) -> None:
    """Greedily, by groups, and by groups with a bias."""
    lite, v2 = (
        model_of(tmp_path, EXPERTS[f"DeepSeek-V2{suffix}"][0]).moe for suffix in ("-Lite", "")
    )
    assert lite
    assert v2
    assert (lite.groups, lite.router, lite.balance_bias, lite.normalized) == (
        1, "softmax", None, False,
    )  # fmt: skip
    assert (v2.groups, v2.top_groups, v2.scale, v2.shared_experts) == (8, 3, 16.0, 2)
    # JSON may write a whole number as 8.0, also one that does not fit the others.
    assert repr(model_of(tmp_path, EXPERTS["DeepSeek-V2"][0] | {"n_group": 8.0}).moe) == repr(v2)
    written = changed(DEEPSEEK_V3, kv_lora_rank=512.0, qk_rope_head_dim=64.0)
    assert repr(model_of(tmp_path, written)) == repr(model_of(tmp_path, DEEPSEEK_V3))
    [problem] = problems_in(tmp_path, DEEPSEEK_V3 | {"n_group": 7.0})
    assert problem.key.endswith("n_group")
    assert (problem.code, problem.hint) == ("groups-not-divisible", "for example 4")
    assert problem.message == "is 7, must divide the 256 experts"
    assert model_of(tmp_path, EXPERTS["DeepSeek-V2-Lite"][0]).latent == LatentDimensions(
        query_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )


def test_gpt_oss_is_read(tmp_path: Path) -> None:
    """Sinks, every second layer with a window, biases everywhere, and experts of their own kind."""
    model = model_of(tmp_path, gpt_oss(36, 128))
    assert (model.window, model.window_pattern, model.sinks) == (128, "LG", True)
    assert (model.qkv_bias, model.output_bias, model.activation) == (True, True, "clamped_swiglu")
    assert model.moe == MixtureOfExperts(
        experts=128, top_k=4, balance_loss=0.9, biases=True, router_bias=True
    )
    assert model.rope_scaling == RopeScaling(
        kind="yarn", factor=32.0, original_length=4096, truncate=False
    )


UNSERVED: dict[str, tuple[dict[str, Any], str, str]] = {
    "another choice": (DEEPSEEK_V3 | {"topk_method": "all"}, "topk_method", "config-fixed"),
    "another frequency": (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "moe_layer_freq", "config-fixed"),
    "biases": (DEEPSEEK_V3 | {"attention_bias": True}, "attention_bias", "config-unknown"),
    "an odd rotation": (DEEPSEEK_V3 | {"qk_rope_head_dim": 63}, "qk_rope_head_dim", "head-dim-odd"),
    "grouped queries": (
        DEEPSEEK_V3 | {"num_key_value_heads": 8}, "num_key_value_heads", "latent-kv-heads",
    ),
    "a rank of zero": (DEEPSEEK_V3 | {"kv_lora_rank": 0}, "kv_lora_rank", "illegal-value"),
    "half a growth": (
        DEEPSEEK_V3 | {"rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"mscale": None}},
        "rope_scaling", "config-rope-scaled",
    ),
    "another clamp": (gpt_oss(36, 128) | {"swiglu_limit": 5.0}, "swiglu_limit", "config-fixed"),
    "another activation": (gpt_oss(36, 128) | {"hidden_act": "gelu"}, "hidden_act", "config-fixed"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSERVED)
def test_what_is_not_served_is_refused_at_its_key(name: str, tmp_path: Path) -> None:
    """With the key, its line, and a code that says what can be."""
    config, key, code = UNSERVED[name]
    [problem] = problems_in(tmp_path, config)
    assert (problem.key, problem.code) == (key, code)
    lines = json.dumps(config, indent=2).splitlines()
    assert lines[problem.place.line - 1].startswith(f'  "{key}"')


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (DEEPSEEK_V3, "kv_lora_rank"),
        (DEEPSEEK_V3, "q_lora_rank"),
        (DEEPSEEK_V3, "qk_rope_head_dim"),
        (DEEPSEEK_V3, "moe_intermediate_size"),
        (gpt_oss(36, 128), "sliding_window"),
    ],
)
def test_a_count_is_a_number_of_json(config: dict[str, Any], key: str, tmp_path: Path) -> None:
    """A spec may say 2K; nothing that reads a config.json knows this notation."""
    [problem] = problems_in(tmp_path, config | {key: "2K"})
    assert (problem.key, problem.code) == (key, "illegal-value")
    assert problem.message.startswith('is "2K", must be a ')
    assert "will do" not in problem.message
    assert problem.hint.startswith(f'for example "{key}": ')


@pytest.mark.parametrize("name", REPORTED)
def test_models_have_the_parameters_of_their_report(name: str, tmp_path: Path) -> None:
    """In millions; the report rounds its tables up by half a percent."""
    config, (embeddings, others) = REPORTED[name]
    network = decoder(model_of(tmp_path, config))
    assert round((network.parameters - network.table_parameters) / 1e6) == others
    assert network.table_parameters / 1e6 == pytest.approx(embeddings, rel=0.006)


READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama 3.1": (
        changed(LLAMA, rope_scaling=LLAMA_3_1),
        {"rope_scaling": RopeScaling(kind="llama3", factor=8.0)},
    ),
    "llama 3.1 in the newer form": (
        changed(LLAMA, rope_theta=ABSENT, rope_parameters=LLAMA_3_1 | {"rope_theta": 5e5}),
        {"rope_theta": 5e5, "rope_scaling": RopeScaling(kind="llama3", factor=8.0)},
    ),
    "linear": (
        changed(LLAMA, rope_scaling={"type": "linear", "factor": 2.0}),
        {"rope_scaling": RopeScaling(kind="linear", factor=2.0)},
    ),
    "yarn": (
        changed(
            QWEN_3 | shape(36, 4096, 12_288, 32, 8, 151_936),
            rope_scaling={
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768,
            },
        ),
        {
            "qk_norm": "head", "norm_epsilon": 1e-6,
            "rope_scaling": RopeScaling(kind="yarn", factor=4.0, original_length=32_768),
        },
    ),
    "biases": (
        changed(LLAMA, attention_bias=True, mlp_bias=True),
        {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    ),
    "half a rotation": (changed(LLAMA, partial_rotary_factor=0.5), {"rotary_share": 0.5}),
    "the window of its family": (changed(MISTRAL, sliding_window=ABSENT), {"window": 4096}),
    "a list of layers": (
        changed(
            LLAMA, sliding_window=512,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"] * 10,
        ),
        {"window": 512, "window_pattern": "GLL"},
    ),
    "windows from a layer on": (
        changed(
            QWEN_2 | shape(28, 3584, 18_944, 28, 4, 152_064),
            use_sliding_window=True, sliding_window=4096, max_window_layers=21,
        ),
        {"window": 4096, "window_pattern": "G" * 21 + "L" * 7, "qkv_bias": True},
    ),
    "gemma 3": (
        REPORTED["gemma-3-27b-pt"][0],
        {
            "window": 1024, "window_pattern": "LLLLLG", "norm_placement": "both",
            "norm_offset": True, "qk_norm": "head", "tied": True, "embedding_scale": True,
            "activation": "gelu", "attention_scale": 168**-0.5, "local_rope_theta": 10_000.0,
            "rope_theta": 1_000_000.0, "rope_scaling": RopeScaling(kind="linear", factor=8.0),
            "vocab": 262_208, "attention_cap": None, "logit_cap": None,
        },
    ),
    "gemma 3 in the newer form": (
        changed(
            EXACT["gemma-3-1b-pt"][0], rope_theta=ABSENT, rope_local_base_freq=ABSENT,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        ),
        {"rope_theta": 1e6, "local_rope_theta": 5e3},
    ),
    "gemma 2": (
        EXACT["gemma-2-27b"][0],
        {
            "window": 4096, "window_pattern": "LG", "attention_cap": 50.0, "logit_cap": 30.0,
            "attention_scale": 1 / 12, "rope_theta": 10_000.0, "qk_norm": "none",
        },
    ),
    "gemma": (EXACT["gemma-2b"][0], {"activation": "gelu", "norm_placement": "before"}),
    "mixtral": (
        EXPERTS["Mixtral-8x7B-v0.1"][0],
        {"moe": MixtureOfExperts(experts=8, top_k=2, balance_loss=0.02), "window": None},
    ),
    "qwen 3 with experts": (
        changed(EXPERTS["Qwen3-30B-A3B"][0], norm_topk_prob=False, router_aux_loss_coef=ABSENT),
        {
            "moe": MixtureOfExperts(experts=128, top_k=8, d_ff=768, normalized=False),
            "qk_norm": "head", "d_ff": 6144, "qkv_bias": False,
        },
    ),
    "olmo 2": (EXACT["OLMo-2-1124-7B"][0], {"norm_placement": "after", "qk_norm": "heads"}),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_config_s_keys_become_the_model_s(name: str, tmp_path: Path) -> None:
    """What each family and each key means."""
    config, fields = READ[name]
    model = model_of(tmp_path, config)
    assert {field: getattr(model, field) for field in fields} == pytest.approx(fields)


HARMLESS = {
    "no architectures": changed(LLAMA, architectures=ABSENT),
    "no model type": changed(LLAMA, model_type=ABSENT),
    "full attention everywhere": changed(LLAMA, layer_types=["full_attention"] * 32),
    "a key that is off": changed(LLAMA, qk_norm=False, quantization_config=None),
    "sharded pre-training": changed(LLAMA, pretraining_tp=2),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_nothing_is_let_through(name: str, tmp_path: Path) -> None:
    """Keys without an effect on the computation are no reason to refuse."""
    assert problems_in(tmp_path, HARMLESS[name]) == []


REFUSED = {
    "phi": changed(LLAMA, architectures=["PhiForCausalLM"], model_type="phi"),
    "a gate of shared experts": changed(
        MISTRAL, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", num_experts=64
    ),
    "more experts chosen than there are": changed(
        MISTRAL, architectures=["MixtralForCausalLM"], model_type="mixtral", num_experts_per_tok=9
    ),
    "an unheard-of family": changed(LLAMA, architectures=["ZebraForCausalLM"], model_type="zebra"),
    "a classifier": changed(LLAMA, architectures=["LlamaForSequenceClassification"]),
    "a type that contradicts": changed(LLAMA, model_type="mistral"),
    "no family": changed(LLAMA, architectures=ABSENT, model_type=ABSENT),
    "rope by lists of factors": changed(
        LLAMA, rope_scaling={"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    ),
    "rope with a key of another rule": changed(LLAMA, rope_scaling=LLAMA_3_1 | {"beta_fast": 4}),
    "rope without a factor": changed(LLAMA, rope_scaling={"type": "linear"}),
    "rope in the newer form": changed(LLAMA, rope_parameters={"rope_type": "dynamic"}),
    "another activation": changed(LLAMA, hidden_act="tanh"),
    "dropout": changed(LLAMA, attention_dropout=0.1),
    "more than a rotation": changed(LLAMA, partial_rotary_factor=1.5),
    "quantized": changed(LLAMA, quantization_config={"bits": 4}),
    "experts": changed(LLAMA, num_local_experts=8),
    "an unheard-of key": changed(LLAMA, logits_scaling=8.0),
    "a window of no positions": changed(MISTRAL, sliding_window=0),
    "chunks": changed(LLAMA, layer_types=["full_attention", "chunked_attention"]),
    "sizes of the wrong kind": changed(LLAMA, hidden_size="4096", num_hidden_layers=-1),
    "truth for a size": changed(LLAMA, vocab_size=True, num_attention_heads=False),
    "missing sizes": changed(LLAMA, hidden_size=ABSENT, num_attention_heads=ABSENT),
    "kv heads that divide nothing": changed(LLAMA, num_key_value_heads=5),
    "heads that do not divide": changed(LLAMA, num_attention_heads=24),
    "an odd head": changed(LLAMA, head_dim=127),
    "everything is null": dict.fromkeys(LLAMA),
    "not JSON": "{'architectures': []}",
    "no object": "[1, 2]",
    "the same key twice": '{"model_type": "llama", "model_type": "llama"}',
    "no number": '{"model_type": "llama", "rope_theta": NaN, "rms_norm_eps": 1e999}',
    "deep": "[" * 100_000,
    "a number of many digits": '{"model_type": "llama", "vocab_size": ' + "9" * 9999 + "}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_trainer_cannot_run_is_refused(name: str, tmp_path: Path) -> None:
    """Every refusal names the config.json, and a place in it."""
    problems = problems_in(tmp_path, REFUSED[name])
    assert problems
    assert {problem.file for problem in problems} == {str(tmp_path / "config.json")}
    assert all(problem.line for problem in problems)


def test_refusals_name_the_key_and_the_reason(
    tmp_path: Path, golden: HoldGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the trainer cannot run, key by key, in words."""
    monkeypatch.chdir(tmp_path)
    texts = [
        f"{name}\n{SpecProblems(problems_in(Path(), config))}" for name, config in REFUSED.items()
    ]
    golden("spec_huggingface.txt", "\n\n".join(texts) + "\n")


def test_a_config_s_problems_come_with_those_of_the_spec(tmp_path: Path) -> None:
    """The problems of both files are reported at once."""
    path = spec_of(tmp_path, changed(LLAMA, hidden_act="tanh"))
    assert [problem.key for problem in problems_of(path, "resources.chip=v9")] == [
        "resources.chip",
        "hidden_act",
    ]


def test_a_config_is_relative_to_the_spec(tmp_path: Path) -> None:
    """A missing config.json is named by its path from here."""
    text = MINIMAL.replace("llama3-8b", "{huggingface: models/config.json}")
    [problem] = problems_of(write(tmp_path, text))
    assert problem.file == str(tmp_path / "models/config.json")
    assert "No such file" in problem.message


def test_compact_and_tabbed_json_is_read(tmp_path: Path) -> None:
    """Any legal layout of JSON has places."""
    for text in (json.dumps(LLAMA, separators=(",", ":")), json.dumps(LLAMA, indent="\t")):
        spec_of(tmp_path, text)
        assert problems_in(tmp_path, text) == []


# --- files that a spec names


SECRET = "root:x:0:0:s3cret"


def link_to_text(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_text(f"{SECRET}\n", encoding="utf-8")
    path.symlink_to(target)


KINDS: dict[str, Callable[[Path], Any]] = {
    "a folder": lambda path: path.mkdir(),
    "no file": lambda path: path.parent,
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "text": lambda path: path.write_text(f"{SECRET}\n"),
    "a link to text": link_to_text,
    "a cut object": lambda path: path.write_text(f'{{"a": "{SECRET}", '),
    "an object of other keys": lambda path: path.write_text(f'{{"token": "{SECRET}"}}'),
    "a list": lambda path: path.write_text(f'[1, "{SECRET}"]'),
    "UTF-16": lambda path: path.write_bytes(SECRET.encode("utf-16")),
    "Latin-1": lambda path: path.write_bytes(f"{SECRET} \xe9".encode("latin-1")),
    "a control character": lambda path: path.write_text(f"{SECRET}\x01"),
    "much": lambda path: path.write_text(SECRET * 10**5),
    "deep": lambda path: path.write_text("[" * 10**5),
    "nothing": lambda path: path.write_text(""),
}
NAMES = {
    "experiment.model.huggingface": ("llama3-8b", "{{huggingface: {file}}}"),
    "resources.chip.file": ("v5p", "{{file: {file}}}"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", NAMES)
def test_a_file_that_a_spec_names_is_refused_at_the_spec_without_its_text(
    key: str, kind: str, tmp_path: Path
) -> None:
    """The spec's line first, then the file; of the file, keys alone are repeated."""
    file = tmp_path / "named"
    KINDS[kind](file)
    before, after = NAMES[key]
    text = MINIMAL.replace(before, after.format(file=file.name), 1)
    path = write(tmp_path, text)
    line = next(n for n, one in enumerate(text.split("\n"), 1) if file.name in one)
    problems = problems_of(path)
    assert problems
    for problem in problems:
        assert problem.named_at
        place, named = problem.named_at
        assert (named, place.line) == (key, line)
        assert problem.file == str(file)
        assert str(problem).startswith(f"{path}:{line}:")
        assert f": {file}" in str(problem)
        assert SECRET not in str(problem)


def test_the_base_of_a_study_is_refused_at_the_study_without_its_text(tmp_path: Path) -> None:
    """Any file may be named by mistake."""
    base = tmp_path / "base.yaml"
    base.write_text(f"{SECRET}\n", encoding="utf-8")
    text = "study:\n  base: base.yaml\n  vary: {resources.pods: [1, 2]}\n"
    study = write(tmp_path, text)
    with pytest.raises(SpecProblems) as caught:
        load_study(study)
    for problem in caught.value.problems:
        assert str(problem).startswith(f"{study}:2:9: study.base: {base}:1:1: ")
        assert SECRET not in str(problem)


WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    4096.0,
    1e30,
    10**40,
    "",
    "x",
    "2K",
    [],
    [1],
    {},
    {"a": 1},
    [[{}]],
]


@pytest.mark.parametrize("key", [*LLAMA, "head_dim", "layer_types", "rope_parameters", "mlp_bias"])
def test_any_value_of_any_key_is_read_or_refused_at_its_key(key: str, tmp_path: Path) -> None:
    """A model is whole numbers where sizes are; a wrong value is named with its key or a size."""
    for value in WRONG:
        config = LLAMA | {key: value}
        problems = problems_in(tmp_path, config)
        if problems:
            assert all(problem.named_at and problem.line for problem in problems)
            continue
        model = model_of(tmp_path, config)
        sizes = (model.layers, model.d_model, model.d_ff, model.heads, model.head_dim, model.vocab)
        assert all(type(size) is int for size in sizes)

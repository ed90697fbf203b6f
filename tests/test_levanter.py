"""Configurations of Levanter as specs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import api
from orchestrator.errors import SpecError
from orchestrator.maxtext import RecipeProblems, convert_levanter
from orchestrator.spec.spec_text import yaml_text
from tests.conftest import RunOrch

CONFIG = """
data: !include data/mixture.yaml
model:
  type: llama
  seq_len: 2048
  hidden_dim: 4096
  intermediate_dim: 11008
  num_layers: 32
  num_heads: 32
  num_kv_heads: 8
  use_flash_attention: true
trainer:
  tracker: {type: wandb}
  mp: p=f32,c=bfloat16
  train_batch_size: 1024
  num_train_steps: 1000
  per_device_parallelism: 2
  model_axis_size: 2
  tensor_parallel_axes: [mlp, heads]
optimizer: {learning_rate: 4e-4, weight_decay: 0.1, min_lr_ratio: 0.1, warmup: 50}
z_loss_weight: 5e-6
"""


def changed(**sections: Any) -> str:
    """The configuration with other values of sections; None takes a key away."""
    values = yaml.safe_load(CONFIG.replace("!include", ""))
    for section, keys in sections.items():
        if not isinstance(keys, dict):
            values[section] = keys
            continue
        values[section] |= keys
        values[section] = {key: one for key, one in values[section].items() if one is not None}
    return yaml.safe_dump(values)


def test_a_configuration_is_planned_as_it_was(tmp_path: Path, orch: RunOrch) -> None:
    (tmp_path / "levanter.yaml").write_text(CONFIG)
    words = ("--device-type", "v5litepod-256", "--slices", "2", "--vocab", "50277")
    done = orch("import", "levanter", str(tmp_path / "levanter.yaml"), *words)
    assert done.returncode == 0, done.stderr
    (tmp_path / "spec.yaml").write_text(done.stdout)
    plan = api.plan(tmp_path / "spec.yaml")
    assert (plan.chips, plan.pods, plan.batch.sequences, plan.batch.length) == (512, 2, 1024, 2048)
    assert (plan.mesh["fsdp"], plan.mesh["tensor"], plan.batch.microbatches) == (128, 2, 2)
    model, optimizer = plan.model, plan.optimizer
    assert (model.layers, model.kv_heads, model.head_dim, model.vocab) == (32, 8, 128, 50_277)
    assert (optimizer.warmup_steps, optimizer.end_lr, optimizer.z_loss) == (50, 4e-5, 5e-6)
    assert (plan.precision.compute, plan.precision.parameters) == ("bf16", "fp32")
    assert "trainer.tracker" in done.stderr


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"model": {"type": "gpt2"}}, "model.type"),
        ({"model": {"rope": {"type": "abf"}}}, "model.rope"),
        ({"model": {"num_kv_heads": 5}}, "model.num_heads"),
        ({"model": {"gradient_checkpointing": "nested"}}, "model.gradient_checkpointing"),
        ({"trainer": {"train_batch_size": [{"start": 0, "value": 8}]}}, "trainer.train_batch_size"),
        ({"trainer": {"axis_resources": {"seq": "data"}}}, "trainer.axis_resources"),
        ({"trainer": {"mesh": {"axes": {"pipe": 2}}}}, "trainer.mesh"),
        ({"trainer": {"replica_dcn_axis_size": 3}}, "trainer.replica_dcn_axis_size"),
        ({"trainer": {"quantization": {"int4": True}}}, "trainer.quantization"),
        ({"optimizer": {"decay": 0.1}}, "optimizer.decay"),
        ({"initialize_from_hf": "meta-llama/Llama-3.1-8B"}, "initialize_from_hf"),
        ({"model": {"num_heads": "many"}}, "model.num_heads"),
        ({"model": {"sinks": True}}, "model.sinks"),
        ({"trainer": {"train_batch_size": None}}, "trainer.train_batch_size"),
        ({"trainer": {"num_train_steps": float("nan")}}, "trainer.num_train_steps"),
        ({"trainer": {"mp": "p=f8"}}, "trainer.mp"),
        ({"trainer": {"per_device_parallelism": 3}}, "trainer.per_device_parallelism"),
        ({"optimizer": {"weight_decay": None}}, "optimizer.weight_decay"),
        ({"optimizer": {"type": "sophia-h"}}, "optimizer.type"),
        ({"use_hf_model_config": True}, "use_hf_model_config"),
    ],
)
def test_what_a_spec_cannot_say_is_refused_by_its_key(sections: Any, key: str) -> None:
    with pytest.raises(RecipeProblems) as caught:
        convert_levanter(changed(**sections), "v6e-256", vocab=128)
    assert caught.value.refused[0] == key


def test_a_tokenizer_gives_the_vocabulary() -> None:
    text = changed().replace(
        "data: data/mixture.yaml", "data: {tokenizer: meta-llama/Llama-2-7b-hf}"
    )
    found = convert_levanter(text, "v6e-256")
    assert found.values["experiment"]["model"]["vocab"] == 32_000
    assert yaml_text([found.values])


def test_rope_of_llama_3_and_long_words_for_types() -> None:
    text = changed(
        model={"rope": {"type": "llama3", "factor": 32}, "num_kv_heads": None},
        trainer={"mp": "compute=bfloat16,params=float32,output=bfloat16"},
        optimizer={"max_grad_norm": 0},
    )
    found = convert_levanter(text, "v6e-256", vocab=128)
    experiment = found.values["experiment"]
    assert experiment["model"]["rope_scaling"]["factor"] == 32
    assert (experiment["model"]["rope_theta"], experiment["model"]["kv_heads"]) == (500_000.0, 32)
    assert experiment["precision"]["compute"] == "bf16"
    assert [note.split(":")[0] for note in found.notes] == ["max_grad_norm"]


@pytest.mark.parametrize(
    ("kind", "model", "parameters"),
    [
        ("llama", {}, 6_738_415_616),
        ("mistral", {}, 7_241_732_096),
        ("mixtral", {}, 46_702_792_704),
        ("gemma", {}, 2_506_172_416 - 2048 * 224_000),
        ("qwen3", {"head_dim": 128}, 6_738_423_808),
        ("olmo2", {}, 6_738_677_760),
    ],
)
def test_models_have_the_sizes_of_their_classes(
    kind: str, model: dict[str, Any], parameters: int, tmp_path: Path
) -> None:
    """With 32,000 words, as Llama 2, Mistral 7B and Mixtral 8x7B have."""
    values = yaml.safe_load(changed()) | {"model": {"type": kind, **model}}
    found = convert_levanter(yaml.safe_dump(values), "v5p-512", vocab=32_000)
    (tmp_path / "spec.yaml").write_text(yaml_text([found.values]))
    assert api.plan(tmp_path / "spec.yaml").model.parameters == parameters


@pytest.mark.parametrize(
    ("trainer", "mesh"),
    [
        ({"model_axis_size": None}, {"data": 1, "fsdp": 256, "fsdp_dcn": 4}),
        ({"replica_dcn_axis_size": 2}, {"data": 1, "fsdp": 128, "tensor": 2, "fsdp_dcn": 2}),
        ({"replica_dcn_axis_size": 4}, {"data": 1, "fsdp": 128, "tensor": 2}),
        ({"replica_ici_axis_size": 8}, {"data": 8, "fsdp": 16, "tensor": 2, "fsdp_dcn": 4}),
        ({"mesh": {}}, {"data": 1, "fsdp": 256}),
        ({"mesh": {"axes": {"data": -1, "model": 4, "replica": 2}, "dcn_axes": {"replica_dcn": 2}}},
         {"data": 2, "fsdp": 32, "tensor": 4, "fsdp_dcn": 2}),
    ],
)  # fmt: skip
def test_slices_share_weights_as_the_mesh_says(trainer: Any, mesh: dict[str, int]) -> None:
    """Before `trainer.mesh` they share them if nothing else is said, and since then they do not."""
    older = (
        {} if "mesh" not in trainer else dict.fromkeys(("model_axis_size", "tensor_parallel_axes"))
    )
    text = changed(trainer={"per_device_parallelism": -1, **older, **trainer})
    found = convert_levanter(text, "v6e-256", slices=4, vocab=128)
    assert found.values["resources"]["mesh"] == mesh


def test_words_override_and_a_file_beside_is_included(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mixture.yaml").write_text("tokenizer: gpt2\n")
    (tmp_path / "levanter.yaml").write_text(CONFIG.replace("warmup: 50}", "lr_schedule: inv}"))
    words = "optimizer.lr_schedule=linear --trainer.num_train_steps=7"
    found = api.import_levanter([tmp_path / "levanter.yaml", words], device="v6e-256")
    experiment = found.values["experiment"]
    assert experiment["model"]["vocab"] == 50_257
    assert (experiment["tokens"], experiment["optimizer"]["decay"]) == (7 * 1024 * 2048, "linear")
    with pytest.raises(RecipeProblems, match=r"levanter\.yaml:\d+: optimizer\.lr_schedule"):
        api.import_levanter(tmp_path / "levanter.yaml", device="v6e-256")
    outside = CONFIG.replace("data/mixture.yaml", "../secret.yaml")
    (tmp_path / "data" / "levanter.yaml").write_text(outside)
    (tmp_path / "secret.yaml").write_text("tokenizer: gpt2\n")
    with pytest.raises(RecipeProblems, match=r"data\.tokenizer"):
        api.import_levanter(tmp_path / "data" / "levanter.yaml", device="v6e-256")


@pytest.mark.parametrize("words", ["seed", "a.b.c=1", "model.type.x=2", "trainer.mp=["])
def test_odd_words_are_refused(words: str, tmp_path: Path) -> None:
    (tmp_path / "levanter.yaml").write_text(CONFIG)
    with pytest.raises(SpecError):
        convert_levanter([("", changed()), ("words", words)], "v6e-256", vocab=128)


@pytest.mark.parametrize("text", ["[", "- a", "", "a: &a [*a]"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        convert_levanter(text, "v6e-256")

"""Published weights: read into the shards of a plan, written from a checkpoint, byte for byte."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from orchestrator import catalog, storage
from orchestrator.errors import CheckpointFailed, DataUnusable, OrchError, SpecError
from orchestrator.network.decoder import decoder
from orchestrator.reading.huggingface import config_of as written_config
from orchestrator.reading.huggingface import model_of
from orchestrator.reading.load import load
from orchestrator.reading.problems import SpecProblems
from orchestrator.run.exports import export_weights
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import WeightsRequest, WeightsResult, WeightType
from orchestrator.values.spec import StartingWeights
from tests.bench.huggingface_logits import GOLDEN, KEPT
from tests.bucket_server import BucketServer
from tests.huggingface_models import FAMILIES, config_of, tokens_of, write_model
from tests.trainer_logits import logits_of
from tests.trainer_plans import plan_of
from trainers import llama
from trainers.checkpoint.checkpoints import Checkpoints
from trainers.contract import Program, build
from trainers.huggingface import read, write
from trainers.huggingface.read import _WeightFolder
from trainers.llama.step import _runtime_of

TOLERANCE = 1e-4  # of logits, in float32; about 3e-6 was measured
LENGTH = 512
ON_MESHES: list[tuple[str, dict[str, int]]] = [
    ("llama3.1", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ("qwen2", {"tensor": 8}),  # twice the kv heads
    ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}),
    ("gemma3", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ("phi3", {"fsdp": 4, "tensor": 2}),
    ("deepseek_v2", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ("deepseek_v3", {"fsdp": 2, "expert": 2, "tensor": 2}),
    ("gpt_oss", {"fsdp": 2, "expert": 2, "tensor": 2}),
    ("gemma4", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ("gemma4_moe", {"fsdp": 2, "expert": 2, "tensor": 2}),
    ("gpt2", {"fsdp": 2, "sequence": 2, "tensor": 2}),
]
FAST = ("llama3.1", "mixtral", "phi3", "deepseek_v3", "gpt_oss", "gemma4", "gemma4_moe", "gpt2")


def plan_from(folder: Path, **mesh: Any) -> Plan:
    """A plan that starts from the weights of a folder."""
    model = model_of(folder / "config.json", None)
    plan = plan_of(model, **{"sequences": 8, "length": 64, **mesh})
    return replace(plan, start=StartingWeights(huggingface=str(folder)))


def program_from(folder: Path, **mesh: Any) -> Program:
    plan = plan_from(folder, **mesh)
    return build(llama, plan, jax.devices()[: plan.devices])


def parameters_from(program: Program) -> Any:
    """What the program starts with, without the rest of its state."""
    assert program.plan.start
    with _WeightFolder.open(Path(program.plan.start.huggingface)) as source:
        weights = read._weights_of(program, source)
        return read._with_published(program.state["parameters"], weights, source)


def slow_but(fast: tuple[str, ...], name: str) -> Any:
    return pytest.param(name, marks=[] if name in fast else [pytest.mark.slow])


# --- in


def check_logits(folder: Path, name: str, mesh: dict[str, int]) -> None:
    """The trainer's logits are those of transformers; the best next word of 512 is the same."""
    rows = mesh.get("fsdp", 1) * mesh.get("expert", 1)
    program = program_from(folder, sequences=rows, length=LENGTH, **mesh)
    words = tokens_of(name)
    tokens = np.repeat(np.concatenate([words, words[:, :1]], axis=1), rows, axis=0)
    runtime = _runtime_of(program.plan, program.mesh)
    found = logits_of(program, runtime, parameters_from(program), tokens)[-1]
    golden = np.load(GOLDEN)
    assert np.abs(found[-KEPT:] - golden[f"{name} logits"]).max() < TOLERANCE
    assert (found.argmax(-1) == golden[f"{name} best"]).all()


@pytest.mark.parametrize("name", [slow_but(FAST, name) for name in FAMILIES])
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    check_logits(write_model(tmp_path / name, config_of(name)), name, {})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), ON_MESHES)
def test_logits_on_a_mesh_are_the_same(tmp_path: Path, name: str, mesh: dict[str, int]) -> None:
    check_logits(write_model(tmp_path / name, config_of(name)), name, mesh)


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 2, "tensor": 4}, {"data": 2, "tensor": 2}])
def test_shards_are_parts_of_the_whole(tmp_path: Path, mesh: dict[str, int]) -> None:
    """Whatever the mesh, and in however many files, the same arrays are read."""
    one = program_from(write_model(tmp_path / "one", config_of("qwen3")))
    split = program_from(write_model(tmp_path / "split", config_of("qwen3"), parts=3), **mesh)
    whole, parts = map(parameters_from, (one, split))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((np.asarray(a) == b).all()), whole, parts))
    wanted = split.state["parameters"]
    assert jax.tree.map(lambda leaf: leaf.sharding, parts) == jax.tree.map(
        lambda leaf: leaf.sharding, wanted
    )


def test_a_device_reads_its_own_part_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """No process holds a whole matrix that its devices share."""
    folder = write_model(tmp_path / "model", config_of("llama"))
    program = program_from(folder, fsdp=4, tensor=2)
    sizes = []
    original = read._part_of

    def counted(*arguments: Any) -> np.ndarray:
        part = original(*arguments)
        sizes.append((arguments[0].path[-1], part.size))
        return part

    monkeypatch.setattr(read, "_part_of", counted)
    parameters_from(program)
    largest = dict(sorted(sizes, key=lambda size: size[1]))
    assert largest["gate"] == 64 * 96 // 8
    assert largest["query"] == 64 * 8 * 16 // 8


def test_a_vocabulary_that_is_padded_has_zeros_below(tmp_path: Path) -> None:
    config = {**config_of("llama"), "vocab_size": 126}
    program = program_from(write_model(tmp_path / "model", config), tensor=8, sequences=8)
    table = np.asarray(parameters_from(program)["embedding"])
    stored = load_file(tmp_path / "model" / "model.safetensors")["model.embed_tokens.weight"]
    assert table.shape[0] > 128
    assert (table[:126] == stored).all()
    assert not table[126:].any()


def test_a_model_that_also_sees_gives_its_text_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", config_of("gemma3"))
    text = load_file(folder / "model.safetensors")
    expected = parameters_from(program_from(folder))
    for prefix, rest in (("language_model.", ""), ("model.language_model.", "model.")):
        arrays = {prefix + name.removeprefix(rest): array for name, array in text.items()}
        arrays["vision_tower.patch.weight"] = np.zeros((2, 2), np.float32)
        save_file(arrays, folder / "model.safetensors")
        found = parameters_from(program_from(folder))
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), expected, found))


def change(folder: Path, **arrays: np.ndarray | None) -> None:
    """Replace arrays of a folder, remove those that are None."""
    stored = load_file(folder / "model.safetensors")
    for name, array in arrays.items():
        key = name.replace("__", ".")
        if array is None:
            del stored[key]
        else:
            stored[key] = array
    save_file(stored, folder / "model.safetensors")


def damage_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


DAMAGE: dict[str, Any] = {
    "a weight is missing": lambda at: change(at, model__norm__weight=None),
    "one too many": lambda at: change(at, model__layers__0__self_attn__q_norm__weight=np.ones(16)),
    "another shape": lambda at: change(at, model__norm__weight=np.ones(63)),
    "no safetensors": lambda at: (at / "model.safetensors").unlink(),
    "no config": lambda at: (at / "config.json").unlink(),
    "not safetensors": damage_file,
    "an index without files": lambda at: (at / "model.safetensors.index.json").write_text("{}"),
    "an index of files elsewhere": lambda at: (at / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../../a.safetensors"}}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_cannot_be_read_is_said(tmp_path: Path, damage: Any) -> None:
    folder = write_model(tmp_path / "model", config_of("llama"))
    program = program_from(folder)
    damage(folder)
    with pytest.raises(DataUnusable, match=str(folder)):
        parameters_from(program)


def test_a_head_that_is_stored_twice_is_the_embedding(tmp_path: Path) -> None:
    """Some writers store a tied head as well. Another head is an error."""
    folder = write_model(tmp_path / "model", config_of("llama3.1"))
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change(folder, lm_head__weight=table)
    parameters_from(program_from(folder))
    change(folder, lm_head__weight=table + 1)
    with pytest.raises(DataUnusable, match="lm_head"):
        parameters_from(program_from(folder))


def test_a_trainer_that_names_no_weights_cannot_start_from_any(tmp_path: Path) -> None:
    program = program_from(write_model(tmp_path / "model", config_of("llama")))
    with pytest.raises(SpecError, match="checkpoints"):
        read.new_state(replace(program, published=None), Path())


# --- out


def saved_run(folder: Path, directory: Path, **mesh: Any) -> None:
    """A run that has saved what it starts with, as `python -m trainers` leaves it."""
    program = program_from(folder, **mesh)
    directory.mkdir()
    (directory / "plan.json").write_bytes(codec.to_json(program.plan))
    with Checkpoints(directory / "checkpoints", keep=2, identity={}) as checkpoints:
        checkpoints.save(0, {"parameters": parameters_from(program)})


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a mixture, and a run on a mesh that did no step."""
    root = tmp_path_factory.mktemp("weights")
    folder = write_model(root / "model", config_of("mixtral"))
    (folder / "tokenizer.json").write_text("{}")
    saved_run(folder, root / "run", fsdp=2, tensor=2)
    return folder, root / "run"


def test_in_and_out_again_is_the_same_to_the_byte(
    started: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, directory = started
    found = export_weights(str(directory), tmp_path / "out")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == config_of("mixtral")
    assert (found.step, found.architecture, found.files) == (0, "MixtralForCausalLM", 1)
    assert found.parameters == model_parameters(folder)


def written(directory: Path, out: Path, dtype: WeightType = "fp32") -> WeightsResult:
    """What the process writes that `export_weights` starts, without the process."""
    plan = codec.from_json((directory / "plan.json").read_bytes(), Plan)
    return write.write(request_of(directory / "checkpoints" / "0", out, dtype), plan)


def request_of(checkpoint: Path, out: Path, dtype: WeightType = "fp32") -> WeightsRequest:
    return WeightsRequest(
        plan="",
        checkpoint=str(checkpoint),
        sha256=None,
        out=str(out),
        dtype=dtype,
        config=config_of("mixtral"),
    )


def model_parameters(folder: Path) -> int:
    return sum(array.size for array in load_file(folder / "model.safetensors").values())


def test_bf16_is_rounded_once(started: tuple[Path, Path], tmp_path: Path) -> None:
    folder, directory = started
    written(directory, tmp_path / "out", "bf16")
    theirs, ours = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "out"))
    for name, array in ours.items():
        assert array.dtype == ml_dtypes.bfloat16
        assert (array == theirs[name].astype(ml_dtypes.bfloat16)).all()


def test_large_models_come_in_several_files(
    started: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, directory = started
    monkeypatch.setattr(write, "_MOST_BYTES", 200_000)
    result = written(directory, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert result.files == len(files) > 2
    again = parameters_from(program_from(tmp_path / "out"))
    first = parameters_from(program_from(folder))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again, first))


@pytest.mark.parametrize("name", [slow_but(("deepseek_v2",), name) for name in FAMILIES])
def test_every_architecture_comes_out_as_it_went_in(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "model", config_of(name))
    saved_run(folder, tmp_path / "run", fsdp=2, tensor=2)
    request = request_of(tmp_path / "run" / "checkpoints" / "0", tmp_path / "out")
    plan = codec.from_json((tmp_path / "run" / "plan.json").read_bytes(), Plan)
    write.write(replace(request, config=config_of(name)), plan)
    weights = "model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (folder / weights).read_bytes()


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_weights_of_a_run_on_a_bucket_are_the_same(
    started: tuple[Path, Path], tmp_path: Path, bucket_server: BucketServer, scheme: str
) -> None:
    folder, directory = started
    program = program_from(folder, fsdp=2, tensor=2)
    steps = storage.folder(f"{scheme}://bucket/runs/key/checkpoints")
    with Checkpoints(steps, keep=2, identity={}) as checkpoints:
        checkpoints.save(0, {"parameters": parameters_from(program)})
    plan = codec.from_json((directory / "plan.json").read_bytes(), Plan)
    request = request_of(steps / "0", tmp_path / "out")
    write.write(request, plan)
    name = "model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    shard = next(name for name in bucket_server.names() if "expert_gate/c" in name)
    del bucket_server.objects[shard]
    with pytest.raises(CheckpointFailed, match=f"{scheme}://bucket/runs/key/checkpoints/0"):
        write.write(replace(request, out=str(tmp_path / "again")), plan)
    assert not list(tmp_path.glob("*again*"))


def test_weights_are_never_overwritten(started: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(SpecError, match="already exists"):
        written(started[1], tmp_path / "out")


def test_a_damaged_checkpoint_is_not_written(started: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = started
    saved_run(folder, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "0"
    largest = max(checkpoint.rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    with pytest.raises(OrchError, match="sha256"):
        written(tmp_path / "run", tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_a_run_without_a_checkpoint_has_no_weights(tmp_path: Path) -> None:
    plan = plan_of()
    (tmp_path / "plan.json").write_bytes(codec.to_json(plan))
    with pytest.raises(CheckpointFailed):
        export_weights(str(tmp_path), tmp_path / "out")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_that_is_written_reads_as_the_same_network(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / name, config_of(name))
    model = model_of(folder / "config.json", None)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(written_config(model, 512, "fp32")))
    assert decoder(model_of(again, None)) == decoder(model)


def test_a_model_that_nobody_publishes_has_no_config() -> None:
    with pytest.raises(SpecError):
        written_config(replace(catalog.model("llama-tiny"), norm="layer"), 512, "fp32")


# --- the spec


SPEC = """
name: tuned
experiment:
  model: {{huggingface: {model}/config.json}}
  start: {{huggingface: {start}}}
  tokens: 40K
  batch: {{sequences: 8, length: 128}}
resources: {{chip: v5e, topology: 2x2, pods: 1}}
"""


def spec_in(folder: Path, model: str, start: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(model=model, start=start))
    return path


def test_a_spec_names_the_weights_of_its_model(tmp_path: Path) -> None:
    write_model(tmp_path / "one", config_of("qwen3"))
    spec = load(spec_in(tmp_path, "one", "one"))
    assert asdict(spec.experiment)["start"] == {"huggingface": "one"}


@pytest.mark.parametrize(
    ("start", "code"), [("other", "other-model"), ("empty", "no-weights"), ("no_config", None)]
)
def test_weights_of_another_model_are_refused(tmp_path: Path, start: str, code: str) -> None:
    write_model(tmp_path / "one", config_of("qwen3"))
    write_model(tmp_path / "other", {**config_of("qwen3"), "rope_theta": 5e5})
    write_model(tmp_path / "empty", config_of("qwen3"))
    (tmp_path / "empty" / "model.safetensors").unlink()
    (tmp_path / "no_config").mkdir()
    with pytest.raises(SpecProblems) as caught:
        load(spec_in(tmp_path, "one", start))
    problem = caught.value.problems[0]
    place = problem.named_at[0] if problem.named_at else problem.place
    assert place.line == 5
    assert code in (None, problem.code)


def test_weights_that_only_the_hosts_have_are_theirs_to_check(tmp_path: Path) -> None:
    write_model(tmp_path / "one", config_of("qwen3"))
    assert load(spec_in(tmp_path, "one", "/on/the/hosts/alone")).experiment.start

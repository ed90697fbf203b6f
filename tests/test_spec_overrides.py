"""Specs: `--set key=value`."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.processes import resource
from orchestrator.reading.examples import create
from orchestrator.reading.load import load
from orchestrator.reading.problems import Problem
from orchestrator.values.spec import MeshRequest, Pods
from tests.conftest import TRAINING_SPECS, HoldGolden, RunOrch
from tests.spec_texts import COMPLETE, MINIMAL, load_text, problems_of, write


def problems_of_overrides(tmp_path: Path, *overrides: str) -> list[Problem]:
    """What is wrong with the minimal spec under overrides."""
    return problems_of(write(tmp_path, MINIMAL), *overrides)


def test_an_override_is_a_value_of_the_file(tmp_path: Path) -> None:
    """Overriding a value is writing it, and the overrides are remembered as given."""
    overrides = ("experiment.batch.sequences=2048", "run.hang_limit=90s")
    loaded = load_text(tmp_path, MINIMAL, *overrides)
    assert loaded.experiment.batch.sequences == 2048
    assert loaded.run.hang_limit_s == 90.0
    assert loaded.overrides == overrides
    assert load_text(tmp_path, MINIMAL).overrides == ()
    rewritten = load_text(tmp_path, MINIMAL.replace("512", "2048"))
    assert loaded.experiment == rewritten.experiment


def test_the_last_override_of_a_key_counts(tmp_path: Path) -> None:
    """Later overrides go over earlier ones, in whole and in part."""
    loaded = load_text(
        tmp_path,
        MINIMAL,
        "resources.pods=2",
        "resources.pods=3",
        "experiment.batch={sequences: 8, length: 64}",
        "experiment.batch.length=128",
    )
    assert loaded.resources.pods == Pods(min=3, max=3)
    assert (loaded.experiment.batch.sequences, loaded.experiment.batch.length) == (8, 128)


def test_a_whole_mapping_can_be_set(tmp_path: Path) -> None:
    """A value may be any YAML that fits on a line."""
    shape = "{layers: 2, d_model: 64, d_ff: 96, heads: 4, kv_heads: 2, head_dim: 16, vocab: 512}"
    loaded = load_text(
        tmp_path, MINIMAL, f"experiment.model={shape}", "run.secrets=[HF_TOKEN, WANDB_KEY]"
    )
    assert loaded.experiment.model.layers == 2
    assert loaded.run.secrets == ("HF_TOKEN", "WANDB_KEY")


def test_sections_come_into_being(tmp_path: Path) -> None:
    """A key of a section that the file does not have can be set."""
    loaded = load_text(tmp_path, MINIMAL, "run.checkpoint.every=7", "tracking.experiment=mine")
    assert (loaded.run.checkpoint.every, loaded.run.checkpoint.keep) == (7, 3)
    assert loaded.tracking.experiment == "mine"


def test_auto_gives_way_to_a_part(tmp_path: Path) -> None:
    """An axis can be set where the file leaves the mesh to the search."""
    loaded = load_text(tmp_path, COMPLETE, "resources.mesh.tensor=8", "resources.mesh.data=35")
    assert loaded.resources.mesh == MeshRequest(tensor=8, data=35)


def test_a_value_may_contain_what_a_key_may_not(tmp_path: Path) -> None:
    """The key ends at the first sign of equality."""
    loaded = load_text(tmp_path, MINIMAL, "run.storage=/a.b/c=d")
    assert loaded.run.storage == "/a.b/c=d"


def test_an_override_mends_a_problem_of_the_file(tmp_path: Path) -> None:
    """Overrides go in before anything is checked."""
    text = MINIMAL.replace("512", "none").replace("llama3-8b", "")
    mended = ("experiment.batch.sequences=512", "experiment.model=llama3-8b")
    assert load_text(tmp_path, text, *mended).experiment.batch.sequences == 512


def test_an_override_is_checked_against_the_file(tmp_path: Path) -> None:
    """A contradiction between an override and the file is reported where the key stands."""
    [problem] = problems_of_overrides(tmp_path, "resources.chip=v6e")
    assert problem.key == "resources.topology"
    assert problem.file == str(tmp_path / "spec.yaml")


MISTAKES = [
    "experiment.batch.sequences=many",
    "experiment.bach.sequences=2048",
    "experiment.batch.sequence=2048",
    "experiment.model.layers=32",
    "run.secrets.0=HF_TOKEN",
    "resources.pods=[4",
    "name=",
    "name= ",
    "=4",
    "name",
    "run..steps=4",
    "name=&a b",
    "name=*a",
    "run.checkpoint={every: 1, every: 2}",
    "name=a --- b",
    "name='a",
    "experiment.batch.length=8\n192",
    "name=\udcff",
    "experiment.optimizer={peak_lr: -1, warmup: 7}",
]


def test_what_is_wrong_with_overrides(tmp_path: Path, golden: HoldGolden) -> None:
    """Each mistake has the number of its `--set`, a column, the text, a caret and a hint."""
    texts = [
        f"--set {override!r}\n" + "\n".join(map(str, problems_of_overrides(tmp_path, override)))
        for override in MISTAKES
    ]
    golden("spec_overrides.txt", "\n\n".join(texts) + "\n")


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_in_an_override_is_told_there(override: str, tmp_path: Path) -> None:
    """The file itself is not blamed."""
    problems = problems_of_overrides(tmp_path, "run.steps=5", override)
    assert {(problem.file, problem.line) for problem in problems} == {("--set", 2)}


def test_all_overrides_are_told_at_once(tmp_path: Path) -> None:
    """Mistakes of notation and of content, in several overrides, come together."""
    problems = problems_of_overrides(tmp_path, "name=[", "run.steps=0", "zebra=1")
    assert [problem.line for problem in problems] == [1, 2, 3]


@pytest.mark.parametrize("null", ["null", "~"])
def test_null_takes_a_key_out_of_the_file(tmp_path: Path, null: str) -> None:
    """Whether the file has it or not; what must be there is missing then."""
    path = write(tmp_path, f"{MINIMAL}run: {{steps: 7, checkpoint: {{every: 3}}}}\n")
    loaded = load(path, [f"run.steps={null}", f"run.checkpoint.every={null}"])
    assert (loaded.run.steps, loaded.run.checkpoint.every) == (None, 200)
    assert load(path, [f"run.deadline={null}", f"tracking.experiment={null}"]).run.steps == 7
    assert [wrong.code for wrong in problems_of(path, f"run.stepz={null}")] == ["unknown-key"]
    assert [wrong.key for wrong in problems_of(path, f"runs.steps={null}")] == ["runs"]
    [missing] = problems_of(path, f"experiment.batch.length={null}")
    assert (missing.code, missing.key) == ("missing-key", "experiment.batch.length")


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
CHANGES = (
    ("run.steps=null",),
    ("run.steps=33", "run.checkpoint={every: auto, keep: 2}", "tracking.experiment=a, b"),
    ("experiment.batch.tolerance=null", "resources.mesh.fsdp=8", "name=other"),
    ("experiment.optimizer={peak_lr: 2e-4}", "experiment.optimizer.warmup_steps=9"),
    ("experiment.data=kind: synthetic", "run.checkpoint.every=7", "run.checkpoint.every=null"),
    ("run.secrets=[HF_TOKEN, OTHER]", "run.secrets.0=FIRST"),
)
TEXTS = {path.stem: path for path in TRAINING_SPECS}


@pytest.mark.parametrize("overrides", CHANGES, ids=lambda changes: changes[0])
@pytest.mark.parametrize("name", [*TEXTS, "starter"])
def test_a_copy_is_what_its_overrides_make_of_the_spec_and_keeps_the_comments(
    tmp_path: Path, name: str, overrides: tuple[str, ...]
) -> None:
    """Every line that no override changes is there to the letter."""
    source = TEXTS.get(name) or resource("reading", "starter.yaml")
    copy = tmp_path / "sub" / "copy.yaml"
    copy.parent.mkdir()
    assert create(copy, None if name == "starter" else str(source), overrides) == copy
    made, meant = load(copy), load(source, overrides)
    data = replace(meant.experiment.data, path=made.experiment.data.path)
    experiment = replace(meant.experiment, data=data)
    assert made == replace(meant, name="copy", overrides=(), experiment=experiment)
    before = [line for line in source.read_text().splitlines() if line.startswith("#")][1:]
    after = copy.read_text().splitlines()
    assert [line for line in before if line not in after and ".yaml" not in line] == []


def test_files_of_a_copy_are_found_from_its_new_place(tmp_path: Path) -> None:
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(LLAMA))
    first, second = tmp_path / "first.yaml", tmp_path / "deeper" / "second.yaml"
    second.parent.mkdir()
    create(first, None, ["experiment.model={huggingface: model/config.json}"])
    create(second, str(first))
    assert "{huggingface: ../model/config.json}  " in second.read_text()
    assert load(first).experiment == load(second).experiment


def test_a_model_given_as_a_spec_says_which_command_makes_one(
    orch: RunOrch, tmp_path: Path
) -> None:
    config, made = tmp_path / "config.json", tmp_path / "made.yaml"
    config.write_text(json.dumps(LLAMA))
    refused = orch("plan", str(config))
    [*_, following] = refused.stderr.splitlines()
    assert refused.returncode == 2
    assert following.startswith("Next: orch init my-run.yaml --set ")
    words = shlex.split(following.replace("my-run.yaml", str(made)))
    assert orch(*words[2:]).returncode == 0
    assert load(made).experiment.model.vocab == LLAMA["vocab_size"]

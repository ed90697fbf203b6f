"""Specs: `--set key=value`."""

from pathlib import Path

import pytest

from orchestrator.reading.problems import Problem
from orchestrator.values.spec import MeshRequest, Pods
from tests.conftest import HoldGolden
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

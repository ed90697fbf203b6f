"""Specs: what a good file becomes."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import catalog, reading
from orchestrator.errors import SpecError
from orchestrator.processes import resource
from orchestrator.reading.examples import _named
from orchestrator.reading.problems import SpecProblems
from orchestrator.values import codec
from orchestrator.values.model import Model
from orchestrator.values.spec import (
    Batch,
    CheckpointOptions,
    ClusterOptions,
    DataSource,
    Experiment,
    MeshRequest,
    Optimizer,
    Pods,
    Precision,
    Resources,
    RetryLimits,
    RunOptions,
    Spec,
    TrackingOptions,
)
from tests.conftest import ROOT, TRAINING_SPECS
from tests.spec_texts import COMPLETE, MINIMAL, load_text, problems_of, write

SHAPE = (
    "{layers: 2, d_model: 64, d_ff: 96, heads: 4, kv_heads: 2, head_dim: 16, vocab: 512,"
    " gated: false, tied: true, rope_theta: 1e4, norm_epsilon: 1e-6, name: toy}"
)


def test_a_complete_spec_is_what_it_says(tmp_path: Path) -> None:
    """Every key of a file arrives in its field, in base units."""
    assert load_text(tmp_path, COMPLETE) == Spec(
        name="llama3-70b-4pod",
        experiment=Experiment(
            model=catalog.model("llama3-70b"),
            tokens=15_000_000_000_000,
            batch=Batch(sequences=1024, length=4096, tolerance=0.1),
            optimizer=Optimizer(name="adamw", peak_lr=1.5e-4, warmup_steps=2000, decay="cosine"),
            precision=Precision(
                parameters="fp32", compute="bf16", gradients="bf16", optimizer="fp32"
            ),
            remat="auto",
            compiler_options={},
            data=DataSource(kind="synthetic"),
            seed=0,
        ),
        resources=Resources(
            chip="v5p", topology="16x20x28", pods=Pods(min=4, max=4), mesh=MeshRequest()
        ),
        run=RunOptions(
            trainer="llama",
            steps=1000,
            storage="runs/",
            checkpoint=CheckpointOptions(every=200, keep=3),
            retries=RetryLimits(failures=3, preemptions=100),
            hang_limit_s=600.0,
            secrets=("HF_TOKEN",),
        ),
        cluster=ClusterOptions(address="auto"),
        tracking=TrackingOptions(uri="auto", experiment="llama3"),
    )


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    """A minimal spec is one pod, on this machine, and the defaults of the types."""
    assert load_text(tmp_path, MINIMAL) == Spec(
        name="small",
        experiment=Experiment(
            model=catalog.model("llama3-8b"),
            tokens=15_000_000_000_000,
            batch=Batch(sequences=512, length=8192),
        ),
        resources=Resources(chip="v5p", topology="4x4x4", pods=Pods(min=1, max=1)),
    )


def test_a_spec_survives_its_journal(tmp_path: Path) -> None:
    """A loaded spec is the same after JSON and back."""
    loaded = load_text(tmp_path, COMPLETE)
    assert codec.from_json(codec.to_json(loaded), Spec) == loaded


def test_order_and_notation_make_no_other_spec(tmp_path: Path) -> None:
    """Keys in another order, in flow or block style, with Windows line ends: one spec."""
    other = """\
resources:
  topology: "4x4x4"
  chip: 'v5p'
experiment: {batch: {length: 8192, sequences: 512}, tokens: 15000000000000, model: llama3-8b}
name: small
"""
    assert load_text(tmp_path, other.replace("\n", "\r\n")) == load_text(tmp_path, MINIMAL)


def test_a_model_may_be_a_shape(tmp_path: Path) -> None:
    """A mapping gives every size of a model."""
    loaded = load_text(tmp_path, MINIMAL.replace("llama3-8b", SHAPE))
    assert loaded.experiment.model == Model(
        name="toy",
        layers=2,
        d_model=64,
        d_ff=96,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=512,
        gated=False,
        tied=True,
        rope_theta=10_000.0,
        norm_epsilon=1e-6,
    )


def test_a_shape_needs_no_name(tmp_path: Path) -> None:
    """A shape without a name is `custom`: renaming the spec makes no other experiment."""
    unnamed = MINIMAL.replace("llama3-8b", SHAPE.replace(", name: toy", ""))
    here, there = (load_text(tmp_path, unnamed, f"name={name}") for name in ("a", "b"))
    assert here.experiment.model.name == "custom"
    assert here.experiment == there.experiment


def test_pods_may_be_a_range(tmp_path: Path) -> None:
    """The most is asked for, the least is what the run may shrink to."""
    text = MINIMAL.replace("4x4x4}", "4x4x4, pods: {min: 2, max: 4}}")
    assert load_text(tmp_path, text).resources.pods == Pods(min=2, max=4)


def test_a_mesh_may_be_named_in_part(tmp_path: Path) -> None:
    """Axes that are auto, or not named, are left to the search."""
    text = MINIMAL.replace("4x4x4}", "4x4x4, mesh: {tensor: 8, data: auto}}")
    assert load_text(tmp_path, text).resources.mesh == MeshRequest(tensor=8)


def test_a_cluster_that_is_not_named_is_this_machine(tmp_path: Path) -> None:
    """`auto` is an address, and none is none."""
    assert load_text(tmp_path, MINIMAL).cluster.address is None
    assert load_text(tmp_path, MINIMAL + "cluster: {}\n").cluster.address is None
    assert load_text(tmp_path, MINIMAL + "cluster: {address: auto}\n").cluster.address == "auto"


def test_topologies_may_be_accelerator_types_or_numbers(tmp_path: Path) -> None:
    """A topology is kept as written, and the catalog knows what it means."""
    named = MINIMAL.replace("4x4x4", "v5p-128")
    assert load_text(tmp_path, named).resources.topology == "v5p-128"
    gpus = MINIMAL.replace("{chip: v5p, topology: 4x4x4}", "{chip: h100, topology: 8}")
    assert load_text(tmp_path, gpus).resources.topology == "8"


def test_options_of_the_compiler_keep_their_types(tmp_path: Path) -> None:
    """Truth values, whole numbers, other numbers and text stay apart."""
    options = "{a: true, b: 1, c: 1.0, d: text, e: '1', f: \"on\", g: -3, h: 2e3}"
    text = MINIMAL.replace("  tokens", f"  compiler_options: {options}\n  tokens")
    found = load_text(tmp_path, text).experiment.compiler_options
    wanted = {
        "a": True, "b": 1, "c": 1.0, "d": "text", "e": "1", "f": "on", "g": -3, "h": 2000.0
    }  # fmt: skip
    assert found == wanted
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in wanted.items()
    }


def test_a_path_of_data_stays_as_it_is_written(tmp_path: Path) -> None:
    """It is relative to the spec, and the spec is the same in every checkout."""
    text = MINIMAL.replace("  tokens", "  data: {kind: tokens, path: ../sets/m.json}\n  tokens")
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
        write(folder, text)
    one, other = (reading.load(folder / "spec.yaml") for folder in folders)
    assert one == other
    assert one.experiment.data == DataSource(kind="tokens", path="../sets/m.json")


def test_a_path_of_data_that_is_absolute_stays(tmp_path: Path) -> None:
    """Absolute paths mean the same everywhere."""
    path = "/mnt/sets/m.json"
    text = MINIMAL.replace("  tokens", f"  data: {{kind: tokens, path: '{path}'}}\n  tokens")
    assert load_text(tmp_path, text).experiment.data.path == path


@pytest.mark.parametrize(
    "override",
    [
        "experiment.model={huggingface: 'gs://bucket/model/config.json'}",
        "resources.chip={file: 's3://bucket/chip.toml'}",
    ],
)
def test_what_planning_reads_is_on_no_bucket(override: str, tmp_path: Path) -> None:
    """Planning opens no connection."""
    with pytest.raises(SpecProblems) as caught:
        reading.load(write(tmp_path, MINIMAL), [override])
    assert [problem.code for problem in caught.value.problems] == ["no-file-system"]


@pytest.mark.parametrize(
    "override",
    [
        "experiment.data={kind: tokens, path: 'https://bucket/manifest.json'}",
        "experiment.start.huggingface=hf://bucket/model",
    ],
)
def test_an_address_is_of_a_bucket(override: str, tmp_path: Path) -> None:
    """Of another one each host would make a folder."""
    with pytest.raises(SpecProblems) as caught:
        reading.load(write(tmp_path, MINIMAL), [override])
    assert [problem.code for problem in caught.value.problems] == ["no-such-bucket"]


def test_the_known_version_may_be_named(tmp_path: Path) -> None:
    """`schema: 1` is what every spec is today."""
    assert load_text(tmp_path, "schema: 1\n" + MINIMAL) == load_text(tmp_path, MINIMAL)


# --- files


def test_a_missing_file_is_told_with_its_likely_name(tmp_path: Path) -> None:
    """A slip in the name of a file gets the name that was meant."""
    write(tmp_path, MINIMAL)
    [problem] = problems_of(tmp_path / "spce.yaml")
    assert "No such file" in problem.message
    assert problem.hint == f"did you mean {tmp_path / 'spec.yaml'}?"


def test_an_ending_makes_no_name_likely(tmp_path: Path) -> None:
    """Only near names are suggested, whatever their suffix."""
    write(tmp_path, MINIMAL)
    [far] = problems_of(tmp_path / "nosuch.yaml")
    [near] = problems_of(tmp_path / "spec")
    assert (far.hint, near.hint) == ("", f"did you mean {tmp_path / 'spec.yaml'}?")


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    """A folder or a device is refused at once, never waited for."""
    for path in (tmp_path, Path("/dev/zero"), Path("a\0b")):
        [problem] = problems_of(path)
        assert problem.line == 0
        assert str(path) in str(problem)


def test_problems_are_errors_of_the_spec() -> None:
    """Everything wrong with a spec ends the command with status 2."""
    assert issubclass(SpecProblems, SpecError)
    assert SpecProblems([]).exit_code == 2


# --- what ships


SHIPPED = TRAINING_SPECS


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_spec_is_called_as_its_file(path: Path) -> None:
    """Each shipped spec loads, and its name is that of its file."""
    assert reading.load(path).name == path.stem.replace("_", "-")


def starter(name: str) -> str:
    text = resource("reading", "starter.yaml").read_text(encoding="utf-8")
    return _named(text, Path(name))


def test_the_starter_loads_and_is_commented(tmp_path: Path) -> None:
    """What `orch init` writes is a spec of that name, with its sections explained."""
    text = starter("first-run.yaml")
    assert load_text(tmp_path, text).name == "first-run"
    assert text.count("#") > 10


@pytest.mark.parametrize("name", ["null", "true", "no", "010", "1e3"])
def test_the_starter_quotes_names_that_may_be_misread(name: str, tmp_path: Path) -> None:
    """A name that looks like something else arrives as the name that it is."""
    text = starter(f"{name}.yaml")
    assert f'\nname: "{name}"\n' in text
    assert load_text(tmp_path, text).name == name


@pytest.mark.parametrize("name", ["My_Run", "", "a" * 64, "x\n", "-a"])
def test_the_starter_refuses_what_is_no_name(name: str) -> None:
    """A file that is called otherwise cannot name a spec."""
    with pytest.raises(SpecError, match="a name: 1 to 63"):
        starter(f"{name}.yaml")


def test_loading_needs_no_framework() -> None:
    """A spec loads without numpy, jax, ray or mlflow in the process."""
    program = (
        "import sys; from pathlib import Path; from orchestrator import reading;"
        "reading.load(Path('specs/tiny_2pod.yaml'));"
        "print(*{'numpy', 'jax', 'ray', 'mlflow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []

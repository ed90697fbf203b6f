"""Chips of one's own: a TOML file beside the spec, from its errors to the proof's target."""

import re
from pathlib import Path

import pytest

from orchestrator import catalog
from orchestrator.evidence.explain.assemble import explain
from orchestrator.launch.ray.slices import kind_of
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.proving.platforms import platform_of
from orchestrator.reading.load import load
from orchestrator.reading.problems import Problem
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec
from tests.conftest import ROOT
from tests.spec_texts import problems_of

V5P = (ROOT / "orchestrator/catalog/chips/v5p.toml").read_text(encoding="utf-8")
SPEC = """\
name: own-chip
experiment:
  model: llama3-8b
  tokens: 15T
  batch: {sequences: 512, length: 8192}
resources: {chip: {file: chips/v9p.toml}, topology: 4x4x4, pods: 2}
"""


def spec_with(folder: Path, chip: str, name: str = "v9p") -> Path:
    """A spec on a chip of that text."""
    (folder / "chips").mkdir(exist_ok=True)
    (folder / "chips" / f"{name}.toml").write_text(chip, encoding="utf-8")
    path = folder / "spec.yaml"
    path.write_text(SPEC.replace("v9p", name), encoding="utf-8")
    return path


def planned(folder: Path, chip: str = V5P) -> tuple[Spec, Plan]:
    spec = load(spec_with(folder, chip))
    return spec, make_plan(spec)


def test_it_is_planned_like_a_chip_of_the_catalog(tmp_path: Path) -> None:
    """The same numbers give the same forecast; of a chip without runs nothing is expected."""
    spec = load(spec_with(tmp_path, V5P), ("experiment.remat=full",))
    plan = make_plan(spec)
    known = make_plan(
        load(spec_with(tmp_path, V5P), ("experiment.remat=full", "resources.chip=v5p"))
    )
    assert (spec.resources.chip, plan.chip) == ("v9p", "v9p")
    assert plan.mesh == known.mesh
    assert plan.forecast.step_s.lower == known.forecast.step_s.lower
    assert plan.forecast.step_s.expected is None


def test_its_numbers_are_part_of_the_digest(tmp_path: Path) -> None:
    """Another number is another plan; the plan survives its JSON with the chip."""
    _, plan = planned(tmp_path)
    _, again = planned(tmp_path)
    _, other = planned(tmp_path, V5P.replace("459e12", "460e12"))
    assert plan.digest == again.digest != other.digest
    read = codec.from_json(codec.to_json(plan), Plan)
    assert catalog.chip_of(read) == catalog.chip_of(plan)


def test_it_is_proved_launched_rehearsed_and_explained(tmp_path: Path) -> None:
    """What others call it comes from its file."""
    spec, plan = planned(tmp_path, V5P.replace('"TPU-V5P"', '"TPU-V9P"'))
    named = ("v5:4x4x4", {"chip_config_name": "megacore", "num_slices": 2})
    assert platform_of(plan).target(plan) == named
    assert (kind_of(plan).accelerator, kind_of(plan).name) == ("TPU-V9P", "v5p-128")
    small = rehearse(spec, plan).plan
    assert (small.chip, small.chip_definition) == ("v9p", plan.chip_definition)
    assert explain(spec, mfu=0.4).chip == "v9p"


def test_a_source_may_be_any_text(tmp_path: Path) -> None:
    """The worksheet cites it as it stands."""
    text = V5P.replace('source = "cloud-v5p"', 'source = "our datasheet"')
    sheet = explain(load(spec_with(tmp_path, text)), mfu=0.4)
    assert "our datasheet" in {citation.title for citation in sheet.sources}


MISTAKES = {
    "devices = 1": ("devices = 0", "devices"),
    "switched = false": ('switched = "no"', "switched"),
    "torus_axes = 3": ("torus_axis = 3", "torus_axis"),
    "largest_slice = [16, 16, 24]": ("largest_slice = []", "largest_slice"),
    "value = 6.25e9": ("value = -1", "dcn_bytes_per_s.value"),
    'bf16 = { value = 459e12, source = "cloud-v5p" }': ("bf16 = 459e12", "peak_flops_per_s.bf16"),
}


def test_every_mistake_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    """As in a spec: the place, the line, and what the value must be."""
    text = V5P
    for right, (wrong, _) in MISTAKES.items():
        assert right in text
        text = text.replace(right, wrong, 1)
    problems = problems_of(spec_with(tmp_path, text))
    assert {problem.key for problem in problems} >= {key for _, key in MISTAKES.values()}
    for problem in problems:
        assert problem.file.endswith("v9p.toml")
        assert problem.line
        assert "must be" in problem.message
    [axis] = [problem for problem in problems if problem.key == "torus_axis"]
    assert axis.hint == "did you mean torus_axes?"
    assert text.splitlines()[axis.line - 1].startswith("torus_axis")


@pytest.mark.parametrize(
    ("right", "wrong", "key"),
    [
        (r"bf16 = .*\n", "", "peak_flops_per_s.bf16"),
        (r"\[16, 16, 24\]", "[16, 16]", "largest_slice"),
        (r"\[2, 2, 1\]", "[2, 2]", "slices.listed.0"),
        (r"devices = 1", "devices = ", ""),
    ],
)
def test_what_the_schema_cannot_say_is_reported_too(
    right: str, wrong: str, key: str, tmp_path: Path
) -> None:
    """Parts that do not go together, and a file that is no TOML."""
    text, changed = re.subn(right, wrong, V5P, count=1)
    assert changed
    [problem] = problems_of(spec_with(tmp_path, text))
    assert problem.key == key


def test_a_name_of_the_catalog_is_not_taken(tmp_path: Path) -> None:
    """What was learned of that chip's runs would be claimed for another."""
    [problem] = problems_of(spec_with(tmp_path, V5P, name="v5p"))
    assert problem.hint == "rename the file"


def test_a_file_that_is_missing_and_a_slice_that_is_not_there(tmp_path: Path) -> None:
    """Both name the spec's line, or the path."""
    path = spec_with(tmp_path, V5P)
    [slice_] = problems_of(path, "resources.topology=4x4x5")
    assert (slice_.key, slice_.hint.split(":")[0]) == ("resources.topology", "nearest")
    [missing] = problems_of(path, "resources.chip.file=nosuch.toml")
    assert isinstance(missing, Problem)
    assert "cannot be read" in missing.message

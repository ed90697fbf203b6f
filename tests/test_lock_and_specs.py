"""The lock and the example specs."""

import re
import tomllib
from importlib import metadata
from itertools import takewhile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT, TRAINING_SPECS
from tests.shipped_plans import shipped_plan

SPECS = TRAINING_SPECS
MODELINE = "# yaml-language-server: $schema="
DAYS = re.compile(r"(\d+) days at best.*?, (\d+) without overlap, about (\d+) expected")


def place(path: Path) -> str:
    """A file as the project's readers name it."""
    return str(path.relative_to(ROOT))


# --- the lock

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK, GPU_LOCK = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("requirements.lock", "requirements-gpu.lock")
)
ENTRIES, GPU_ENTRIES = (re.split(r"\n(?=[a-z0-9])", lock)[1:] for lock in (LOCK, GPU_LOCK))
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]
PYTHONS = ["3.11", "3.12", "3.13"]


def pin_of(entry: str) -> Requirement:
    """The requirement that an entry of the lock starts with."""
    return Requirement(entry.strip().splitlines()[0].rstrip("\\ "))


def direct_requirements() -> list[Requirement]:
    """What pyproject.toml asks for: to run, to develop, and to build; not what few people add."""
    project = PYPROJECT["project"]
    named = project["optional-dependencies"].items()
    extras = [text for name, texts in named if name not in ("gpu", "wandb") for text in texts]
    asked = project["dependencies"] + extras + PYPROJECT["build-system"]["requires"]
    return [Requirement(text) for text in asked if not text.startswith("orch[")]


def test_the_lock_names_no_host() -> None:
    """The lock says what to install and never from where."""
    assert re.findall(r"(?m)://|^-.*|^\S+ @ .*|^#.*[/\\].*", LOCK + GPU_LOCK) == []


def test_every_entry_of_the_lock_is_one_version_with_hashes() -> None:
    """Nothing is installed that was not seen when the lock was written."""
    assert len(ENTRIES) > 100
    for entry in ENTRIES + GPU_ENTRIES:
        pin = pin_of(entry)
        assert [specifier.operator for specifier in pin.specifier] == ["=="], entry
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)
        assert hashes, entry


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("system", "machine"), PLATFORMS)
def test_the_lock_serves_every_promised_machine(python: str, system: str, machine: str) -> None:
    """Where a requirement applies it is pinned once, within what pyproject.toml asks."""
    here = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": system,
        "platform_machine": machine,
    }
    pins: dict[str, str] = {}
    for pin in map(pin_of, ENTRIES):
        if pin.marker is None or pin.marker.evaluate(here):
            assert pin.name not in pins
            pins[pin.name] = next(iter(pin.specifier)).version
    for asked in direct_requirements():
        applies = asked.marker is None or asked.marker.evaluate(here)
        assert (canonicalize_name(asked.name) in pins) == applies, asked
        assert not applies or asked.specifier.contains(pins[asked.name]), asked
    assert ("libtpu" in pins) == ((system, machine) == ("linux", "x86_64"))


def test_libtpu_is_the_one_that_jax_pins() -> None:
    """Compiled programs can be read only with the libtpu of the same jax."""
    [libtpu] = [asked for asked in direct_requirements() if asked.name == "libtpu"]
    by_jax = [Requirement(text) for text in metadata.requires("jax") or ()]
    [pinned] = [r for r in by_jax if r.name == "libtpu" and "tpu" in str(r.marker)]
    assert pinned.specifier.contains(next(iter(libtpu.specifier)).version)


def test_the_compiler_for_gpus_is_that_of_the_same_jax() -> None:
    """Its lock pins what the extra asks for, and nothing else: the rest is in the other lock."""
    extra = PYPROJECT["project"]["optional-dependencies"]["gpu"]
    asked = {Requirement(text) for text in extra if not text.startswith("orch[")}
    assert set(map(pin_of, GPU_ENTRIES)) == asked
    [jax] = [pin for pin in map(pin_of, ENTRIES) if pin.name == "jax"]
    assert {requirement.specifier for requirement in asked} == {jax.specifier}


# --- specs


def test_the_promised_specs_stand() -> None:
    """The demonstration's spec is there, among others."""
    assert ROOT / "specs/llama3_70b_4pod.yaml" in SPECS
    assert len(SPECS) > 8


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_every_spec_is_planned(spec: Path) -> None:
    """Each shipped spec has a realizable plan that fits, and the days that its opening promises:
    to the day by arithmetic, to a tenth by what was learned.
    """
    plan = shipped_plan(spec)
    assert plan.forecast.fits
    assert plan.devices >= plan.chips >= 1
    # The program that a spec says the compiler chose is the plan's.
    assert "stale_choice" not in {note.code for note in plan.warnings}
    days, said = plan.forecast.days, " ".join(opening(spec))
    found = DAYS.search(said)
    assert found or " days " not in said
    if found:
        lower, unhidden, expected = map(int, found.groups())
        assert [lower, unhidden] == [round(days.lower), round(days.unoverlapped)]
        assert expected == pytest.approx(days.expected, rel=0.1)


def opening(spec: Path) -> list[str]:
    """The comment that a spec opens with, line by line, its editor's line left out."""
    lines = spec.read_text(encoding="utf-8").splitlines()[1:]
    return [line.lstrip("# ") for line in takewhile(lambda x: x.startswith("#"), lines)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_every_spec_opens_with_what_a_reader_needs(spec: Path) -> None:
    """The schema for editors, what it is, its command, and what to expect."""
    first = spec.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(MODELINE)
    assert (spec.parent / first.removeprefix(MODELINE)).is_file()
    said = "\n".join(opening(spec))
    assert re.match(r"\w", said)
    assert re.search(rf"\borch \w+ {re.escape(place(spec))}", said)
    assert re.search(r"(?i)\bexpect", said)

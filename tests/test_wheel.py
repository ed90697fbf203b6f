"""The wheel outside the checkout, with the light dependencies alone."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
Orch = Callable[..., "subprocess.CompletedProcess[str]"]


def light_distributions() -> set[str]:
    """What pip would install with the wheel and no extra."""
    found: set[str] = set()
    left = list(PROJECT["dependencies"])
    while left:
        wanted = Requirement(left.pop())
        if wanted.name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(wanted.name)
        left += metadata.requires(wanted.name) or ()
    return found


def top_levels(distribution: str) -> Iterator[Path]:
    """The files and folders that it put into site-packages."""
    entries = metadata.distribution(distribution)
    for name in {file.parts[0] for file in entries.files or ()} - {"..", "__pycache__"}:
        yield Path(str(entries.locate_file(name)))


def built(folder: Path) -> Path:
    """The wheel, built from a copy of what git knows, without a network."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, check=True)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Orch:
    """`orch` from the wheel, in an environment with nothing heavy in it."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    [site] = environment.glob("lib/python*/site-packages")
    for name in light_distributions():
        for path in top_levels(name):
            (site / path.name).symlink_to(path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    record = {"url": wheel.as_uri(), "archive_info": {}}  # as pip leaves it
    next(site.glob("orch-*.dist-info")).joinpath("direct_url.json").write_text(json.dumps(record))
    # As pip leaves it: with bytecode.
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    variables = {key: value for key, value in os.environ.items() if key not in left_out}

    def run(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        command = [str(environment / "bin" / "python"), "-m", "orchestrator", *arguments]
        return subprocess.run(
            command, cwd=cwd, env=variables, capture_output=True, text=True, check=False
        )

    return run


def test_it_holds_two_packages_their_types_and_their_files(wheel: Path) -> None:
    """By name; examples and dashboards travel inside."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"orchestrator", "trainers", f"orch-{PROJECT['version']}.dist-info"}
    assert {"orchestrator/py.typed", "trainers/py.typed"} <= names
    for folder, inside in (("specs", "examples"), ("dashboards", "dashboards")):
        for path in (ROOT / folder).glob("[!.]*.*"):
            assert f"orchestrator/{inside}/{path.name}" in names


def test_what_needs_no_extra_works_outside_the_checkout(installed: Orch, tmp_path: Path) -> None:
    """A spec from an example, its plan, its derivation, its schema; the score; the machine."""
    assert "llama3_70b_4pod" in installed("init", "--list", cwd=tmp_path).stdout
    made = installed("init", "--from", "llama3_70b_4pod", "mine.yaml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / ".orch/spec.schema.json").is_file()
    plan = json.loads(installed("plan", "mine.yaml", "--json", cwd=tmp_path).stdout)
    assert (plan["name"], plan["chips"]) == ("mine", 35_840)
    for command in (
        ("explain", "mine.yaml"),
        ("score",),
        ("init", "first.yaml"),
        ("plan", "first.yaml"),
        ("schema",),
        ("schema", "--study"),
        ("doctor",),
    ):
        done = installed(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert done.stdout


@pytest.fixture(scope="module")
def specs(installed: Orch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec."""
    folder = tmp_path_factory.mktemp("specs")
    installed("init", "mine.yaml", cwd=folder)
    return folder


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("prove", "mine.yaml"), "prove"),
        (("submit", "mine.yaml"), "run"),
        (("calibrate",), "prove"),
        (("data", "pack", "tokens", "mine.yaml", "--tokenizer", "mine.yaml"), "data"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    command: tuple[str, ...], extra: str, installed: Orch, wheel: Path, specs: Path
) -> None:
    """And what to type to install it."""
    done = installed(*command, cwd=specs)
    assert done.returncode == 1
    assert f"pip install 'orch[{extra}] @ {wheel.as_uri()}'" in done.stderr
    assert "Traceback" not in done.stderr

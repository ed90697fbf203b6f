"""The Makefile and .ci/run: refusals, recovery from an interrupted setup, CI's closing line."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, Finished

# A fake python: it logs its arguments, and fails to install while the file `broken` exists.
PYTHON = """#!/bin/sh
echo "$*" >> calls
case "$*" in
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *--require-hashes*) cat pip-says; [ ! -e broken ] ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files that `make setup` reads."""
    for name in ("Makefile", "requirements.lock", "requirements-gpu.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "pip-says").touch()
    return tmp_path


def executable(path: Path, text: str) -> Path:
    """Write a script that can be run."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def make(project: Path, *arguments: str) -> Finished:
    """Run make without the variables of a make that runs these tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments],
        cwd=project,
        env=clean,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ('if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi', "is Python 3.9.2"),
        ('case "$2" in *venv*) exit 1 ;; esac', "lacks venv or ensurepip"),
    ],
)
def test_setup_refuses_a_python_that_cannot_serve(python: str, message: str, project: Path) -> None:
    """A Python too old, or without venv, is named in one line before anything is made."""
    script = executable(project / "python", f"#!/bin/sh\n{python}\n")
    done = make(project, "setup", f"PYTHON={script}")
    said = [line for line in done.stderr.splitlines() if line.startswith("setup: ")]
    assert done.returncode == 2
    assert len(said) == 1
    assert message in said[0]
    assert not (project / ".venv").exists()


def test_setup_says_that_there_is_no_python(project: Path) -> None:
    """A command that does not exist has another message than one that is too old."""
    done = make(project, "setup", "PYTHON=python-of-nowhere")
    assert done.returncode == 2
    assert "setup: no python-of-nowhere on PATH" in done.stderr


def test_setup_recovers_from_an_interruption(project: Path) -> None:
    """An environment left half-made is made anew; a whole one is updated, and then left alone."""
    script = executable(project / "python", PYTHON)
    ready, calls, broken = (project / name for name in (".venv/ready", "calls", "broken"))

    def venvs_made() -> int:
        return calls.read_text(encoding="utf-8").count("-m venv --clear .venv")

    broken.touch()
    assert make(project, "setup", f"PYTHON={script}").returncode == 2
    assert not ready.exists()
    broken.unlink()
    assert make(project, "setup", f"PYTHON={script}").returncode == 0
    assert ready.exists()
    assert venvs_made() == 2

    os.utime(ready, (0, 0))
    assert make(project, "setup", f"PYTHON={script}").returncode == 0
    assert venvs_made() == 2
    before = calls.read_text(encoding="utf-8")
    assert make(project, "setup", f"PYTHON={script}").stdout == ""
    assert calls.read_text(encoding="utf-8") == before

    os.utime(ready, (0, 0))
    broken.touch()
    assert make(project, "setup", f"PYTHON={script}").returncode == 2
    broken.unlink()
    assert make(project, "setup", f"PYTHON={script}").returncode == 0
    assert venvs_made() == 3


def test_setup_installs_by_hash_and_with_bytecode(project: Path) -> None:
    """Every package comes from the lock by its hash; the project itself brings none along."""
    script = executable(project / "python", PYTHON)
    make(project, "setup", f"PYTHON={script}", "GPU=")
    installs = re.findall(r"-m pip install.*", (project / "calls").read_text(encoding="utf-8"))
    assert len(installs) == 2
    assert all("--compile" in install for install in installs)
    assert "--require-hashes" in installs[0]
    assert "--no-deps -e ." in installs[1]


def test_help_lists_every_target(project: Path) -> None:
    """`make` alone says what there is."""
    makefile = (project / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) - {"help"}
    listed = set(re.findall(r"make ([a-z-]+)", make(project).stdout))
    assert targets >= {"setup", "demo", "test", "lint", "bench"}
    assert targets <= listed


@pytest.mark.parametrize(
    ("recipe", "status", "last"),
    [
        ("echo '=== 3 passed in 0.10s ==='", 0, "=== 3 passed in 0.10s ==="),
        ("echo '=== 1 failed in 61.0s (0:01:01) ==='; exit 1", 2, "=== 1 failed in 61.0s"),
        ("echo 'setup: no python'; exit 1", 2, "make: ***"),
    ],
)
def test_ci_ends_with_the_closing_line(recipe: str, status: int, last: str, tmp_path: Path) -> None:
    """`.ci/run` is `make test` and no more; its last line and its status are the suite's."""
    script = executable(tmp_path / ".ci/run", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    (tmp_path / "Makefile").write_text(f"test:\n\t@{recipe}\n", encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        [script], cwd="/", env=clean, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    assert done.stdout.splitlines()[-1].startswith(last)

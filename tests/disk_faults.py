"""Disks that fail: the library of `disk_faults.c`, and the variables of a process that loads it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def built(folder: Path) -> Path:
    """The library, compiled into a folder."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("this system has no C compiler, or does not load libraries by LD_PRELOAD")
    library = folder / "disk_faults.so"
    source = ROOT / "tests" / "disk_faults.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def variables(library: Path, fault: Path, below: Path) -> dict[str, str]:
    """What a process needs to get the error that the file `fault` names, below a folder."""
    return {"LD_PRELOAD": str(library), "FAULT_FILE": str(fault), "FAULT_BELOW": str(below)}

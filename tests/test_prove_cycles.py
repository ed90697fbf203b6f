"""The compiler's estimates of cycles, over the catalog's clock: single products at known shapes."""

import json
import subprocess
import sys
from importlib import util
from math import prod

import pytest

from orchestrator import catalog
from orchestrator.proving.compiler import _environment
from tests.conftest import ROOT
from tests.single_products import SHAPES

pytestmark = pytest.mark.skipif(
    util.find_spec("libtpu") is None, reason="libtpu exists for Linux on x86-64 alone"
)
# The least share of the peak that a product of these sizes reaches by the estimates. The default
# limit of scoped memory holds back chips with matrix units of 256.
LEAST = {"v4": 0.88, "v5e": 0.85, "v5p": 0.88, "v6e": 0.65, "tpu7x": 0.65}


@pytest.mark.parametrize(
    "chip",
    ["v5e", *(pytest.param(chip, marks=pytest.mark.slow) for chip in LEAST if chip != "v5e")],
)
def test_a_large_product_nearly_reaches_the_peak(chip: str) -> None:
    """A wrong clock, or cycles of another unit, would be off by the ratio of two clocks: more than
    the peak, or far less.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.single_products", chip],
        cwd=ROOT, env=_environment({"PATH": "/usr/bin:/bin"}), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    sheet = catalog.chip(chip)
    assert sheet.clock_hz is not None
    peak = sheet.peak_flops_per_s["bf16"].value / sheet.devices
    shares = [
        2 * prod(shape) / (cycles / sheet.clock_hz.value) / peak
        for shape, cycles in zip(SHAPES, json.loads(done.stdout)["cycles"], strict=True)
    ]
    assert LEAST[chip] <= min(shares) <= max(shares) <= 1.0

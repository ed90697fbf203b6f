"""Constants are learned from published runs, and stay within what is possible."""

import re
import subprocess
import sys
from dataclasses import replace
from math import log

import pytest

from orchestrator import catalog
from orchestrator.catalog.chips import FOLDER
from orchestrator.catalog.published import _LEARNED
from orchestrator.evidence.score.evaluate import DENSE, published_samples
from orchestrator.evidence.score.learn import (
    _Constants,
    _fit,
    _unit_of,
    learn,
)
from orchestrator.evidence.score.published_runs import MIXTURES, OTHER_SOFTWARE, QUANTIZED, read
from orchestrator.evidence.score.samples import Sample, weighted_quantile
from orchestrator.planning.expected import _own_step_parts, skew_share, step_parts
from tests.bench import score_table
from tests.score_rows import ROWS


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return published_samples(*DENSE)[0]


def test_the_catalog_keeps_what_is_learned(samples: list[Sample]) -> None:
    """The constants are those of the rows, and say so; `make score` writes them."""
    text = (FOLDER / _LEARNED).read_text(encoding="utf-8")
    assert text == score_table.learned(), "run `make score` and review the diff"
    files = (OTHER_SOFTWARE, MIXTURES, QUANTIZED)
    known = {*ROWS, *(row["id"] for path in files for row in read(path))}
    assert known >= set(re.findall(r'"(.+)",', text))
    assert learn(samples) == learn(samples)


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_constants_are_within_physics(chip: str) -> None:
    """Efficiencies in (0, 1], shares in [0, 1], times not negative."""
    known = catalog.efficiency(chip)
    assert known
    assert 0 < known.matmul.value <= 1
    assert 0 < known.attention.value <= 1
    assert 0 <= known.exposed_gathers.value <= 1
    assert 0 <= known.exposed_tensor.value <= 1
    assert min(known.slice_wait_s.value, known.run_overhead_s.value, known.spread.value) >= 0


def test_constants_come_back_from_runs_that_they_made(samples: list[Sample]) -> None:
    """Runs made by known constants, a hundred times over, teach them again."""
    true = _Constants(
        matmul={"v4": 0.7, "v5e": 0.72, "v5p": 0.71, "v6e": 0.6, "tpu7x": 0.58},
        of_unit={128: 0.71, 256: 0.59},
        shared={
            "attention": 0.6,
            "exposed_gathers": 0.3,
            "exposed_tensor": 0.45,
            "slice_wait_s": 0.004,
            "slice_hop_s": 0.002,
            "run_overhead_s": 0.03,
            "run_share": 0.05,
            "flash_attention": 0.4,
            "row_move_s": 15e-9,
            "bias_row_s": 150e-9,
            "mask_products": 1.0,
        },
        software={
            "maxtext": 0.0, "other": 0.05, "axlearn": 0.02, "levanter": 0.07, "pytorch-xla": 0.04,
            "t5x": 0.05,
        },
    )  # fmt: skip
    made = [replace(s, measured_s=s.expected_s(true.efficiency(s.run.chip))) for s in samples]
    found = _fit(made * 100)
    assert found.matmul == pytest.approx(true.matmul, rel=0.03)
    assert found.shared == pytest.approx(true.shared, rel=0.15)
    assert found.software == pytest.approx(true.software, abs=0.015)


def test_constants_stay_within_their_bounds(samples: list[Sample]) -> None:
    """Runs ten times faster or slower than any machine cannot teach the impossible."""
    for scale in (0.1, 10):
        odd = _fit([replace(s, measured_s=s.measured_s * scale) for s in samples])
        assert all(0 < share <= 1 for share in [*odd.matmul.values(), odd.shared["attention"]])
        assert 0 <= odd.shared["exposed_gathers"] <= 1
        assert 0 <= odd.shared["exposed_tensor"] <= 1
        assert odd.shared["slice_wait_s"] >= 0


def test_one_run_says_little(samples: list[Sample]) -> None:
    """A single row moves the guesses, and its interval is a factor of two."""
    alone = learn(samples[:1])
    assert alone.spread == pytest.approx(log(2))
    assert _unit_of("tpu7x") == _unit_of("v6e") != _unit_of("v5p")


def test_a_quantile_weighs() -> None:
    """Half of the weight lies on either side of the middle value, whatever the count."""
    assert weighted_quantile([(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)], 0.5) == 2.0
    many = [(1.0, 0.1)] * 10 + [(2.0, 1.0), (3.0, 1.0)]
    assert weighted_quantile(many, 0.5) == pytest.approx(2.0, abs=0.3)


def test_the_rows_are_linear_in_what_is_learned(samples: list[Sample]) -> None:
    """Slices wait in full, but for rows of other software with shorter layers; and of gathers the
    learned share shows, not what exceeds the work.
    """
    for sample in samples:
        known = catalog.efficiency(sample.run.chip)
        assert known is not None
        work = sample.todo
        own_s = sum(_own_step_parts(work, known).values())
        short = sample.run.id in {"ax_v5e_7b_4x", "ax_v5e_7b_v2_4x", "ax_v6e_70b_4x",
                                  "tp_v6e4_8b_2slices"}  # fmt: skip
        assert sample.run.slices == 1 or short or skew_share(work, own_s) == 1
        shown = step_parts(work, known)["exposed_gathers"]
        links_s = work.gathers_s + work.dcn_s
        assert shown == pytest.approx(known.exposed_gathers.value * links_s)


def test_only_learning_needs_scipy() -> None:
    """A light install can score with the catalog's constants."""
    code = (
        "import sys; import orchestrator as orch; orch.score(); assert 'scipy' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Specs: numbers, truth and text as people write them."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.values.spec import Spec
from tests.spec_texts import MINIMAL, load_text, problems_of, write

SHAPE = "{layers: 2, d_model: 64, d_ff: 96, heads: 4, kv_heads: 2, head_dim: 16, vocab: 512}"
TEXT = MINIMAL.replace("llama3-8b", SHAPE)


def value_of(loaded: Spec, key: str) -> Any:
    """The field of a spec that a dotted key became."""
    value: Any = loaded
    for part in key.replace("hang_limit", "hang_limit_s").split("."):
        value = getattr(value, part)
    return value


TOKENS, LENGTH = "experiment.tokens", "experiment.batch.length"
RATE, TOLERANCE = "experiment.optimizer.peak_lr", "experiment.batch.tolerance"
WARMUP, THETA = "experiment.optimizer.warmup_steps", "experiment.model.rope_theta"
GATED, LIMIT, GOODPUT = "experiment.model.gated", "run.hang_limit", "resources.goodput"

READ = [
    (TOKENS, "15T", 15_000_000_000_000),
    (TOKENS, "1.5T", 1_500_000_000_000),
    (TOKENS, "0.3B", 300_000_000),
    (TOKENS, "2.1475B", 2_147_500_000),
    (TOKENS, "999.999999999999T", 999_999_999_999_999),
    (TOKENS, "20M", 20_000_000),
    (TOKENS, "9000K", 9_000_000),
    (TOKENS, "15000000000000", 15_000_000_000_000),
    (TOKENS, "15e12", 15_000_000_000_000),
    (TOKENS, "1.5e13", 15_000_000_000_000),
    (TOKENS, "1000000000000000000", 10**18),
    (TOKENS, "'15T'", 15_000_000_000_000),
    (LENGTH, "4096", 4096),
    (LENGTH, "4096.0", 4096),
    (LENGTH, "4e3", 4000),
    (LENGTH, "+4096", 4096),
    (RATE, "3e-4", 3e-4),
    (RATE, "3E-4", 3e-4),
    (RATE, "0.0003", 3e-4),
    (RATE, ".0003", 3e-4),
    (RATE, "1", 1.0),
    (RATE, "1.", 1.0),
    (THETA, "500000", 500_000.0),
    (THETA, "5e5", 500_000.0),
    (TOLERANCE, "10%", 0.1),
    (TOLERANCE, "10 %", 0.1),
    (TOLERANCE, "12.5%", 0.125),
    (TOLERANCE, "0.1", 0.1),
    (TOLERANCE, "0", 0.0),
    (TOLERANCE, "0%", 0.0),
    (TOLERANCE, "50%", 0.5),
    (TOLERANCE, "50.0%", 0.5),
    (TOLERANCE, "0.5", 0.5),
    (GOODPUT, "90%", 0.9),
    (GOODPUT, "100%", 1.0),
    (GOODPUT, "1", 1.0),
    (WARMUP, "0", 0),
    (WARMUP, "2K", 2000),
    (WARMUP, "2e3", 2000),
    (LIMIT, "90s", 90.0),
    (LIMIT, "10m", 600.0),
    (LIMIT, "2h", 7200.0),
    (LIMIT, "1.5h", 5400.0),
    (LIMIT, "0.5s", 0.5),
    (GATED, "true", True),
    (GATED, "false", False),
    ("name", "no", "no"),
    ("name", "on", "on"),
    ("name", "010", "010"),
    ("name", "1e3", "1e3"),
    ("name", "true", "true"),
    ("tracking.experiment", "1:30", "1:30"),
    ("tracking.experiment", "0x10", "0x10"),
    ("run.storage", "1_000", "1_000"),
    ("experiment.seed", "0", 0),
    ("experiment.seed", "-0", 0),
]


@pytest.mark.parametrize(("key", "written", "meant"), READ)
def test_people_write_numbers_in_many_ways(
    key: str, written: str, meant: float | str, tmp_path: Path
) -> None:
    """Each spelling means one value of the field's own type."""
    found = value_of(load_text(tmp_path, TEXT, f"{key}={written}"), key)
    assert (found, type(found)) == (meant, type(meant))


REFUSED = [
    (TOKENS, ["15t", "15 T", "15TB", "1.0000000000001T", "0", "0T", "-1", "1e-1", "1e19", "T"]),
    (TOKENS, ["9" * 29, "9" * 28 + "T", "1e400", "1e999999999", "15G", "15_000", "15,5"]),
    (LENGTH, ["4K", "010", "0o10", "0x10", "0b1", "1_000", "1:30", "4096.5", "'4096'", "4,096"]),
    (LENGTH, ["true", "on", "", "[4096]", "{a: 1}", ".inf", "٤"]),
    (RATE, [".inf", "-.inf", "inf", ".nan", "nan", "1e999", "1e-999", "0", "-3e-4", "3e", "e-4"]),
    (RATE, ["3e-4s", "0.0_3", "1/2", "3e-4%", "0x1p-3", "00.1", "'3e-4'", "3×10-4"]),
    (TOLERANCE, ["10", "51%", "50.1%", "0.51", "-1%", "10%%", "1%0", "ten", "1e2%", "010%"]),
    (GOODPUT, ["0", "0%", "0.0%", "101%", "1.01", "-0.5", "90"]),
    (WARMUP, ["-1", "0.5", "1.2345K", "2k", "2KiB"]),
    (LIMIT, ["600", "0s", "0.0h", "10", "10min", "1:30", "10 m", "1h30m", "-5s", "5d", "m"]),
    (GATED, ["yes", "no", "on", "off", "y", "True", "FALSE", "1", "0", "'true'"]),
    ("name", ["", "Small", "a_b", "-a", "a b", "a.b", "é", "a" * 64, "[a]"]),
]
CASES = [(key, written) for key, many in REFUSED for written in many]


@pytest.mark.parametrize(("key", "written"), CASES, ids=["=".join(case) for case in CASES])
def test_other_spellings_are_one_clear_error(key: str, written: str, tmp_path: Path) -> None:
    """What might be read in two ways, or in none, is reported with what it must be."""
    override = f"{key}={written}"
    [problem] = problems_of(write(tmp_path, TEXT), override)
    assert (problem.file, problem.line, problem.col) == ("--set", 1, len(key) + 2)
    assert problem.key == key
    assert ", must be " in problem.message
    assert problem.hint


def test_sixty_three_letters_are_a_name(tmp_path: Path) -> None:
    """The longest name is a legal one."""
    assert load_text(tmp_path, TEXT, f"name={'a' * 63}").name == "a" * 63


def test_a_value_means_the_same_in_a_file_and_in_an_override(tmp_path: Path) -> None:
    """A spelling in the file is read by the same rules."""
    for tokens in ("1.5T", "15e12", "'15T'"):
        written_in_file = load_text(tmp_path, TEXT.replace("15T", tokens))
        overridden = load_text(tmp_path, TEXT, f"{TOKENS}={tokens}")
        assert written_in_file.experiment == overridden.experiment

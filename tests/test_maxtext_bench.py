"""The bench beside MaxText: equal runs, and a foreign program read as ours is."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator import catalog
from orchestrator.values.proof import SliceTorus
from tests import programs
from tests.bench import maxtext_table
from tests.bench.maxtext_plans import ROWS, MaxTextPlan
from tests.bench.maxtext_table import (
    CompiledStep,
    Pair,
    agrees,
    maxtext_summary,
    plan_of_run,
    read_record,
    summary,
)
from tests.schedules import RATES

STEP = CompiledStep(
    date="2026-11-22 17:00", compile_s=1.0, peak_bytes=2.0**30, flops=1e12, dcn_bytes=0.0,
    total_s=2.0, products_s=1.0, kernels_s=0.25, copies_s=0.25, other_s=0.25, exposed_s=0.25,
    unpriced=(),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_run_is_planned_as_its_words_say(row: MaxTextPlan) -> None:
    """It fits, with the mesh, the batch and the policy of the words."""
    plan = plan_of_run(row)
    words = dict(word.split("=", 1) for word in row.words)
    assert plan.forecast.fits
    assert plan.pods == row.slices
    assert plan.mesh["fsdp"] == int(words["ici_fsdp_parallelism"])
    assert plan.mesh["tensor"] == int(words.get("ici_tensor_parallelism", 1))
    sequences = int(words["per_device_batch_size"]) * plan.devices
    assert (plan.batch.sequences, plan.batch.length) == (sequences, int(words["max_target_length"]))
    assert catalog.chip(plan.chip).clock_hz


def test_runs_are_of_several_chips_sizes_and_ways_to_share() -> None:
    assert len(ROWS) >= 8
    chips = {row.device.split("-")[0] for row in ROWS}
    assert chips == {"v5e", "v5p", "v6e", "tpu7x"}
    assert any(row.slices > 1 for row in ROWS)
    assert any("tensor" in str(row) for row in ROWS)
    assert any("max_target_length=65536" in row.words for row in ROWS)


@pytest.mark.parametrize("devices_per_chip", [1, 2])
def test_a_foreign_program_is_priced_by_its_own_mesh(
    devices_per_chip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Axes have MaxText's names, without slices in the first; its devices lie where it put them."""
    line = SliceTorus(
        lengths=(4,), wraps=(False,), link_bytes_per_s=RATES.torus.link_bytes_per_s,
        devices_per_chip=1, hop_s=0.0,
    )  # fmt: skip
    places = [[place, 0, 0, 0] for place in range(4)]
    if devices_per_chip == 2:
        link = line.link_bytes_per_s[0]
        line = replace(
            line, lengths=(2, 2), wraps=(False, False), link_bytes_per_s=(link, link),
            devices_per_chip=2,
        )  # fmt: skip
        places = [[place // 2, 0, 0, place % 2] for place in range(4)]
    rates = replace(RATES, torus=line)
    platform = SimpleNamespace(rates=lambda _: rates)
    monkeypatch.setattr(maxtext_table, "platform_of", lambda _: platform)
    found = {"axes": {"data": 2, "fsdp": 4}, "places": places}
    text = (Path(programs.__file__).parent / "schedule.txt").read_text(encoding="utf-8")
    read = maxtext_summary(text, found, 2, plan_of_run(ROWS[0]))
    assert read.schedule is not None
    reduce = next(
        collective for collective in read.schedule.collectives if collective.kind == "all-reduce"
    )
    assert reduce.axes == ("fsdp",)
    assert reduce.exposed_s > 0
    assert read.schedule.total_s == pytest.approx(sum(line.total_s for line in read.schedule.lines))


def test_a_row_says_what_ours_takes_longer() -> None:
    theirs = replace(STEP, total_s=1.6, peak_bytes=2.0**31, unpriced=("gmm",))
    pair = Pair(ours=STEP, maxtext=theirs)
    assert maxtext_table.cells(pair)[-2:] == ["+25.0%", "-50.0%"]
    lines = " ".join(summary({"a run": pair}))
    assert "gmm" in lines
    assert "+25.0%" in lines


def test_the_page_is_that_of_the_record() -> None:
    assert maxtext_table.PAGE.read_text(encoding="utf-8") == maxtext_table.page()


def test_what_is_exported_is_the_run_that_was_planned() -> None:
    """MaxText's compiled program agrees with ours: of one slice and several, with tensor
    parallelism, and of long sequences.
    """
    record = read_record()
    same = [row for row in ROWS if str(row) in record and agrees(record[str(row)])]
    assert len(same) >= 4
    assert any(row.slices > 1 for row in same)
    for words in (
        "ici_tensor_parallelism=8",
        "max_target_length=65536",
        "ici_fsdp_parallelism=256",
    ):
        assert any(words in row.words for row in same), words

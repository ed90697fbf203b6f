"""The bench of schedules against measured steps: its runs, its page, and what is learned."""

from math import exp

import pytest

from orchestrator.catalog.published import schedule_score
from tests.bench import schedule_table
from tests.bench.maxtext_plans import MaxTextPlan
from tests.bench.schedule_runs import ROWS
from tests.bench.schedule_table import is_same_program, measured_runs, read_record


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_each_program_is_that_of_its_published_run(row: MaxTextPlan) -> None:
    """Chip, slices, batch, length and mesh of the words are those of the run's row."""
    sample = measured_runs()[row.title]
    run, mesh = sample.run, sample.layout.mesh
    words = dict(word.split("=", 1) for word in row.words)
    assert row.device.split("-")[0] == run.chip
    assert row.slices == run.slices
    assert int(words["per_device_batch_size"]) * sample.layout.devices == run.sequences
    assert int(words.get("max_target_length", 2048)) == run.length
    parallel = (int(words.get(f"ici_{axis}_parallelism", 1)) for axis in ("fsdp", "fsdp_transpose"))
    first, second = parallel
    assert first * second == mesh["fsdp"]
    assert int(words.get("ici_tensor_parallelism", 1)) == mesh["tensor"]
    if "base_emb_dim" in words:
        sizes = ("base_emb_dim", "base_mlp_dim", "base_num_decoder_layers", "base_num_query_heads")
        assert tuple(int(words[size]) for size in sizes) == (
            run.model.d_model, run.model.d_ff, run.model.layers, run.model.heads,
        )  # fmt: skip


def test_runs_are_of_several_chips_sizes_and_ways_to_share() -> None:
    assert len(ROWS) >= 14
    assert {row.device.split("-")[0] for row in ROWS} == {"v5e", "v5p", "v6e", "tpu7x"}
    for has in ("ici_tensor_parallelism", "=offload", "fsdp_transpose"):
        assert any(has in str(row) for row in ROWS), has
    assert any(row.slices > 1 for row in ROWS)


def test_the_page_and_the_catalog_are_those_of_the_record() -> None:
    record = read_record()
    assert schedule_table.PAGE.read_text(encoding="utf-8") == schedule_table.page(record)
    assert schedule_table.LEARNED.read_text(encoding="utf-8") == schedule_table.learned(record)


def test_the_interval_has_four_of_five_judged_runs() -> None:
    factor = exp(schedule_score().spread)
    judged = [run for run in read_record().values() if is_same_program(run)]
    inside = [1 / factor <= 1 + run.error <= factor * (1 + 1e-3) for run in judged]
    assert sum(inside) >= 0.75 * len(judged)
    assert all(run.scheduled.total_s >= run.lower_s for run in judged)

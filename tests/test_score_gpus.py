"""Forecasts held to published runs on GPUs."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest

import orchestrator as orch_api
from orchestrator.catalog.published import gpu_constants
from orchestrator.evidence.score import gpu
from orchestrator.evidence.score.gpu_runs import GPU_RUNS, _run_of, gpu_runs, read
from tests.bench import gpu_table as bench
from tests.conftest import ROOT, RunOrch
from tests.score_rows import write_rows

ROWS = {row["id"]: row for row in read(GPU_RUNS)}
LLAMA_8B = ROWS["mbridge_8b_b200_8_2509"]
LLAMA_405B = ROWS["mb2606_pre_llama3.1-405b_H100_1024_fp8_g1536"]
DEEPSEEK = ROWS["mb2608_pre_deepseek-v3_GB300_256_mxfp8_g4096"]


def test_every_row_is_priced_or_left_out_with_a_reason() -> None:
    runs, left_out = gpu.published_gpus()
    assert len(runs) + len(left_out) == len(ROWS) == 302
    assert all(row.reason for row in left_out)
    assert all(0 < run.lower_s < run.measured_s for run in runs)
    assert not any("2407.21783" in run.document for run in runs)


def test_a_row_says_which_work_its_step_has() -> None:
    run = _run_of(LLAMA_405B)
    # 405.85e9 parameters without the embedding, 8,192 tokens, 1,536 sequences, 1,024 GPUs, and
    # 128 slots for 126 layers; the bubble of 7 / (192 x 8).
    products = 6 * (405.85e9 - 2 * 128256 * 16384) * 8192 * 1536 / 1024
    expected = products * 128 / 126 * (1 + 7 / (192 * 8)) / 1978.9e12
    assert run.work.linear_s == pytest.approx(expected, rel=2e-3)
    assert run.work.wide_s == 0  # the slowest stage has no unembedding
    assert run.mesh["microbatches"] == 192


def test_a_mixture_is_read_from_notes() -> None:
    model = _run_of(DEEPSEEK).model
    assert model.moe is not None
    assert model.latent is not None
    assert (model.moe.experts, model.moe.top_k, model.moe.dense_layers) == (256, 8, 3)
    assert (model.latent.kv_rank, model.latent.nope_dim) == (512, 128)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chip": "MI300X"}, "unknown chip"),
        ({"chip": ""}, "unknown chip"),
        ({"chip": "v5p"}, "is no GPU"),
        ({"d_model": ""}, "shape"),
        ({"num_gpus": "24"}, "its row says 24"),
        ({"num_gpus": ""}, "a number is needed"),
        ({"num_gpus": "-8"}, "positive whole number"),
        ({"global_batch_seqs": "129"}, "are not 129 sequences"),
        (
            {"global_batch_seqs": "1", "micro_batch_seqs": "", "grad_accum": ""},
            "1 sequences are fewer than dp",
        ),
        ({"ep": "3"}, "ep 3 does not divide"),
        ({"precision": "fp4"}, ""),
        ({"precision": "int3"}, "no peak"),
        ({"recompute": "every other"}, "recompute"),
        ({"step_time_s": "", "tflops_per_gpu": "", "mfu_pct": ""}, "neither seconds nor a rate"),
        ({"step_time_s": "", "flop_convention": "none stated"}, "which FLOPs it counts"),
        ({"step_time_s": "0"}, "must be positive"),
        ({"n_kv_heads": "nan"}, "positive whole number"),
    ],
)
def test_a_bad_row_is_left_out_with_its_reason(change: dict[str, str], reason: str) -> None:
    usable, left_out = gpu_runs([LLAMA_8B | change])
    assert len(usable) + len(left_out) == 1
    if reason:
        assert reason in left_out[0].reason
    else:
        assert usable


def test_a_rate_becomes_seconds_by_the_flops_that_its_source_counts() -> None:
    [stated], _ = gpu_runs([LLAMA_8B])
    [from_rate], _ = gpu_runs([LLAMA_8B | {"step_time_s": ""}])
    assert from_rate.measured_s == pytest.approx(stated.measured_s, rel=0.03)


def test_a_file_of_runs_is_scored(tmp_path: Path, orch: RunOrch) -> None:
    """The shape of the JSON: rows with their errors, and what is left out with its reason."""
    rows = [LLAMA_8B, DEEPSEEK, LLAMA_8B | {"id": "odd", "dp": "3"}, {"id": "empty"}]
    path = write_rows(tmp_path, [{name: row.get(name, "") for name in LLAMA_8B} for row in rows])
    found = json.loads(orch("score", str(path), "--json").stdout)
    assert [row["id"] for row in found["rows"]] == [LLAMA_8B["id"], DEEPSEEK["id"]]
    for row in found["rows"]:
        assert abs(row["error"]) < 0.2
        assert row["low_step_s"] < row["expected_step_s"] < row["high_step_s"]
        assert row["chip"] in ("b200", "gb300")
        assert row["inside_interval"] is True
    assert [row["id"] for row in found["left_out"]] == ["odd", "empty"]
    assert all(row["reason"] for row in found["left_out"])
    screen = orch("score", str(path)).stdout
    assert "left out: odd:" in screen
    assert "software never seen" not in screen


def test_software_without_runs_has_a_wider_interval(tmp_path: Path) -> None:
    other = LLAMA_8B | {"id": "new", "source_repo": "someone/trainer", "source_path": ""}
    path = tmp_path / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*LLAMA_8B])
        table.writeheader()
        table.writerows([LLAMA_8B, other])
    known, new = orch_api.score_gpus(path).rows
    assert new.software == "trainer"
    assert new.high_step_s / new.low_step_s > known.high_step_s / known.low_step_s


def test_a_wrong_file_says_what_it_lacks(tmp_path: Path, orch: RunOrch) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("id,num_gpus\n")
    failed = orch("score", str(path))
    assert failed.returncode == 2
    assert "has no column chip" in failed.stderr


def test_a_plan_on_gpus_has_an_expected_step() -> None:
    places = ["resources.chip=h100", "resources.topology=h100-8", "resources.pods=8"]
    plan = orch_api.plan(ROOT / "specs" / "llama3_8b_1slice.yaml", places)
    step_s = plan.forecast.step_s
    assert step_s.expected is not None
    assert step_s.low is not None
    assert step_s.high is not None
    assert step_s.lower <= step_s.low < step_s.expected < step_s.high
    total_s = sum(line.value for line in plan.forecast.expected_time)
    assert total_s == pytest.approx(step_s.expected)
    for line in plan.forecast.expected_time:  # each formula gives its line
        assert eval(line.formula, {"max": max}, dict(line.inputs)) == pytest.approx(line.value)


def test_one_batch_of_constants_is_what_the_runs_teach() -> None:
    """Constants are those that `make score` would write: change rows, never numbers."""
    runs, _ = gpu.published_gpus()
    found, known = gpu.fit([run for run in runs if run.learned]), gpu_constants()
    for name in ("chips", "types", "kinds", "attention", "shared", "software"):
        assert asdict(known)[name] == pytest.approx(asdict(found)[name], rel=5e-3), name


def test_mixtures_alone_teach_constants_too() -> None:
    """A document left out may be the only one with dense runs."""
    mixtures = [run for run in gpu.published_gpus()[0] if run.mixture][:3]
    found = gpu.fit(mixtures)
    assert found.runs == 3
    assert all(0 < share < 2 for share in found.chips.values())


@pytest.mark.slow  # learns anew without each document and software
def test_goals_for_runs_never_seen() -> None:
    by_document = {part.part: part.summary for part in gpu.cross_validated("document").parts}
    for name, median, p90 in (
        ("bf16, H100 and later", 0.07, 0.19),
        ("fp8 and below, H100 and later", 0.09, 0.22),
    ):
        assert (by_document[name].median_abs_error or 1) <= median
        assert (by_document[name].p90_abs_error or 1) <= p90
    assert 0.75 <= (by_document["all"].inside_interval or 0) <= 0.9
    assert by_document["all"].below_lower_bound == 0
    software = gpu.cross_validated("software")
    unseen = software.parts[0].summary
    assert (unseen.median_abs_error or 1) <= 0.14
    assert (unseen.p90_abs_error or 1) <= 0.30
    text = bench.DOCUMENT.read_text()
    for row in bench.rows_of(software):
        assert f"| {' | '.join(row)} |" in text

"""The rows of published runs: what each states, what is assumed, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import catalog
from orchestrator.evidence.score.evaluate import DENSE, published_samples
from orchestrator.evidence.score.published_runs import (
    OTHER_SOFTWARE,
    PUBLISHED,
    PublishedRun,
    _software_of,
    read,
    run_of,
)
from orchestrator.evidence.score.run_work import measured_step_s
from orchestrator.evidence.score.samples import Sample, _lay_out, _policy_of, _sample_of
from orchestrator.evidence.score.samples import samples as samples_of
from orchestrator.network.decoder import BLOCK_INPUT
from orchestrator.network.mesh_axes import AXES
from orchestrator.network.rematerialization import Policy
from orchestrator.planning.flops import attention_flops_per_token, model_flops_per_token
from tests.conftest import RunOrch
from tests.score_rows import LLAMA, ROWS, UNSEEN, write_rows


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return published_samples(*DENSE)[0]


@pytest.mark.parametrize("name", [n for n in ROWS if "derived_step_s" in ROWS[n]["notes"]])
def test_tflops_and_mfu_are_converted_as_their_source_counts(name: str) -> None:
    """The file's notes work the step time out on their own; PaLM's is recalled to three digits."""
    run = run_of(ROWS[name])
    peak = catalog.chip(run.chip).peak_flops_per_s["bf16"].value
    stated = re.search(r"derived_step_s[= ]*([\d.]+)", ROWS[name]["notes"])
    assert stated
    assert measured_step_s(run, peak) == pytest.approx(float(stated[1]), rel=1e-3)


def test_rows_that_state_both_count_the_flops_of_their_columns(samples: list[Sample]) -> None:
    """Gemma 3 with its windows, Gemma 4 with its wider heads: the columns and notes suffice."""
    kept = {sample.run.id for sample in samples}
    assert {"tr_v6e_gemma3-12b_1x_256_20251018", "tr_iron_gemma4-31b_64_bf16_8192"} <= kept
    left_out = {row.id: row.reason for row in published_samples(*DENSE)[1]}
    assert left_out.keys() == {"tr_iron_gemma4-2b_64_bf16_8192", "marin_v5p64_1_2b_gated"}
    assert "10.3 GFLOP a token" in left_out["tr_iron_gemma4-2b_64_bf16_8192"]
    assert "Muon" in left_out["marin_v5p64_1_2b_gated"]


@pytest.mark.parametrize(
    ("row", "model", "causal"),
    [
        ("tr_iron_gemma4-31b_64_bf16_8192", "gemma4-31b", True),
        ("tr_v6e_gpt3-175b_1x_256_20250321", "gpt3-175b", False),  # counted with all positions
    ],
)
def test_a_model_of_the_catalog_has_the_flops_of_its_published_run(
    row: str, model: str, causal: bool
) -> None:
    """FLOPs of a token, from the row's rate and its time of a step."""
    said, known = ROWS[row], catalog.model(model)
    rate, step_s, chips, tokens, length = (
        float(said[name])
        for name in (
            "tflops_per_chip",
            "step_time_s",
            "num_chips",
            "global_batch_tokens",
            "seq_len",
        )
    )
    found = model_flops_per_token(known, int(length))
    if not causal:
        found += 3 * attention_flops_per_token(known, int(length))
    assert found == pytest.approx(rate * 1e12 * step_s * chips / tokens, rel=5e-4)


def test_a_run_is_laid_out_as_it_was_run() -> None:
    """Mesh, slices and batch are the row's own; devices of a tpu7x chip are two."""
    layout = _lay_out(run_of(ROWS["mx_v5p_512b_2x1024"]))[0]
    assert layout.mesh == {**dict.fromkeys(AXES, 1), "pods": 2, "fsdp": 32, "tensor": 16}
    assert layout.sequences * layout.length == 4_194_304
    assert _lay_out(run_of(ROWS["tr_iron_gemma4-31b_64_bf16_8192"]))[0].mesh["fsdp"] == 128


INPUTS = "decoder_layer_input"


OFFLOADED = f"custom: offload {INPUTS};query_proj;key_proj;value_proj"


@pytest.mark.parametrize(
    ("text", "kept", "offloaded"),
    [
        ("full", BLOCK_INPUT, ""),
        ("minimal", f"{BLOCK_INPUT} query key value mlp_input gate up", ""),
        (OFFLOADED, "", f"{BLOCK_INPUT} query key value"),
        ("custom: device out_proj;mlpwo", f"{BLOCK_INPUT} mlp_input", ""),
        ("custom: offload query_proj device out_proj", f"{BLOCK_INPUT} mlp_input", "query"),
        ("save_dot_with_context_except_mlp",
         f"{BLOCK_INPUT} query key value attention mlp_input", ""),
        (f"custom device {INPUTS} remat query_proj;key_proj", BLOCK_INPUT, ""),
        (f"custom: device {INPUTS};context;q;k;v_proj",
         f"{BLOCK_INPUT} attention query key value", ""),
    ],
)  # fmt: skip
def test_remat_is_read_tensor_by_tensor(text: str, kept: str, offloaded: str) -> None:
    """What each source's policy keeps, and where."""
    policy = _policy_of(run_of(LLAMA | {"remat_policy": text}))
    assert policy == Policy(keep=frozenset(kept.split()), offload=frozenset(offloaded.split()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"moe_experts": "8"}, "8 experts"),
        ({"pp": "4"}, "4 pipeline stages: a file for --kind gpu"),
        ({"remat_policy": "clever"}, "'clever'"),
        ({"remat_policy": ""}, "not stated"),
        ({"remat_policy": "custom: offload q remat_me"}, "'remat_me'"),
        ({"chip": "v9"}, "unknown chip"),
        ({"compute_dtype": "int4"}, "'int4'"),
        ({"layers": "many"}, "layers says 'many'"),
        ({"layers": "-1"}, "positive whole number"),
        ({"d_model": "inf"}, "positive whole number"),
        ({"d_model": "nan"}, "positive whole number"),
        ({"seq_len": ""}, "seq_len is empty"),
        ({"num_slices": "3", "dcn_dp": "3"}, "slices of equal size"),
        ({"ici_tp": "3"}, "8 devices are not"),
        ({"topology": "4x4"}, "16 chips"),
        ({"step_time_s": "", "tflops_per_chip": ""}, "no step time"),
        ({"step_time_s": "", "flop_convention": "secret"}, "'secret'"),
        ({"step_time_s": "0"}, "must be positive"),
        ({"step_time_s": "nan"}, "must be positive"),
        ({"tflops_per_chip": "800"}, "do not describe its model"),
        ({"notes": "trained with Muon"}, "Muon"),
        ({"optimizer": "lion"}, "its optimizer is lion"),
        ({"microbatches": "0"}, "microbatches says 0"),
        ({"global_batch_tokens": "1000"}, "whole sequences"),
        ({"global_batch_tokens": "", "batch_per_device_seqs": ""}, "neither global_batch_tokens"),
        (
            {"num_chips": "16", "num_slices": "2", "dcn_dp": "1"},
            "2 slices are not as many replicas",
        ),
        ({"d_ff": "1e300"}, "positive whole number"),
    ],
)
def test_a_row_that_cannot_be_scored_has_a_reason(change: dict[str, str], reason: str) -> None:
    """One sentence for the row, and no guess."""
    usable, [skipped] = samples_of([LLAMA | change])
    assert not usable
    assert reason in skipped.reason


def test_optional_columns_have_defaults() -> None:
    """One slice, as many key heads as heads, and heads that share the width."""
    stated = run_of(LLAMA | {"num_slices": "1", "n_kv_heads": "32", "head_dim": "128"})
    assert run_of(LLAMA | {"num_slices": "", "n_kv_heads": "", "head_dim": ""}) == stated


def test_a_batch_is_counted_by_devices() -> None:
    """Of a tpu7x chip they are two."""
    row = ROWS["tr_iron_llama3.1-70b_64_bf16_8192"]
    assert run_of(row | {"global_batch_tokens": ""}).sequences == run_of(row).sequences == 256


CELLS = [
    "",
    "0",
    "-1",
    "1e308",
    "nan",
    "-inf",
    "1,024",
    "8%",
    "x" * 50,
    "0.5",
    "3",
    "10" * 8,
    "\x00",
]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(LLAMA.keys() - {"line"})),  # the reader writes that one
        st.sampled_from(CELLS),
        min_size=1,
        max_size=3,
    )
)
def test_any_row_is_scored_or_refused(change: dict[str, str]) -> None:
    """Whatever its cells contain."""
    for sample in samples_of([LLAMA | change])[0]:
        known = catalog.efficiency(sample.run.chip)
        assert known is not None
        assert 0 < sample.lower_s <= sample.expected_s(known) < float("inf")


def test_an_unknown_convention_does_not_change_a_stated_step_time() -> None:
    """Nothing has to be converted where seconds are stated."""
    assert _sample_of(LLAMA | {"flop_convention": "secret"}).measured_s == 3.443


@pytest.mark.parametrize(
    ("change", "software", "kernel", "averages", "assumed"),
    [
        ({}, "maxtext", "splash-fused", "steps", ""),
        (
            {"software": "AXLearn", "kernel": "none", "averages": "run"},
            "axlearn", "none", "run", "",
        ),
        ({"software": ""}, "maxtext", "splash-fused", "steps", "software"),
        (
            {"software": "", "source_repo": "pytorch/xla"},
            "pytorch-xla", "splash-fused", "steps", "software",
        ),
        (
            {"software": "", "source_repo": "me", "source_path": "x"},
            "not stated", "splash-fused", "steps", "software",
        ),
        ({"kernel": ""}, "maxtext", "splash", "steps", ""),
        ({"kernel": "", "attention_kernel": "flash"}, "maxtext", "splash", "steps", ""),
        ({"kernel": "", "attention_kernel": "flash (pallas)"}, "maxtext", "flash", "steps", ""),
        ({"kernel": "", "attention_kernel": "tokamax"}, "maxtext", "splash-fused", "steps", ""),
        ({"kernel": "", "attention_kernel": "no flash kernel"}, "maxtext", "none", "steps", ""),
        ({"kernel": "", "attention_kernel": ""}, "maxtext", "none", "steps", "kernel"),
        ({"kernel": "", "attention_kernel": "mine"}, "maxtext", "fused", "steps", "kernel"),
        (
            {"averages": "", "notes": "whole-run average"},
            "maxtext", "splash-fused", "run", "averages",
        ),
        ({"averages": ""}, "maxtext", "splash-fused", "steps", "averages"),
    ],
)  # fmt: skip
def test_software_is_read_or_assumed(
    change: dict[str, str], software: str, kernel: str, averages: str, assumed: str
) -> None:
    """A row that states nothing of a column says so."""
    found = run_of(LLAMA | change).software
    assert (found.name, found.kernel, found.averages) == (software, kernel, averages)
    assert found.assumed == tuple(assumed.split())


def test_the_projects_files_state_their_software() -> None:
    """Every row, in both files."""
    for path in (PUBLISHED, OTHER_SOFTWARE, UNSEEN):
        for row in read(path):
            assert _software_of(row).assumed == (), row["id"]


def test_runs_of_other_software_state_their_source() -> None:
    """At least 25 can be planned, none is of MaxText, and each names its document."""
    rows = {row["id"]: row for row in read(OTHER_SOFTWARE)}
    usable, skipped = samples_of(rows.values())
    assert len(usable) >= 25
    assert not skipped
    assert {"axlearn", "levanter", "pytorch-xla"} <= {scored.run.software.name for scored in usable}
    assert all(row["software"] != "maxtext" for row in rows.values())
    assert all(row["source_repo"] and row["source_path"] for row in rows.values())
    assert not rows.keys() & ROWS.keys()


def test_microbatches_and_the_optimizer_are_laid_out() -> None:
    """Adafactor has no moments to read and write; gradients of microbatches accumulate."""
    adamw, adafactor = (_sample_of(LLAMA | {"optimizer": name}) for name in ("adamw", "adafactor"))
    assert update_s(adafactor) == pytest.approx(update_s(adamw) * (8 + 8) / (8 + 16 + 4))
    assert update_s(_sample_of(LLAMA | {"notes": "Adafactor"})) == update_s(adafactor)
    assert _sample_of(LLAMA | {"microbatches": "3"}).layout.microbatches == 3


def update_s(sample: Sample) -> float:
    [line] = [line for line in sample.lines if line.kind == "optimizer_update"]
    return float(line.value)


@pytest.mark.parametrize(
    ("column", "cell"), [("software", "-?"), ("kernel", "quick"), ("averages", "months")]
)
def test_a_wrong_word_is_refused_with_its_place(
    column: str, cell: str, orch: RunOrch, tmp_path: Path
) -> None:
    """The line is that of the file, also after a cell of several lines."""
    path = write_rows(tmp_path, [LLAMA | {"notes": "two\nlines"}, LLAMA | {column: cell}])
    done = orch("score", str(path))
    assert done.returncode == 2
    assert f"line 4, column {column}: '{cell}'" in done.stderr


def test_a_file_without_these_columns_is_read(orch: RunOrch, tmp_path: Path) -> None:
    """What is assumed stands on the screen and in JSON."""
    newer = {"software", "kernel", "averages", "attention_kernel"}
    old = {key: value for key, value in LLAMA.items() if key not in newer}
    path = write_rows(tmp_path, [old])
    [row] = json.loads(orch("score", str(path), "--json").stdout)["rows"]
    assert (row["software"], row["kernel"], row["averages"]) == ("maxtext", "fused", "steps")
    assert row["assumed"] == ["software", "kernel", "averages"]
    assert "software not stated: assumed maxtext in 1" in orch("score", str(path)).stdout


def test_a_csv_may_be_written_by_other_programs(tmp_path: Path) -> None:
    """Windows line ends, a byte-order mark, capitals, more columns and cells, no names of rows."""
    path = tmp_path / "runs.csv"
    names = [
        "\ufeff" + "ID",
        " Chip ",
        *[name for name in LLAMA if name not in {"id", "chip"}],
        "me",
    ]
    cells = ["", "v6e", *[LLAMA[name] for name in names[2:-1]], "mine", "too", "many"]
    quoted = (f'"{cell}"' for cell in cells)
    path.write_bytes(f"{','.join(names)}\r\n{','.join(quoted)}\r\n".encode())
    [row] = read(path)
    assert row["id"] == "row 2"
    assert _sample_of(row).measured_s == 3.443


def test_rows_read_as_runs() -> None:
    """Every row of the project's file is understood, scored or not."""
    rows = [row for row in ROWS.values() if "Muon" not in row["notes"]]
    assert all(isinstance(run_of(row), PublishedRun) for row in rows)

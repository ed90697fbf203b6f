"""Errors as programs read them: JSON on stdout, and an exit code."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from orchestrator.cli.endings import _error_report
from orchestrator.errors import OrchError, Usage
from orchestrator.launch.provenance import TooMuchCode
from orchestrator.run.exports import _output_schema
from orchestrator.run.proofs import ProofFailed
from orchestrator.show.terminal import say_error
from orchestrator.tracking.destinations import NotRecorded
from tests.conftest import ROOT, RunOrch
from tests.journals import claimed_run
from tests.score_rows import LLAMA, write_rows

TINY = "specs/tiny_2pod.yaml"
VALIDATOR = Draft202012Validator(_output_schema("error"))
UNEVEN = ("plan", "specs/llama3_70b_4pod.yaml", "--set", "experiment.batch.tolerance=0")


def error_of(orch: RunOrch, *arguments: str) -> dict[str, Any]:
    """What a command that fails prints with --json."""
    done = orch(*arguments, "--json")
    assert done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    assert not [*VALIDATOR.iter_errors(value)]
    assert value["exit_code"] == done.returncode != 0
    return value


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("plan", "nowhere.yaml"), "unreadable"),
        (("plan", TINY, "specs/nowhere.yaml"), "unreadable"),
        (("plan", "specs/studies/nowhere.yaml"), "unreadable"),
        (("explain", TINY, "--set", "resources.chips=v5p"), "unknown_key"),
        (("prove", TINY, "--set", "run.trainer=nonsense"), "unknown_trainer"),
        (("submit", TINY, "--set", "resources.topology=3x3"), "no_such_slice"),
        (("score", "nowhere.csv"), "unscorable"),
        (("runs", "--strorage", "x"), "usage"),
        (("status", "nobody"), "unknown_run"),
        (("logs", "nobody"), "unknown_run"),
        (("report", "nobody"), "unknown_run"),
        (("compare", "nobody"), "unknown_run"),
        (("sync", "nobody"), "unknown_run"),
        (("cancel", "nobody"), "unknown_run"),
        (("resume", "nobody"), "unknown_run"),
        (("rm", "nobody"), "unknown_run"),
        (("submit", TINY, "--no-prove", "--detach"), "spec_error"),
        (("init",), "usage"),
        (("ui", "--port", "0"), "usage"),
        (("completion", "tcsh"), "usage"),
        (("schema", "plans"), "unknown_name"),
        (("export", "ray", "nowhere.yaml"), "unreadable"),
        (("export", "maxtext", TINY, "--set", "a=1"), "unknown_key"),
        (("export", "huggingface", "nobody", "out"), "unknown_run"),
        (("import", "maxtext", "frob=1"), "recipe_problems"),
        (("doctor", "nobody"), "unknown_run"),
        (("calibrate", "--frob"), "usage"),
        (("data",), "usage"),
    ],
)
def test_every_command_fails_in_json(orch: RunOrch, arguments: tuple[str, ...], code: str) -> None:
    assert error_of(orch, *arguments)["code"] == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("{kind: jsonl, path: texts}", "text_as_data"),
        ("{kind: tokens, path: texts}", "no_token_set"),
        ("{kind: tokens, path: texts/a.jsonl}", "no_token_set"),
        ("{kind: tokens, path: set}", "folder_of_a_set"),
    ],
)
def test_text_instead_of_tokens_is_refused_with_what_packs_it(
    data: str, code: str, orch: RunOrch, tmp_path: Path
) -> None:
    """What only the hosts have is theirs to find."""
    for name in ("texts/a.jsonl", "set/manifest.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    path = tmp_path / "a.yaml"
    batch = "{sequences: 8, length: 128}"
    path.write_text(
        f"name: a\nexperiment: {{model: llama-tiny, tokens: 1M, batch: {batch}, data: {data}}}\n"
        "resources: {chip: v5e, topology: 2x2}\n"
    )
    value = error_of(orch, "plan", str(path))
    place = (value["code"], value["key"][:15], value["file"])
    assert place == (code, "experiment.data", str(path))
    assert code == "folder_of_a_set" or "orch data pack" in value["suggestions"][0]["text"]
    path.write_text(path.read_text().replace(data, "{kind: tokens, path: elsewhere}"))
    assert orch("plan", str(path)).returncode == 0


def test_keys_of_a_study_at_the_top_are_one_mistake(orch: RunOrch, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("name: a\nbase: b.yaml\nvary: {experiment.optimizer.peak_lr: [1.0e-4]}\n")
    value = error_of(orch, "plan", str(path))
    assert [(problem["code"], problem["line"]) for problem in value["problems"]] == [
        ("study_without_study", 3)
    ]


def test_a_page_that_cannot_be_written_leaves_one_value(orch: RunOrch, tmp_path: Path) -> None:
    page = tmp_path / "nowhere" / "offers.html"
    assert error_of(orch, "plan", TINY, "--html", str(page))["exit_code"] == 1


def test_a_problem_of_a_spec_has_its_place_and_what_to_write(orch: RunOrch, tmp_path: Path) -> None:
    """The first one at the top, and all of them in the order of the file."""
    text = (ROOT / TINY).read_text(encoding="utf-8")
    lines = text.replace("chip: v5e", "chips: v5e").splitlines()
    lines[0] = "nmae: tiny"
    path = tmp_path / "a.yaml"
    path.write_text("\n".join(lines))
    value = error_of(orch, "plan", str(path))
    assert [problem["code"] for problem in value["problems"]].count("unknown_key") == 2
    assert {key: value[key] for key in value["problems"][0]} == value["problems"][0]
    [wrong] = [problem for problem in value["problems"] if "chips" in problem["key"]]
    number = next(n for n, line in enumerate(lines, start=1) if "chips: v5e" in line)
    column = lines[number - 1].index("chips") + 1
    assert (wrong["file"], wrong["line"], wrong["column"]) == (str(path), number, column)
    assert [(suggestion["kind"], suggestion["value"]) for suggestion in wrong["suggestions"]] == [
        ("meant", "chip")
    ]


def test_suggestions_of_a_spec_without_a_plan_are_overrides(orch: RunOrch) -> None:
    """Each can be put behind --set as it is."""
    value = error_of(orch, "plan", TINY, "--set", "experiment.batch.sequences=7")
    assert value["code"] == "infeasible"
    assert {reason["code"] for reason in value["reasons"]} == {
        "slice_factors",
        "batch_not_divisible",
    }
    overrides = value["suggestions"][0]["overrides"]
    settings = [word for override in overrides for word in ("--set", override)]
    assert orch("plan", TINY, *settings).returncode == 0


def test_the_next_command_and_known_names_are_values(orch: RunOrch, tmp_path: Path) -> None:
    at = ("--storage", str(tmp_path))
    [hint] = error_of(orch, "status", "it", *at)["suggestions"]
    assert (hint["kind"], hint["value"]) == ("command", "orch submit SPEC")
    claimed_run(tmp_path, key="first")
    value = error_of(orch, "status", "it", *at)
    values = [(suggestion["kind"], suggestion["value"]) for suggestion in value["suggestions"]]
    assert values == [("known", "first"), ("command", f"orch runs --storage {tmp_path}")]
    live = error_of(orch, "rm", "first", "--yes", *at)
    assert live["code"] == "run_is_live"
    assert [suggestion["kind"] for suggestion in live["suggestions"]] == ["command"]


def test_a_file_of_runs_has_the_line_and_the_column(orch: RunOrch, tmp_path: Path) -> None:
    path = write_rows(tmp_path, [LLAMA, LLAMA | {"kernel": "quick"}])
    value = error_of(orch, "score", str(path))
    place = (value["file"], value["line"], value["key"])
    assert (value["code"], *place) == ("unscorable", str(path), 3, "kernel")


def test_an_answer_of_no_is_json_too(tmp_path: Path) -> None:
    """Where nobody can be asked, it is a refusal."""
    claimed_run(tmp_path, key="it").end_run("failed")
    orch_path = str(Path(sys.executable).with_name("orch"))
    command = [orch_path, "rm", "it", "--storage", str(tmp_path), "--json"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 2


@pytest.mark.parametrize(
    ("kind", "code", "exit_code"),
    [
        (Usage, "usage", 2),
        (ProofFailed, "proof_failed", 3),
        (NotRecorded, "not_recorded", 1),
        (TooMuchCode, "too_much_code", 1),
    ],
)
def test_codes_are_published(kind: type[OrchError], code: str, exit_code: int) -> None:
    """A class that is renamed changes what scripts read."""
    value = _error_report(kind("why", next_command="orch runs"))
    assert (value.code, value.message, value.exit_code) == (code, "why", exit_code)
    assert str(kind("why", next_command="orch runs")) == "why\nNext: orch runs"


def test_the_page_lists_every_code() -> None:
    """Codes of errors by name; those of problems and reasons follow from JSON."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    codes = codes_in_the_code()
    assert {"spec_error", "infeasible", "proof_failed", "no_server"} <= codes
    shown_as_others = {"spec_problems", "operation_interrupted"}
    assert [code for code in codes - shown_as_others if f"`{code}`" not in page] == []


def codes_in_the_code() -> set[str]:
    """The code of every class of errors, whether or not its module can be imported here."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "orchestrator").rglob("*.py")]
    pairs = [
        pair for text in texts for pair in re.findall(r"^class (\w+)\((\w+)\):", text, re.MULTILINE)
    ]
    kinds, before = {"OrchError"}, 0
    while len(kinds) > before:
        before = len(kinds)
        kinds |= {kind for kind, base in pairs if base in kinds}
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower() for kind in kinds}


@pytest.mark.parametrize(
    ("words", "following"),
    [
        ("plan nope.yaml", "orch init nope.yaml"),
        ("plan", "orch plan --help"),
        ("plan --alternatives", "orch plan --help"),
        ("frob", "orch --help"),
        ("export huggingface --frob", "orch export huggingface --help"),
        (
            "plan specs/tiny_2pod.yaml --set resources.chips=v5p",
            "orch plan specs/tiny_2pod.yaml --set resources.chip=v5p",
        ),
        (
            "plan specs/tiny_2pod.yaml --set seed=1 --set model=llama-1b",
            "orch schema --key experiment.seed",
        ),
        (
            "plan specs/tiny_2pod.yaml --set=model=llama-1b",
            "orch plan specs/tiny_2pod.yaml --set=experiment.model=llama-1b",
        ),
        (
            "plan specs/tiny_2pod.yaml --set experiment.model=LLaMA-1B",
            "orch plan specs/tiny_2pod.yaml --set experiment.model=llama-1b",
        ),
        (
            "plan specs/tiny_2pod.yaml --set experiment.model=llama3",
            "orch schema --key experiment.model",
        ),
        ("plan specs/tiny_2pod.yaml --set experiment.data=texts", "orch data pack --help"),
        (
            "plan specs/tiny_2pod.yaml --set experiment.remat=never",
            "orch schema --key experiment.remat",
        ),
        (
            " ".join(UNEVEN),
            f"orch {' '.join(UNEVEN)} --set experiment.batch.sequences=980",
        ),
    ],
)
def test_a_refusal_begins_with_error_and_ends_with_a_command(
    words: str, following: str, orch: RunOrch
) -> None:
    """One line to copy; a pipe has no colours."""
    done = orch(*words.split())
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.splitlines()[-1] == f"Next: {following}"
    assert "\033" not in done.stderr


def test_a_terminal_shows_the_word_error_in_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The word, and the next command in bold; NO_COLOR has none."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    say_error("error: a\x1b[2J\nNext: c")
    monkeypatch.setenv("NO_COLOR", "1")
    say_error("error: b\nNext: c")
    styled, plain = "\033[1;31merror:\033[0m a?[2J\n\033[1mNext: c\033[0m\n", "error: b\nNext: c\n"
    assert capsys.readouterr().err == styled + plain


def test_a_folder_of_weights_that_is_not_here_is_said_before_anything_starts(
    orch: RunOrch, tmp_path: Path
) -> None:
    """A plan warns, for the hosts may have it; a rehearsal needs it here."""
    tiny = ROOT / "specs" / "tiny_2pod.yaml"
    words = (str(tiny), "--set", f"experiment.start.huggingface={tmp_path}/weights")
    planned = json.loads(orch("plan", *words, "--json").stdout)
    [warning] = [warning for warning in planned["warnings"] if warning["code"] == "input_missing"]
    named = {"key": "experiment.start.huggingface", "path": f"{tmp_path}/weights"}
    assert warning["figures"] == named
    refused = orch("submit", *words, "--no-prove", "--set", f"run.storage={tmp_path}/runs")
    assert refused.returncode == 2
    assert f"{tmp_path}/weights" in refused.stderr
    assert not list(tmp_path.glob("runs/*/events"))

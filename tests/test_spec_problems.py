"""Specs: the problems of bad files, as golden texts, and that the hints are right."""

import json
import re
from pathlib import Path

import pytest

from orchestrator import catalog, reading
from orchestrator.reading.expectations import _KEY_SYNONYMS, meant_key
from orchestrator.reading.problems import _SHOWN_PROBLEMS, Problem, SpecProblems
from orchestrator.reading.schema import homes
from orchestrator.values.spec import TensorTreatments
from tests.conftest import HoldGolden
from tests.spec_texts import MINIMAL, load_text, problems_of, write
from tests.test_spec_huggingface import LLAMA
from tests.test_token_sets import counting_set

FOLDER = Path(__file__).parent / "specs_bad"
BAD = sorted(FOLDER.glob("*.yaml"))
HINT = re.compile(r"(?:did you mean (?P<meant>.+)\?|for example (?P<key>\w+): (?P<example>.+))")


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden texts name files as a person standing beside them would."""
    monkeypatch.chdir(FOLDER)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_is_told_all_at_once(path: Path, golden: HoldGolden) -> None:
    """Each class of mistake: place, key, what is against what must be, line, caret, hint."""
    with pytest.raises(SpecProblems) as caught:
        reading.load(Path(path.name))
    golden(f"spec_{path.stem}.txt", f"{without_the_catalog(str(caught.value))}\n")


def without_the_catalog(text: str) -> str:
    """The text whatever chips and models there are."""
    for names, stand_in in ((catalog.chips(), "CHIPS"), (catalog.models(), "MODELS")):
        text = text.replace(", ".join(names), stand_in)
    return text


CODES = {
    "anchors": {"alias", "anchor"},
    "chip": {"illegal-value"},
    "clock": {"illegal-value"},
    "counts": {"illegal-value", "too-great"},
    "data_without_path": {"data-path-missing"},
    "deadline": {"no-such-date"},
    "duplicate_keys": {"duplicate-key"},
    "empty_values": {"empty-value"},
    "learning_rate": {"end-above-peak", "illegal-value"},
    "missing_keys": {"missing-key"},
    "options": {"ambiguous", "illegal-key"},
    "pods_range": {"illegal-value", "missing-key"},
    "syntax_tab": {"syntax"},
    "topology": {"no-such-slice"},
    "trainer": {"illegal-value"},
    "unknown_keys": {"unknown-key"},
    "utf16": {"encoding"},
}


@pytest.mark.parametrize("stem", CODES)
def test_a_problem_has_a_code(stem: str) -> None:
    """Programs tell problems apart by it, and not by their sentences."""
    problems = problems_of(Path(f"{stem}.yaml"))
    assert {problem.code for problem in problems} >= CODES[stem]
    if stem == "topology":
        [problem] = problems
        assert problem.fields["topology"] == "16x20x30"


def test_an_unknown_trainer_and_pods_in_the_wrong_order_have_their_codes(tmp_path: Path) -> None:
    """What fields must hold together is a code of its own."""
    text = MINIMAL.replace("4x4x4}", "4x4x4, pods: {min: 4, max: 2}}") + "run: {trainer: lama}\n"
    problems = problems_of(write(tmp_path, text))
    assert [problem.code for problem in problems] == ["pods-order", "unknown-trainer"]
    assert "llama" in problems[1].fields["known"]


def test_a_separator_is_a_token_of_the_vocabulary(tmp_path: Path) -> None:
    """By name or by shape, the model has the vocabulary."""
    path = write(tmp_path, MINIMAL)
    [problem] = problems_of(path, "experiment.data.separator=128256")
    assert (problem.code, problem.key) == ("no-such-token", "experiment.data.separator")
    assert reading.load(path, ("experiment.data.separator=128255",)).experiment.data.separator
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    [problem] = problems_of(
        path, "experiment.model={huggingface: config.json}", "experiment.data.separator=128256"
    )
    assert problem.code == "no-such-token"


def test_a_held_out_set_has_the_sequences_of_an_evaluation(tmp_path: Path) -> None:
    """It would be refused by the hosts that train, in a queue's time."""
    path = write(tmp_path, MINIMAL)
    manifest = counting_set(tmp_path, 100_000)
    data = f"experiment.data={{kind: tokens, path: {manifest}}}"
    length = reading.load(path).experiment.batch.length
    most = 99_999 // length
    for sequences in (most, most + 1):
        evaluation = f"run.evaluation={{every: 5, sequences: {sequences}, path: {manifest}}}"
        if sequences > most:
            [problem] = problems_of(path, data, evaluation)
            assert (problem.code, problem.key) == ("few-held-out", "run.evaluation.sequences")
            assert str(most) in problem.message
        else:
            assert reading.load(path, (data, evaluation)).run.evaluation


@pytest.mark.parametrize("gated", [True, False])
def test_remat_names_tensors_that_the_model_has(tmp_path: Path, gated: bool) -> None:
    """An MLP without a gate has none to keep."""
    shape = "layers: 2, d_model: 64, d_ff: 64, heads: 2, kv_heads: 2, head_dim: 32, vocab: 64"
    model = f"{{{shape}, gated: {str(gated).lower()}}}"
    text = MINIMAL.replace("llama3-8b", f"{model}\n  remat: {{gate: keep}}")
    if gated:
        assert load_text(tmp_path, text).experiment.remat == TensorTreatments(gate="keep")
    else:
        [problem] = problems_of(write(tmp_path, text))
        assert (problem.code, problem.key) == ("no-such-tensor", "experiment.remat.gate")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_caret_stands_below_its_place(path: Path) -> None:
    """The snippet is the line of the problem, and the caret is below the column that is named."""
    for problem in problems_of(Path(path.name)):
        if not problem.snippet:
            continue
        shown, caret = problem.snippet.split("\n")
        line = problem.place.source.line(problem.line)
        rest = shown[caret.index("^") :].removesuffix("...")
        assert line[problem.col - 1 :].startswith(rest.rstrip())
        assert len(shown) < 115


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_hint_is_legal(path: Path) -> None:
    """Writing what the hint says, in the place that it is about, takes that problem away."""
    for problem in problems_of(Path(path.name)):
        if value := value_of_hint(problem):
            left = problems_of(Path(path.name), f"{problem.key}={value}")
            assert problem.key not in [other.key for other in left]


def value_of_hint(problem: Problem) -> str | None:
    """The legal value that a hint names for the key of its problem."""
    hint = HINT.fullmatch(problem.hint)
    about_a_key = problem.code in ("unknown-key", "illegal-key")
    if not hint or about_a_key or not problem.key or problem.key[-1].isdigit():
        return None
    return hint["meant"] or hint["example"]


def test_hints_are_held_by_the_test_above() -> None:
    """The check of hints is not vacuous: most problems have a hint with a value."""
    problems = [problem for path in BAD for problem in problems_of(Path(path.name))]
    assert len([problem for problem in problems if value_of_hint(problem)]) > 60
    assert [str(problem) for problem in problems if problem.key and not problem.hint] == []


def test_problems_come_in_the_order_of_the_text() -> None:
    """A reader goes through a file once."""
    places = [(problem.line, problem.col) for problem in problems_of(Path("numbers.yaml"))]
    assert len(places) > 15
    assert places == sorted(places)


def test_all_kinds_of_problems_come_together(tmp_path: Path) -> None:
    """Notation, contract and contradiction are reported at once."""
    text = (
        MINIMAL.replace("15T", "&t 15T")
        .replace("512", "0")
        .replace("  tokens", "  data: {kind: tokens}\n  tokens")
        .replace("4x4x4", "4x4x5")
    )
    keys = [problem.key for problem in problems_of(write(tmp_path, text), "run.steps=0")]
    assert keys == [
        "run.steps",
        "experiment.data.path",
        "experiment.tokens",
        "experiment.batch.sequences",
        "resources.topology",
    ]


def test_one_mistake_is_one_problem(tmp_path: Path) -> None:
    """A misspelt key is not reported again as a missing one, nor a bad size as a bad pair."""
    [problem] = problems_of(write(tmp_path, MINIMAL.replace("sequences", "sequenses")))
    assert problem.hint == "did you mean sequences?"
    shape = "{layers: 2, d_model: 64, d_ff: 9, heads: 0, kv_heads: 4, head_dim: 16, vocab: 512}"
    [problem] = problems_of(write(tmp_path, MINIMAL.replace("llama3-8b", shape)))
    assert problem.key == "experiment.model.heads"


def test_secrets_are_not_repeated() -> None:
    """What stands where the name of a secret belongs is in no line of a message."""
    for name in ("secrets", "secret_alone", "passwords"):
        [message] = [str(SpecProblems(problems_of(Path(f"{name}.yaml"))))]
        for secret in ("hf_abc", "sk-123", "lovelace"):
            assert secret not in message


def test_secrets_are_not_repeated_beside_other_problems(tmp_path: Path) -> None:
    """Another problem on the line of a secret hides it too, in the file and in overrides."""
    text = MINIMAL + "run: {hang_limit: 1, secrets: [!x hf_abcdef], steps: 0}\n"
    problems = problems_of(write(tmp_path, text), "run.retries={a: 1, failures: -1}")
    assert len(problems) == 6
    assert "hf_abc" not in str(SpecProblems(problems))
    problems = problems_of(write(tmp_path, MINIMAL), "run={secrets: [hf_abcdef], steps: 0}")
    assert len(problems) == 2
    assert "hf_abc" not in str(SpecProblems(problems))


def test_a_long_list_of_problems_ends(tmp_path: Path) -> None:
    """Nobody reads thousands: the rest is counted, and still there for a program."""
    text = MINIMAL + "".join(f"key-{index}: 1\n" for index in range(500))
    with pytest.raises(SpecProblems) as caught:
        load_text(tmp_path, text)
    assert len(caught.value.problems) == 500
    assert str(caught.value).endswith(f"\n\nand {500 - _SHOWN_PROBLEMS} more problems")


def test_what_is_told_is_safe_to_print(tmp_path: Path) -> None:
    """No escape sequence, line break or invisible character of a file reaches the terminal."""
    text = MINIMAL.replace("small", '"\\e[2J\\n\u202e"') + "\u202ezebra\u2066: '\u202e\U0001f600'\n"
    message = str(SpecProblems(problems_of(write(tmp_path, text))))
    assert all(line.isprintable() for line in message.split("\n"))


def test_every_name_of_other_programs_stands_for_a_key() -> None:
    """No entry names a key that a spec does not have, or one that it does have there."""
    for name, keys in _KEY_SYNONYMS.items():
        for key in keys:
            assert homes(key), (name, key)
            assert meant_key(name.upper().replace("_", "-"), [key]) == key


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("chip: trillium", "v6e"),
        ("chip: Ironwood", "tpu7x"),
        ("chip: TPU v5litepod", "v5e"),
        ("model: meta-llama/Llama-3.1-8B", "llama3-8b"),
        ("model: mistralai/Mistral-7B-v0.3", "mistral-7b"),
        ("compute: float32", "fp32"),
        ("model: Llama2", "llama2-7b or llama2-70b"),
        ("model: llama3", "llama3-8b, llama3-70b or llama3-405b"),
        ("model: llama3-80b", "llama3-8b or llama3-70b"),
        ("chip: v5", "v5p or v5e"),
    ],
)
def test_values_are_known_by_the_names_of_others(text: str, meant: str, tmp_path: Path) -> None:
    """Chips have names of the shop, models those of a hub, types those of a library."""
    key = text.split(":", maxsplit=1)[0]
    changed = {
        "chip": MINIMAL.replace("chip: v5p", text),
        "model": MINIMAL.replace("model: llama3-8b", text),
        "compute": MINIMAL.replace("  tokens", f"  precision: {{{text}}}\n  tokens"),
    }[key]
    [problem] = problems_of(write(tmp_path, changed))
    assert problem.hint == f"did you mean {meant}?"

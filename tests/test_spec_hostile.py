"""Specs: whatever a file holds, one clear answer, soon, in little memory."""

import json
import resource
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator import reading
from orchestrator.reading.nodes import _MOST_BYTES, _MOST_NODES
from orchestrator.reading.problems import Problem, SpecProblems
from orchestrator.values import codec
from orchestrator.values.spec import Spec
from tests.spec_texts import COMPLETE, MINIMAL, load_text, problems_of, write

MOST_SECONDS = 2.0
MOST_MORE_BYTES = 200 * 2**20
MANY = _MOST_NODES - 50


def laughs(line: str) -> str:
    """Nine levels of nine references each to the level below: a billion values."""
    levels = zip("abcdefgh", "bcdefghi", strict=True)
    lines = (line.format(b=b, references=", ".join([f"*{a}"] * 9)) for a, b in levels)
    return "a: &a {x: 1}\n" + "".join(lines)


SECRETS = ", ".join(f"A{index}" for index in range(MANY))
OPTIONS = ", ".join(f"X{index}: on" for index in range(MANY // 2))
BOMBS = {
    "brackets": "[" * 100_000,
    "braces": "{a: " * 25_000,
    "dashes in a line": "- " * 100_000,
    "questions in a line": "? " * 100_000,
    "steps": "".join(" " * depth + "a:\n" for depth in range(1000)),
    "laughs": laughs("{b}: &{b} [{references}]\n"),
    "merged laughs": laughs("{b}: &{b} {{<<: [{references}]}}\n"),
    "anchors": "&a " * 300_000,
    "bangs": "!" * (_MOST_BYTES - 1),
    "a tag without end": "!<" + "a" * (_MOST_BYTES - 9),
    "a long alias": "a: *" + "b" * (_MOST_BYTES - 9),
    "keys": "".join(f"key{i}: 1\n" for i in range(80_000)),
    "unknown keys": "".join(f"nam{i}: 1\n" for i in range(MANY // 2)),
    "the same key": "name: a\n" * (MANY // 2),
    "items": "[" + "a, " * 300_000 + "]",
    "a long key": "? " + "n" * (_MOST_BYTES - 99) + "\n: 1\n",
    "a long name": "name: " + "n" * (_MOST_BYTES - 99),
    "many names and a mapping": MINIMAL + f"run: {{secrets: [{SECRETS}, {{}}]}}\n",
    "many bad names": MINIMAL + f"run: {{secrets: [{SECRETS.lower()}, {{}}]}}\n",
    "many bad options": MINIMAL.replace("to", f"compiler_options: {{{OPTIONS}}}\n  to", 1),
    "digits": MINIMAL.replace("15T", "9" * (_MOST_BYTES - 999)),
    "digits of a count": MINIMAL.replace("15T", "9" * (_MOST_BYTES - 999) + "T"),
    "digits of a share": MINIMAL.replace("8192}", f"8192, tolerance: {'1' * 10**6}%}}"),
    "a huge exponent": MINIMAL.replace("15T", "1e999999999"),
    "sixties": MINIMAL + "run: {hang_limit: '" + "1:" * 400_000 + "'}\n",
    "comments": "#\n" * (_MOST_BYTES // 2 - 1),
    "blank lines": "\n" * (_MOST_BYTES - 1),
    "spaces": " " * (_MOST_BYTES - 1),
    "tabs": "\t" * (_MOST_BYTES - 1),
    "a quote without end": '"' + "\\n" * (_MOST_BYTES // 2 - 9),
    "lines of one value": "name: " + "a\n " * (_MOST_BYTES // 3 - 9),
    "a block of lines": "name: |\n" + " \n" * (_MOST_BYTES // 2 - 9),
    "escapes": '"' + "\\U0001F600" * (_MOST_BYTES // 10 - 9) + '"',
    "directives": "%" * (_MOST_BYTES - 1),
    "colons": ": " * (_MOST_BYTES // 2 - 1),
    "more than a file may be": "a" * (_MOST_BYTES + 1),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_a_clear_error(name: str, tmp_path: Path) -> None:
    """Depth, size, aliases, digits: reported within two processor seconds, on a page, in bounded
    memory.
    """
    path = write(tmp_path, BOMBS[name])
    held_bytes = peak_bytes()
    began = time.process_time()
    with pytest.raises(SpecProblems) as caught:
        reading.load(path)
    assert time.process_time() - began < MOST_SECONDS
    assert peak_bytes() - held_bytes < MOST_MORE_BYTES
    assert 0 < len(str(caught.value)) < 100_000


def peak_bytes() -> int:
    """The most memory that this process has used."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    """The cap is on what no spec is: a spec with a megabyte of comments loads."""
    text = MINIMAL + "#" * (_MOST_BYTES - len(MINIMAL))
    assert load_text(tmp_path, text) == load_text(tmp_path, MINIMAL)
    [problem] = problems_of(write(tmp_path, text + "#"))
    assert problem.message == "is larger than 1,048,576 bytes"


NOTATION = ["{", "}", "[", "]", ":", ": ", ",", "#", "&a", "*a", "!", "|", ">", "'", '"', "%", "@"]
NOTATION += ["-", "- ", "?", "~", "\n", "\t", " ", "\r\n", "---\n", "...\n", "<<: ", "\\", "null"]
NOTATION += ["0", "1e9", ".", "T", "%", "true", "name", "auto", "\ufeff", "é", "\x85", "\0", "\x1b"]


@st.composite
def nearly(draw: st.DrawFn) -> str:
    """A good spec with a few places cut, doubled or filled with notation."""
    text = draw(st.sampled_from([COMPLETE, MINIMAL]))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(text)))
        gone = draw(st.integers(0, 12))
        put = draw(st.sampled_from(NOTATION) | st.text(max_size=3) | st.just(text[at : at + 40]))
        text = text[:at] + put + text[at + gone :]
    return text


def answer(path: Path, *overrides: str) -> list[Problem]:
    """The problems of a file, each of them at a place that exists; none when it loads."""
    problems = problems_of(path, *overrides)
    for problem in problems:
        assert str(problem).count("\n") <= 3
        if problem.snippet:
            line = problem.place.source.lines[problem.line - 1]
            assert 1 <= problem.col <= len(line) + 1
    if not problems:
        loaded = reading.load(path, overrides)
        assert codec.from_json(codec.to_json(loaded), Spec) == loaded
    return problems


SETTINGS = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(text=nearly())
def test_nearly_good_files_are_answered(text: str, tmp_path: Path) -> None:
    """Whatever slips into a spec, it loads as a whole or its problems are reported."""
    (tmp_path / "spec.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    answer(tmp_path / "spec.yaml")


@SETTINGS
@given(raw=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@example(raw=b"")
@example(raw=b"\xff\xfe\x00\x00")
@example(raw=b"\xed\xa0\x80")
@example(raw=b"a: \xe2\x80\xa8b")
def test_any_bytes_are_answered(raw: bytes, tmp_path: Path) -> None:
    """No file is so strange that it ends in a traceback."""
    (tmp_path / "spec.yaml").write_bytes(raw)
    assert answer(tmp_path / "spec.yaml")


KEYS = ["name", "experiment", "experiment.model", "experiment.batch.length", "resources.mesh.data"]
KEYS += ["resources.pods", "run.secrets", "run.secrets.0", "run.hang_limit", "tracking.uri", "a.b"]
KEYS += ["experiment.compiler_options.xla_a", "experiment.data", "resources", "", "."]


@SETTINGS
@given(key=st.sampled_from(KEYS), value=st.text(max_size=20) | st.sampled_from(NOTATION))
def test_any_override_is_answered(key: str, value: str, tmp_path: Path) -> None:
    """Nor is an override."""
    answer(write(tmp_path, COMPLETE), f"{key}={value}")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(["min", "max", "data", "kind", "path", "a"]), inside)
    ),
    max_leaves=8,
)
LEAVES = ["name", "experiment.model", "experiment.tokens", "experiment.batch", "experiment.data"]
LEAVES += ["experiment.optimizer", "experiment.seed", "resources", "resources.pods", "run.secrets"]
LEAVES += ["resources.mesh", "run.checkpoint", "cluster", "experiment.compiler_options.xla_a"]


@SETTINGS
@given(key=st.sampled_from(LEAVES), value=VALUES)
def test_any_value_anywhere_is_answered(key: str, value: object, tmp_path: Path) -> None:
    """A value of any kind, under any key, is accepted or reported."""
    answer(write(tmp_path, COMPLETE), f"{key}={json.dumps(value)}")


@pytest.mark.fuzz
@settings(SETTINGS, max_examples=20_000)
@given(text=nearly())
def test_nearly_good_files_are_answered_at_length(text: str, tmp_path: Path) -> None:
    """The same as above, for as long as somebody wants to wait."""
    (tmp_path / "spec.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    answer(tmp_path / "spec.yaml")

"""The comparison of two checkouts, on fakes whose `orch` is a script."""

from pathlib import Path

import pytest

from tests.bench.compare_checkouts import compare_part, proof_values, verdict


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return checkout(tmp_path / "base", """echo '{"step_s": 5.25, "by": [1, 2]}'""")


def checkout(folder: Path, script: str) -> Path:
    command = folder / ".venv" / "bin" / "orch"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    command.chmod(0o755)
    return folder


def test_checkouts_that_say_the_same_do_not_differ(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = "echo 'planning: 1 of 4 trials' >&2"
    new = checkout(tmp_path / "new", f"""{progress}; echo '{{"by": [1,2], "step_s": 5.25}}'""")
    assert compare_part("scores", base, new, tmp_path / "out") == {"same": 4}
    assert "scores  score --json  same\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("""echo '{"step_s": 5.250000000000001, "by": [1, 2.0, 3]}'""",
         "output.by.1: 2 → 2.0 (2 more)"),
        ("""echo '{"step_s": 5.25, "by": [1, 2]}'; exit 2""", "exit: 0 → 2"),
        ("""echo '{"step_s": 5.25, "by": [1, 2]}'; echo no >&2""",
         'errors.0: "(absent)" → "no"'),
        ("""echo '{"step_s": 5.25}'""", 'output.by: [1, 2] → "(absent)"'),
    ],
)  # fmt: skip
def test_a_difference_is_named(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, line: str
) -> None:
    new = checkout(tmp_path / "new", script)
    assert compare_part("scores", base, new, tmp_path / "out") == {"differs": 4}
    assert f"scores  score --json  differs: {line}\n" in capsys.readouterr().out


def test_what_the_base_said_is_kept(base: Path, tmp_path: Path) -> None:
    compare_part("scores", base, None, tmp_path / "out")
    (base / ".venv" / "bin" / "orch").unlink()
    new = checkout(tmp_path / "new", """echo '{"step_s": 5.25, "by": [1, 2]}'""")
    assert compare_part("scores", base, new, tmp_path / "out") == {"same": 4}


def test_a_spec_of_one_checkout_alone_differs(base: Path, tmp_path: Path) -> None:
    new = checkout(tmp_path / "new", """echo '{"step_s": 5.25, "by": [1, 2]}'""")
    (base / "specs").mkdir()
    (base / "specs" / "a.yaml").touch()
    assert compare_part("explain", base, new, tmp_path / "out") == {"differs": 1}


def test_a_base_that_crashes_gives_no_answer(base: Path, tmp_path: Path) -> None:
    (base / ".venv" / "bin" / "orch").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="score --json"):
        compare_part("scores", base, base, tmp_path / "out")


def test_a_proof_is_compared_without_times_and_lines_of_code() -> None:
    def proof(line: str, compile_s: float, bytes_: int) -> object:
        buffers = [{"bytes": bytes_, "name": line}, {"bytes": 1, "name": "parameters"}]
        return proof_values({"buffers": buffers, "compile_s": compile_s, "memory": {"code": 3}})

    first = proof("trainers/llama/splash.py:96 (attend)", 10.0, 2)
    assert verdict(first, proof("trainers/attention.py:7 (splash)", 12.0, 2)) == "same"
    changed = proof("trainers/attention.py:7 (splash)", 12.0, 3)
    assert verdict(first, changed).startswith("differs: buffers.")

"""What a run is made of: versions that can be compared, code by its digest, no secrets."""

import json
import subprocess
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import SpecError
from orchestrator.launch import provenance
from orchestrator.lifecycle.requests import UNCOMMITTED, provenance_of
from tests.conftest import ROOT
from tests.journals import run_request, tiny_spec

SPEC = ROOT / "specs/tiny_2pod.yaml"
CANARY = "canary-7f3a91"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two files in a commit of its own."""
    for name in provenance.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'"""{name}"""\n')
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.invalid")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(provenance, "PROJECT", tmp_path)
    return tmp_path


def test_the_versions_of_a_process_do_not_differ_from_themselves() -> None:
    """Python, JAX, Ray and the code are there; the same process agrees with itself."""
    here = provenance.versions()
    assert {"python", "jax", "ray", "orch", "code"} <= here.keys()
    assert provenance.differences(here, here) == []


def test_a_difference_names_both_sides() -> None:
    """What a host lacks is a difference; what the submitter lacks is no difference."""
    submitted = {"python": "3.11", "jax": "0.10.2", "ray": "2.60.0", "code": "abc"}
    here = {"python": "3.11", "jax": "0.9.0", "libtpu": "0.0.42", "code": "abc"}
    assert provenance.differences(submitted, here) == [
        "jax 0.9.0, against 0.10.2",
        "ray is missing, against 2.60.0",
    ]


def test_the_code_is_known_by_its_content(checkout: Path) -> None:
    """A changed letter is another digest; bytecode and hidden files are none."""
    before = provenance.code_digest()
    (checkout / "trainers" / ".swap").write_text("x")
    (checkout / "trainers" / "a.pyc").write_text("x")
    (checkout / "trainers" / "__pycache__").mkdir(exist_ok=True)
    (checkout / "trainers" / "__pycache__" / "a.cpython-311.pyc.139").write_text("x")
    assert provenance.code_digest() == before
    (checkout / "trainers" / "__init__.py").write_text('"""another"""\n')
    assert provenance.code_digest() != before


def test_a_clean_checkout_is_its_commit_alone(checkout: Path) -> None:
    """Nothing is kept beside the commit when nothing differs from it."""
    origin = provenance_of(SPEC, tiny_spec(), 20, None)
    assert len(origin.environment["git_commit"]) == 40
    assert "git_uncommitted" not in origin.environment
    assert origin.documents.keys() == {"spec.yaml"}
    assert provenance.commit()
    assert checkout.is_dir()


def test_what_is_not_committed_is_kept_without_secrets(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The diff, the names of new files; the value of a secret is replaced by its name."""
    monkeypatch.setenv("HF_TOKEN", CANARY)
    (checkout / "trainers" / "__init__.py").write_text(f'TOKEN = "{CANARY}"\n')
    (checkout / "trainers" / "mine.py").write_text("")
    text = provenance.without_secrets(provenance.uncommitted(), ["HF_TOKEN"]).decode()
    assert '+TOKEN = "<HF_TOKEN>"' in text
    assert "?? trainers/mine.py" in text
    assert CANARY not in text
    assert UNCOMMITTED in provenance_of(SPEC, tiny_spec(), 20, None).documents


def test_an_installation_in_somebody_elses_checkout_has_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment inside a repository that ignores it is not of that commit."""
    inside = checkout / "venv"
    inside.mkdir()
    monkeypatch.setattr(provenance, "PROJECT", inside)
    assert provenance.commit() == {}


def test_a_range_after_the_last_step_is_refused() -> None:
    """Nothing would ever be traced, so it is said at once."""
    with pytest.raises(SpecError, match=r"--profile 20:22: the run has 20 steps"):
        provenance_of(SPEC, tiny_spec(), 20, (20, 22))


def test_the_journal_keeps_what_a_run_is_made_of(tmp_path: Path) -> None:
    """Versions, the steps to trace and the spec as it was written, in the run's own directory."""
    origin = provenance_of(SPEC, tiny_spec(), 20, (3, 5))
    recorded = journal.create_run(tmp_path, run_request(steps=20, **origin.fields)).journal
    run = recorded.run()
    assert run.environment == origin.environment
    assert run.profile == (3, 5)
    assert (recorded.paths.documents / "spec.yaml").read_bytes() == SPEC.read_bytes()
    first = json.loads((recorded.paths.events / "000001.json").read_text())
    assert first["submission"]["folder"] == str(SPEC.parent)

"""What a run is made of: versions that can be compared, code by its digest, no secrets."""

import io
import json
import stat
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import SpecError
from orchestrator.journal.files import UNCOMMITTED
from orchestrator.launch import provenance
from orchestrator.run.submit import _new_run
from orchestrator.tracking.mlflow.export import artifacts
from tests.conftest import ROOT
from tests.journals import run_request, tiny_plan, tiny_spec

SPEC = ROOT / "specs/tiny_2pod.yaml"
CANARY = "canary-7f3a91"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two files in a commit of its own."""
    for name in provenance._PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'"""{name}"""\n')
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.invalid")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(provenance, "_PROJECT", tmp_path)
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
    before = provenance.versions()["code"]
    (checkout / "trainers" / ".swap").write_text("x")
    (checkout / "trainers" / "a.pyc").write_text("x")
    (checkout / "trainers" / "__pycache__").mkdir(exist_ok=True)
    (checkout / "trainers" / "__pycache__" / "a.cpython-311.pyc.139").write_text("x")
    assert provenance.versions()["code"] == before
    (checkout / "trainers" / "__init__.py").write_text('"""another"""\n')
    assert provenance.versions()["code"] != before


def test_a_clean_checkout_is_its_commit_alone(checkout: Path) -> None:
    """Nothing is kept beside the commit when nothing differs from it."""
    origin = _new_run(SPEC, tiny_spec(), tiny_plan(), 20)
    assert len(origin.environment["git_commit"]) == 40
    assert "git_uncommitted" not in origin.environment
    assert origin.documents.keys() == {"spec.yaml"}
    assert provenance.commit()
    assert checkout.is_dir()


def test_what_is_not_committed_is_kept_only_on_request(checkout: Path) -> None:
    """The run always says that there was something. On request it has the diff as it is and the
    names of new files.
    """
    (checkout / "trainers" / "__init__.py").write_text(f'TOKEN = "{CANARY}"\n')
    (checkout / "trainers" / "mine.py").write_text("")
    usual = _new_run(SPEC, tiny_spec(), tiny_plan(), 20)
    assert usual.environment["git_uncommitted"] == "uncommitted changes"
    assert usual.documents.keys() == {"spec.yaml"}
    spec = tiny_spec()
    spec = replace(spec, run=replace(spec.run, record_diff=True))
    asked = _new_run(SPEC, spec, tiny_plan(), 20)
    assert asked.environment["git_uncommitted"] == f"documents/{UNCOMMITTED}"
    text = asked.documents[UNCOMMITTED].decode()
    assert f'+TOKEN = "{CANARY}"' in text
    assert "?? trainers/mine.py" in text


def test_a_diff_is_for_its_owner_only_and_is_not_sent(tmp_path: Path) -> None:
    """Whatever the umask lets others read of the run; no tracker gets it."""
    documents = {"spec.yaml": b"name: x\n", UNCOMMITTED: b"+secret\n"}
    run = journal.create_run(tmp_path, run_request(documents=documents), "it").journal
    assert stat.S_IMODE((run.paths.documents / UNCOMMITTED).stat().st_mode) == 0o600
    sent = artifacts(run, run.run())
    assert "documents/spec.yaml" in sent
    assert f"documents/{UNCOMMITTED}" not in sent


def test_the_spec_is_kept_without_the_values_of_its_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name of the variable stands in place of its value."""
    monkeypatch.setenv("HF_TOKEN", CANARY)
    text = provenance.without_secrets(f"token: {CANARY}\n".encode(), ["HF_TOKEN"])
    assert text == b"token: <HF_TOKEN>\n"


def test_an_installation_in_somebody_elses_checkout_has_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment inside a repository that ignores it is not of that commit."""
    inside = checkout / "venv"
    inside.mkdir()
    monkeypatch.setattr(provenance, "_PROJECT", inside)
    assert provenance.commit() == {}


def test_a_range_after_the_last_step_is_refused() -> None:
    """Nothing would ever be traced, so it is said at once."""
    with pytest.raises(SpecError, match=r"--profile 20:22: the run has 20 steps"):
        _new_run(SPEC, tiny_spec(), tiny_plan(), 20, (20, 22))


def test_the_journal_keeps_what_a_run_is_made_of(tmp_path: Path) -> None:
    """Versions, the steps to trace and the spec as it was written, in the run's own directory."""
    origin = _new_run(SPEC, tiny_spec(), tiny_plan(), 20, (3, 5))
    recorded = journal.create_run(tmp_path, origin).journal
    run = recorded.run()
    assert run.environment == origin.environment
    assert run.profile == (3, 5)
    assert (recorded.paths.documents / "spec.yaml").read_bytes() == SPEC.read_bytes()
    first = json.loads((recorded.paths.events / "000001.json").read_text())
    assert first["submission"]["folder"] == str(SPEC.parent)


@pytest.fixture
def with_notes(checkout: Path) -> Path:
    """The checkout with another folder, and a private file that git ignores."""
    (checkout / "notes").mkdir()
    (checkout / "notes" / "__init__.py").write_text("first = 1\n")
    (checkout / ".gitignore").write_text("local_settings.py\n")
    git = ("git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b.invalid")
    for arguments in (["add", "."], ["commit", "-q", "-m", "second"]):
        subprocess.run([*git, *arguments], check=True)
    return checkout


def names_of(archive: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(archive)).namelist())


def test_the_diff_is_of_the_project_alone(with_notes: Path) -> None:
    """A changed note in the same checkout is not part of its run."""
    (with_notes / "notes" / "__init__.py").write_text("canary\n")
    (with_notes / "trainers" / "__init__.py").write_text("x = 1\n")
    text = provenance.uncommitted().decode()
    assert "trainers/__init__.py" in text
    assert "canary" not in text


def test_a_long_diff_is_cut(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so itself."""
    monkeypatch.setattr(provenance, "_MOST_DIFF_BYTES", 1000)
    (checkout / "trainers" / "__init__.py").write_text("x = 1\n" * 1000)
    assert len(provenance.uncommitted()) < 1100
    assert b"(cut: 1,000 of" in provenance.uncommitted()


def test_the_archive_follows_no_link(
    with_notes: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither to a file nor to a folder; nor does it take what git ignores."""
    private = tmp_path_factory.mktemp("private")
    (private / "secret.py").write_text("canary")
    (with_notes / "trainers" / "linked").symlink_to(private)
    (with_notes / "trainers" / "linked.py").symlink_to(private / "secret.py")
    (with_notes / "trainers" / "local_settings.py").write_text("canary")
    (with_notes / "pyproject.toml").symlink_to(private / "secret.py")
    (with_notes / "trainers" / "new.py").write_text("x = 1\n")
    archive = provenance.archive()
    own = {"orchestrator/__init__.py", "trainers/__init__.py", "trainers/new.py"}
    assert names_of(archive) == own
    assert b"canary" not in archive


def test_the_archive_has_what_pages_are_made_of(checkout: Path) -> None:
    """A checkout has a link to them, a wheel a folder; neither changes which code it is."""
    code = provenance.versions()["code"]
    (checkout / "dashboards").mkdir()
    (checkout / "dashboards" / "run.html").write_text("<p>")
    link = checkout / "orchestrator" / "dashboards"
    link.symlink_to("../dashboards")
    assert "orchestrator/dashboards/run.html" in names_of(provenance.archive())
    link.unlink()
    (checkout / "dashboards").rename(link)
    assert "orchestrator/dashboards/run.html" in names_of(provenance.archive())
    assert provenance.versions()["code"] == code


def test_an_archive_that_is_too_large_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the largest file."""
    monkeypatch.setattr(provenance, "_MOST_CODE_BYTES", 1000)
    (checkout / "trainers" / "weights.py").write_text("x" * 2000)
    with pytest.raises(provenance.TooMuchCode, match=r"trainers/weights\.py"):
        provenance.archive()

"""Doctor: what this machine can do, said truly; completion for shells."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from orchestrator.launch.hosts import backend
from orchestrator.run import doctor
from orchestrator.run.cluster import refusal_note
from orchestrator.show import machine_screens as render
from orchestrator.values.run import Finding, HealthReport
from tests.conftest import RunOrch
from tests.journals import claimed_run, step, tiny_plan
from tests.reports import finished_run

TINY = "specs/tiny_2pod.yaml"


def test_doctor_finds_this_machine_fit(orch: RunOrch, tmp_path: Path) -> None:
    """Where the tests run, all that most commands need is there; each line says what was found."""
    done = orch("doctor", "--storage", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "jax 0.10.2" in done.stdout
    assert str(tmp_path) in done.stdout
    assert "BROKEN" not in done.stdout
    assert done.stdout.splitlines()[-1] == "Next: orch submit specs/tiny_2pod.yaml"


def test_doctor_speaks_json(orch: RunOrch) -> None:
    """The same findings, for a script."""
    findings = json.loads(orch("doctor", "--json").stdout)["findings"]
    assert {"python", "packages", "devices", "runs"} <= {finding["name"] for finding in findings}
    assert all(finding["health"] == "good" or finding["advice"] for finding in findings)


def test_a_folder_that_takes_no_file_is_broken(
    orch: RunOrch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with what to set instead, and the exit code is 1. Nobody can write in /proc."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where no cluster refused anything yet
    done = orch("doctor", "--storage", "/proc/runs")
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
    assert "run.storage of the spec" in done.stdout
    assert "1 of 11 checks failed" in done.stdout


def test_servers_that_are_named_and_silent_are_broken(
    orch: RunOrch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster and a tracking server; otherwise the file of records is named."""
    done = orch("doctor", "--storage", str(tmp_path))
    assert f"recorded in {tmp_path}" in " ".join(done.stdout.split())
    nobody = "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", nobody)
    done = orch("doctor", "--storage", str(tmp_path), "--address", nobody)
    assert done.returncode == 1
    assert f"nothing answers at {nobody}" in done.stdout
    assert f"{nobody}: nothing answers on port 9" in done.stdout
    assert "orch sync" in done.stdout


def test_devices_that_jax_cannot_open_are_told_in_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The child's last line, and how to do without them."""
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    finding = doctor._devices()
    assert finding.health == "broken"
    assert "no_such_platform" in finding.detail
    assert finding.advice is not None
    assert "JAX_PLATFORMS=cpu" in finding.advice


def test_another_version_than_pinned_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """orch leans on how just these versions behave."""
    monkeypatch.setattr(doctor, "_installed_version", lambda name: None if name == "ray" else "0.1")
    [*_, finding] = doctor._software()
    assert finding.health == "broken"
    assert "ray" not in finding.detail
    assert "jax 0.1, not 0.10.2" in finding.detail


@pytest.mark.parametrize(
    ("system", "advice"), [("Linux", "pip install 'orch[prove]"), ("Darwin", "prove on Linux")]
)
def test_without_a_compiler_proofs_are_limited(
    monkeypatch: pytest.MonkeyPatch, system: str, advice: str
) -> None:
    """Where it exists it can be installed; elsewhere a plan runs without a proof."""
    monkeypatch.setattr(doctor, "_installed_version", lambda _: None)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert doctor._compiler().health == "limited"
    assert (doctor._compiler().advice or "").startswith(advice)


def test_too_little_memory_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof of thousands of chips would be killed."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    assert doctor.memory().health == "limited"


def test_advice_stands_under_what_it_is_for() -> None:
    """And the verdict counts."""
    findings = (
        Finding(name="disk", health="good", detail="9 GiB"),
        Finding(name="libtpu", health="limited", detail="none", advice="elsewhere"),
    )
    lines = render.doctor_screen(HealthReport(findings=findings)).splitlines()
    assert lines[3].split() == ["LIMITED", "libtpu", "none"]
    assert lines[4].strip() == "elsewhere"
    assert "with 1 limit" in lines[6]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_for_this_command(orch: RunOrch, shell: str) -> None:
    """What is printed asks orch for words."""
    assert "_ORCH_COMPLETE" in orch("completion", shell).stdout


def test_commands_and_runs_are_completed(tmp_path: Path) -> None:
    """A run by its key, from the folder at hand."""
    claimed_run(tmp_path / "runs", key="tiny-2pod-1")

    def completed(*words: str) -> str:
        environment = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        return subprocess.run(
            [Path(sys.executable).with_name("orch")],
            env={**os.environ, "_ORCH_COMPLETE": "bash_complete", **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert completed("orch", "doc") == "plain,doctor"
    assert completed("orch", "status", "ti") == "plain,tiny-2pod-1"
    assert completed("orch", "status", "other") == ""


def test_what_a_cluster_refused_is_repeated_until_it_refuses_nothing(
    orch: RunOrch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names the slices that are missing, and the command that repeats it."""
    monkeypatch.setattr(backend, "_ANSWER_LIMIT_S", 0.0)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    settings = ("--set", "cluster.backend=hosts", "--set", f"run.storage={tmp_path}")
    asked = ("submit", TINY, *settings, "--address", str(meeting), "--code", "installed", "--yes")
    refused = orch(*asked)
    assert "it lacks 2 slices of v5e 2x2" in refused.stderr
    next_command = f"orch doctor --address {meeting}"
    assert refused.stderr.splitlines()[-1] == f"Next: {next_command}"
    monkeypatch.setattr(doctor, "_devices", lambda: doctor._good("devices", "none"))
    found = {each.name: each for each in doctor.doctor(tmp_path, address=str(meeting)).findings}
    assert found["cluster"].health == "good"
    assert found["refusal"].health == "limited"
    assert "it lacks 2 slices of v5e 2x2" in found["refusal"].detail
    refusal_note().unlink()
    assert "refusal" not in {each.name for each in doctor.doctor(tmp_path).findings}


def test_steps_that_are_as_written_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sum says it all: a million steps take a second, and not five."""
    run = finished_run(tmp_path, "it", plan=tiny_plan(), steps=[step(n) for n in range(5)]).journal
    path = run.paths.steps(1)
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "read_table", None)
        assert doctor.doctor_run("it", tmp_path).findings == ()
    path.write_bytes(path.read_bytes().replace(b'"index":3', b'"index":4'))
    [found] = doctor.doctor_run("it", tmp_path).findings
    assert found.kind == "steps"

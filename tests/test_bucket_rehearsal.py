"""A whole run on a bucket whose server fails: real processes train it, other machines read it."""

import json
from pathlib import Path

import pytest

from tests.bucket_server import BROKEN, LOST, THROTTLED, BucketServer
from tests.conftest import RunOrch

pytestmark = pytest.mark.slow

STEPS = 6


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_rehearsal_trains_and_is_read_elsewhere(
    scheme: str,
    bucket_server: BucketServer,
    orch_process: RunOrch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every twentieth request is lost on its way back, throttled or refused."""
    seen: list[None] = []

    def fault(_method: str, _name: str) -> str | None:
        seen.append(None)
        return [LOST, THROTTLED, BROKEN][len(seen) // 20 % 3] if len(seen) % 20 == 0 else None

    bucket_server.fault = fault
    storage = f"{scheme}://bucket/team/runs"
    sets = ("--set", "cluster.backend=hosts", "--set", f"run.storage={storage}")
    quick = ("--no-prove", "--no-calibrate", "--steps", str(STEPS), "--key", "first", "--json")
    done = orch_process("submit", "specs/tiny_2pod.yaml", *sets, *quick, timeout_s=300)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["state"], run["steps_done"], run["problems"]) == ("succeeded", STEPS, [])
    assert bucket_server.faults > 10
    steps = {name for name in bucket_server.names() if name.endswith("/manifest.json")}
    assert any(f"checkpoints/{STEPS}-claim-2-attempt-" in name for name in steps)
    monkeypatch.setenv("ORCH_BUCKETS", str(tmp_path / "another machine"))
    there = json.loads(orch_process("status", "first", "--storage", storage, "--json").stdout)
    assert (there["state"], there["steps_done"]) == ("succeeded", STEPS)
    assert there["journal"] == f"{storage}/first"
    logs = orch_process("logs", "first", "--storage", storage, "--rank", "0").stdout
    assert f"step {STEPS}" in logs or "step 1:" in logs
    report = json.loads(orch_process("report", "first", "--storage", storage, "--json").stdout)
    assert report["run"] == "first"
    assert "bucket/team/runs/first/report.html" in bucket_server.names()
    weights = tmp_path / "weights"
    done = orch_process("export", "huggingface", "first", str(weights), "--storage", storage)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in weights.iterdir()) == ["config.json", "model.safetensors"]
    assert orch_process("rm", "first", "--storage", storage, "--yes").returncode == 0
    assert not [name for name in bucket_server.names() if "/first/" in name]

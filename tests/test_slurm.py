"""The script for Slurm: what it asks for, and that its processes train, with a srun of the test."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import orchestrator as api
from orchestrator import journal
from orchestrator.errors import SpecError
from orchestrator.values.run import Run
from tests.conftest import ROOT, RunOrch

SPEC = ROOT / "specs/tiny_2pod.yaml"
STEPS = 1000
ON_H100 = ["resources.chip=h100", "resources.topology=2", "run.trainer=mlp"]
# Starts the last argument once for each task, as on nodes with emulated devices.
SRUN = """#!/bin/bash
trap 'kill $(jobs -p)' TERM
for task in $(seq 0 $((TASKS - 1))); do
  SLURM_PROCID=$task bash -c "${@: -1} --emulate 2" &
done
wait
"""


def directives(script: str) -> dict[str, str]:
    lines = [line.split(" ", 1)[1] for line in script.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    ("chip", "topology", "pods", "asked"),
    [
        ("h100", "8", 4, {"--nodes": "4", "--gpus-per-node": "8", "--mem": "0"}),
        ("gb300", "64", 2, {"--nodes": "32", "--gpus-per-node": "4", "--segment": "16"}),
    ],
)
def test_the_script_asks_for_the_nodes_of_the_plan(
    chip: str, topology: str, pods: int, asked: dict[str, str]
) -> None:
    """Nodes that share an NVLink domain are a segment; a node by itself is none."""
    sizes = ["experiment.batch.sequences=256", "experiment.tokens=1B"]
    where = [f"resources.chip={chip}", f"resources.topology={topology}", f"resources.pods={pods}"]
    script = api.export_slurm(SPEC, [*where, *sizes])
    found = directives(script)
    assert asked.items() <= found.items()
    assert ("--segment" in found) == ("--segment" in asked)
    assert f'--kind "{chip} {topology}"' in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_file_of_a_chip_is_in_the_script(tmp_path: Path) -> None:
    """What the script writes is the same spec: its part before srun is carried out here."""
    chip = (ROOT / "orchestrator/catalog/chips/h100.toml").read_text(encoding="utf-8")
    (tmp_path / "my-h100.toml").write_text(chip)
    where = [f"resources.chip={{file: {tmp_path}/my-h100.toml}}", "resources.topology=8"]
    script = api.export_slurm(SPEC, where).partition("# A host on each node")[0]
    script = script.replace("trap", "#")
    own = {**os.environ, "SLURM_JOB_ID": "1"}
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=own, check=True)
    [spec] = tmp_path.glob("tiny-2pod-*.yaml")
    assert api.load(spec).resources == api.load(SPEC, where).resources


def test_tpus_are_refused_with_what_runs_them(orch: RunOrch) -> None:
    with pytest.raises(
        SpecError, match="is a TPU, and Slurm has nodes of GPUs: orch export jobset"
    ):
        api.export_slurm(SPEC)
    assert orch("export", "slurm", str(SPEC)).returncode == 2


@pytest.mark.slow
def test_a_run_goes_on_after_the_limit_of_time_where_its_script_is_submitted_again(
    tmp_path: Path,
) -> None:
    """Slurm's signal reaches the script alone. The next job goes on, and another finds it done."""
    batch = api.load(SPEC).experiment.batch
    tokens = f"experiment.tokens={STEPS * batch.sequences * batch.length}"
    rare = f"run.checkpoint.every={STEPS}"  # the signal alone writes one before the end
    script = api.export_slurm(SPEC, [*ON_H100, tokens, rare, f"run.storage={tmp_path / 'runs'}"])
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def job(number: int) -> subprocess.Popen[str]:
        own = {**os.environ, "PATH": path, "SLURM_JOB_ID": str(number), "TASKS": "2"}
        return subprocess.Popen(
            ["bash", "-c", script], env={**own, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def runs() -> list[Run]:
        return [each.run() for each in journal.list_journals(tmp_path / "runs")]

    first = job(1)
    try:
        while not any(run.steps_done for run in runs()):
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.1)
    finally:
        first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=300)[0]
    [run] = runs()
    assert (run.state, first.returncode) == ("cancelled", 4), said
    assert 0 < run.steps_done < STEPS
    for number in (2, 3):
        later = job(number)
        said = later.communicate(timeout=300)[0]
        assert later.returncode == 0, said
        assert number > 2 or f"{run.steps_done} steps restored" in said
        assert [(each.state, each.steps_done) for each in runs()] == [("succeeded", STEPS)]
    assert f"already exists: succeeded, {STEPS:,} of {STEPS:,} steps done" in said
    script = script.replace("peak_lr: 0.003", "peak_lr: 0.03")  # a changed spec is another run
    other = job(4)
    said = other.communicate(timeout=300)[0]
    assert other.returncode == 2, said
    assert "with another plan: choose another --key, or go on with the plan that it has" in said
    assert not list(tmp_path.glob("*.yaml"))

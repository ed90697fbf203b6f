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
        ("h100", "8", 4, {"--nodes": "4", "--gpus-per-node": "8"}),
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
    assert (run.state, first.returncode) == ("cancelled", 130), said
    assert 0 < run.steps_done < STEPS
    for number, code in ((2, 0), (3, 1)):
        later = job(number)
        said = later.communicate(timeout=300)[0]
        assert later.returncode == code, said
        assert number > 2 or f"{run.steps_done} steps restored" in said
        assert [(each.state, each.steps_done) for each in runs()] == [("succeeded", STEPS)]
    assert f"has succeeded: all its {STEPS:,} steps are done" in said
    assert not list(tmp_path.glob("*.yaml"))

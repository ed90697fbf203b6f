"""`python -m trainers`: a run on this machine, stopped, killed, continued, refused."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.proving.measured import measure
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.profile import PROGRAM, TRACE, TraceNote
from tests.chaos.train_campaign import (
    TrainedPlan,
    Violation,
    campaign,
    check_attempts,
    losses_and_norms,
    output_of,
    wait_for_steps,
)
from tests.conftest import ROOT
from tests.trainer_plans import plan_of
from trainers.__main__ import main


@pytest.mark.slow
def test_kills_and_a_stop_leave_no_trace(tmp_path: Path) -> None:
    """Killed at random steps, then stopped, then finished: every bit is the undisturbed's."""
    chance = random.Random(0)
    course = TrainedPlan(tmp_path, plan_of(data=2, fsdp=2), steps=200)
    assert len(campaign(course, 2, chance)) == 2

    with course.begin("stopped") as process:
        wait_for_steps(course, "stopped", process, chance)
        process.send_signal(signal.SIGTERM)
        text = output_of(process)
    done = course.attempts("stopped")[0][-1].index + 1
    assert f"stopped on request after {done} steps" in text
    assert 0 < done < 200
    text = course.finish("stopped")
    assert text.startswith("test: rehearsal of 4 x v5p on 4 x emulated devices, plan 00000000\n")
    assert f"continued after {done} steps: compiled in " in text
    assert "finished after 200 steps, saved in " in text
    undisturbed = dict(losses_and_norms(course.attempts("undisturbed")))
    check_attempts(course, "stopped", undisturbed)

    with pytest.raises(Violation, match="step 3 gave"):
        check_attempts(course, "stopped", undisturbed | {3: (0.0, 0.0)})


def test_a_spec_is_planned_first(tmp_path: Path) -> None:
    """What stands in specs/ can be run as it is; the exit code shows a loss that is too high."""
    command = [sys.executable, "-m", "trainers", "specs/tiny_2pod.yaml", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, "--emulate", "--steps", "2", "--profile", "1:2", "--loss-below", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    first, *_, end, loss_line = done.stdout.splitlines()
    assert first.startswith("tiny-2pod: rehearsal of 8 x v5e on 8 x emulated devices, plan ")
    assert end == f"finished after 2 steps, saved in {tmp_path / 'run' / 'checkpoints'}"
    assert loss_line.startswith("mean loss of the last 2 steps ")
    assert done.returncode == 1
    # The trace of the step names nearly all of its seconds after lines of the ledger.
    [trace] = (tmp_path / "run").rglob("*.xplane.pb")
    at = tmp_path / "run" / "profile" / "steps-1-2" / "rank-0"
    plan = codec.from_json((tmp_path / "run" / "plan.json").read_bytes(), Plan)
    note = codec.from_json((at / TRACE).read_bytes(), TraceNote)
    found = measure(trace.read_bytes(), trace.name, note, plan, (at / PROGRAM).read_bytes())
    assert (note.platform, found.steps, found.devices) == ("cpu", 1, plan.devices)
    named = {line.kind: line.total_s for line in found.ledger}
    assert named["matmul"] > 0
    assert named["weight_gather"] > 0
    assert named["other"] < 0.2 * found.step_s
    assert sum(named.values()) == pytest.approx(found.step_s, rel=1e-6)
    assert ("all-reduce", ("pods",)) in {(sent.kind, sent.axes) for sent in found.collectives}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.json", "run"], "nowhere.json: not a plan: "),
        (["bad.json", "run"], "bad.json: not a plan: "),
        (["nowhere.yaml", "run"], "nowhere.yaml: no plan:"),
        (["plan.json", "run", "--trainer", "lama"], "unknown trainer 'lama'; known: "),
        (["plan.json", "run", "--profile", "x"], "--profile is 'x', against A:B, as in 10:13"),
        (["plan.json", "run"], "the plan is for 4 devices, here are 16"),
    ],
)
def test_what_cannot_be_run_is_refused(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and the reason, never a traceback."""
    (tmp_path / "bad.json").write_text('{"schema": 1}')
    (tmp_path / "plan.json").write_bytes(codec.to_json(plan_of(data=4)))
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err

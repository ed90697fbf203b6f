"""A run in stages on a real Ray cluster of emulated slices: killed inside a stage, and whole."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.values.spec import Batch, Pods, Spec, TrainingStage
from tests.chaos.faults import emulated, losses, small_spec

STAGES = (
    TrainingStage(tokens=10 * 24 * 64, batch=Batch(sequences=24, length=64)),
    TrainingStage(tokens=20 * 4 * 128, batch=Batch(sequences=4, length=128)),
)


def staged() -> Spec:
    """Ten steps, and twenty with longer sequences on another mesh."""
    spec = small_spec(Pods(min=2, max=2), topology="2x2", hang_limit_s=120.0)
    experiment = replace(
        spec.experiment,
        tokens=sum(stage.tokens for stage in STAGES),
        batch=STAGES[0].batch,
        stages=STAGES,
    )
    return replace(spec, experiment=experiment)


@pytest.mark.slow
def test_a_rank_is_killed_in_the_second_stage(tmp_path: Path) -> None:
    """The next attempt begins in that stage, and every loss is that of a run without the kill."""
    with emulated(staged(), tmp_path / "faulty", steps=30) as run:
        run.until_step(1, 16)
        run.signal_rank(1, 1, signal.SIGKILL)
        ended = run.to_the_end()
    assert (ended.state, ended.problems, ended.steps_done) == ("succeeded", (), 30)
    killed, after = ended.attempts
    assert (killed.reason, after.reason) == ("failure", "finished")
    assert after.restored_steps >= 10
    plan = run.recorded.plan(after.plan_digest)
    assert plan.stages[0].mesh != plan.stages[1].mesh
    begun = [step.step.index for step in run.recorded.steps(ended) if step.step.startup]
    assert begun == [0, 10, after.restored_steps]
    with emulated(staged(), tmp_path / "whole", steps=30) as undisturbed:
        undisturbed.to_the_end()
    assert losses(run.recorded) == losses(undisturbed.recorded)

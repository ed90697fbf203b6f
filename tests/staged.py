"""Plans and specs in stages, for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.planning.planner import make_plan
from orchestrator.reading.load import load
from orchestrator.values.plan import Plan, StageSpan
from orchestrator.values.spec import Optimizer, Spec
from tests.trainer_plans import plan_of

STAGED = """\
name: staged
experiment:
  model: llama-tiny
  stages:
    - {tokens: 40960, batch: 32, length: 128}
    - {tokens: 81920, batch: 4, length: 1024}
    - {tokens: 40960, optimizer: {decay: linear, end_lr: 0}}
  optimizer: {peak_lr: 3e-3, warmup_steps: 4}
resources: {chip: v5e, topology: 2x2, pods: {min: 1, max: 2}}
"""
# Stages of a toy run: steps, sequences, length, mesh, rate.
TOY_STAGES = (
    (5, 16, 32, {"data": 4, "fsdp": 4}, 30.0),
    (6, 4, 64, {"data": 4, "tensor": 4}, 20.0),
    (4, 8, 64, {"data": 8, "tensor": 2}, 10.0),
)
TOY_STEPS = sum(steps for steps, *_ in TOY_STAGES)


def staged_spec(folder: Path, text: str = STAGED) -> Spec:
    path = folder / "staged.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def staged_plan(folder: Path, text: str = STAGED) -> Plan:
    return make_plan(staged_spec(folder, text))


def toy_stages() -> Plan:
    """A plan of three stages on sixteen devices, each with a batch and a mesh of its own."""
    stages: list[Plan] = []
    for number, (steps, sequences, length, mesh, rate) in enumerate(TOY_STAGES, start=1):
        first = stages[-1].end_step if stages else 0
        span = StageSpan(
            number=number,
            of=len(TOY_STAGES),
            first_step=first,
            steps=steps,
            schedule_first_step=0,
            schedule_steps=TOY_STEPS,
            first_token=sum(stage.total_steps * stage.batch.tokens for stage in stages),
        )
        plan = plan_of(sequences=sequences, length=length, **dict[str, Any](mesh))
        plan = replace(plan, trainer="tests.toy", optimizer=Optimizer(peak_lr=rate))
        stages.append(replace(plan, stage=span, digest=f"{number}" * 64))
    tokens = sum(stage.total_steps * stage.batch.tokens for stage in stages)
    return replace(stages[0], stage=None, stages=tuple(stages), tokens=tokens, digest="9" * 64)

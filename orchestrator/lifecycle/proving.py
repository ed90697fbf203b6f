"""Proofs of plans, with their progress."""

from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.lifecycle.progress import Progress, silent, task
from orchestrator.plan.stages import stage_specs
from orchestrator.prove.verdict import ProofResult, least_recompute, prove
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

TASK = "proving"


def prove_plan(
    spec: Spec, plan: Plan, progress: Progress | None = None, hlo: Path | None = None
) -> ProofResult:
    """The compiler's verdict on a plan; `hlo` is a folder that keeps the program's text."""
    if hlo:
        _make_folder(hlo)
    stage = f" stage {plan.stage.number} of {plan.stage.of}" if plan.stage else ""
    with task(progress or silent, TASK + stage) as reached:
        return prove(spec, plan, reached, hlo)


def prove_each_stage(
    spec: Spec, plan: Plan, progress: Progress | None = None, hlo: Path | None = None
) -> list[ProofResult]:
    """The verdict on the plan of every stage; on the plan itself where it has none."""
    if not plan.stages:
        return [prove_plan(spec, plan, progress, hlo)]
    pairs = zip(stage_specs(spec), plan.stages, strict=True)
    return [prove_plan(one, stage, progress, hlo) for one, stage in pairs]


def prove_less_recompute(
    spec: Spec, plan: Plan, progress: Progress | None = None
) -> list[ProofResult]:
    """Verdicts on plans that recompute less, up to the first that fits."""
    with task(progress or silent, TASK) as reached:
        return least_recompute(spec, plan, reached)


def _make_folder(hlo: Path) -> None:
    try:
        hlo.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OrchError(f"--hlo: {hlo}: cannot be made: {error.strerror}") from error

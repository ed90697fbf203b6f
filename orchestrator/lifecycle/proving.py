"""Proofs of plans, with their progress."""

from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.lifecycle.progress import Progress, silent, task
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
    with task(progress or silent, TASK) as reached:
        return prove(spec, plan, reached, hlo)


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

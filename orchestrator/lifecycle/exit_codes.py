"""The exit codes of commands: how runs, studies and proofs stand."""

from orchestrator.errors import Interrupted, SpecError
from orchestrator.lifecycle.studies import Outcome
from orchestrator.lifecycle.submit import ProofFailed
from orchestrator.types.offers import Offers
from orchestrator.types.proof import Proof
from orchestrator.types.run import LIVE, Run
from orchestrator.types.scaling import ScalingForecast
from orchestrator.types.sweep import SweepForecast

OF_STUDY: dict[Outcome, int] = {
    "succeeded": 0,
    "failed": 1,
    "infeasible": SpecError.exit_code,
    "stopped": Interrupted.exit_code,
}


def of_run(run: Run, *, left: bool, detached: bool = False) -> int:
    """A live run is a success, unless an interrupt ended the following. One that was only submitted
    has no driver yet.
    """
    if detached:
        return 0
    if left or run.state == "cancelled":
        return Interrupted.exit_code
    return 0 if run.state in LIVE or run.state == "succeeded" else 1


def of_proofs(*proofs: Proof) -> int:
    return 0 if all(proof.passes for proof in proofs) else ProofFailed.exit_code


def of_forecast(study: ScalingForecast | SweepForecast) -> int:
    """Whether every trial has a plan."""
    return SpecError.exit_code if any(one.infeasible for one in study.trials) else 0


def of_offers(offers: Offers) -> int:
    """Whether any offer has a plan."""
    return 0 if any(one.days for one in offers.offers) else SpecError.exit_code

"""what the page of a run is made from."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.report import Report
from orchestrator.types.run import Run, TimedStep


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """What the page of a run shows. `plan` is the one that ran; `rehearsed` what it is a small copy
    of, and `proof` is of that one, or of `plan` where there is none.
    """

    run: Run
    report: Report
    plan: Plan
    rehearsed: Plan | None
    proof: Proof | None
    steps: Sequence[TimedStep]

    @property
    def full(self) -> Plan:
        """The plan for chips."""
        return self.rehearsed or self.plan

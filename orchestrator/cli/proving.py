"""Command line room: the command that asks the compiler."""

from typing import TYPE_CHECKING

from orchestrator.cli.display import Display
from orchestrator.cli.terminal import say
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

if TYPE_CHECKING:
    from orchestrator.prove.verdict import ProofResult

NO_FIT = 3


def proved(spec: Spec, plan: Plan) -> "ProofResult":
    """The proof of a plan, with progress on the standard error stream while it compiles."""
    from orchestrator.lifecycle.proving import prove_plan

    return prove_plan(spec, plan, Display())


def show(proven: "ProofResult", following: str | None) -> None:
    from orchestrator.render import proof_screen as render

    say(render.proof_screen(proven.plan, proven.proof, proven.age_s, following))

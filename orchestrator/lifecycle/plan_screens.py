"""The screens of plans and of offers, with the commands that follow from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.prove.proof_folder import has_plan
from orchestrator.render.plan_screen import plan_screen
from orchestrator.render.screen_parts import Detail
from orchestrator.types.plan import Plan

if TYPE_CHECKING:
    from orchestrator.types.offers import DeadlineOdds, Offers


def plans_screen(
    plans: Sequence[Plan],
    next_command: str,
    detail: Detail = "usual",
    odds: "DeadlineOdds | None" = None,
) -> str:
    """The first plan with its proof, if that is known, then what runners-up lose. `odds` are those
    of the spec's deadline.
    """
    if plans[0].stages:
        from orchestrator.render.stages_screen import stages_screen  # noqa: PLC0415  few have any

        known = [text for one in plans[0].stages if (text := _known_proof(one))]
        return stages_screen(plans[0], next_command, known, detail, odds)
    return plan_screen(plans[0], next_command, _known_proof(plans[0]), plans[1:], detail, odds)


def _known_proof(plan: Plan) -> str:
    if not has_plan(plan):
        return ""
    from orchestrator.prove.verdict import cached  # noqa: PLC0415  most plans have no proof
    from orchestrator.render.proof_screen import proof_summary  # noqa: PLC0415

    known = cached(plan)
    return proof_summary(known.proof, known.age_s or 0.0) if known else ""


def offers_for_spec_screen(
    found: "Offers", spec: Path, overrides: Sequence[str], detail: Detail
) -> str:
    """The offers for a spec; the next command plans the one that is proposed."""
    from orchestrator.render.next_commands import offer_command  # noqa: PLC0415  plans have none
    from orchestrator.render.offers_screen import offers_screen, to_take  # noqa: PLC0415

    chosen = to_take(found)
    following = offer_command(spec, overrides, chosen.overrides) if chosen else None
    return offers_screen(found, following, detail)

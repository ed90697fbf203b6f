"""Command line room: the command that asks the compiler."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.terminal import (
    JSON,
    SET,
    SPEC,
    interruptible,
    make_plans,
    next_command,
    progress,
    say,
    say_json,
)
from orchestrator.errors import OrchError
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

if TYPE_CHECKING:
    from orchestrator.prove.verdict import ProofResult

NO_FIT = 3


@click.command()
@SPEC
@SET
@JSON
@click.option(
    "--hlo",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the compiled program's text in DIR; compiles even what is in the cache.",
)
@click.option(
    "--search-remat",
    is_flag=True,
    help="Also compile policies that compute less twice, until one fits.",
)
@interruptible("proving")
def prove(
    spec: Path, overrides: tuple[str, ...], as_json: bool, hlo: Path | None, search_remat: bool
) -> None:
    """Let the real TPU compiler judge the plan of SPEC. It needs no TPU.

    The trainer's own step is compiled for the plan's topology, and its memory, collectives and
    FLOPs are held against the forecast. A result is kept, and the same question answered at once.

    \b
    Exit status:
      0  the plan fits, and nothing but gradients crosses pods
      1  there is no verdict: no compiler here, or it failed
      2  the spec cannot be served
      3  the plan does not fit, or more than gradients crosses pods

    \b
    Example:
      orch prove specs/llama3_70b_4pod.yaml
      orch prove specs/llama3_70b_4pod.yaml --set experiment.remat=full --json
    """
    asked, (plan,) = make_plans(spec, overrides, 1)
    proven = proved(asked, plan, hlo)
    tried = least_recompute(asked, plan) if search_remat else []
    if as_json:
        say_json([proven.proof, *(one.proof for one in tried)] if tried else proven.proof)
    else:
        show(proven, next_command("submit", spec, overrides))
        show_tried(plan, tried, search_remat)
    if not proven.proof.passes:
        raise SystemExit(NO_FIT)


def proved(spec: Spec, plan: Plan, hlo: Path | None = None) -> "ProofResult":
    """The proof of a plan, with progress on the standard error stream while it compiles."""
    from orchestrator.prove import verdict

    if hlo:
        make_folder(hlo)
    with progress("proving") as show_stage:
        return verdict.prove(spec, plan, show_stage.reached, hlo)


def make_folder(hlo: Path) -> None:
    try:
        hlo.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OrchError(f"--hlo: {hlo}: cannot be made: {error.strerror}") from error


def least_recompute(spec: Spec, plan: Plan) -> "list[ProofResult]":
    from orchestrator.prove import verdict

    with progress("proving") as show_stage:
        return verdict.least_recompute(spec, plan, show_stage.reached)


def known_line(plan: Plan) -> str:
    """What an earlier proof of the plan said, as a line for its screen; empty without one."""
    from orchestrator.prove import verdict
    from orchestrator.render import proof_screen as render

    found = verdict.cached(plan)
    return render.proof_summary(found.proof, found.age_s or 0.0) if found else ""


def show(proven: "ProofResult", following: str | None) -> None:
    from orchestrator.render import proof_screen as render

    say(render.proof_screen(proven.plan, proven.proof, proven.age_s, following))


def show_tried(plan: Plan, tried: "list[ProofResult]", asked: bool) -> None:
    """The policies that were compiled beside the plan's own."""
    from orchestrator.render import proof_screen as render

    if tried:
        say("\n" + render.remat_screen([(one.plan, one.proof) for one in tried]))
    elif asked:
        say(f"\nno plan on this mesh computes less twice than remat {plan.remat} and may fit\n")


COMMANDS = (prove,)

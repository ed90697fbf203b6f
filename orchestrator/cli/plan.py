"""The commands that need neither a chip nor a compiler: plan, explain, score."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

import orchestrator as orch
from orchestrator.cli.display import Display
from orchestrator.cli.terminal import JSON, SET, SPEC, echo, show
from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.render.next_commands import spec_command

if TYPE_CHECKING:
    from orchestrator.types.plan import Plan
    from orchestrator.types.spec import Spec

INFEASIBLE = 2


@click.command()
@SPEC
@click.argument("other", required=False, type=click.Path(path_type=Path, dir_okay=False))
@SET
@JSON
@click.option(
    "--alternatives", type=click.IntRange(0, 50), default=0, metavar="N",
    help="Also show N runners-up and what each one loses.",
)  # fmt: skip
@click.option(
    "--profile", metavar="DIGEST",
    help="Forecast with the rates that `orch calibrate` measured on these chips.",
)  # fmt: skip
@click.option("--by", metavar="WHEN", help="Offers that end within 30d or 6w, or by a date.")
@click.option("--budget", metavar="DOLLARS", help="Offers that cost at most 2M, or 500k.")
@click.option("--chips", metavar="NAMES", help="Offers of these chips: v5e,v6e,v5p,tpu7x.")
@click.option("--prices", metavar="KIND", help="on-demand, reserved, spot, or a file of yours.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Also write the offers as a page, with a picture.",
)  # fmt: skip
@interruptible("planning")
def plan(
    spec: Path, other: Path | None, overrides: tuple[str, ...], as_json: bool,
    alternatives: int, profile: str | None, html: Path | None, **wishes: str | None,
) -> None:  # fmt: skip
    """Find the fastest realizable plan of SPEC. It has memory, time and cost.

    With OTHER, compare both plans, line by line; --set then changes OTHER alone. With a study, plan
    every trial and show the predicted scaling; exit 2 if a trial has no plan.

    With --by, --budget, --chips or --prices, or with resources.topology: auto, show which slices to
    rent: days, dollars and odds of each.

    \b
    Example:
      orch plan specs/llama3_70b_4pod.yaml --set resources.pods=2 --alternatives 5
      orch plan specs/llama3_70b_1pod.yaml specs/llama3_70b_4pod.yaml
      orch plan specs/tiny_2pod.yaml specs/tiny_2pod.yaml --set resources.pods=4
      orch plan specs/studies/llama3_70b_pods.yaml
      orch plan my-h200.yaml --profile 3f9a1c07
      orch plan specs/llama3_70b_4pod.yaml --by 30d --budget 50M --chips v5p,tpu7x
    """
    is_study = orch.is_study(spec)
    options = {"--alternatives": alternatives, "--profile": profile, "--html": html}
    options |= {f"--{name}": value for name, value in wishes.items()}
    for option, given in options.items():
        if given and (other or is_study):
            raise click.UsageError(f"{option} goes with the plan of one spec")
    if other:
        show_diff(spec, other, overrides, as_json=as_json)
    elif is_study:
        show_study(spec, overrides, as_json=as_json)
    else:
        show_plan(
            spec, overrides, wishes, alternatives=alternatives, profile=profile, html=html,
            as_json=as_json,
        )  # fmt: skip


def show_plan(
    spec: Path, overrides: tuple[str, ...], wishes: dict[str, str | None], *, alternatives: int,
    profile: str | None, html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Show the plan of a spec, or offers: where they are asked for, or its slices are open."""
    from orchestrator.types.spec import AUTO_TOPOLOGY

    loaded = orch.load(spec, overrides)
    wished = html or any(value is not None for value in wishes.values())
    if wished or loaded.resources.topology == AUTO_TOPOLOGY:
        if alternatives or profile:
            raise click.UsageError("--alternatives and --profile go with the plan of chosen slices")
        show_offers(spec, loaded, wishes, html, as_json=as_json)
        return
    plans = orch.plans(loaded, 1 + alternatives, profile=profile)
    following = spec_command("explain", spec, overrides)
    found = plans if alternatives else plans[0]
    show(found, lambda: plans_screen(plans, following), as_json=as_json)


def show_offers(
    path: Path, spec: "Spec", wishes: dict[str, str | None], html: Path | None, *, as_json: bool
) -> None:
    from orchestrator.render.offers_screen import offers_screen, to_take

    by, budget, chips, prices = (wishes[name] for name in ("by", "budget", "chips", "prices"))
    found = orch.offers(spec, by=by, budget=budget, chips=chips, prices=prices)
    chosen = to_take(found)
    following = offer_command(path, spec.overrides, chosen.overrides) if chosen else None
    show(found, lambda: offers_screen(found, following), as_json=as_json)
    if html:
        echo(f"wrote {orch.write_offers(found, html)}", err=as_json)
    if not any(one.days for one in found.offers):
        raise SystemExit(INFEASIBLE)


def offer_command(spec: Path, overrides: tuple[str, ...], chosen: tuple[str, ...]) -> str:
    """The command that plans an offer, whose overrides take the place of those for other slices."""
    keys = {one.partition("=")[0] for one in chosen}
    others = [one for one in overrides if one.partition("=")[0] not in keys]
    return spec_command("plan", spec, (*others, *chosen))


def plans_screen(plans: "list[Plan]", following: str) -> str:
    from orchestrator.render.plan_screen import plan_screen

    compiled = ""
    if known := orch.known_proof(plans[0]):
        from orchestrator.render.proof_screen import proof_summary

        compiled = proof_summary(known.proof, known.age_s or 0.0)
    return plan_screen(plans[0], following, compiled, plans[1:])


def show_diff(first: Path, second: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    from orchestrator.render.plan_diff_screen import plan_diff_screen

    found = orch.diff(first, orch.load(second, overrides))
    following = spec_command("plan", second, overrides)
    show(found, lambda: plan_diff_screen(found, following), as_json=as_json)


def show_study(spec: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    from orchestrator.render.study_screen import study_screen

    found = orch.study(spec, overrides, progress=Display())
    infeasible = any(one.infeasible for one in found.trials)
    following = "" if infeasible else spec_command("submit", spec, overrides)
    show(found, lambda: study_screen(found, following), as_json=as_json)
    if infeasible:
        raise SystemExit(INFEASIBLE)


@click.command()
@SPEC
@SET
@JSON
@click.option(
    "--mfu", type=click.FloatRange(0, 1, min_open=True), default=0.4, show_default=True,
    metavar="FRACTION", help="Model FLOPs utilization to assume for days.",
)  # fmt: skip
@interruptible("working it out")
def explain(spec: Path, overrides: tuple[str, ...], as_json: bool, mfu: float) -> None:
    """Derive the figures of SPEC, formula by formula. Published figures are shown too.

    Example: orch explain specs/llama3_405b_8pod.yaml --mfu 0.45
    """
    from orchestrator.render.explain_screen import explain_screen

    found = orch.explain(spec, overrides, mfu=mfu)
    following = spec_command("plan", spec, overrides)
    show(found, lambda: explain_screen(found, following), as_json=as_json)


@click.command()
@click.argument(
    "runs", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[RUNS.csv]"
)
@click.option(
    "--without", type=click.Choice(["document", "group", "software"]),
    help="Learn anew without each document, source and chip, or software; score what was left out.",
)  # fmt: skip
@JSON
@interruptible("scoring")
def score(
    runs: Path | None, without: Literal["document", "group", "software"] | None, as_json: bool
) -> None:
    """Compare forecasts with published runs. Each run is planned as it ran.

    RUNS.csv has the columns of the project's own file, which is the default. A row that cannot be
    planned or converted is listed with its reason and counts in no figure.

    Example: orch score my-runs.csv --without document
    """
    from orchestrator.render.score_screen import score_screen

    found = orch.score(runs, without=without)
    following = "orch score" if without else "orch score --without document"
    show(found, lambda: score_screen(found, following), as_json=as_json)


COMMANDS = (plan, explain, score)

"""The commands that need no chip: plan, explain, prove, score."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

import orchestrator as orch
from orchestrator.cli.arguments import BRIEF, FILE, FULL, JSON, SET, SPEC
from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.render.display import Display
from orchestrator.render.next_commands import spec_command
from orchestrator.render.screen_parts import Detail
from orchestrator.render.terminal import echo, show

if TYPE_CHECKING:
    from orchestrator.types.spec import Spec


@click.command()
@SPEC
@click.argument("other", required=False, type=FILE)
@SET
@JSON
@BRIEF
@FULL
@click.option(
    "--alternatives", type=click.IntRange(0, 50), default=0, metavar="N",
    help="Also show N runners-up and what each one loses.",
)  # fmt: skip
@click.option("--profile", metavar="DIGEST", help="Forecast with rates that were measured.")
@click.option("--by", metavar="WHEN", help="Offers that end within 30d or 6w, or by a date.")
@click.option("--budget", metavar="DOLLARS", help="Offers that cost at most 2M, or 500k.")
@click.option("--chips", metavar="NAMES", help="Offers of these chips: v5e,v6e,v5p,tpu7x.")
@click.option("--prices", metavar="KIND", help="on-demand, reserved, spot, or a file of yours.")
@click.option("--html", type=FILE, metavar="FILE", help="Also write the offers as a page.")
@interruptible("planning")
def plan(
    spec: Path, other: Path | None, overrides: tuple[str, ...], as_json: bool,
    alternatives: int, profile: str | None, html: Path | None, detail: Detail | None,
    **wishes: str | None,
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
      orch plan specs/studies/llama3_70b_pods.yaml
      orch plan my-h200.yaml --profile 3f9a1c07
      orch plan specs/llama3_70b_4pod.yaml --by 30d --budget 50M --chips v5p,tpu7x
    """
    is_study = orch.is_study(spec)
    options = {"--alternatives": alternatives, "--profile": profile, "--html": html}
    options |= {f"--{name}": value for name, value in wishes.items()} | {f"--{detail}": detail}
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
            detail=detail or "usual", as_json=as_json,
        )  # fmt: skip


def show_plan(
    spec: Path, overrides: tuple[str, ...], wishes: dict[str, str | None], *, alternatives: int,
    profile: str | None, html: Path | None, detail: Detail, as_json: bool,
) -> None:  # fmt: skip
    """Show the plan of a spec, or offers: where they are asked for, or its slices are open."""
    from orchestrator.lifecycle.plan_screens import plans_screen
    from orchestrator.types.offers import PlanWithOdds

    loaded = orch.load(spec, overrides)
    wished = html or any(value is not None for value in wishes.values())
    if wished or loaded.resources.has_open_topology:
        if alternatives or profile:
            raise click.UsageError("--alternatives and --profile go with the plan of chosen slices")
        show_offers(spec, loaded, wishes, html, as_json=as_json)
        return
    if alternatives and loaded.experiment.stages:
        raise click.UsageError("--alternatives goes with the plan of a spec without stages")
    plans = orch.plans(loaded, 1 + alternatives, profile=profile)
    following = spec_command("explain", spec, overrides)
    odds = [orch.deadline_odds(loaded, one) for one in plans]
    values = [*map(PlanWithOdds.of, plans, odds)]
    found: object = values if alternatives else values[0]
    show(found, lambda: plans_screen(plans, following, detail, odds[0]), as_json=as_json)


def show_offers(
    path: Path, spec: "Spec", wishes: dict[str, str | None], html: Path | None, *, as_json: bool
) -> None:
    from orchestrator.lifecycle import exit_codes
    from orchestrator.lifecycle.plan_screens import wanted_offers_screen

    found = orch.offers(spec, (), **wishes)
    page = orch.write_offers(found, html) if html else None
    show(found, lambda: wanted_offers_screen(found, path, spec.overrides), as_json=as_json)
    if page:
        echo(f"wrote {page}", err=as_json)
    exit_codes.leave(exit_codes.of_offers(found))


def show_diff(first: Path, second: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    from orchestrator.render.plan_diff_screen import plan_diff_screen

    found = orch.diff(first, orch.load(second, overrides))
    following = spec_command("plan", second, overrides)
    show(found, lambda: plan_diff_screen(found, following), as_json=as_json)


def show_study(spec: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    from orchestrator.lifecycle import exit_codes
    from orchestrator.render.study_screens import forecast_screen

    found = orch.study(spec, overrides, progress=Display())
    code = exit_codes.of_forecast(found)
    following = "" if code else spec_command("submit", spec, overrides)
    show(found, lambda: forecast_screen(found, following), as_json=as_json)
    exit_codes.leave(code)


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
@SPEC
@click.argument("other", required=False, type=FILE)
@SET
@JSON
@BRIEF
@FULL
@click.option(
    "--trainer", metavar="NAME",
    help="Compile another trainer's program: package.module:build, for any JAX program.",
)  # fmt: skip
@click.option(
    "--hlo", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Keep the compiled program's text in DIR. Compiles even if a proof is cached.",
)  # fmt: skip
@click.option(
    "--html", type=FILE, metavar="FILE",
    help="Write a page: one layer's schedule in time, and a flame graph by line.",
)  # fmt: skip
@click.option("--search-remat", is_flag=True, help="Also compile policies that recompute less.")
@interruptible("proving")
def prove(
    spec: Path, other: Path | None, overrides: tuple[str, ...], as_json: bool, trainer: str | None,
    hlo: Path | None, html: Path | None, search_remat: bool, detail: Detail | None,
) -> None:  # fmt: skip
    """Check the plan of SPEC with the real TPU compiler. It needs no TPU.

    It compiles the trainer's own step for the plan's topology, compares memory, collectives and
    FLOPs with the forecast, and shows where the compiler's schedule loses time. The result is
    cached, so the same question is answered at once. With OTHER, both programs are shown side by
    side; --set and --trainer then change OTHER alone.

    \b
    Exit status:
      0  the plan fits, and only what is planned crosses pods
      1  there is no verdict: no compiler here, or it failed
      2  the spec has no plan
      3  the plan does not fit, or more than planned crosses pods

    \b
    Example:
      orch prove specs/llama3_70b_4pod.yaml --set experiment.remat=full
      orch prove SPEC SPEC --set experiment.compiler_options.NAME=true
      orch prove specs/tiny_2pod.yaml --trainer my_package.my_module:build
    """
    if trainer:
        overrides = (*overrides, f"run.trainer={trainer}")
    if other:
        if hlo or html or search_remat or detail:
            options = "--hlo, --html, --search-remat, --brief and --full"
            raise click.UsageError(f"{options} go with the proof of one spec")
        show_proof_diff(spec, other, overrides, as_json=as_json)
        return
    from orchestrator.lifecycle import exit_codes
    from orchestrator.render.proof_screen import proof_screens, stage_proof_screens

    display, loaded = Display(), orch.load(spec, overrides)
    if loaded.experiment.stages:
        if html or search_remat:
            raise click.UsageError("--html and --search-remat go with a spec without stages")
        stages = orch.prove_stages(loaded, hlo=hlo, progress=display)
        following = spec_command("submit", spec, overrides)
        stage_proofs = [one.proof for one in stages]
        show(stage_proofs, lambda: stage_proof_screens(stages, following), as_json=as_json)
        exit_codes.leave(exit_codes.of_proofs(*stage_proofs))
    found = orch.prove(loaded, hlo=hlo, progress=display)
    others = orch.prove_less_recompute(loaded, progress=display) if search_remat else None
    if html:
        orch.write_schedule(found, html)
    proofs = [found.proof, *(one.proof for one in others)] if others else found.proof
    following = spec_command("submit", spec, overrides)
    show(
        proofs, lambda: proof_screens(found, others, following, detail or "usual"), as_json=as_json
    )
    exit_codes.leave(exit_codes.of_proofs(found.proof))


def show_proof_diff(
    first: Path, second: Path, overrides: tuple[str, ...], *, as_json: bool
) -> None:
    from orchestrator.lifecycle import exit_codes
    from orchestrator.render.proof_diff_screen import proof_diff_screen

    found = orch.prove_diff(first, orch.load(second, overrides), progress=Display())
    show(found, lambda: proof_diff_screen(found, (first.stem, second.stem)), as_json=as_json)
    exit_codes.leave(exit_codes.of_proofs(*found.proofs))


@click.command()
@click.argument("runs", required=False, type=FILE, metavar="[RUNS.csv]")
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


COMMANDS = (plan, explain, prove, score)

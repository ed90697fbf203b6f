"""`orch plan`: the plan of a spec, of two, of a study, or the slices to choose from."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import orchestrator as orch
from orchestrator import cli as shared
from orchestrator.errors import SpecError, refuse_options
from orchestrator.planning.offers import PlanWithOdds
from orchestrator.planning.plan_warnings import make_warning
from orchestrator.reading.load import missing_inputs
from orchestrator.run import progress
from orchestrator.run.progress import interruptible, offer_command, spec_command, stage_option
from orchestrator.show.parts import Detail
from orchestrator.show.plan_screen import plan_screen, stages_screen
from orchestrator.show.terminal import CommandResult, show_result, telling_of
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec

_ONE_SPEC = "the plan of one spec"
# The most priced candidates of a plan for which changes that may cut its lines are planned too.
_QUICK: dict[Detail, float] = {"brief": 0, "usual": 1_500, "full": math.inf}
_OF_TRAINING = ("--alternatives", "--profile", "--stage", "a second spec")
_OF_SERVING = ("--frontier", "--load")
_OFFER_OPTIONS = ("by", "budget", "chips", "prices")


@click.command("plan")
@click.argument("named", metavar="SPEC", type=click.Path())
@click.argument("other", required=False, type=shared.FILE)
@shared.SET
@shared.JSON
@shared.BRIEF
@shared.FULL
@shared.STAGE
@click.option(
    "--alternatives", type=click.IntRange(0, 50), default=0, metavar="N",
    help="Also show N runners-up and what each one loses.",
)  # fmt: skip
@click.option(
    "--profile", metavar="DIGEST", help="Forecast with rates of orch calibrate, or of own runs."
)
@click.option("--by", metavar="WHEN", help="Offers that end within 30d or 6w, or by a date.")
@click.option("--budget", metavar="DOLLARS", help="Offers that cost at most 2M, or 500k.")
@click.option("--chips", metavar="NAMES", help="Offers of these chips: v5p,v6e,h100,gb200.")
@click.option("--prices", metavar="KIND", help="on-demand, reserved, spot, or a file of yours.")
@click.option("--frontier", is_flag=True, help="Serving: throughput against latency.")
@click.option("--load", metavar="KIND", help="Serving: simulate poisson, bursts, or a trace.csv.")
@click.option("--html", type=shared.FILE, metavar="FILE", help="Offers or a study, also as a page.")
@click.option("--serve", is_flag=True, help="Plan how the model of a RUN is served.")
@shared.STORAGE
@interruptible("planning")
def plan_command(
    named: str, other: Path | None, overrides: tuple[str, ...], as_json: bool, **options: Any
) -> None:  # fmt: skip
    """Find the fastest realizable plan of SPEC. It has memory, time and cost.

    With OTHER, compare both plans, line by line; --set then changes only OTHER. With a study, plan
    every trial and show the predicted scaling, with --html as a picture; exit 2 if a trial has no
    plan. With --stage, plan one stage of a spec.

    With a serving spec, or a RUN and --serve, plan how it is served: latency, throughput and price.

    With --by, --budget, --chips, --prices or --html, or with resources.topology: auto, show which
    slices to rent: days, dollars and odds of each.

    \b
    Example:
      orch plan specs/llama3_70b_4pod.yaml --set resources.pods=2 --alternatives 5
      orch plan specs/llama3_70b_1pod.yaml specs/llama3_70b_4pod.yaml
      orch plan specs/studies/llama3_70b_pods.yaml --html scaling.html
      orch plan specs/serve_llama3_70b_v5e.yaml
      orch plan llama3-70b-4pod-3f9a1c07-1 --serve --set serve.weights=int8
      orch plan my-h200.yaml --profile 3f9a1c07
      orch plan specs/llama3_70b_4pod.yaml --by 30d --budget 50M --chips v5p,tpu7x,h100
    """
    serves, storage, detail = (options.pop(name) for name in ("serve", "storage", "detail"))
    typed = {f"--{name}": value for name, value in options.items()} | {"a second spec": other}
    refuse_options({"--storage": not serves and storage != progress.RUNS}, "--serve")
    spec, typed = Path(named), typed | {f"--{detail or 'detail'}": detail}
    if serves:
        refuse_options({**typed, f"--{detail}": None}, _ONE_SPEC)
        from orchestrator.show.serving_screen import serving_screen  # noqa: PLC0415  few are

        plan = orch.plan_serving_of(named, storage, overrides)
        following = progress.run_command("report", named, storage)
        result = CommandResult(plan, lambda: serving_screen(plan, following, detail or "usual"))
    elif orch.is_serving(spec):
        result = _serving(spec, overrides, detail or "usual", typed)
    elif other:
        refuse_options(typed | {"--stage": None, "a second spec": None}, _ONE_SPEC)
        stage = options["stage"]
        found = orch.diff(spec, orch.load(other, overrides), stage=stage)
        following = spec_command("plan", other, overrides, *stage_option(stage))
        from orchestrator.show.plan_diff_screen import plan_diff_screen  # noqa: PLC0415  few are

        result = CommandResult(found, lambda: plan_diff_screen(found, following))
    elif orch.is_study(spec):
        refuse_options(typed | {"--html": None}, _ONE_SPEC)
        # Heavy to import, and few plans are of studies.
        from orchestrator.show.progress import Display  # noqa: PLC0415
        from orchestrator.show.study_screens import forecast_screen  # noqa: PLC0415

        study = orch.study(spec, overrides, progress=Display())
        code = SpecError.exit_code if any(trial.infeasible for trial in study.trials) else 0
        after = "" if code else spec_command("submit", spec, overrides)
        page = options["html"] and orch.write_forecast(study, options["html"])
        result = CommandResult(
            study, lambda: forecast_screen(study, after), exit_code=code, written=page
        )
    else:
        refuse_options({name: typed[name] for name in _OF_SERVING}, "a serving spec")
        loaded = orch.load(spec, overrides)
        asked, page = {name: options[name] for name in _OFFER_OPTIONS}, options["html"]
        chooses = any(value is not None for value in (*asked.values(), page))
        if chooses or loaded.resources.has_open_topology:
            refuse_options({name: typed[name] for name in _OF_TRAINING}, "a plan of chosen slices")
            # Heavy to import, and few plans are of slices to choose from.
            from orchestrator.show.offers_screen import offers_screen, to_take  # noqa: PLC0415
            from orchestrator.show.progress import Display  # noqa: PLC0415

            offers = orch.offers(loaded, **asked, progress=Display())
            chosen = to_take(offers)
            taking = offer_command(spec, overrides, chosen.overrides) if chosen else None
            result = CommandResult(
                offers,
                lambda: offers_screen(offers, taking, detail or "usual"),
                exit_code=0 if any(offer.days for offer in offers.offers) else SpecError.exit_code,
                written=orch.write_offers(offers, page) if page else None,
            )
        else:
            more, profile, stage = (options[name] for name in ("alternatives", "profile", "stage"))
            result = _plans(spec, loaded, detail or "usual", more, profile, stage)
    show_result(result, as_json=as_json)


def _plans(
    path: Path, spec: Spec, detail: Detail, more: int, profile: str | None, stage: int | None
) -> CommandResult:
    """Show the plan of a spec, and its runners-up where they are asked for."""
    if shared.has_many_plans(spec, stage):
        refuse_options({"--alternatives": more}, shared.ONE_STAGE)
    with telling_of("planning: every mesh of these slices is priced"):
        made = orch.plans(spec, 1 + more, profile=profile, stage=stage)
    # Files that the plans need and this machine lacks.
    missing = missing_inputs(spec, path.parent)
    warned = tuple(make_warning("input_missing", key=key, path=name) for key, name in missing)
    known = [*map(_with_known_proof, made)]
    plans = [replace(plan, warnings=(*plan.warnings, *warned)) for plan, _ in known]
    following = spec_command("explain", path, spec.overrides, *stage_option(stage))
    odds = [None if stage else orch.deadline_odds(spec, plan) for plan in plans]

    def screens() -> str:
        """Return the first plan with its proof, if that is known, then what runners-up lose."""
        first, *others = plans
        if first.stages:
            proofs = [text for stage in first.stages if (text := _with_known_proof(stage)[1])]
            return stages_screen(first, following, proofs, detail, odds[0])
        cut = None
        if profile is None and stage is None and first.search.priced <= _QUICK[detail]:
            cut = orch.line_cut(spec, first)
        if not (proof := known[0][1]) and first.forecast.extrapolations and profile is None:
            command = spec_command("prove", path, spec.overrides, *stage_option(stage))
            proof = f"none yet, and one would narrow the interval: {command}"
        return plan_screen(first, following, proof, others, detail, odds[0], cut)

    values = [*map(PlanWithOdds.of, plans, odds)]
    return CommandResult(values if more else values[0], screens)


def _serving(
    path: Path, overrides: tuple[str, ...], detail: Detail, typed: dict[str, Any]
) -> CommandResult:
    """Show the plan of a serving spec, its frontier, its load, or slices to choose from."""
    refuse_options({name: typed[name] for name in _OF_TRAINING}, "the plan of a training")
    # Heavy to import, and few plans are of serving.
    from orchestrator.show.serving_screen import (  # noqa: PLC0415
        frontier_screen,
        load_screen,
        serving_offers_screen,
        serving_screen,
    )

    planning, page = spec_command("plan", path, overrides), typed["--html"]
    if typed["--frontier"]:
        points = orch.serving_frontier(path, overrides)
        written = orch.write_frontier(points, page) if page else None
        return CommandResult(points, lambda: frontier_screen(points, planning), written=written)
    refuse_options({"--html": page}, "--frontier, offers of a training, or a study")
    if typed["--load"]:
        seen = orch.serving_load(path, overrides, arrivals=typed["--load"])
        return CommandResult(seen, lambda: load_screen(seen, planning))
    asked = {name: typed[f"--{name}"] for name in _OFFER_OPTIONS}
    loaded = orch.load_serving(path, overrides)
    if loaded.resources.has_open_topology or any(value is not None for value in asked.values()):
        found = orch.serving_offers(loaded, **asked)
        to_take = None
        if best := found.cheapest:
            taken = (
                f"resources.chip={best.chip}",
                f"resources.topology={best.topology}",
                f"resources.replicas={best.replicas}",
                f"serve.engine={best.plan.serve.engine if best.plan else ''}",
            )
            to_take = offer_command(path, overrides, taken)
        return CommandResult(
            found,
            lambda: serving_offers_screen(found, to_take, detail),
            exit_code=0 if best else SpecError.exit_code,
        )
    plan = orch.plan_serving(loaded)
    following = spec_command("explain", path, overrides)
    return CommandResult(plan, lambda: serving_screen(plan, following, detail))


def _with_known_proof(plan: Plan) -> tuple[Plan, str]:
    """Return a plan with its proof's schedule in the forecast, and the proof in a few words."""
    known = orch.known_proof(plan)
    if known is None:
        return plan, ""
    # Most plans have no proof.
    from orchestrator.show.proof_screen import proof_summary  # noqa: PLC0415

    return orch.with_proof(plan, known.proof), proof_summary(known.proof, known.age_s or 0.0)

"""What `orch plan` and `orch prove` show of a spec, of two, of a study, or of slices to choose.

Each function chooses by what its arguments name, and returns a value with its screens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import orchestrator as orch
from orchestrator.errors import refuse_options
from orchestrator.proving.proof_folder import has_plan
from orchestrator.run.next_commands import spec_command, stage_option
from orchestrator.show.parts import Detail
from orchestrator.show.plan_screen import plan_screen, stages_screen
from orchestrator.show.terminal import CommandResult
from orchestrator.values.plan import Plan

if TYPE_CHECKING:
    from orchestrator.planning.odds import DeadlineOdds, Offers
    from orchestrator.run.progress import Progress
    from orchestrator.values.spec import Spec

ONE_SPEC = "the plan of one spec"
CHOSEN_SLICES = "the plan of chosen slices"
ONE_PROOF = "the proof of one spec"
ONE_STAGE = "one stage: name it with --stage N"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `orch plan`, named as they are typed. The last five are about offers."""

    alternatives: int = 0
    profile: str | None = None
    detail: Detail | None = None
    stage: int | None = None
    by: str | None = None
    budget: str | None = None
    chips: str | None = None
    prices: str | None = None
    html: Path | None = None

    @property
    def typed(self) -> dict[str, object]:
        """The options as they are typed, with their values."""
        values = vars(self) | {self.detail or "detail": self.detail}
        return {f"--{name}": value for name, value in values.items() if name != "detail"}

    def has_offers(self, spec: "Spec") -> bool:
        """Whether offers are asked for, or the slices of the spec are open."""
        about_offers = (self.by, self.budget, self.chips, self.prices, self.html)
        return spec.resources.has_open_topology or any(one is not None for one in about_offers)


@dataclass(frozen=True, kw_only=True)
class ProveOptions:
    """The options of `orch prove`, named as they are typed."""

    hlo: Path | None = None
    html: Path | None = None
    search_remat: bool = False
    detail: Detail | None = None
    stage: int | None = None


def plan_result(
    spec: Path,
    other: Path | None,
    overrides: Sequence[str],
    options: PlanOptions,
    progress: "Progress",
) -> CommandResult:
    """The plan of a spec, what it differs in from another, a study's forecast, or offers."""
    if other:
        refuse_options(options.typed | {"--stage": None}, ONE_SPEC)
        return _plan_diff(spec, other, overrides, options.stage)
    if orch.is_study(spec):
        refuse_options(options.typed, ONE_SPEC)
        return _study_forecast(spec, overrides, progress)
    loaded = orch.load(spec, overrides)
    if options.has_offers(loaded):
        return _offers(spec, loaded, options)
    return _plans(spec, loaded, options)


def _plans(path: Path, spec: "Spec", options: PlanOptions) -> CommandResult:
    """The plan of a spec, and its runners-up where they are asked for."""
    from orchestrator.planning.odds import PlanWithOdds

    stage = options.stage
    if has_many_plans(spec, stage):
        refuse_options({"--alternatives": options.alternatives}, ONE_STAGE)
    made = orch.plans(spec, 1 + options.alternatives, profile=options.profile, stage=stage)
    plans = with_missing_inputs(made, spec, path.parent)
    following = spec_command("explain", path, spec.overrides, *stage_option(stage))
    odds = [None if stage else orch.deadline_odds(spec, one) for one in plans]
    detail = options.detail or "usual"
    values = [*map(PlanWithOdds.of, plans, odds)]
    value = values if options.alternatives else values[0]
    return CommandResult(value, lambda: plans_screen(plans, following, detail, odds[0]))


def with_missing_inputs(plans: "Sequence[Plan]", spec: "Spec", folder: Path) -> "list[Plan]":
    """The plans, with a warning for each file that they need and this machine lacks."""
    from orchestrator.planning.plan_warnings import input_missing
    from orchestrator.reading.inputs import missing_inputs

    missing = missing_inputs(spec, folder)
    new = tuple(input_missing(key=key, path=path) for key, path in missing)
    return [replace(one, warnings=(*one.warnings, *new)) for one in plans]


def has_many_plans(spec: "Spec", stage: int | None) -> bool:
    """Whether a spec has stages, of which none is chosen."""
    return bool(spec.experiment.stages) and stage is None


def _offers(path: Path, spec: "Spec", options: PlanOptions) -> CommandResult:
    from orchestrator.cli import endings

    names = ("--alternatives", "--profile", "--stage")
    refuse_options({name: options.typed[name] for name in names}, CHOSEN_SLICES)
    found = orch.offers(
        spec, by=options.by, budget=options.budget, chips=options.chips, prices=options.prices
    )
    return CommandResult(
        found,
        lambda: offers_for_spec_screen(found, path, spec.overrides, options.detail or "usual"),
        exit_code=endings.of_offers(found),
        written=orch.write_offers(found, options.html) if options.html else None,
    )


def _plan_diff(
    first: Path, second: Path, overrides: Sequence[str], stage: int | None
) -> CommandResult:
    from orchestrator.show.plan_diff_screen import plan_diff_screen

    found = orch.diff(first, orch.load(second, overrides), stage=stage)
    following = spec_command("plan", second, overrides, *stage_option(stage))
    return CommandResult(found, lambda: plan_diff_screen(found, following))


def _study_forecast(path: Path, overrides: Sequence[str], progress: "Progress") -> CommandResult:
    from orchestrator.cli import endings
    from orchestrator.show.study_screens import forecast_screen

    found = orch.study(path, overrides, progress=progress)
    code = endings.of_forecast(found)
    following = "" if code else spec_command("submit", path, overrides)
    return CommandResult(found, lambda: forecast_screen(found, following), exit_code=code)


def proof_result(
    spec: Path,
    other: Path | None,
    overrides: Sequence[str],
    options: ProveOptions,
    progress: "Progress",
) -> CommandResult:
    """The proof of a spec's plan, those of its stages, or what two programs differ in."""
    pages: dict[str, object] = {"--html": options.html, "--search-remat": options.search_remat}
    if other:
        given = {"--hlo": options.hlo, f"--{options.detail}": options.detail}
        refuse_options(pages | given, ONE_PROOF)
        return _proof_diff(spec, other, overrides, options.stage, progress)
    loaded = orch.load(spec, overrides)
    following = spec_command("submit", spec, overrides)
    if has_many_plans(loaded, options.stage):
        refuse_options(pages, ONE_STAGE)
        return _stage_proofs(loaded, options, following, progress)
    return _proof(loaded, options, following, progress)


def _proof(
    spec: "Spec", options: ProveOptions, following: str, progress: "Progress"
) -> CommandResult:
    """A proof; with those of plans that recompute less where they are asked for."""
    from orchestrator.cli import endings
    from orchestrator.show.proof_screen import proof_screens

    found = orch.prove(spec, hlo=options.hlo, progress=progress, stage=options.stage)
    others = None
    if options.search_remat:
        others = orch.prove_less_recompute(spec, progress=progress, stage=options.stage)
    written = orch.write_schedule(found, options.html) if options.html else None
    return CommandResult(
        found.proof if not others else [found.proof, *(one.proof for one in others)],
        lambda: proof_screens(found, others, following, options.detail or "usual"),
        exit_code=endings.of_proofs(found.proof),
        written=written,
    )


def _stage_proofs(
    spec: "Spec", options: ProveOptions, following: str, progress: "Progress"
) -> CommandResult:
    from orchestrator.cli import endings
    from orchestrator.show.proof_screen import stage_proof_screens

    stages = orch.prove_stages(spec, hlo=options.hlo, progress=progress)
    proofs = [one.proof for one in stages]
    return CommandResult(
        proofs,
        lambda: stage_proof_screens(stages, following, options.detail or "usual"),
        exit_code=endings.of_proofs(*proofs),
    )


def _proof_diff(
    first: Path,
    second: Path,
    overrides: Sequence[str],
    stage: int | None,
    progress: "Progress",
) -> CommandResult:
    from orchestrator.cli import endings
    from orchestrator.show.plan_diff_screen import proof_diff_screen

    changed = orch.load(second, overrides)
    found = orch.prove_diff(first, changed, progress=progress, stage=stage)
    return CommandResult(
        found,
        lambda: proof_diff_screen(found, (first.stem, second.stem)),
        exit_code=endings.of_proofs(*found.proofs),
    )


# The screens of plans and of offers, with the commands that follow from them.


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
        known = [text for one in plans[0].stages if (text := _known_proof(one))]
        return stages_screen(plans[0], next_command, known, detail, odds)
    return plan_screen(plans[0], next_command, _known_proof(plans[0]), plans[1:], detail, odds)


def _known_proof(plan: Plan) -> str:
    if not has_plan(plan):
        return ""
    from orchestrator.proving.verdict import cached
    from orchestrator.show.proof_screen import proof_summary

    known = cached(plan)
    return proof_summary(known.proof, known.age_s or 0.0) if known else ""


def offers_for_spec_screen(
    found: "Offers", spec: Path, overrides: Sequence[str], detail: Detail
) -> str:
    """The offers for a spec; the next command plans the one that is proposed."""
    from orchestrator.run.next_commands import offer_command
    from orchestrator.show.offers_screen import offers_screen, to_take

    chosen = to_take(found)
    following = offer_command(spec, overrides, chosen.overrides) if chosen else None
    return offers_screen(found, following, detail)

"""What `orch plan` and `orch prove` show of a spec, of two, of a study, or of slices to choose.

Each function chooses by what its arguments name, and returns a value with its screens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api import planning
from orchestrator.errors import refuse_options
from orchestrator.render.next_commands import spec_command, stage_option
from orchestrator.render.screen_parts import Detail
from orchestrator.render.terminal import CommandResult

if TYPE_CHECKING:
    from orchestrator.lifecycle.progress import Progress
    from orchestrator.types.plan import Plan
    from orchestrator.types.spec import Spec

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
    if planning.is_study(spec):
        refuse_options(options.typed, ONE_SPEC)
        return _study_forecast(spec, overrides, progress)
    loaded = planning.load(spec, overrides)
    if options.has_offers(loaded):
        return _offers(spec, loaded, options)
    return _plans(spec, loaded, options)


def _plans(path: Path, spec: "Spec", options: PlanOptions) -> CommandResult:
    """The plan of a spec, and its runners-up where they are asked for."""
    from orchestrator.lifecycle.plan_screens import plans_screen
    from orchestrator.types.offers import PlanWithOdds

    stage = options.stage
    if has_many_plans(spec, stage):
        refuse_options({"--alternatives": options.alternatives}, ONE_STAGE)
    made = planning.plans(spec, 1 + options.alternatives, profile=options.profile, stage=stage)
    plans = with_missing_inputs(made, spec, path.parent)
    following = spec_command("explain", path, spec.overrides, *stage_option(stage))
    odds = [None if stage else planning.deadline_odds(spec, one) for one in plans]
    detail = options.detail or "usual"
    values = [*map(PlanWithOdds.of, plans, odds)]
    value = values if options.alternatives else values[0]
    return CommandResult(value, lambda: plans_screen(plans, following, detail, odds[0]))


def with_missing_inputs(plans: "Sequence[Plan]", spec: "Spec", folder: Path) -> "list[Plan]":
    """The plans, with a warning for each file that they need and this machine lacks."""
    from orchestrator.spec.missing_inputs import missing_inputs
    from orchestrator.types.plan import plan_warning

    missing = missing_inputs(spec, folder)
    new = tuple(plan_warning("input_missing", key=key, path=path) for key, path in missing)
    return [replace(one, warnings=(*one.warnings, *new)) for one in plans]


def has_many_plans(spec: "Spec", stage: int | None) -> bool:
    """Whether a spec has stages, of which none is chosen."""
    return bool(spec.experiment.stages) and stage is None


def _offers(path: Path, spec: "Spec", options: PlanOptions) -> CommandResult:
    from orchestrator.lifecycle import exit_codes
    from orchestrator.lifecycle.plan_screens import offers_for_spec_screen

    names = ("--alternatives", "--profile", "--stage")
    refuse_options({name: options.typed[name] for name in names}, CHOSEN_SLICES)
    found = planning.offers(
        spec, by=options.by, budget=options.budget, chips=options.chips, prices=options.prices
    )
    return CommandResult(
        found,
        lambda: offers_for_spec_screen(found, path, spec.overrides, options.detail or "usual"),
        exit_code=exit_codes.of_offers(found),
        written=planning.write_offers(found, options.html) if options.html else None,
    )


def _plan_diff(
    first: Path, second: Path, overrides: Sequence[str], stage: int | None
) -> CommandResult:
    from orchestrator.render.plan_diff_screen import plan_diff_screen

    found = planning.diff(first, planning.load(second, overrides), stage=stage)
    following = spec_command("plan", second, overrides, *stage_option(stage))
    return CommandResult(found, lambda: plan_diff_screen(found, following))


def _study_forecast(path: Path, overrides: Sequence[str], progress: "Progress") -> CommandResult:
    from orchestrator.lifecycle import exit_codes
    from orchestrator.render.study_screens import forecast_screen

    found = planning.study(path, overrides, progress=progress)
    code = exit_codes.of_forecast(found)
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
    loaded = planning.load(spec, overrides)
    following = spec_command("submit", spec, overrides)
    if has_many_plans(loaded, options.stage):
        refuse_options(pages, ONE_STAGE)
        return _stage_proofs(loaded, options, following, progress)
    return _proof(loaded, options, following, progress)


def _proof(
    spec: "Spec", options: ProveOptions, following: str, progress: "Progress"
) -> CommandResult:
    """A proof; with those of plans that recompute less where they are asked for."""
    from orchestrator.lifecycle import exit_codes
    from orchestrator.render.proof_screen import proof_screens

    found = planning.prove(spec, hlo=options.hlo, progress=progress, stage=options.stage)
    others = None
    if options.search_remat:
        others = planning.prove_less_recompute(spec, progress=progress, stage=options.stage)
    written = planning.write_schedule(found, options.html) if options.html else None
    return CommandResult(
        found.proof if not others else [found.proof, *(one.proof for one in others)],
        lambda: proof_screens(found, others, following, options.detail or "usual"),
        exit_code=exit_codes.of_proofs(found.proof),
        written=written,
    )


def _stage_proofs(
    spec: "Spec", options: ProveOptions, following: str, progress: "Progress"
) -> CommandResult:
    from orchestrator.lifecycle import exit_codes
    from orchestrator.render.proof_screen import stage_proof_screens

    stages = planning.prove_stages(spec, hlo=options.hlo, progress=progress)
    proofs = [one.proof for one in stages]
    return CommandResult(
        proofs,
        lambda: stage_proof_screens(stages, following, options.detail or "usual"),
        exit_code=exit_codes.of_proofs(*proofs),
    )


def _proof_diff(
    first: Path,
    second: Path,
    overrides: Sequence[str],
    stage: int | None,
    progress: "Progress",
) -> CommandResult:
    from orchestrator.lifecycle import exit_codes
    from orchestrator.render.proof_diff_screen import proof_diff_screen

    changed = planning.load(second, overrides)
    found = planning.prove_diff(first, changed, progress=progress, stage=stage)
    return CommandResult(
        found,
        lambda: proof_diff_screen(found, (first.stem, second.stem)),
        exit_code=exit_codes.of_proofs(*found.proofs),
    )

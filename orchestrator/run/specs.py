"""Write and load specs, plan them, and compare the slices one may rent for them."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.errors import SpecError
from orchestrator.planning.calibrated import with_own_profile
from orchestrator.planning.diff_plans import PlanDiff, diff_plans
from orchestrator.planning.forecast import scale
from orchestrator.planning.offers import DeadlineOdds, Offers, chance, make_offers
from orchestrator.planning.planner import LineCut, make_plans, make_stage_plans, stage_spec
from orchestrator.planning.planner import line_cut as find_line_cut
from orchestrator.planning.witnesses import with_schedule
from orchestrator.proving import proofs_folder
from orchestrator.reading.examples import create
from orchestrator.reading.expectations import KeyHelp, help_about
from orchestrator.reading.load import is_serving as describes_serving
from orchestrator.reading.load import is_study as describes_study
from orchestrator.reading.load import load as load_spec
from orchestrator.reading.offer_options import days_to_deadline, deadline_ahead, offer_request
from orchestrator.run.progress import Progress, UnitsDone, silent, task
from orchestrator.values.plan import Plan, program_digest
from orchestrator.values.proof import Proof
from orchestrator.values.spec import Spec

if TYPE_CHECKING:
    from orchestrator.proving.verdict import ProofResult

_PLANNING = "planning"
SpecSource: TypeAlias = str | Path | Spec  # the path of a spec, or a spec that was loaded


def load(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """Return the spec in a YAML file. `overrides` are `key=value`, as after `--set`."""
    return load_spec(Path(path), tuple(overrides))


def is_study(path: str | Path) -> bool:
    """Return whether a YAML file describes a study rather than one spec."""
    return describes_study(Path(path))


def is_serving(path: str | Path) -> bool:
    """Return whether a YAML file says what to serve rather than what to train, or a CSV file has
    serving runs.
    """
    found = Path(path)
    if found.suffix != ".csv":
        return describes_serving(found)
    # Plans need no published runs of serving.
    from orchestrator.evidence.score.serving_runs import is_serving as has_runs  # noqa: PLC0415

    return has_runs(found)


def create_spec(
    path: str | Path | None = None, example: str | None = None, overrides: Sequence[str] = ()
) -> Path:
    """Write the starter, an example, or a file's spec as a new spec, and return its path. Without a
    path it is named after the example. An existing file is never overwritten.
    """
    return create(Path(path) if path else None, example, overrides)


def key_help(key: str) -> list[KeyHelp]:
    """Return what a key of a spec, and those below it, mean and must be."""
    return help_about(key)


def plan(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    profile: str | None = None,
    stage: int | None = None,
) -> Plan:
    """Return the fastest realizable plan of a spec, or raise `SpecError` with the reasons.
    `profile` names a chip profile of `calibrate`, or what own runs teach, for the forecast; `stage`
    is the number of one stage, from 1, planned in its place.
    """
    return plans(spec, 1, overrides, profile=profile, stage=stage)[0]


def plans(
    spec: SpecSource,
    count: int = 6,
    overrides: Sequence[str] = (),
    *,
    profile: str | None = None,
    stage: int | None = None,
) -> list[Plan]:
    """Return at most `count` plans of a spec or of one stage, the fastest first."""
    if count < 1:
        raise SpecError(f"count is {count}: at least 1 plan can be asked for")
    found = loaded(spec, overrides)
    made = make_stage_plans(found, stage, count) if stage is not None else make_plans(found, count)
    if profile is None:
        return made
    # Most plans need no profile, and what measures them is heavy to import.
    from orchestrator.planning.own_runs import with_own_runs  # noqa: PLC0415
    from orchestrator.run.calibrate import find, find_own  # noqa: PLC0415

    if own := find_own(profile):
        return [with_own_runs(candidate, own) for candidate in made]
    measured = find(profile).profile
    return [with_own_profile(candidate, measured) for candidate in made]


def line_cut(spec: SpecSource, made: Plan | None = None) -> LineCut | None:
    """Return the costliest line that a change cuts, the share per token, the overrides and their
    plan; None where no change helps. `made` is the spec's plan, if there is one already.
    """
    found = loaded(spec)
    return find_line_cut(found, made or plan(found))


def deadline_odds(spec: SpecSource, made: Plan | None = None) -> DeadlineOdds | None:
    """Return how likely a run that begins now ends by `run.deadline`; None without a deadline."""
    found = loaded(spec)
    deadline = found.run.deadline
    if deadline is None:
        return None
    days = days_to_deadline(deadline, datetime.now(UTC).date())
    made = made or plan(found)
    run_days = scale(made.forecast.days, made.run_share)
    odds = chance(run_days, days, extrapolates=bool(made.forecast.extrapolations))
    return DeadlineOdds(deadline=deadline, days=days, odds=odds)


def offers(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    by: str | float | date | None = None,
    budget: str | float | None = None,
    chips: str | Sequence[str] | None = None,
    prices: str | None = None,
    progress: Progress = silent,
) -> Offers:
    """Return what one may rent for a spec: each offer with its plan, days, dollars and odds.

    `by` is a duration (`30d`, or days) or a date, by default `run.deadline`; `budget` is dollars
    (`2M`); `chips` are names of the catalog; `prices` are `on-demand`, `reserved`, `spot`, or a
    file.
    """
    found, today = loaded(spec, overrides), datetime.now(UTC).date()
    by = deadline_ahead(found.run.deadline, today) if by is None else by
    request = offer_request(
        found.resources, by=by, budget=budget, chips=chips, prices=prices, today=today
    )
    with task(progress, _PLANNING):
        return make_offers(
            found,
            request,
            lambda done, total: progress(
                UnitsDone(task=_PLANNING, done=done, total=total, unit="offers")
            ),
        )


def diff(first: SpecSource, second: SpecSource, *, stage: int | None = None) -> PlanDiff:
    """Compare the plans of two specs, decision by decision and line by line. With stages, figures
    are compared stage by stage, and lines only for one `stage`, by its number.
    """
    (before, before_plan), (after, after_plan) = (planned(spec, stage) for spec in (first, second))
    return diff_plans((before, after), (before_plan, after_plan))


def known_proof(plan: Plan) -> "ProofResult | None":
    """Return the proof of a plan, if the cache has it; nothing is compiled."""
    # Few plans have a proof, and what reads it is heavy to import. It may not be current.
    if not any(proofs_folder().glob(f"{program_digest(plan)}.*")):
        return None
    from orchestrator.proving.verdict import cached  # noqa: PLC0415

    return cached(plan)


def with_proof(plan: Plan, proof: Proof) -> Plan:
    """Return the plan with what the compiler's schedule of its program adds to the forecast."""
    return with_schedule(plan, proof.schedule if plan.ledger_describes_trainer else None)


def loaded(spec: SpecSource, overrides: Sequence[str] = ()) -> Spec:
    """Return a spec, from its file where that is named."""
    if isinstance(spec, str | Path):
        return load(spec, overrides)
    if overrides:
        raise TypeError("overrides change the file of a spec: pass its path")
    return spec


def planned(spec: SpecSource, stage: int | None) -> tuple[Spec, Plan]:
    found = loaded(spec)
    made = plan(found, stage=stage)
    return (found if stage is None else stage_spec(found, stage)), made

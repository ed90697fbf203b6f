"""What a person should know before paying for a plan: a sentence each."""

from collections.abc import Iterator
from math import ceil

from orchestrator import catalog
from orchestrator.plan.search import SearchRequest, SearchResult
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

FEW_STEPS, MANY_YEARS, DAYS_OF_YEAR = 100, 5, 365.25


def search_warnings(spec: Spec, request: SearchRequest, result: SearchResult) -> Iterator[str]:
    """About what was requested, and how the search came to its end."""
    yield from catalog.schedulable(request.chip, request.topology, request.pods)
    if spec.experiment.remat == "auto" and result.margin == 0:
        yield "nothing fits with a tenth of HBM to spare: this plan uses the margin"
    if spec.experiment.precision.parameters == "bf16":
        yield (
            "bf16 parameters without an fp32 master copy lose small updates; the book counts"
            " memory this way, few train this way"
        )


def plan_warnings(plan: Plan) -> Iterator[str]:
    """About the plan and its forecast."""
    yield from few_steps(plan)
    yield from forecast_warnings(plan)


def few_steps(plan: Plan) -> Iterator[str]:
    """The tokens are soon used up, as with a mistyped batch."""
    steps = ceil(plan.tokens / plan.batch.tokens)
    if steps < FEW_STEPS:
        count = f"{steps} step{'s' * (steps != 1)}"
        advice = "ask for more tokens or a smaller batch"
        yield f"all tokens are used up in {count}, too few to train a model: {advice}"


def forecast_warnings(plan: Plan) -> tuple[str, ...]:
    """About the forecast alone: another forecast has others."""
    return (*too_long(plan), *extrapolations(plan))


def too_long(plan: Plan) -> Iterator[str]:
    """Nobody waits for it."""
    days = plan.forecast.days
    years = (days.expected or days.unoverlapped) / DAYS_OF_YEAR
    if years >= MANY_YEARS:
        yield f"it would last {years:,.0f} years: ask for more chips, or fewer tokens"


def extrapolations(plan: Plan) -> Iterator[str]:
    """No published run is like this plan."""
    known, expected = catalog.reach(plan.chip), plan.forecast.step_s.expected
    if known is None or expected is None:
        return
    if expected < known.step_s:
        yield f"expected is a guess: no run learned from has steps below {known.step_s:.2g} s"
    if plan.chips > known.chips:
        yield f"expected is extrapolated from {plan.chip} runs of up to {known.chips:,} chips"

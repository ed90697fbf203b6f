"""The warnings of a plan: what a person should know before paying for it."""

from collections.abc import Iterator

from orchestrator import catalog
from orchestrator.plan.search import SearchRequest, SearchResult
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

LEDGER_TRAINER = "llama"  # whose program the ledger describes
FEW_STEPS, MANY_YEARS, DAYS_OF_YEAR = 100, 5, 365.25


def search_warnings(spec: Spec, request: SearchRequest, result: SearchResult) -> Iterator[str]:
    """About the request and the result of its search."""
    yield from catalog.schedulable(request.chip, request.topology, request.pods)
    if spec.experiment.remat == "auto" and result.margin == 0:
        yield "no plan leaves a tenth of HBM free: this one uses that margin"
    if spec.experiment.precision.parameters == "bf16":
        yield (
            "bf16 parameters without an fp32 master copy lose small updates; the book counts"
            " memory this way, but few runs train this way"
        )


def trainer_warnings(plan: Plan) -> Iterator[str]:
    """The forecast is about another trainer's program."""
    if not plan.ledger_describes_trainer:
        yield (
            f"the forecast describes the program of trainer {LEDGER_TRAINER}, not that of"
            f" {plan.trainer}: memory, time and cost of {plan.trainer} are unknown"
        )


def few_steps(plan: Plan) -> Iterator[str]:
    """So few steps that the batch may be mistyped."""
    steps = plan.total_steps
    if steps < FEW_STEPS:
        count = f"{steps} step{'s' * (steps != 1)}"
        advice = "ask for more tokens or a smaller batch"
        yield f"all tokens are used up in {count}, too few to train a model: {advice}"


def forecast_warnings(plan: Plan) -> tuple[str, ...]:
    """About the forecast: a plan with another forecast has other ones."""
    return (*too_long(plan), *extrapolations(plan))


def too_long(plan: Plan) -> Iterator[str]:
    """The run takes longer than anybody waits."""
    days = plan.forecast.days
    years = (days.expected or days.unoverlapped) / DAYS_OF_YEAR
    if years >= MANY_YEARS:
        yield f"the run would take {years:,.0f} years: ask for more chips or fewer tokens"


def extrapolations(plan: Plan) -> Iterator[str]:
    """The plan lies outside the published runs."""
    for one in plan.forecast.extrapolations:
        yield (
            f"expected is extrapolated along {one.axis}: {one.value:.3g}, published runs have"
            f" {one.low:.3g} to {one.high:.3g}"
        )

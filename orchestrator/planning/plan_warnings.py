"""The warnings of a plan: what a person should know before paying for it."""

from collections.abc import Iterator

from orchestrator import catalog
from orchestrator.planning.kernels import TILE
from orchestrator.planning.ranking import accumulates_faster
from orchestrator.planning.search import SearchRequest, SearchResult
from orchestrator.values.plan import Plan, PlanWarning, plan_warning
from orchestrator.values.spec import Spec

LANES = TILE[1]  # positions that the attention kernel takes at a time
LEDGER_TRAINER = "llama"  # whose program the ledger describes
FEW_STEPS, MANY_YEARS, DAYS_OF_YEAR = 100, 5, 365.25
# The critical batch of a run of D million tokens is CRITICAL_SEQUENCES x D^CRITICAL_EXPONENT
# sequences of CRITICAL_LENGTH tokens. It takes CRITICAL_OVERHEAD more tokens than small batches.
CRITICAL_SEQUENCES, CRITICAL_LENGTH, CRITICAL_EXPONENT = 22.91, 512, 0.47
CRITICAL_OVERHEAD = 0.2
CRITICAL_SOURCE = "zhang-critical-batch"
MILLION = 1e6
# Shares of all time: below MOSTLY a run hardly trains; more than BLOCKED, or a gain of more than
# WORTH_CHANGING, is worth a change.
MOSTLY, BLOCKED, WORTH_CHANGING = 0.5, 0.05, 0.01
SHORT_S = 3600  # nobody minds what a shorter run loses
# The largest published batch, DeepSeek-V3's 63M tokens in a run of 14.8T, is 2.3 times critical.
LARGE_BATCH = 2.35


def search_warnings(
    spec: Spec, request: SearchRequest, result: SearchResult
) -> Iterator[PlanWarning]:
    """About the request and the result of its search."""
    yield from catalog.rental_warnings(request.chip, request.topology, request.pods)
    if spec.experiment.remat == "auto" and result.margin == 0:
        yield plan_warning("no_memory_margin")
    if spec.experiment.precision.parameters == "bf16":
        yield plan_warning("bf16_parameters")


def accumulation_warnings(
    plan: Plan, request: SearchRequest, result: SearchResult
) -> Iterator[PlanWarning]:
    """Gradients that accumulate spare waits for slices, which the ranking does not see."""
    step_s, tokens = plan.forecast.step_s.expected, plan.batch.tokens
    if step_s is None or plan.batch.microbatches > 1:
        return
    faster = accumulates_faster(request, result.candidates, step_s / tokens)
    if faster:
        microbatches, s_per_token = faster
        yield plan_warning(
            "accumulation_faster",
            microbatches=microbatches,
            expected_s=s_per_token * tokens,
            step_s=step_s,
        )


def trainer_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """The forecast is about another trainer's program."""
    if not plan.ledger_describes_trainer:
        yield plan_warning("other_trainer", ledger=LEDGER_TRAINER, trainer=plan.trainer)


def model_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """Layers that the model has and the plan leaves out."""
    if plan.model.mtp_layers:
        yield plan_warning("mtp_left_out", layers=plan.model.mtp_layers)


def host_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """The policy offloads to a host whose memory is unknown."""
    offloaded = plan.forecast.host_memory_bytes_per_chip
    if offloaded and plan.forecast.host_bytes_per_chip is None:
        yield plan_warning("host_memory_unknown", chip=plan.chip, offloaded_bytes=offloaded)


def kernel_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """The attention kernel of the trainer takes whole rows of lanes."""
    if plan.trainer != LEDGER_TRAINER or catalog.chip_of(plan).switched:
        return
    length, sequence = plan.batch.length, plan.mesh["sequence"]
    if length % LANES or length // sequence % LANES:
        yield plan_warning("attention_positions", length=length, sequence=sequence, positions=LANES)


def run_warnings(plan: Plan) -> tuple[PlanWarning, ...]:
    """About the run as a whole: a stage of it has none of its own."""
    return (*recipe_warnings(plan), *too_long(plan))


def recipe_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """Steps, warm-up and batch may be mistyped."""
    if plan.total_steps < FEW_STEPS:
        yield plan_warning("few_steps", steps=plan.total_steps)
    for one in plan.each_stage:
        steps, warmup = one.schedule_span[1], one.optimizer.warmup_steps
        if warmup > steps:
            yield plan_warning("long_warmup", warmup_steps=warmup, steps=steps)
    yield from large_batch(max(one.batch.tokens for one in plan.each_stage), plan.tokens)


def large_batch(batch_tokens: int, tokens: int) -> Iterator[PlanWarning]:
    """The batch is beyond what the field trains with, for a run of that many tokens."""
    critical = critical_batch_tokens(tokens)
    if batch_tokens > LARGE_BATCH * critical:
        yield plan_warning(
            "large_batch",
            batch_tokens=batch_tokens,
            critical_tokens=critical,
            tokens=tokens,
            token_factor=1 + CRITICAL_OVERHEAD * batch_tokens / critical,
            source=CRITICAL_SOURCE,
        )


def critical_batch_tokens(tokens: int) -> float:
    """The batch beyond which more sequences save few steps, for a run of that many tokens.

    It grows with the tokens of a run, hardly with its model (Zhang et al. 2024). The overhead of
    other batches grows in proportion to them (McCandlish et al. 2018).
    """
    sequences: float = CRITICAL_SEQUENCES * (tokens / MILLION) ** CRITICAL_EXPONENT
    return CRITICAL_LENGTH * sequences


def forecast_warnings(plan: Plan) -> tuple[PlanWarning, ...]:
    """About the forecast: a plan with another forecast has other ones."""
    general = *too_long(plan), *unknown_rates(plan), *goodput_warnings(plan)
    return (*general, *extrapolations(plan))


def goodput_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """Failures cost much, or saves do; storage or host links cannot keep up with saves."""
    goodput, save = plan.forecast.goodput, plan.forecast.goodput.inputs.save
    if not losses_matter(plan):
        return
    if not goodput.inputs.failures_known:
        yield plan_warning("failures_unknown", chip=plan.chip)
    if goodput.best < MOSTLY:
        yield plan_warning(
            "mostly_recovering",
            goodput=goodput.best,
            failures_per_day=goodput.inputs.failures_per_day.value,
        )
    if save.write_s.value > goodput.every_s:
        yield plan_warning(
            "storage_too_slow",
            bytes=save.bytes,
            every=goodput.every_steps,
            needed_bytes_per_s=goodput.needed_bytes_per_s,
            storage_bytes_per_s=save.storage_bytes_per_s.value,
        )
    if save.blocking_s.value > BLOCKED * goodput.every_s:
        yield plan_warning(
            "saves_block",
            blocking_s=save.blocking_s.value,
            every_s=goodput.every_s,
            bytes=save.host_bytes_per_chip,
        )
    yield from interval_warnings(plan)


def interval_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """Another interval between saves is worth a change."""
    goodput = plan.forecast.goodput
    if losses_matter(plan) and goodput.best - goodput.expected > WORTH_CHANGING:
        yield plan_warning(
            "checkpoint_interval",
            every=goodput.every_steps,
            best_every=goodput.best_every_steps,
            goodput=goodput.expected,
            best_goodput=goodput.best,
        )


def losses_matter(plan: Plan) -> bool:
    """Whether a forecast of what trains nothing is about this run, and anybody minds it."""
    if plan.forecast.goodput.stated or not plan.ledger_describes_trainer:
        return False
    return plan.run_s(plan.end_step) >= SHORT_S


def too_long(plan: Plan) -> Iterator[PlanWarning]:
    """The run takes longer than anybody waits."""
    years = plan.forecast.days.likeliest / DAYS_OF_YEAR
    if years >= MANY_YEARS:
        yield plan_warning("many_years", years=years)


def unknown_rates(plan: Plan) -> Iterator[PlanWarning]:
    """Nothing is known of what runs on such chips reach: no figure is an end of an interval."""
    if plan.forecast.step_s.expected is None:
        compute = plan.precision.compute
        narrow = f" in {compute}" if compute in ("int8", "fp8") else ""
        yield plan_warning("no_expected", chip=plan.chip + narrow)


def extrapolations(plan: Plan) -> Iterator[PlanWarning]:
    """The plan lies outside the published runs."""
    for one in plan.forecast.extrapolations:
        yield plan_warning(
            "extrapolation", axis=one.axis, value=one.value, low=one.low, high=one.high
        )

"""The warnings of a plan: what a person should know before paying for it."""

from collections.abc import Callable, Iterable, Iterator
from math import ceil

from orchestrator import catalog
from orchestrator.formatting import count, fill, scaled, seconds, span, whole_percent, with_unit
from orchestrator.notes import sentence, sentences
from orchestrator.planning.kernels import TILE
from orchestrator.planning.ranking import accumulates_faster
from orchestrator.planning.search import SearchRequest, SearchResult
from orchestrator.values.codec import short
from orchestrator.values.plan import Plan, PlanWarning, WarningCode, program_digest
from orchestrator.values.spec import Spec

LEDGER_TRAINER = "llama"  # whose program the ledger describes
_LANES = TILE[1]  # positions that the attention kernel takes at a time
_FEW_STEPS, _MANY_YEARS, _DAYS_OF_YEAR = 100, 5, 365.25
_BUBBLE = 0.15  # of the passes of a pipeline
_SHORT_S = 3600  # nobody minds what a shorter run loses
# Shares of all time: below _MOSTLY a run hardly trains; more than _BLOCKED, or a gain of more than
# _WORTH_CHANGING, is worth a change.
_MOSTLY, _BLOCKED, _WORTH_CHANGING = 0.5, 0.05, 0.01
# The critical batch of a run of D million tokens is _CRITICAL_SEQUENCES x D^_CRITICAL_EXPONENT
# sequences of _CRITICAL_LENGTH tokens. It takes _CRITICAL_OVERHEAD more tokens than small batches.
_CRITICAL_SEQUENCES, _CRITICAL_LENGTH, _CRITICAL_EXPONENT = 22.91, 512, 0.47
_CRITICAL_OVERHEAD = 0.2
_CRITICAL_SOURCE = "zhang-critical-batch"
# The largest published batch, DeepSeek-V3's 63M tokens in a run of 14.8T, is 2.3 times critical.
_LARGE_BATCH = 2.35


_TEXTS: dict[str, str] = {
    "other_trainer": (
        "memory, time and cost of trainer {trainer} are unknown: all figures of them describe"
        " trainer {ledger}"
    ),
    "host_memory_unknown": (
        "{offloaded_bytes:memory} a chip go to the host, and no source has the memory of hosts of"
        " {chip}: nothing checks that they fit"
    ),
    "mtp_left_out": (
        "the model has {layers} layer(s) that predict further tokens (multi-token prediction): the"
        " plan leaves them out, and so does the trainer"
    ),
    "no_memory_margin": "no plan leaves 5 % of HBM free: this one uses that margin",
    "pipeline_bubble": (
        "with {microbatches} microbatches, each of {stages} stages of {chunks:chunks} waits for"
        " {share:percent} of the time that it works: more sequences a step bring more"
        " microbatches (--set experiment.batch.sequences={sequences}), and more chunks shorten the"
        " wait"
    ),
    "odd_domain": (
        "{chips} GPUs have the factor {odd}, which becomes stages of a pipeline or copies; with"
        " {fewer} of them a step is often faster: --set resources.topology={fewer}"
    ),
    "other_batch": (
        "no mesh of {pods} pods divides {requested:,} sequences within experiment.batch.tolerance"
        " {tolerance:whole percent}: these steps have {sequences:,}, so losses are not those of the"
        " planned batch"
    ),
    "bf16_parameters": (
        "bf16 parameters without an fp32 master copy lose small updates; the book counts memory"
        " this way, but few runs train this way"
    ),
    "gpu_mixture": (
        "XLA's compiler for GPUs multiplies all rows by all {experts} experts where none is dropped"
        ", and this plan counts one expert a row: a moe.capacity_factor makes equal groups"
    ),
    "gpu_sequence": (
        "cuDNN's attention takes whole sequences, so the trainer computes these {ways} parts of one"
        " in plain JAX, more slowly than this plan counts: orch prove says how much"
    ),
    "accumulation_faster": (
        "{microbatches} microbatches are expected to take {expected_s:seconds} a step instead of"
        " {step_s:seconds}: slices wait for each other once a step and not in each layer. The"
        " ranking leaves out waits, and no published run on several slices shows it: --set"
        " experiment.batch.microbatches={microbatches}"
    ),
    "attention_positions": (
        "the trainer's attention takes {positions} positions at a time on TPUs, and a chip has"
        " {length:,} / {sequence}: this runs only in a rehearsal"
    ),
    "few_steps": (
        "all tokens are used up in {steps:steps}, too few to train a model: ask for more tokens or"
        " a smaller batch"
    ),
    "many_years": "the run would take {years:,.0f} years: ask for more chips or fewer tokens",
    "no_expected": (
        "what real runs on {chip} reach is unknown here: all figures are at best, and real runs"
        " take longer"
    ),
    "own_runs": (
        "what is expected is learned from {runs} of your own runs on {chip} with trainer {trainer}"
        " ({digest}), which began with the published constants"
    ),
    "failures_unknown": (
        "how often {chip} fails is unknown here: days and dollars are those of a run in which"
        " nothing fails; resources.failures has room for rates"
    ),
    "mostly_recovering": (
        "with {failures_per_day:,.0f} failures a day the run spends most of its time on recovering:"
        " {goodput:whole percent} of it trains at best"
    ),
    "storage_too_slow": (
        "a save of {bytes:size} every {every:steps} needs a storage that takes"
        " {needed_bytes_per_s:rate}, and it takes {storage_bytes_per_s:rate}: steps wait for the"
        " save before"
    ),
    "checkpoint_interval": (
        "with a save every {best_every:,} steps instead of {every:,} the goodput is"
        " {best_goodput:percent} instead of {goodput:percent}: --set run.checkpoint.every=auto"
    ),
    "stale_choice": (
        "the compiler chose program {chosen}, and this plan is program {program}: something else"
        " has changed since; orch prove --search chooses again"
    ),
    # What others find out.
    "unsteady_profile": (
        "this machine was busy while it was measured (other programs had {others:whole percent} of"
        " its cores, repeats of a step differ by {spread:whole percent}): the next rehearsal"
        " measures it again"
    ),
    "input_missing": (
        "{key}: {path} does not exist on this machine; every host that trains must have it"
    ),
}
sentences(PlanWarning, _TEXTS, fill)


def make_warning(code: WarningCode, **figures: int | float | str) -> PlanWarning:
    return PlanWarning(code=code, figures=figures)


def all_warnings(
    plan: Plan, spec: Spec, request: SearchRequest, result: SearchResult
) -> Iterator[PlanWarning]:
    """Yield the warnings of a plan and of the search that found it."""
    if not plan.ledger_describes_trainer:
        yield make_warning("other_trainer", ledger=LEDGER_TRAINER, trainer=plan.trainer)
    offloaded = plan.forecast.host_memory_bytes_per_chip
    if offloaded and plan.forecast.host_bytes_per_chip is None:
        yield make_warning("host_memory_unknown", chip=plan.chip, offloaded_bytes=offloaded)
    chips = request.topology.chips
    odd = chips // (chips & -chips)
    if request.chip.switched and odd > 1:
        fewer = 1 << chips.bit_length() - 1
        yield make_warning("odd_domain", chips=chips, odd=odd, fewer=fewer)
    if plan.model.mtp_layers:
        yield make_warning("mtp_left_out", layers=plan.model.mtp_layers)
    yield from catalog.rental_warnings(request.chip, request.topology, request.pods)
    if spec.experiment.remat == "auto" and result.margin == 0:
        yield make_warning("no_memory_margin")
    if spec.choice and not (program := program_digest(plan)).startswith(spec.choice.program):
        yield make_warning("stale_choice", chosen=spec.choice.program, program=short(program))
    if spec.experiment.precision.parameters == "bf16":
        yield make_warning("bf16_parameters")
    # Accumulating gradients saves waits for slices, which the ranking does not see.
    step_s, tokens = plan.forecast.step_s.expected, plan.batch.tokens
    if step_s is not None and plan.batch.microbatches == 1:
        faster = accumulates_faster(request, result.candidates, step_s / tokens)
        if faster:
            microbatches = int(result.candidates.microbatches[faster[0]])
            figures = {"microbatches": microbatches, "expected_s": faster[1] * tokens}
            yield make_warning("accumulation_faster", **figures, step_s=step_s)
    yield from _program_warnings(plan, request)
    yield from _recipe_warnings(plan)
    yield from forecast_warnings(plan)


def _program_warnings(plan: Plan, request: SearchRequest) -> Iterator[PlanWarning]:
    """Yield how long stages wait in a pipeline, and what kernels cannot do on the chip."""
    if pipeline := plan.pipeline:
        share = pipeline.bubble
        if share > _BUBBLE:
            yield make_warning(
                "pipeline_bubble", share=share, stages=pipeline.stages, chunks=pipeline.chunks,
                microbatches=pipeline.microbatches,
                sequences=plan.batch.sequences * ceil(share / _BUBBLE),
            )  # fmt: skip
    moe = plan.model.moe
    if request.chip.switched and moe and moe.capacity_factor is None:
        yield make_warning("gpu_mixture", experts=moe.experts)
    length, sequence = plan.batch.length, plan.mesh["sequence"]
    ways = sequence * plan.mesh.get("sequence_dcn", 1)
    if request.chip.switched and plan.trainer == LEDGER_TRAINER and ways > 1:
        yield make_warning("gpu_sequence", ways=ways)
    on_tpu = plan.trainer == LEDGER_TRAINER and not request.chip.switched
    if on_tpu and (length % _LANES or length // sequence % _LANES):
        sizes = {"length": length, "sequence": sequence, "positions": _LANES}
        yield make_warning("attention_positions", **sizes)


# --- the run as a whole: its stages lack these warnings


def run_warnings(plan: Plan) -> tuple[PlanWarning, ...]:
    return (*_recipe_warnings(plan), *too_long(plan))


def _recipe_warnings(plan: Plan) -> Iterator[PlanWarning]:
    if plan.total_steps < _FEW_STEPS:
        yield make_warning("few_steps", steps=plan.total_steps)
    for stage in plan.each_stage:
        steps, warmup = stage.schedule_span[1], stage.optimizer.warmup_steps
        if warmup > steps:
            yield _long_warmup(warmup_steps=warmup, steps=steps)
    yield from batch_warnings(max(stage.batch.tokens for stage in plan.each_stage), plan.tokens)


def batch_warnings(batch_tokens: int, tokens: int) -> Iterator[PlanWarning]:
    """Warn of a batch beyond those that the field trains with, for a run of that many tokens."""
    critical = critical_batch_tokens(tokens)
    if batch_tokens > _LARGE_BATCH * critical:
        yield _large_batch(
            batch_tokens=batch_tokens,
            critical_tokens=critical,
            tokens=tokens,
            token_factor=1 + _CRITICAL_OVERHEAD * batch_tokens / critical,
            source=_CRITICAL_SOURCE,
        )


def critical_batch_tokens(tokens: int) -> float:
    """Return the batch beyond which more sequences save few steps, for a run of `tokens` tokens. It
    grows with the tokens of a run, hardly with its model (Zhang et al. 2024). The overhead of other
    batches grows in proportion to them (McCandlish et al. 2018).
    """
    sequences: float = _CRITICAL_SEQUENCES * (tokens / 1e6) ** _CRITICAL_EXPONENT
    return _CRITICAL_LENGTH * sequences


@sentence(PlanWarning)
def _long_warmup(warmup_steps: int, steps: int) -> str:
    return (
        f"the warm-up of {count(warmup_steps)} steps is longer than the run, which ends after"
        f" {count(steps)}: the learning rate reaches"
        f" {whole_percent(steps / warmup_steps)} of its peak"
    )


@sentence(PlanWarning)
def _large_batch(
    batch_tokens: int, critical_tokens: float, tokens: int, token_factor: float, source: str
) -> str:
    where = catalog.sources()[source].where
    return (
        f"a batch of {scaled(batch_tokens)} tokens is {batch_tokens / critical_tokens:.2g} times"
        f" the critical batch of a run of {scaled(tokens)}, about {scaled(critical_tokens, 2)}"
        f" ({where}): the same loss takes about {token_factor:.1f} times the tokens; lower"
        " experiment.batch.sequences to spare them"
    )


# --- the forecast: a plan with another forecast has other warnings


def forecast_warnings(plan: Plan) -> tuple[PlanWarning, ...]:
    outside = (
        extrapolation(axis=each.axis, value=each.value, low=each.low, high=each.high)
        for each in plan.forecast.extrapolations
    )
    return (*too_long(plan), *unknown_rates(plan), *goodput_warnings(plan), *outside)


def too_long(plan: Plan) -> Iterator[PlanWarning]:
    years = plan.forecast.days.likeliest / _DAYS_OF_YEAR
    if years >= _MANY_YEARS:
        yield make_warning("many_years", years=years)


def unknown_rates(plan: Plan) -> Iterator[PlanWarning]:
    if plan.forecast.step_s.expected is None:
        compute = plan.precision.compute
        narrow = f" in {compute}" if compute in ("int8", "fp8") else ""
        yield make_warning("no_expected", chip=plan.chip + narrow)


def goodput_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """Warn if failures or saves cost much, or storage or host links cannot keep up with saves."""
    goodput, save = plan.forecast.goodput, plan.forecast.goodput.inputs.save
    if not _losses_matter(plan):
        return
    if not goodput.inputs.failures_known:
        yield make_warning("failures_unknown", chip=plan.chip)
    if goodput.best < _MOSTLY:
        per_day = goodput.inputs.failures_per_day.value
        yield make_warning("mostly_recovering", goodput=goodput.best, failures_per_day=per_day)
    if save.write_s.value > goodput.every_s:
        yield make_warning(
            "storage_too_slow",
            bytes=save.bytes,
            every=goodput.every_steps,
            needed_bytes_per_s=goodput.needed_bytes_per_s,
            storage_bytes_per_s=save.storage_bytes_per_s.value,
        )
    blocking_s, every_s = save.blocking_s.value, goodput.every_s
    if blocking_s > _BLOCKED * every_s:
        yield _saves_block(blocking_s=blocking_s, every_s=every_s, bytes=save.host_bytes_per_chip)
    yield from interval_warnings(plan)


def interval_warnings(plan: Plan) -> Iterator[PlanWarning]:
    goodput = plan.forecast.goodput
    if _losses_matter(plan) and goodput.best - goodput.expected > _WORTH_CHANGING:
        yield make_warning(
            "checkpoint_interval",
            every=goodput.every_steps,
            best_every=goodput.best_every_steps,
            goodput=goodput.expected,
            best_goodput=goodput.best,
        )


def _losses_matter(plan: Plan) -> bool:
    if plan.forecast.goodput.stated or not plan.ledger_describes_trainer:
        return False
    return plan.run_s(plan.end_step) >= _SHORT_S


@sentence(PlanWarning)
def _saves_block(blocking_s: float, every_s: float, bytes: float) -> str:  # noqa: A002
    return (
        f"steps wait {seconds(blocking_s)} for each save, {whole_percent(blocking_s / every_s)} of"
        f" the time between two: a chip sends {with_unit(bytes, 'B')} to its host"
    )


# The name of an axis, how a plan lies on it, and the format of its values.
_AXES: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "tokens": ("tokens per chip", "{} tokens per chip", count),
    "length": ("sequence length", "sequences of {} tokens", count),
    "attention_share": ("attention", "attention takes {} of the compute time", whole_percent),
    "microbatches": ("microbatches", "{} microbatches", count),
    **{axis: (axis, f"{axis} {{}}", count) for axis in ("fsdp_dcn", "data", "sequence", "tensor")},
    "links_share": ("busy links", "links busy {} of the compute time", whole_percent),
    "host_share": ("host transfers", "host transfers busy {} of the compute time", whole_percent),
    "mfu": ("MFU", "an MFU of {} on such a chip", whole_percent),
    "mixture_mfu": ("MFU", "an MFU of {} for a mixture on such a chip", whole_percent),
    "chips": ("chips", "{} chips", count),
    "slices": ("slices", "{} slices", count),
    "stages": ("stages", "{} stages of a pipeline", count),
    "step_s": ("step time", "a step of {}", "{:.2g} s".format),
}


@sentence(PlanWarning)
def extrapolation(axis: str, value: float, low: float, high: float) -> str:
    _, place, show = _AXES[axis]
    return f"{place.format(show(value))} (published: {span(show(low), show(high))})"


def warning_texts(warnings: Iterable[PlanWarning], *, values: bool = True) -> list[str]:
    """Return the sentences of warnings; one for all extrapolations, with or without values."""
    texts: list[str] = []
    axes: list[str] = []
    for warning in warnings:
        if warning.code != "extrapolation":
            texts.append(warning.text)
        else:
            text = warning.text if values else _AXES[str(warning.figures["axis"])][0]
            axes.append(text.replace("published: ", "") if axes else text)
    if axes:
        outside = ", ".join(axes)
        where = f"{':' if values else ' in'} {outside}"
        texts.append(f"No published run is like this{where}. Read the interval as too narrow.")
    return texts

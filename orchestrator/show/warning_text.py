"""The sentences of a plan's warnings, from their codes and figures."""

from collections.abc import Iterable
from string import Formatter
from typing import Any

from orchestrator import catalog
from orchestrator.formatting import (
    count,
    counted,
    in_memory,
    scaled,
    seconds,
    whole_percent,
    with_unit,
)
from orchestrator.values.plan import PlanWarning, WarningCode

SENTENCES: dict[WarningCode, str] = {
    "mtp_left_out": (
        "the model has {layers} layer(s) that predict further tokens (multi-token prediction): the"
        " plan leaves them out, and so does the trainer"
    ),
    "slice_not_rented": (
        "Google Cloud schedules at most {most_chips:,} {chip} chips as one slice"
        " ({largest_slice}); {topology} is {chips:,}"
    ),
    "slices_not_joined": (
        "Google Cloud joins at most {most_chips:,.0f} {chip} chips by Multislice;"
        " {pods} x {topology} is {chips:,}"
    ),
    "no_memory_margin": "no plan leaves 5 % of HBM free: this one uses that margin",
    "bf16_parameters": (
        "bf16 parameters without an fp32 master copy lose small updates; the book counts memory"
        " this way, but few runs train this way"
    ),
    "attention_positions": (
        "the trainer's attention takes {positions} positions at a time on TPUs, and a chip has"
        " {length:,} / {sequence}: this runs in a rehearsal alone"
    ),
    "other_trainer": (
        "memory, time and cost of trainer {trainer} are unknown: all figures of them describe"
        " trainer {ledger}"
    ),
    "no_expected": (
        "what real runs on {chip} reach is unknown here: all figures are at best, and real runs"
        " take longer"
    ),
    "unsteady_profile": (
        "this machine was busy while it was measured (other programs had {others:.0%} of its"
        " cores, repeats of a step differ by {spread:.0%}): the next rehearsal measures it again"
    ),
    "input_missing": (
        "{key}: {path} does not exist on this machine; every host that trains must have it"
    ),
    "failures_unknown": (
        "how often {chip} fails is unknown here: days and dollars are those of a run in which"
        " nothing fails; resources.failures has room for rates"
    ),
    "mostly_recovering": (
        "with {failures_per_day:,.0f} failures a day the run spends most of its time on recovering:"
        " {goodput:.0%} of it trains at best"
    ),
    "checkpoint_interval": (
        "with a save every {best_every:,} steps instead of {every:,} the goodput is"
        " {best_goodput:.1%} instead of {goodput:.1%}: --set run.checkpoint.every=auto"
    ),
    "many_years": "the run would take {years:,.0f} years: ask for more chips or fewer tokens",
}
# What an axis of extrapolation is called, and how its values are written.
AXES = {
    "tokens": "tokens a chip {:,.0f}",
    "length": "sequence length {:,.0f}",
    "attention_share": "attention of all compute {:.0%}",
    "microbatches": "microbatches {:,.0f}",
    "fsdp_dcn": "fsdp_dcn {:,.0f}",
    "data": "data {:,.0f}",
    "sequence": "sequence {:,.0f}",
    "tensor": "tensor {:,.0f}",
    "links_share": "links over compute {:.0%}",
    "host_share": "transfers to the host over compute {:.0%}",
    "chips": "chips {:,.0f}",
    "slices": "slices {:,.0f}",
    "step_s": "step {:.2g} s",
}


class SpacedPercent(Formatter):
    """Writes a percentage as every other screen does: 5 %, not 5%."""

    def format_field(self, value: Any, format_spec: str) -> str:
        text: str = super().format_field(value, format_spec)
        return f"{text[:-1]} %" if format_spec.endswith("%") else text


FIGURES = SpacedPercent()


def warning_texts(warnings: Iterable[PlanWarning], *, values: bool = True) -> list[str]:
    """Return the sentences of a plan's warnings; one for all extrapolations, with their values."""
    listed = list(warnings)
    others = [warning_text(one) for one in listed if one.code != "extrapolation"]
    axes = [axis_text(values, one.figures) for one in listed if one.code == "extrapolation"]
    if axes:
        outside = ", ".join(axes)
        others.append(f"expected is an extrapolation; outside published runs: {outside}")
    return others


def axis_text(values: bool, figures: dict[str, Any]) -> str:
    """Return an axis, where the plan lies on it, and the range of the runs."""
    text = AXES[figures["axis"]]
    name, number = text.split("{")
    if not values:
        return name.strip()
    low, high = (FIGURES.format(f"{{{number}", figures[end]) for end in ("low", "high"))
    return (
        f"{FIGURES.format(text, figures['value'])} ({low if low == high else f'{low} to {high}'})"
    )


def warning_text(warning: PlanWarning) -> str:
    """Return the sentence of a warning."""
    figures: dict[str, Any] = warning.figures
    match warning.code:
        case "few_steps":
            return few_steps(**figures)
        case "long_warmup":
            return long_warmup(**figures)
        case "large_batch":
            return large_batch(**figures)
        case "accumulation_faster":
            return accumulation_faster(**figures)
        case "storage_too_slow":
            return storage_too_slow(**figures)
        case "saves_block":
            return saves_block(**figures)
        case "host_memory_unknown":
            return host_memory_unknown(**figures)
        case code:
            return FIGURES.format(SENTENCES[code], **figures)


def accumulation_faster(microbatches: int, expected_s: float, step_s: float) -> str:
    return (
        f"{microbatches} microbatches are expected to take {seconds(expected_s)} a step instead of"
        f" {seconds(step_s)}: slices wait for each other once a step and not in each layer. The"
        " ranking leaves out waits, and no published run on several slices shows it: --set"
        f" experiment.batch.microbatches={microbatches}"
    )


def host_memory_unknown(chip: str, offloaded_bytes: float) -> str:
    return (
        f"{in_memory(offloaded_bytes)} a chip go to the host, and no source has the memory of"
        f" hosts of {chip}: nothing checks that they fit"
    )


def storage_too_slow(
    bytes: float,  # noqa: A002
    every: int,
    needed_bytes_per_s: float,
    storage_bytes_per_s: float,
) -> str:
    return (
        f"a save of {with_unit(bytes, 'B')} every {counted(every, 'step')} needs a storage that"
        f" takes {with_unit(needed_bytes_per_s, 'B/s')}, and it takes"
        f" {with_unit(storage_bytes_per_s, 'B/s')}: steps wait for the save before"
    )


def saves_block(blocking_s: float, every_s: float, bytes: float) -> str:  # noqa: A002
    return (
        f"steps wait {seconds(blocking_s)} for each save, {whole_percent(blocking_s / every_s)} of"
        f" the time between two: a chip sends {with_unit(bytes, 'B')} to its host"
    )


def few_steps(steps: int) -> str:
    return (
        f"all tokens are used up in {counted(steps, 'step')}, too few to train a model: ask for"
        " more tokens or a smaller batch"
    )


def long_warmup(warmup_steps: int, steps: int) -> str:
    return (
        f"the warm-up of {count(warmup_steps)} steps is longer than the run, which ends after"
        f" {count(steps)}: the learning rate reaches"
        f" {whole_percent(steps / warmup_steps)} of its peak"
    )


def large_batch(
    batch_tokens: int, critical_tokens: float, tokens: int, token_factor: float, source: str
) -> str:
    where = catalog.sources()[source].where
    return (
        f"a batch of {scaled(batch_tokens)} tokens is {batch_tokens / critical_tokens:.2g} times"
        f" the critical batch of a run of {scaled(tokens)}, about {scaled(critical_tokens, 2)}"
        f" ({where}): the same loss takes about {token_factor:.1f} times the tokens; lower"
        " experiment.batch.sequences to spare them"
    )

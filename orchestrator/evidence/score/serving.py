"""Serving forecasts held to published runs, and what is learned of them for the catalog."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import exp
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.catalog.serving import FirstToken, ServingConstants, constants_of, learned
from orchestrator.errors import SpecError
from orchestrator.evidence.score.published_runs import SkippedRow
from orchestrator.evidence.score.serving_fit import (
    Fit,
    Handover,
    ServingRoom,
    best_handover,
    bounds,
    expected,
    figures_of,
    first_tokens,
    fit,
    loop_ttft_s,
    plain,
    rooms,
    strays,
)
from orchestrator.evidence.score.serving_runs import (
    DISAGGREGATED,
    SERVING,
    ServingRun,
    document_of,
    read,
    runs_of,
)
from orchestrator.values.codec import Value
from orchestrator.values.serving import ANY_ENGINE, EngineConstants

_FIGURES = ("output_tokens", "tpot", "ttft")
By = Callable[[ServingRun], Any]
_BY_DOCUMENT: By = attrgetter("document")
_BY_ENGINE: By = attrgetter("engine")
_NO_HANDOVER = Handover(1.0, 0.0, 0.0)


class ServingRow(Value):
    """A run against its forecast; figures that the run does not state are None. `known`: other
    runs of its engine were learned from. The interval is of output tokens/s and TPOT.
    """

    id: str
    document: str
    engine: str
    chip: str
    known: bool
    weak: bool
    output_tokens_per_s: float | None
    expected_output_tokens_per_s: float | None
    output_tokens_error: float | None
    most_output_tokens_per_s: float | None
    tpot_s: float | None
    expected_tpot_s: float | None
    tpot_error: float | None
    lower_tpot_s: float | None
    ttft_s: float | None
    expected_ttft_s: float | None
    ttft_error: float | None
    inside_interval: bool
    above_bound: bool
    baseline_output_tokens_error: float | None
    baseline_tpot_error: float | None
    baseline_ttft_error: float | None


class ServingErrors(Value):
    """Errors of one figure, as shares: of runs whose engine is known, and of the others."""

    figure: str
    engine: str
    runs: int
    median_abs_error: float
    p90_abs_error: float
    inside_interval: float | None
    baseline_median_abs_error: float
    baseline_p90_abs_error: float


class ServingScore(Value):
    """Forecasts of serving against published runs. `rooms` come from the project's own file."""

    learned_on: str
    rows: tuple[ServingRow, ...]
    left_out: tuple[SkippedRow, ...]
    summary: tuple[ServingErrors, ...]
    above_bound: int
    rooms: tuple[ServingRoom, ...] = ()


def held_out(
    runs: Sequence[ServingRun], by: By, base: Callable[[Any], Fit | None] = lambda _: None
) -> Iterator[tuple[Fit, list[ServingRun], list[ServingRun]]]:
    """Yield what is learned without each document, engine or part, what it is learned from, and the
    runs that were left out.
    """
    usable = [run for run in runs if not run.weak]
    figures = figures_of(usable)
    names = np.array([by(run) for run in figures.runs])
    for name in dict.fromkeys(map(by, runs)):
        rows = np.flatnonzero(names != name)
        train = [run for run in usable if by(run) != name]
        yield fit(figures.at(rows), base(name)), train, [run for run in runs if by(run) == name]


def own(made: Fit, run: ServingRun) -> tuple[EngineConstants, float]:
    found = EngineConstants(**made.of(run.engine, run.chip))
    return found, exp(made.versions.get(run.software, 0.0))


def handover_of(runs: Sequence[ServingRun], made: Fit) -> Handover:
    apart = [(run, run.prefill, *own(made, run)) for run in runs if run.prefill]
    return best_handover(apart) if apart else _NO_HANDOVER


def waits_of(runs: Sequence[ServingRun], made: Fit) -> dict[str, float]:
    """Return the simulated TTFT of the runs that state one."""
    found = {run.id: loop_ttft_s(run, *own(made, run)) for run in runs if not run.weak}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def with_catalog_constants(path: Path | None = None) -> ServingScore:
    """Score every run of a file by the catalog's constants, by default the project's own runs."""
    runs, left_out = runs_of(read(path or SERVING))
    table = learned()
    documents = {document_of(row) for file in (SERVING, DISAGGREGATED) for row in read(file)}

    def row(run: ServingRun) -> ServingRow:
        apart = run.prefill is not None
        found = constants_of(run.engine, run.chip, disaggregated=apart)
        if run.document in documents and found.runs and not run.weak:
            spread = table.spread["disaggregated seen" if apart else "seen"]
            found = replace(found, spread=spread)
        versions = table.disaggregated_version if apart else table.version
        first = table.ttft.get(run.engine, table.ttft[ANY_ENGINE])
        slower = versions.get(run.software, 1.0)
        return _row(run, found, slower, Handover(**table.handover), first)

    found = _score("learned on the project's own files", [row(run) for run in runs], left_out)
    if path:
        return found
    # The baseline of the room for the cache is what the weights leave.
    known = rooms()
    errors, simple = zip(*((row.room_error, row.baseline_room_error) for row in known), strict=True)
    summary = (*found.summary, _errors_of("cache_room", "any", errors, simple, None))
    return replace(found, rooms=known, summary=summary)


def cross_validated(hold_out: str, path: Path | None = None) -> ServingScore:
    """Score runs by constants learned without each document, or without each software. Slices for
    prompts differ from what the project's other runs teach.
    """
    runs, left_out = runs_of(read(path or SERVING))
    by: By | None = {"document": _BY_DOCUMENT, "software": _BY_ENGINE}.get(hold_out)
    if by is None:
        raise SpecError(f"serving runs are held out by document or software, not by {hold_out}")

    def others(name: Any) -> Fit:
        return _base(name if by is _BY_ENGINE else None)

    rows = dict[str, ServingRow]()
    together = [run for run in runs if not run.prefill], lambda _: None, "known"
    apart = [run for run in runs if run.prefill], others, "disaggregated"
    for part, base, known in (each for each in (together, apart) if each[0]):
        if len(set(map(by, part))) < 2:
            raise SpecError(f"nothing to learn from: all runs are of one {hold_out}")
        usable = [run for run in part if not run.weak]
        waits = waits_of(usable, fit(figures_of(usable), base(None)))
        for made, train, left in held_out(part, by, base):
            handover, firsts = handover_of(train, made), first_tokens(train, waits)
            for run in left:
                spread = known if run.engine in made.engines else "unknown"
                constants = ServingConstants(
                    **made.of(run.engine, run.chip), runs=int(spread == known),
                    spread=learned().spread[spread],
                )  # fmt: skip
                first = firsts.get(run.engine, firsts[ANY_ENGINE])
                rows[run.id] = _row(run, constants, own(made, run)[1], handover, first)
    in_order = [rows[run.id] for run in runs if run.id in rows]
    return _score(f"without each {hold_out} in turn", in_order, left_out)


@cache
def _base(without: str | None) -> Fit:
    """Return what the project's runs without slices for prompts teach, but those of an engine."""
    runs = runs_of(read(SERVING))[0]
    return fit(figures_of([run for run in runs if not run.weak and run.engine != without]))


def _row(
    run: ServingRun, constants: ServingConstants, slower: float, handover: Handover,
    first: FirstToken,
) -> ServingRow:  # fmt: skip
    # The baseline: one share of HBM bandwidth for decoding and one MFU for prefill.
    shares = learned().baseline
    baseline = plain(shares["bandwidth"], shares["mfu"])
    found = expected(run, constants.engine, slower, handover)
    simple = expected(run, baseline, 1.0, _NO_HANDOVER)
    most_rate, least_tpot_s = bounds(run, found.batch)
    ttft_s = found.ttft_s if run.prefill else None
    if (simulated_s := loop_ttft_s(run, constants.engine, slower)) is not None:
        ttft_s = first.begins_s + first.share * simulated_s
    figures = {
        "output_tokens": (run.output_tokens_per_s, found.rate, simple.rate),
        "tpot": (run.tpot_s, found.tpot_s, simple.tpot_s),
        "ttft": (run.ttft_s if ttft_s else None, ttft_s or 0.0, simple.ttft_s),
    }
    errors: dict[str, float | None] = {}
    for name, (measured, ours, theirs) in figures.items():
        errors[f"{name}_error"] = ours / measured - 1 if measured else None
        errors[f"baseline_{name}_error"] = theirs / measured - 1 if measured else None
    inside = [abs(stray) <= constants.spread for stray in strays(run, found)]
    above = bool(run.output_tokens_per_s and run.output_tokens_per_s > most_rate) or bool(
        run.tpot_s and run.tpot_s < least_tpot_s
    )
    return ServingRow(
        id=run.id,
        document=run.document,
        engine=run.engine,
        chip=run.chip,
        known=constants.runs > 0,
        weak=run.weak,
        output_tokens_per_s=run.output_tokens_per_s,
        expected_output_tokens_per_s=found.rate if run.output_tokens_per_s else None,
        most_output_tokens_per_s=most_rate if run.output_tokens_per_s else None,
        tpot_s=run.tpot_s,
        expected_tpot_s=found.tpot_s if run.tpot_s else None,
        lower_tpot_s=least_tpot_s if run.tpot_s else None,
        ttft_s=run.ttft_s,
        expected_ttft_s=ttft_s,
        inside_interval=all(inside),
        above_bound=above,
        **errors,
    )


def _errors_of(
    figure: str, engine: str, errors: Sequence[float], simple: Sequence[float], inside: float | None
) -> ServingErrors:
    ours, theirs = np.abs(errors), np.abs(simple)
    return ServingErrors(
        figure=figure, engine=engine, runs=len(errors), inside_interval=inside,
        median_abs_error=float(np.median(ours)), p90_abs_error=float(np.quantile(ours, 0.9)),
        baseline_median_abs_error=float(np.median(theirs)),
        baseline_p90_abs_error=float(np.quantile(theirs, 0.9)),
    )  # fmt: skip


def _score(learned_on: str, rows: list[ServingRow], left_out: list[SkippedRow]) -> ServingScore:
    summaries = []
    for figure in _FIGURES:
        for known in (True, False):
            own = [
                row
                for row in rows
                if row.known == known and getattr(row, f"{figure}_error") is not None
            ]
            if own:
                errors, simple = (
                    [getattr(row, f"{prefix}{figure}_error") for row in own]
                    for prefix in ("", "baseline_")
                )
                share = sum(row.inside_interval for row in own) / len(own)
                inside = None if figure == "ttft" else share
                engine = "known" if known else "never seen"
                summaries.append(_errors_of(figure, engine, errors, simple, inside))
    return ServingScore(
        learned_on=learned_on,
        rows=tuple(rows),
        left_out=tuple(left_out),
        summary=tuple(summaries),
        above_bound=sum(row.above_bound for row in rows),
    )

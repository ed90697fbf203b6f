"""Serving forecasts held to published runs, and what is learned of them for the catalog."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import exp
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from orchestrator.catalog.serving import FirstToken, ServingConstants, constants_of, learned
from orchestrator.errors import SpecError
from orchestrator.evidence.score.published_runs import SkippedRow
from orchestrator.evidence.score.serving_fit import (
    Fit,
    best_shares,
    figures_of,
    fit,
    plain,
)
from orchestrator.evidence.score.serving_room import ServingRoom, rooms
from orchestrator.evidence.score.serving_runs import (
    DISAGGREGATED,
    SERVING,
    ServingRun,
    document_of,
    read,
    runs_of,
)
from orchestrator.evidence.score.serving_times import (
    best_handover,
    bounds,
    expected,
    first_tokens,
    loop_ttft_s,
    strays,
)
from orchestrator.serving.disaggregated import Handover
from orchestrator.values.codec import Value
from orchestrator.values.serving import ANY_ENGINE, EngineConstants

_INSIDE = 0.82  # the share of held-out figures that intervals are made to hold
_FOLDS = 5  # parts of the runs, each of which shows how far runs of a seen document stray
_FIGURES = ("output_tokens", "tpot", "ttft")
_By = Callable[[ServingRun], Any]
_NO_HANDOVER, _AT_ONCE = Handover(1.0, 0.0, 0.0), FirstToken(begins_s=0.0, share=1.0)


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
    """Forecasts of serving against published runs. `rooms` are of the project's own file."""

    learned_on: str
    rows: tuple[ServingRow, ...]
    left_out: tuple[SkippedRow, ...]
    summary: tuple[ServingErrors, ...]
    above_bound: int
    rooms: tuple[ServingRoom, ...] = ()


class _Known(NamedTuple):
    """What is known of an engine where a run is forecast; `slower` is the factor of its version."""

    constants: ServingConstants
    slower: float
    handover: Handover
    first: FirstToken


def _held_out(
    runs: Sequence[ServingRun], by: _By, base: Callable[[Any], Fit | None] = lambda _: None
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


def _own(made: Fit, run: ServingRun) -> tuple[EngineConstants, float]:
    found = EngineConstants(**made.of(run.engine, run.chip))
    return found, exp(made.versions.get(run.software, 0.0))


def _handover(runs: Sequence[ServingRun], made: Fit) -> Handover:
    apart = [(run, run.prefill, *_own(made, run)) for run in runs if run.prefill]
    return best_handover(apart) if apart else _NO_HANDOVER


def _waits(runs: Sequence[ServingRun], made: Fit) -> dict[str, float]:
    """Return the simulated TTFT of the runs that state one."""
    found = {run.id: loop_ttft_s(run, *_own(made, run)) for run in runs if not run.weak}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _part(run: ServingRun) -> int:
    return crc32(run.id.encode()) % _FOLDS


# --- learning


def learn() -> dict[str, Any]:
    """Return the content of the catalog's `serving.toml`, learned from the project's own runs."""
    usable = [run for run in runs_of(read(SERVING))[0] if not run.weak]
    figures = figures_of(usable)
    made = fit(figures)
    apart = runs_of(read(DISAGGREGATED))[0]
    document, engine = attrgetter("document"), attrgetter("engine")
    spreads = {
        "known": _spread(usable, document),
        "unknown": _spread(usable, engine, known=False),
        "seen": _spread(usable, _part),
        "disaggregated": _spread(apart, document, made),
        "disaggregated seen": _spread(apart, _part, made),
    }
    own = fit(figures_of(apart), made)
    return {
        "spread": spreads,
        "version": _rounded(made.versions),
        "baseline": best_shares(figures),
        "constants": _table(made, usable),
        "disaggregated": _table(own, apart),
        "disaggregated_version": _rounded(own.versions),
        "handover": _handover(apart, own)._asdict(),
        "ttft": first_tokens(usable, _waits(usable, made)),
    }


def _spread(
    runs: Sequence[ServingRun], by: _By, base: Fit | None = None, *, known: bool = True
) -> float:
    """Return how far figures stray of runs that were left out, of known engines or of others."""
    off = list[float]()
    for made, train, left in _held_out(runs, by, lambda _: base):
        handover = _handover(train, made)
        for run in left:
            if (run.engine in made.engines) == known and run.tpot_limit_s is None:
                off += map(abs, strays(run, expected(run, *_own(made, run), handover)))
    return float(np.quantile(off, _INSIDE))


def _rounded(versions: dict[str, float]) -> dict[str, float]:
    return {name: round(exp(value), 3) for name, value in versions.items()}


def _table(made: Fit, runs: Sequence[ServingRun]) -> dict[str, dict[str, dict[str, float | int]]]:
    """Return constants by engine and chip, of each engine on any chip, and of any engine."""
    pairs = sorted({(run.engine, run.chip) for run in runs if run.tpot_limit_s is None})
    chips = [*sorted({chip for _, chip in pairs}), ""]
    everywhere = [(engine, "") for engine in sorted({engine for engine, _ in pairs})]
    found: dict[str, dict[str, dict[str, float | int]]] = {}
    for engine, chip in [*pairs, *everywhere, *((ANY_ENGINE, chip) for chip in chips)]:
        values = {name: float(f"{value:.4g}") for name, value in made.of(engine, chip).items()}
        count = sum(run.engine == engine and chip in ("", run.chip) for run in runs)
        found.setdefault(engine, {})[chip or ANY_ENGINE] = {"runs": count} | values
    return found


# --- scoring


def with_catalog_constants(path: Path | None = None) -> ServingScore:
    """Score every run of a file by the catalog's constants, by default the project's own runs."""
    runs, left_out = runs_of(read(path or SERVING))
    table = learned()
    documents = {document_of(row) for file in (SERVING, DISAGGREGATED) for row in read(file)}

    def known(run: ServingRun) -> _Known:
        apart = run.prefill is not None
        found = constants_of(run.engine, run.chip, disaggregated=apart)
        if run.document in documents and found.runs and not run.weak:
            spread = table.spread["disaggregated seen" if apart else "seen"]
            found = replace(found, spread=spread)
        versions = table.disaggregated_version if apart else table.version
        first = table.ttft.get(run.engine, table.ttft[ANY_ENGINE])
        return _Known(found, versions.get(run.software, 1.0), Handover(**table.handover), first)

    rows = [_row(run, known(run)) for run in runs]
    found = _score("learned on the project's own files", rows, left_out)
    return found if path else replace(found, rooms=rooms(), summary=(*found.summary, _of_rooms()))


def cross_validated(hold_out: str, path: Path | None = None) -> ServingScore:
    """Score runs by constants learned without each document, or without each software."""
    runs, left_out = runs_of(read(path or SERVING))
    held_out: dict[str, _By] = {
        "document": attrgetter("document"), "software": attrgetter("engine"),
    }  # fmt: skip
    by = held_out.get(hold_out)
    if by is None:
        raise SpecError(f"serving runs are held out by document or software, not by {hold_out}")
    rows = dict[str, ServingRow]()
    together = [run for run in runs if not run.prefill]
    apart = [run for run in runs if run.prefill]
    for part in filter(None, (together, apart)):
        if len(set(map(by, part))) < 2:
            raise SpecError(f"nothing to learn from: all runs are of one {hold_out}")
    if together:
        usable = [run for run in together if not run.weak]
        waits = _waits(usable, fit(figures_of(usable)))
        for made, train, left in _held_out(together, by):
            firsts = first_tokens(train, waits)
            for run in left:
                known = run.engine in made.engines
                first = firsts.get(run.engine, firsts[ANY_ENGINE])
                spread = "known" if known else "unknown"
                rows[run.id] = _row(run, _learned(made, run, spread, _NO_HANDOVER, first))
    # Slices for prompts differ from what the project's other runs teach.
    for made, train, left in _held_out(
        apart, by, lambda name: _base(name if hold_out == "software" else "")
    ):
        handover = _handover(train, made)
        for run in left:
            spread = "disaggregated" if run.engine in made.engines else "unknown"
            rows[run.id] = _row(run, _learned(made, run, spread, handover, _AT_ONCE))
    in_order = [rows[run.id] for run in runs if run.id in rows]
    return _score(f"without each {hold_out} in turn", in_order, left_out)


@cache
def _base(without: str) -> Fit:
    """Return what the project's runs without slices for prompts teach, but those of an engine."""
    runs = runs_of(read(SERVING))[0]
    return fit(figures_of([run for run in runs if not run.weak and run.engine != without]))


def _learned(
    made: Fit, run: ServingRun, spread: str, handover: Handover, first: FirstToken
) -> _Known:
    own = ServingConstants(
        **made.of(run.engine, run.chip), runs=int(spread != "unknown"),
        spread=learned().spread[spread],
    )  # fmt: skip
    return _Known(own, exp(made.versions.get(run.software, 0.0)), handover, first)


def _row(run: ServingRun, known: _Known) -> ServingRow:
    # The baseline: one share of HBM bandwidth for decoding and one MFU for prefill.
    shares = learned().baseline
    baseline = plain(shares["bandwidth"], shares["mfu"])
    engine = known.constants.engine
    found = expected(run, engine, known.slower, known.handover)
    simple = expected(run, baseline, 1.0, _NO_HANDOVER)
    most_rate, least_tpot_s = bounds(run, found.batch)
    ttft_s = found.ttft_s if run.prefill else None
    if (simulated_s := loop_ttft_s(run, engine, known.slower)) is not None:
        ttft_s = known.first.begins_s + known.first.share * simulated_s
    figures = {
        "output_tokens": (run.output_tokens_per_s, found.rate, simple.rate),
        "tpot": (run.tpot_s, found.tpot_s, simple.tpot_s),
        "ttft": (run.ttft_s if ttft_s else None, ttft_s or 0.0, simple.ttft_s),
    }
    errors: dict[str, float | None] = {}
    for name, (measured, ours, theirs) in figures.items():
        errors[f"{name}_error"] = ours / measured - 1 if measured else None
        errors[f"baseline_{name}_error"] = theirs / measured - 1 if measured else None
    inside = [abs(stray) <= known.constants.spread for stray in strays(run, found)]
    above = bool(run.output_tokens_per_s and run.output_tokens_per_s > most_rate) or bool(
        run.tpot_s and run.tpot_s < least_tpot_s
    )
    return ServingRow(
        id=run.id,
        document=run.document,
        engine=run.engine,
        chip=run.chip,
        known=known.constants.runs > 0,
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


def _of_rooms() -> ServingErrors:
    """Return the errors of room for the cache; the baseline is what weights alone leave."""
    errors, simple = zip(
        *((row.room_error, row.baseline_room_error) for row in rooms()), strict=True
    )
    return _errors_of("cache_room", "any", errors, simple, None)


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

"""Serving forecasts held to published runs, and the constants of engines that are learned of them.
Each constant is one number for all runs, a deviation of the engine, one of the chip and one of the
pair; all are drawn to zero (ridge), and a version of a software has one factor over all its times.
Errors are relative, their robust squares are made least by Gauss and Newton.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.catalog.serving import ServingConstants, constants_of, learned
from orchestrator.errors import SpecError
from orchestrator.evidence.score.serving_runs import SERVING, ServingRun, read, runs_of
from orchestrator.serving import step
from orchestrator.serving.step import PassWork
from orchestrator.values.codec import Value
from orchestrator.values.serving import ANY_ENGINE, EngineConstants

Floats = NDArray[np.float64]
_CHUNK = 2048.0  # tokens of prompts in a step, where engines state none
_ERROR, _VERSION = 0.15, 0.12  # of a figure; of a version of a software, as logarithms
_GROUP, _PAIR = 0.5, 0.3  # how far engines and chips, and pairs, are from the mean, in deviations
_INSIDE = 0.82  # the share of held-out figures that intervals are made to hold

# The constants as logarithms: mean and standard deviation before any run is seen. Factors are kept
# above 1 by a soft bend, which 0.5 is far from.
_NAMES = tuple(each.name for each in fields(EngineConstants))
_SECONDS = ("layer_s", "mixture_s")
_PRIOR = {
    "layer_s": (log(60e-6), 0.6), "mixture_s": (log(60e-6), 0.6), "weights": (0.2, 0.2),
    "matmul": (0.5, 0.25), "cache": (0.5, 0.4), "attention": (1.0, 0.4), "exchange": (0.5, 0.4),
    "experts": (1.5, 0.6), "prefill": (0.4, 0.4),
}  # fmt: skip
_MEAN, _DEVIATION = (np.array([_PRIOR[name][i] for name in _NAMES]) for i in (0, 1))


class ServingRow(Value):
    """A run against its forecast; figures that the run does not state are None. `known`: other
    runs of its engine were learned from.
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
    inside_interval: bool
    above_bound: bool
    baseline_output_tokens_error: float | None
    baseline_tpot_error: float | None


class ServingLeftOut(Value):
    id: str
    reason: str


class ServingErrors(Value):
    """Errors of one figure, as shares: of runs whose engine is known, and of the others."""

    figure: str
    engine: str
    runs: int
    median_abs_error: float
    p90_abs_error: float
    inside_interval: float
    baseline_median_abs_error: float
    baseline_p90_abs_error: float


class ServingScore(Value):
    """Forecasts of serving against published runs."""

    learned_on: str
    rows: tuple[ServingRow, ...]
    left_out: tuple[ServingLeftOut, ...]
    summary: tuple[ServingErrors, ...]
    above_bound: int


@dataclass(frozen=True)
class _Figures:
    """Every figure of the runs, one a row: its kind, and what it follows from."""

    runs: tuple[ServingRun, ...]
    kind: NDArray[np.int64]  # 0 output tokens/s, 1 TPOT, 2 TTFT of a request by itself
    measured: Floats
    decoded: PassWork
    chunked: PassWork
    chunks: Floats
    batch: Floats
    output: Floats
    copies: Floats
    in_waves: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.runs)

    def at(self, rows: Any) -> "_Figures":
        changed: dict[str, Any] = {
            each.name: getattr(self, each.name)[rows]
            for each in fields(self)
            if each.name not in {"runs", "decoded", "chunked"}
        }
        for name in ("decoded", "chunked"):
            changed[name] = PassWork(*(part[rows] for part in getattr(self, name)))
        picked = np.arange(len(self.runs))[rows].tolist()
        return replace(self, runs=tuple(self.runs[i] for i in picked), **changed)


def _batch_of(run: ServingRun) -> float:
    return max(min(run.concurrency / run.copies, run.most_requests), 1.0)


def _figures(runs: Sequence[ServingRun]) -> _Figures:
    entries: list[tuple[ServingRun, int, float]] = []
    for run in (run for run in runs if run.tpot_limit_s is None):
        stated = (run.output_tokens_per_s, run.tpot_s, run.ttft_s)
        entries += [(run, kind, value) for kind, value in enumerate(stated) if value]
    works = {run.id: _mix(run, _batch_of(run)) for run in runs}

    def column(part: int, name: str) -> Floats:
        return np.array([step.as_float(getattr(works[r.id][part], name)) for r, _, _ in entries])

    decoded, chunked = (PassWork(*(column(i, name) for name in PassWork._fields)) for i in (0, 1))
    return _Figures(
        runs=tuple(run for run, _, _ in entries),
        kind=np.array([kind for _, kind, _ in entries]),
        measured=np.array([value for _, _, value in entries]),
        decoded=decoded,
        chunked=chunked,
        chunks=np.array([works[run.id][2] for run, _, _ in entries]),
        batch=np.array([_batch_of(run) for run, _, _ in entries]),
        output=np.array([run.output for run, _, _ in entries]),
        copies=np.array([float(run.copies) for run, _, _ in entries]),
        in_waves=np.array([run.in_waves for run, _, _ in entries]),
    )


def _mix(run: ServingRun, batch: float) -> tuple[PassWork, PassWork, float]:
    half = run.prompt + run.output / 2
    mix = step.Mix(run.prompt, run.output, half, run.prompt, _CHUNK)
    return *step.mix_work(run.layout, batch, mix), mix.chunks


def _forecast(figures: _Figures, engine: EngineConstants) -> Floats:
    found = step.rates(figures.decoded, figures.chunked, figures.chunks, engine)
    whole = found.tpot_s(figures.batch, figures.output)
    between = np.where(figures.in_waves, found.step_s, whole)
    rate = figures.copies * figures.batch / whole
    return np.asarray(np.choose(figures.kind, [rate, between, found.prefill_s]))


# --- learning


def _constants(logs: Floats) -> EngineConstants:
    """Return constants from logarithms, a row each; factors bend softly above 1."""
    named = {}
    for name, values in zip(_NAMES, logs, strict=True):
        bent = values if name in _SECONDS or name == "prefill" else np.logaddexp(0, 6 * values) / 6
        named[name] = np.exp(bent)
    return EngineConstants(**named)


@dataclass(frozen=True)
class _Fit:
    """Deviations by group, and logarithms of versions."""

    groups: dict[tuple[str, ...], Floats]
    versions: dict[str, float]

    def logs(self, engine: str, chip: str) -> Floats:
        keys = ((), ("engine", engine), ("chip", chip), ("pair", engine, chip))
        none = np.zeros(len(_NAMES))
        return np.asarray(np.sum([self.groups.get(key, none) for key in keys], axis=0))

    def constants(self, runs: Sequence[ServingRun]) -> EngineConstants:
        return _constants(np.array([self.logs(run.engine, run.chip) for run in runs]).T)

    def version(self, run: ServingRun) -> float:
        return self.versions.get(run.software, 0.0)

    @property
    def engines(self) -> set[str]:
        return {key[1] for key in self.groups if key[:1] == ("engine",)}


def _learn(figures: _Figures, steps: int = 25) -> _Fit:
    runs, names = figures.runs, len(_NAMES)
    keys = [
        ((), ("engine", run.engine), ("chip", run.chip), ("pair", run.engine, run.chip))
        for run in runs
    ]
    groups = list(dict.fromkeys(key for row in keys for key in row))
    place = {key: i for i, key in enumerate(groups)}
    versions = list(dict.fromkeys(run.software for run in runs))
    members = np.array([[place[key] for key in row] for row in keys])
    version = np.array([versions.index(run.software) for run in runs]) + names * len(groups)
    scale = {"engine": _GROUP, "chip": _GROUP, "pair": _PAIR}
    spread = np.concatenate(
        [_DEVIATION * scale.get(key[0] if key else "", 1.0) for key in groups]
        + [np.full(len(versions), _VERSION)]
    )
    prior = np.zeros(len(spread))
    prior[:names] = _MEAN
    sign = np.where(figures.kind == 0, -1.0, 1.0)  # a slower version has fewer tokens/s
    target, rows = np.log(figures.measured), np.arange(len(runs))
    values = prior.copy()
    for _ in range(steps):
        logs = values[: names * len(groups)].reshape(-1, names)[members].sum(axis=1).T

        def predicted(logs: Floats, values: Floats = values) -> Floats:
            rates = np.log(_forecast(figures, _constants(logs)))
            return np.asarray(rates + sign * values[version])

        base = predicted(logs)
        residual = (base - target) / _ERROR
        slopes = np.zeros((len(runs), len(values)))
        for i in range(names):
            moved = logs.copy()
            moved[i] += 1e-5
            slope = (predicted(moved) - base) / 1e-5 / _ERROR
            for column in members.T:
                slopes[rows, names * column + i] = slope
        slopes[rows, version] = sign / _ERROR
        weight = 1 / np.sqrt(1 + residual**2)  # soft: beyond one deviation errors count less
        normal = (slopes.T * weight) @ slopes + np.diag(1 / spread**2)
        change = np.linalg.solve(
            normal, -(slopes.T @ (weight * residual) + (values - prior) / spread**2)
        )
        values = values + np.clip(change, -0.5, 0.5)
        if np.abs(change).max() < 1e-4:
            break
    table = values[: names * len(groups)].reshape(-1, names)
    return _Fit(
        dict(zip(groups, table, strict=True)),
        dict(zip(versions, values[names * len(groups) :].tolist(), strict=True)),
    )


def _held_out(runs: Sequence[ServingRun], key: str) -> Iterator[tuple[_Fit, list[ServingRun]]]:
    """Yield what is learned without each document or engine, and the runs that were left out."""
    figures = _figures([run for run in runs if not run.weak])
    names = np.array([getattr(run, key) for run in figures.runs])
    everything = _learn(figures)
    for name in dict.fromkeys(getattr(run, key) for run in runs):
        left = [run for run in runs if getattr(run, key) == name]
        rows = np.flatnonzero(names != name)
        yield (_learn(figures.at(rows)) if len(rows) < len(figures) else everything), left


def _errors(figures: _Figures, made: _Fit) -> Floats:
    predicted = np.log(_forecast(figures, made.constants(figures.runs)))
    sign = np.where(figures.kind == 0, -1.0, 1.0)
    versions = np.array([made.version(run) for run in figures.runs])
    return np.asarray(predicted + sign * versions - np.log(figures.measured))


def learn(path: Path = SERVING) -> dict[str, Any]:
    """Return the content of the catalog's `serving.toml`, learned from all runs of a file."""
    usable = [run for run in runs_of(read(path))[0] if not run.weak]
    figures = _figures(usable)
    made = _learn(figures)
    spreads = {}
    for name, key in (("known", "document"), ("unknown", "engine")):
        off = list[float]()
        for without, left in _held_out(usable, key):
            part = _figures(left)
            seen = [(run.engine in without.engines) == (name == "known") for run in part.runs]
            off += np.abs(_errors(part, without))[seen].tolist() if len(part) else []
        spreads[name] = float(np.quantile(off, _INSIDE))
    pairs = sorted({(run.engine, run.chip) for run in usable if run.tpot_limit_s is None})
    chips = [*sorted({chip for _, chip in pairs}), ""]
    table: dict[str, dict[str, dict[str, float | int]]] = {}
    everywhere = [(engine, "") for engine in sorted({engine for engine, _ in pairs})]
    for engine, chip in [*pairs, *everywhere, *((ANY_ENGINE, chip) for chip in chips)]:
        own = _constants(made.logs(engine, chip)[:, None])
        values = {name: float(f"{getattr(own, name).item():.4g}") for name in _NAMES}
        runs = {run.id for run in usable if run.engine == engine and chip in ("", run.chip)}
        table.setdefault(engine, {})[chip or ANY_ENGINE] = {"runs": len(runs)} | values
    versions = {name: round(exp(value), 3) for name, value in made.versions.items()}
    baseline = _best_shares(figures)
    return {"spread": spreads, "version": versions, "baseline": baseline, "constants": table}


def _best_shares(figures: _Figures) -> dict[str, float]:
    """Return the one share of HBM bandwidth and the one MFU that all runs fit best."""
    shares = np.arange(0.1, 1.0, 0.02)
    errors = {
        (share, mfu): np.abs(np.log(_forecast(figures, _plain(share, mfu)) / figures.measured))
        for share in shares.tolist()
        for mfu in shares.tolist()
    }
    share, mfu = min(errors, key=lambda pair: float(np.median(errors[pair])))
    return {"bandwidth": round(share, 2), "mfu": round(mfu, 2)}


def _plain(bandwidth: float, mfu: float) -> EngineConstants:
    return replace(step.PEAK, weights=1 / bandwidth, cache=1 / bandwidth, prefill=1 / mfu)


# --- scoring


def with_catalog_constants(path: Path | None = None) -> ServingScore:
    """Score every run of a file by the catalog's constants, by default the project's own runs."""
    runs, left_out = runs_of(read(path or SERVING))

    def of(run: ServingRun) -> tuple[ServingConstants, float]:
        return constants_of(run.engine, run.chip), learned().version.get(run.software, 1.0)

    rows = [_row(run, *of(run), _baseline()) for run in runs]
    return _score("learned on the project's own file", rows, left_out)


def cross_validated(hold_out: str, path: Path | None = None) -> ServingScore:
    """Score runs by constants learned without each document, or without each software."""
    runs, left_out = runs_of(read(path or SERVING))
    key = {"document": "document", "software": "engine"}.get(hold_out)
    if key is None:
        raise SpecError(f"serving runs are held out by document or software, not by {hold_out}")
    if len({getattr(run, key) for run in runs}) < 2:
        raise SpecError(f"nothing to learn from: all runs are of one {hold_out}")
    rows = dict[str, ServingRow]()
    for made, left in _held_out(runs, key):
        for run in left:
            known = run.engine in made.engines
            own = _constants(made.logs(run.engine, run.chip)[:, None])
            numbers = {name: getattr(own, name).item() for name in _NAMES}
            constants = ServingConstants(
                runs=int(known), spread=learned().spread["known" if known else "unknown"],
                **numbers,
            )  # fmt: skip
            rows[run.id] = _row(run, constants, exp(made.version(run)), _baseline())
    in_order = [rows[run.id] for run in runs if run.id in rows]
    return _score(f"without each {hold_out} in turn", in_order, left_out)


def _baseline() -> EngineConstants:
    """One share of HBM bandwidth for decoding and one MFU for prefill: those of the catalog."""
    shares = learned().baseline
    return _plain(shares["bandwidth"], shares["mfu"])


def _rate_and_tpot(
    run: ServingRun, engine: EngineConstants, slower: float
) -> tuple[float, float, float]:
    """Return output tokens/s and TPOT of a run, and its requests in work."""
    batches = [_batch_of(run)]
    if run.tpot_limit_s is not None:  # as many as the limit allows, in steps of a twelfth
        count = int(12 * np.log2(run.most_requests)) + 1
        batches = [run.most_requests / 2 ** (i / 12) for i in range(count)]
    for batch in batches:
        found = step.rates(*_mix(run, batch), engine)
        at_limit = step.as_float(step.tpot_at(found, batch, run.output, 99.0)) * slower
        if run.tpot_limit_s is None or at_limit <= run.tpot_limit_s:
            break
    whole = step.as_float(found.tpot_s(batch, run.output)) * slower
    between = step.as_float(found.step_s) * slower if run.in_waves else whole
    return run.copies * batch / whole, between, batch


def _row(
    run: ServingRun, constants: ServingConstants, slower: float, baseline: EngineConstants
) -> ServingRow:
    rate, tpot_s, batch = _rate_and_tpot(run, constants.engine, slower)
    plain_rate, plain_tpot_s, _ = _rate_and_tpot(run, baseline, 1.0)
    # The bounds: as many requests as the memory holds, half answered in the mean, and peaks.
    held = step.as_float(run.layout.most_requests(_CHUNK, run.prompt + run.output / 2))
    most = max(min(run.concurrency / run.copies, held), batch)
    decoded, chunked, chunks = _mix(run, most)
    bound_s = step.bound_tpot_s(decoded, chunked, chunks * most / run.output)
    least_tpot_s = step.as_float(step.lower_s(_mix(run, batch)[0]))
    most_rate = run.copies * most / step.as_float(bound_s)
    pairs = [(run.output_tokens_per_s, rate, plain_rate), (run.tpot_s, tpot_s, plain_tpot_s)]
    errors = [expected / measured - 1 if measured else None for measured, expected, _ in pairs]
    plain = [value / measured - 1 if measured else None for measured, _, value in pairs]
    inside = [abs(log(1 + error)) <= constants.spread for error in errors if error is not None]
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
        expected_output_tokens_per_s=rate if run.output_tokens_per_s else None,
        output_tokens_error=errors[0],
        most_output_tokens_per_s=most_rate if run.output_tokens_per_s else None,
        tpot_s=run.tpot_s,
        expected_tpot_s=tpot_s if run.tpot_s else None,
        tpot_error=errors[1],
        lower_tpot_s=least_tpot_s if run.tpot_s else None,
        inside_interval=all(inside),
        above_bound=above,
        baseline_output_tokens_error=plain[0],
        baseline_tpot_error=plain[1],
    )


def _score(
    learned_on: str, rows: list[ServingRow], left_out: list[tuple[str, str]]
) -> ServingScore:
    summaries = []
    for figure in ("output_tokens", "tpot"):
        for known in (True, False):
            own = [
                row
                for row in rows
                if row.known == known and getattr(row, f"{figure}_error") is not None
            ]
            if not own:
                continue
            errors, plain = (
                np.abs([getattr(row, f"{prefix}{figure}_error") for row in own])
                for prefix in ("", "baseline_")
            )
            summaries.append(
                ServingErrors(
                    figure=figure,
                    engine="known" if known else "never seen",
                    runs=len(own),
                    median_abs_error=float(np.median(errors)),
                    p90_abs_error=float(np.quantile(errors, 0.9)),
                    inside_interval=sum(row.inside_interval for row in own) / len(own),
                    baseline_median_abs_error=float(np.median(plain)),
                    baseline_p90_abs_error=float(np.quantile(plain, 0.9)),
                )
            )
    return ServingScore(
        learned_on=learned_on,
        rows=tuple(rows),
        left_out=tuple(ServingLeftOut(id=name, reason=reason) for name, reason in left_out),
        summary=tuple(summaries),
        above_bound=sum(row.above_bound for row in rows),
    )

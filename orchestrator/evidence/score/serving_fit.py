"""The constants of engines, learned from published runs. Each is one number for all runs, a
deviation of the engine, one of the chip and one of the pair; all are drawn to zero (ridge), and a
version of a software has one factor over all its times. Errors are relative, their robust squares
are made least by Gauss and Newton.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.evidence.score.serving_runs import ServingRun
from orchestrator.planning.torus import Floats
from orchestrator.serving import step
from orchestrator.serving.step import PassWork
from orchestrator.values.serving import EngineConstants

CHUNK = 2048.0  # tokens of prompts in a step, where engines state none
_ERROR, _VERSION = 0.15, 0.12  # of a figure; of a version of a software, as logarithms
_GROUP, _PAIR = 0.5, 0.3  # how far engines and chips, and pairs, are from the mean, in deviations

# The constants as logarithms: mean and standard deviation before any run is seen. Factors are kept
# above 1 by a soft bend, which 0.5 is far from.
NAMES = tuple(each.name for each in fields(EngineConstants))
_SECONDS = ("layer_s", "mixture_s")
_PRIOR = {
    "layer_s": (log(60e-6), 0.6), "mixture_s": (log(60e-6), 0.6), "weights": (0.2, 0.2),
    "matmul": (0.5, 0.25), "cache": (0.5, 0.4), "attention": (1.0, 0.4), "exchange": (0.5, 0.4),
    "experts": (1.5, 0.6), "prefill": (0.4, 0.4),
}  # fmt: skip
_MEAN, _DEVIATION = (np.array([_PRIOR[name][i] for name in NAMES]) for i in (0, 1))


class _Figures(NamedTuple):
    """Every figure of the runs, along the last axes: its kind, and what it follows from."""

    runs: NDArray[np.object_]
    kind: NDArray[np.int64]  # 0 output tokens/s, 1 TPOT, 2 TTFT of a request by itself
    measured: Floats
    decoded: Floats  # the fields of PassWork
    chunked: Floats
    chunks: Floats
    batch: Floats
    output: Floats
    copies: Floats
    in_waves: NDArray[np.bool_]

    def at(self, places: NDArray[np.int64]) -> "_Figures":
        kept: Any = [part[..., places] for part in self]
        return _Figures(*kept)


def figures_of(runs: Sequence[ServingRun]) -> _Figures:
    """Return the figures that teach constants: of runs with slices for prompts only TPOT."""
    entries: list[tuple[Any, ...]] = []
    for run in (run for run in runs if run.tpot_limit_s is None):
        *works, chunks = mix_of(run, run.batch)
        decoded, chunked = ([step.as_float(part) for part in work] for work in works)
        rate = None if run.prefill else run.output_tokens_per_s
        stated = (rate, run.tpot_s, run.ttft_s if run.output <= 1 else None)
        known = (decoded, chunked, chunks, run.batch, run.output, float(run.copies), run.in_waves)
        entries += [(run, kind, value, *known) for kind, value in enumerate(stated) if value]
    columns = zip(*entries, strict=True)
    return _Figures(np.array(next(columns), object), *(np.array(column).T for column in columns))


def mix_of(run: ServingRun, batch: float) -> tuple[PassWork, PassWork, float]:
    half = run.prompt + run.output / 2
    mix = step.Mix(run.prompt, run.output, half, run.prompt, CHUNK)
    return *step.mix_work(run.layout, batch, mix), mix.chunks


def forecast(figures: _Figures, engine: EngineConstants) -> Floats:
    works = PassWork(*figures.decoded), PassWork(*figures.chunked)
    found = step.rates(*works, figures.chunks, engine)
    whole = found.tpot_s(figures.batch, figures.output)
    between = np.where(figures.in_waves, found.step_s, whole)
    rate = figures.copies * figures.batch / whole
    return np.asarray(np.choose(figures.kind, [rate, between, found.prefill_s]))


def constants(logs: Floats) -> EngineConstants:
    """Return constants from logarithms, a row each; factors bend softly above 1."""
    named = {}
    for name, values in zip(NAMES, logs, strict=True):
        bent = values if name in _SECONDS or name == "prefill" else np.logaddexp(0, 6 * values) / 6
        named[name] = np.exp(bent)
    return EngineConstants(**named)


def _keys(engine: str, chip: str) -> tuple[tuple[str, ...], ...]:
    return (), ("engine", engine), ("chip", chip), ("pair", engine, chip)


@dataclass(frozen=True)
class Fit:
    """Deviations by group, from what a `base` has or from the mean, and logarithms of versions."""

    groups: dict[tuple[str, ...], Floats]
    versions: dict[str, float]
    base: "Fit | None" = None

    def logs(self, engine: str, chip: str) -> Floats:
        none = np.zeros(len(NAMES))
        found = [self.groups.get(key, none) for key in _keys(engine, chip)]
        own = np.asarray(np.sum(found, axis=0))
        return own if self.base is None else own + self.base.logs(engine, chip)

    def of(self, engine: str, chip: str) -> dict[str, float]:
        found = constants(self.logs(engine, chip)[:, None])
        return {name: getattr(found, name).item() for name in NAMES}

    @property
    def engines(self) -> set[str]:
        own = {key[1] for key in self.groups if key[:1] == ("engine",)}
        return own if self.base is None else own | self.base.engines


def fit(figures: _Figures, base: Fit | None = None, steps: int = 11) -> Fit:
    runs, names = figures.runs, len(NAMES)
    keys = [_keys(run.engine, run.chip) for run in runs]
    groups = list(dict.fromkeys(key for row in keys for key in row))
    place = {key: i for i, key in enumerate(groups)}
    versions = list(dict.fromkeys(run.software for run in runs))
    members = np.array([[place[key] for key in row] for row in keys])
    version = np.array([versions.index(run.software) for run in runs]) + names * len(groups)
    scale = {"engine": _GROUP, "chip": _GROUP, "pair": _PAIR, "": _GROUP if base else 1.0}
    spread = np.concatenate(
        [_DEVIATION * scale[key[0] if key else ""] for key in groups]
        + [np.full(len(versions), _VERSION)]
    )
    prior = np.zeros(len(spread))
    prior[:names] = 0 if base else _MEAN
    known = np.array([base.logs(run.engine, run.chip) for run in runs]).T if base else 0.0
    sign = np.where(figures.kind == 0, -1.0, 1.0)  # a slower version has fewer tokens/s
    target, rows = np.log(figures.measured), np.arange(len(runs))
    values = prior.copy()
    for _ in range(steps):
        logs = values[: names * len(groups)].reshape(-1, names)[members].sum(axis=1).T + known

        def predicted(logs: Floats, values: Floats = values) -> Floats:
            rates = np.log(forecast(figures, constants(logs)))
            return np.asarray(rates + sign * values[version])

        base_line = predicted(logs)
        residual = (base_line - target) / _ERROR
        slopes = np.zeros((len(runs), len(values)))
        for i in range(names):
            moved = logs.copy()
            moved[i] += 1e-5
            slope = (predicted(moved) - base_line) / 1e-5 / _ERROR
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
    return Fit(
        dict(zip(groups, table, strict=True)),
        dict(zip(versions, values[names * len(groups) :].tolist(), strict=True)),
        base,
    )


def plain(bandwidth: float, mfu: float) -> EngineConstants:
    return replace(step.PEAK, weights=1 / bandwidth, cache=1 / bandwidth, prefill=1 / mfu)

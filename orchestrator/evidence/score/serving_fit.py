"""Engines in published serving runs: their constants, learned, the figures that these let expect,
and those that the peaks of their chips allow. A constant is one number for all runs, a deviation of
the engine, one of the chip and one of the pair; all are drawn to zero (ridge), and a version of a
software has one factor over all its times. Errors are relative, their robust squares are made least
by Gauss and Newton.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product, starmap
from math import ceil, inf, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.catalog.chips import FOLDER
from orchestrator.catalog.serving import FirstToken
from orchestrator.evidence.score.serving_runs import (
    STEP_TOKENS,
    PrefillSlices,
    ServingRun,
    laid_out,
    model_of,
    needed,
    read,
    types_of,
)
from orchestrator.formatting import GIB
from orchestrator.planning.torus import Floats
from orchestrator.serving import step
from orchestrator.serving.layout import decode, prefill
from orchestrator.serving.load import Requests, costs_of, simulated
from orchestrator.serving.step import PassWork
from orchestrator.values.codec import Value
from orchestrator.values.serving import ANY_ENGINE, EngineConstants

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


# --- expected figures, and those that the peaks of chips allow

_MOST_SIMULATED = 3000  # requests, but three for each in work
_SHORTER = 1 / 9  # lengths drawn between 80 and 100 % are so much shorter or longer than the mean


# Prompts and answers on slices of their own, under a closed loop: a number of requests is in work
# at all times. Prompts queue for the slices of prefill, answers share steps of those of decoding.

# Requests of a decoding slice for which steps are known; others lie between.
_STEPS_OF_TWO = 2
BATCHES: Floats = 2.0 ** (np.arange(15 * _STEPS_OF_TWO) / _STEPS_OF_TWO)
_ROUNDS = 20  # until requests in decoding and their steps agree


class Handover(NamedTuple):
    """How engines serve prompts on separate slices: the seconds of a chunk as a multiple of those
    that it takes together with decoding, the seconds between the end of a prompt and its first
    token, and the mean wait as a share of all prompts' time, as loops begin with all requests at
    once.
    """

    prefill: float
    handover_s: float
    waves: float


class ClosedLoop(NamedTuple):
    """Loops, an entry each: requests in work, slices of decoding, tokens of an answer, seconds of
    a prompt where slices of prefill are busy and where it is alone, and seconds of a step with
    `BATCHES` requests.
    """

    requests: Floats
    slices: Floats
    output: Floats
    prefill_s: Floats
    alone_s: Floats
    steps_s: Floats


def closed_loops(loops: ClosedLoop, handover: Handover) -> tuple[Floats, Floats, Floats]:
    """Return TTFT, TPOT and the requests in work of a decoding slice."""
    requests, rows = loops.requests, np.arange(len(loops.requests))
    busy_s, alone_s = handover.prefill * loops.prefill_s, handover.prefill * loops.alone_s
    own = requests / loops.slices
    queue_s = busy_s * (requests - 1)
    batch = np.maximum(own, 1.0)
    for _ in range(_ROUNDS):
        low = np.minimum((np.log2(batch) * _STEPS_OF_TWO).astype(int), len(BATCHES) - 2)
        few, many = loops.steps_s[rows, low], loops.steps_s[rows, low + 1]
        between = (batch - BATCHES[low]) / (BATCHES[low + 1] - BATCHES[low])
        step_s = few + (many - few) * between
        rest_s = handover.handover_s + alone_s + loops.output * step_s
        # A request finds in the queue the mean of what the others leave (Schweitzer's mean values):
        # its rate solves queue_s rest_s / requests x^2 - whole x + requests = 0.
        whole = busy_s + rest_s + queue_s
        per_s = 2 * requests / (whole + np.sqrt(whole**2 - 4 * queue_s * rest_s))
        batch = np.maximum(per_s * loops.output * step_s / loops.slices, 1.0)
    ttft_s = requests / per_s - loops.output * step_s + handover.waves * requests * busy_s
    return ttft_s, step_s, batch


class _Expected(NamedTuple):
    """Output tokens/s, TPOT, TTFT (of a prompt alone but where slices are for prompts), and the
    requests in work of a copy.
    """

    rate: float
    tpot_s: float
    ttft_s: float
    batch: float


def expected(
    run: ServingRun, engine: EngineConstants, slower: float, handover: Handover
) -> _Expected:
    if run.prefill is not None:
        [found] = disaggregated([(run, run.prefill, engine, slower)], handover)
        return found
    batches = [run.batch]
    if run.tpot_limit_s is not None:  # as many as the limit allows, in steps of a twelfth
        count = int(12 * np.log2(run.most_requests)) + 1
        batches = [run.most_requests / 2 ** (i / 12) for i in range(count)]
    for batch in batches:
        found_s = step.rates(*mix_of(run, batch), engine)
        at_limit = step.as_float(step.tpot_at(found_s, batch, run.output, 99.0)) * slower
        if run.tpot_limit_s is None or at_limit <= run.tpot_limit_s:
            break
    whole = step.as_float(found_s.tpot_s(batch, run.output)) * slower
    between = step.as_float(found_s.step_s) * slower if run.in_waves else whole
    alone = step.as_float(found_s.prefill_s) * slower
    return _Expected(run.copies * batch / whole, between, alone, batch)


_Apart = tuple[ServingRun, PrefillSlices, EngineConstants, float]


def _loop_of(runs: Sequence[_Apart]) -> ClosedLoop:
    def column(values: Sequence[float]) -> Floats:
        return np.array(values, float)

    steps_s = list[Floats]()
    busy_s, alone_s = list[float](), list[float]()
    for run, slices, engine, slower in runs:
        work = step.work_of(run.layout, decode(BATCHES, run.prompt + run.output / 2))
        each = np.broadcast_to(step.expected_s(work, engine), (1, len(BATCHES)))
        steps_s.append(slower * each[0])
        # Busy, each part of the attention has a chunk in a pass.
        whole = STEP_TOKENS * step.as_float(slices.layout.requests_split)
        for tokens, kept in ((whole, busy_s), (min(STEP_TOKENS, run.prompt), alone_s)):
            done = step.work_of(slices.layout, prefill(tokens, run.prompt, run.prompt))
            pass_s = step.as_float(step.expected_s(done, engine, engine.prefill))
            share = 1 / slices.copies if kept is busy_s else 1.0
            kept.append(slower * pass_s * run.prompt / tokens * share)
    return ClosedLoop(
        requests=column([run.concurrency for run, *_ in runs]),
        slices=column([run.copies for run, *_ in runs]),
        output=column([run.output for run, *_ in runs]),
        prefill_s=column(busy_s), alone_s=column(alone_s), steps_s=np.array(steps_s),
    )  # fmt: skip


def rates_of(runs: Sequence[_Apart], ttft_s: Floats, tpot_s: Floats) -> Floats:
    """Return output tokens/s as such runs tell them: of nominal lengths, from both times."""
    output = np.array([slices.output for _, slices, _, _ in runs])
    requests = np.array([run.concurrency for run, *_ in runs])
    return np.asarray(requests * output / (ttft_s + (output - 1) * tpot_s))


def disaggregated(runs: Sequence[_Apart], handover: Handover) -> list[_Expected]:
    ttft_s, tpot_s, batch = closed_loops(_loop_of(runs), handover)
    columns = rates_of(runs, ttft_s, tpot_s), tpot_s, ttft_s, batch
    return [_Expected(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def bounds(run: ServingRun, batch: float) -> tuple[float, float]:
    """Return the most output tokens/s, with as many requests as the memory holds, half answered in
    the mean, and the least TPOT: memory, products and links all at their peak.
    """
    least_tpot_s = step.as_float(step.lower_s(mix_of(run, batch)[0]))
    own = run.concurrency / run.copies
    if (slices := run.prefill) is not None:
        tokens = STEP_TOKENS * step.as_float(slices.layout.requests_split)
        chunk = step.work_of(slices.layout, prefill(tokens, run.prompt, run.prompt))
        prompts = slices.copies * tokens / run.prompt / step.as_float(step.lower_s(chunk))
        answers = run.concurrency / step.as_float(step.lower_s(mix_of(run, max(own, 1.0))[0]))
        return min(prompts * slices.output, answers), least_tpot_s
    held = step.as_float(run.layout.most_requests(CHUNK, run.prompt + run.output / 2))
    most = max(min(own, held), batch)
    decoded, chunked, chunks = mix_of(run, most)
    bound_s = step.as_float(step.bound_tpot_s(decoded, chunked, chunks * most / run.output))
    return run.copies * most / bound_s, least_tpot_s


def loop_ttft_s(run: ServingRun, engine: EngineConstants, slower: float) -> float | None:
    """Return the mean TTFT of the closed loop of a run, simulated; None where it is not of one."""
    if run.ttft_s is None or run.prefill or run.concurrency == inf:
        return None
    work = max(round(run.concurrency / run.copies), 1)
    count = max(min(int(run.loops * work), max(_MOST_SIMULATED, 3 * work)), work)
    output = 1.0 if run.of_prompts else run.output
    spread = _SHORTER if run.drawn else 0.0
    factors = np.random.default_rng(0).uniform(1 - spread, 1 + spread, (2, count))
    lengths = np.ceil(factors * [[run.prompt], [output]] - 1e-9)
    arrival = np.where(np.arange(count) < work, 0.0, inf)
    mix = step.Mix(run.prompt, output, run.prompt + output / 2, run.prompt, CHUNK)
    costs = costs_of(run.layout, mix, engine, int(CHUNK), ceil(min(run.most_requests, work)))
    return float(simulated(Requests(arrival, *lengths), costs)[0].mean()) * slower


# Candidates for what is learned of first tokens: seconds before a first step, and the part of the
# simulated time that prompts take; and how far engines are from each other, as deviations.
_BEGINS_S = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
_APART = np.array([0.15, 0.5])


def _losses(found: Floats, measured: Floats, error: float) -> Floats:
    """Return what errors beyond one deviation count softly, summed along the last axis."""
    return np.asarray(np.sqrt(1 + (np.log(found / measured) / error) ** 2).sum(axis=-1))


def first_tokens(runs: Sequence[ServingRun], waits: Mapping[str, float]) -> dict[str, FirstToken]:
    """Return what fits the TTFT of all runs with simulated `waits` best, under `any`, and of each
    engine near that.
    """
    pairs = np.array(list(product(_BEGINS_S, _SHARES)))
    best, away = {}, np.zeros(len(pairs))
    for engine in (ANY_ENGINE, *sorted({run.engine for run in runs})):
        own = [run for run in runs if run.id in waits and engine in (ANY_ENGINE, run.engine)]
        found = pairs[:, :1] + pairs[:, 1:] * np.array([waits[run.id] for run in own])
        measured = np.array([run.ttft_s for run in own], float)
        place = (_losses(found, measured, 0.3) + away / 2).argmin()
        best[engine] = FirstToken(*pairs[place].tolist())
        if engine == ANY_ENGINE:
            places = np.stack([pairs[:, 0], np.log(pairs[:, 1])], axis=1)
            away = (((places - places[place]) / _APART) ** 2).sum(axis=1)
    return best


def best_handover(runs: Sequence[_Apart]) -> Handover:
    """Return the handover that rates and TTFT of runs with slices for prompts fit best."""
    stated = [each for each in runs if each[0].output_tokens_per_s and each[0].ttft_s]
    loops = _loop_of(stated)
    measured = np.array([(run.output_tokens_per_s, run.ttft_s) for run, *_ in stated], float).T

    def error(handover: Handover) -> float:
        ttft_s, tpot_s, _ = closed_loops(loops, handover)
        rates = rates_of(stated, ttft_s, tpot_s)
        return float(_losses(rates, measured[0], 0.15) + _losses(ttft_s, measured[1], 0.5))

    prefill = np.arange(0.4, 1.21, 0.05).round(2).tolist()
    candidates = product(prefill, (0.05, 0.1, 0.2, 0.3), (0.0, 0.05, 0.1, 0.15, 0.2, 0.3))
    return min(starmap(Handover, candidates), key=error)


def strays(run: ServingRun, found: _Expected) -> list[float]:
    """Return how far output tokens/s, TPOT, and the TTFT of prompts alone are off: logarithms."""
    alone = run.ttft_s if run.output <= 1 else None
    stated = run.output_tokens_per_s, run.tpot_s, alone
    return [log(value / own) for value, own in zip(found[:3], stated, strict=True) if own]


# Room for the KV cache, as logs of engines state it, against the ledger of serving.

_MEMORY = FOLDER / "serving_memory.csv"


class ServingRoom(Value):
    """Bytes that a device has for the cache: those of a log, and those that the ledger leaves of
    the share of its memory that the engine may take.
    """

    id: str
    document: str
    chip: str
    room_bytes: float
    expected_room_bytes: float
    room_error: float
    baseline_room_error: float


def rooms() -> tuple[ServingRoom, ...]:
    found = []
    for row in read(_MEMORY):
        chip, model = row["chip"].lower(), model_of(row)
        engine = row["framework"].split(" ")[0].lower()
        weights, kv_cache = types_of(row, engine)
        tensor = int(needed(row, "tp"))
        layout = laid_out(chip, model, weights, kv_cache, (1, tensor, 1))
        if row.get("cache_gib"):
            measured = needed(row, "cache_gib") * GIB
        else:
            measured = needed(row, "cache_tokens") * step.as_float(layout.cache_bytes(1.0))
        allowed = needed(row, "memory_share") * needed(row, "device_gib") * GIB
        step_bytes = layout.activation_bytes(
            needed(row, "step_tokens"), needed(row, "most_requests")
        )
        left = allowed - step.as_float(layout.weights_bytes)
        # SGLang's share counts weights and cache only.
        expected = left if engine == "sglang" else left - step.as_float(step_bytes)
        found.append(
            ServingRoom(
                id=f"{row['framework']} {row['model']} {chip}x{tensor} {weights}/{kv_cache}",
                document=row["source"].split("@")[0],
                chip=chip,
                room_bytes=measured,
                expected_room_bytes=expected,
                room_error=expected / measured - 1,
                baseline_room_error=left / measured - 1,
            )
        )
    return tuple(found)

"""Constants of GPUs, learned from published runs, and the score of what they forecast. The model is
fitted to logarithms of seconds, robustly, with a prior for each constant; editions of one job count
once. A document, or a software, left out shows how far unseen runs stray.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from math import exp, log
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.published import (
    FUSED,
    OTHER,
    SMALL_DOMAIN,
    GpuConstants,
    GpuEfficiency,
    Range,
    gpu_constants,
)
from orchestrator.errors import SpecError
from orchestrator.evidence.score.gpu_runs import GPU_RUNS, GpuRun, gpu_runs, read
from orchestrator.evidence.score.published_runs import SkippedRow
from orchestrator.evidence.score.samples import (
    Retention,
    ScoredStep,
    Summary,
    step_figures,
    summary,
    unseen_spread,
)
from orchestrator.planning.gpu_expected import GpuWork, interval, step_parts
from orchestrator.planning.torus import Floats
from orchestrator.plugins import require
from orchestrator.values.codec import Value

_FIT_ERROR = 0.05  # the relative error that weighs as much as one standard deviation of a prior
OLD = "a100"  # goals are for what came after it
_Prior = tuple[float, float]  # the median, and the standard deviation of its logarithm
_CHIP: _Prior = (0.6, 0.15)  # power, not arithmetic, limits products: 0.45 to 0.75 of the peak
_TYPES: dict[str, _Prior] = {
    "fp8": (1.0, 1e-6), "bf16": (1.0, 0.1), "mxfp8": (0.95, 0.1), "nvfp4": (0.75, 0.1),
}  # fmt: skip
_KIND: _Prior = (1.0, 0.05)
# Products timed by themselves, 342 large shapes (SimuMax's b200_bf16_ceperm.json).
_PRODUCTS: dict[str, _Prior] = {"b200-bf16": (0.48, 0.02)}
_ATTENTION: dict[str, _Prior] = {
    "8.0": (0.55, 0.2), "9.0": (0.6, 0.2), "9.0 old": (0.35, 0.2), "10.0": (0.5, 0.2),
    "10.3": (0.6, 0.2),
}  # fmt: skip
_SHARED: dict[str, _Prior] = {
    "passes": (1.5, 0.3),
    "casts": (1.0, 0.5),
    "tensor": (1.5, 0.4),
    "tensor_in_pieces": (0.6, 0.4),
    "wait_s": (300e-6, 0.7),
    "sequence": (0.5, 0.5),
    "sends": (0.2, 0.7),
    "weights": (0.35, 0.5),
    "layer_s": (100e-6, 0.7),
    "step_s": (0.01, 0.7),
}
_OF_MIXTURES: dict[str, _Prior] = {
    "routed": (0.95, 0.05),
    "rows": (3.0, 0.7),
    "biases": (3.0, 0.7),
    "fused": (0.8, 0.2),
    "tokens": (1.0, 0.5),
    "tokens_out": (1.0, 0.5),
    "tokens_behind": (0.2, 0.5),
    "mixture_layer_s": (300e-6, 0.7),
    "node_mixture_layer_s": (300e-6, 0.7),
}
_SOFTWARE: _Prior = (1.0, 0.06)
_MONTHS: _Prior = (1.0, 0.02)  # the factor of a month


def _arrays(runs: list[GpuRun]) -> GpuWork:
    names = [each.name for each in fields(GpuWork)]
    return GpuWork(**{n: np.array([float(getattr(run.work, n)) for run in runs]) for n in names})


def _weights(jobs: list[str]) -> Floats:
    """Return the weight of each run by its job, whose editions count once."""
    editions = Counter(jobs)
    return np.array([1 / editions[job] for job in jobs])


def _priors(runs: list[GpuRun]) -> dict[str, _Prior]:
    """Return the unknowns of these runs. What only dense runs show is not learned from mixtures."""
    return {
        **{f"chip.{chip}": _CHIP for chip in sorted({run.chip for run in runs})},
        **{f"type.{kind}": prior for kind, prior in _TYPES.items()},
        **{f"kind.{kind}": _KIND for kind in sorted({f"{r.chip}-{r.type}" for r in runs})},
        **{f"attention.{name}": prior for name, prior in _ATTENTION.items()},
        **{f"shared.{name}": prior for name, prior in (_SHARED | _OF_MIXTURES).items()},
        **{f"software.{name}": _SOFTWARE for name in sorted({run.software for run in runs})},
        "months": _MONTHS,
    }


def fit(runs: list[GpuRun]) -> GpuConstants:
    """Return the constants of these runs, without spreads: those of dense runs first, then those
    of mixtures with the others as they are.
    """
    priors = _priors(runs)
    x = {name: log(median) for name, (median, _) in priors.items()}
    dense = [run for run in runs if not run.mixture]
    seen = {f"{part}.{value}" for run in dense for part, value in _places(run).items()}
    seen |= {f"shared.{name}" for name in _SHARED} | {f"type.{name}" for name in _TYPES}
    mixtures = [run for run in runs if run.mixture]
    for some, is_dense in ((dense, True), (mixtures, False)):
        if some:
            _solve(some, priors, x, [name for name in priors if (name in seen) == is_dense])

    def group(prefix: str) -> dict[str, float]:
        return {
            name.removeprefix(prefix): exp(value)
            for name, value in x.items()
            if name.startswith(prefix)
        }

    # Software without runs is as that which has some on chips of its time.
    factors = group("software.")
    new = {run.software for run in runs if run.chip != OLD}
    others = [factors[name] for name in new or factors]
    jobs = Counter(f"{chip}-{kind}" for _, chip, kind in {(r.job, r.chip, r.type) for r in runs})
    jobs.update(name for _, name in {(run.job, run.software) for run in runs})
    return GpuConstants(
        chips=group("chip."),
        types=group("type."),
        kinds=group("kind."),
        attention=group("attention."),
        shared=group("shared."),
        software=factors | {OTHER: float(np.exp(np.mean(np.log(others))))},
        months=1 - exp(-x["months"]),
        latest=_latest(runs),
        runs=len(runs),
        spreads={},
        jobs=dict(jobs),
    )


def _places(run: GpuRun) -> dict[str, str]:
    target = catalog.chip(run.chip).xla_gpu
    assert target is not None
    capability = target.compute_capability.rstrip("af")
    if run.old_kernel and f"{capability} old" in _ATTENTION:
        capability += " old"
    return {
        "chip": run.chip,
        "kind": f"{run.chip}-{run.type}",
        "attention": capability,
        "software": run.software,
    }


def _parts(kind: str) -> tuple[tuple[str, str], ...]:
    chip, _, of_type = kind.rpartition("-")
    return ("chip", chip), ("type", of_type), ("kind", kind)


def _latest(runs: list[GpuRun]) -> int:
    """Return the median month of dated software, for what has no date."""
    dated = sorted(run.months for run in runs if run.months is not None)
    return dated[len(dated) // 2] if dated else 0


def _solve(
    runs: list[GpuRun], priors: dict[str, _Prior], x: dict[str, float], free: list[str]
) -> None:
    """Fit some of the constants to these runs, and leave the others as they are."""
    require("score")
    from scipy.optimize import least_squares  # noqa: PLC0415  only learning needs it

    names = [*priors]
    place = {name: i for i, name in enumerate(names)}
    every, where = np.array([x[name] for name in names]), np.array([place[name] for name in free])
    means = np.array([log(priors[name][0]) for name in free])
    deviations = np.array([priors[name][1] for name in free])
    columns = {
        part: np.array([place[f"{part}.{_places(run)[part]}"] for run in runs])
        for part in ("chip", "kind", "attention", "software")
    }
    kind = np.array([place[f"type.{run.type}"] for run in runs])
    wide = np.array([place.get(f"kind.{run.chip}-bf16", -1) for run in runs])
    latest = _latest(runs)
    months = np.array([latest if run.months is None else run.months for run in runs])
    large = np.array([catalog.chip(run.chip).pod_chips.value > SMALL_DOMAIN for run in runs])
    work, measured = _arrays(runs), np.log([run.measured_s for run in runs])
    weights = np.sqrt(_weights([run.job for run in runs]))

    def residuals(values: Floats) -> Floats:
        every[where] = values
        bf16 = every[place["type.bf16"]] + np.where(wide >= 0, every[wide], 0.0)
        share = every[columns["chip"]]
        known = GpuEfficiency(
            matmul=np.minimum(np.exp(share + every[kind] + every[columns["kind"]]), 1.0),
            wide=np.minimum(np.exp(share + bf16), 1.0),
            attention=np.minimum(np.exp(every[columns["attention"]]), 1.0),
            mixtures=np.exp(-every[place["months"]] * months)
            * np.where((months >= FUSED) & large, np.exp(every[place["shared.fused"]]), 1.0),
            software=np.exp(every[columns["software"]]),
            shared={
                name: float(np.exp(every[place[f"shared.{name}"]]))
                for name in (*_SHARED, *_OF_MIXTURES)
            },
            spread=0.0,
        )
        errors = (np.log(sum(step_parts(work, known).values())) - measured) / _FIT_ERROR
        robust = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        timed = [
            (every[chip] + every[of_type] + every[both] - median) / deviation
            for chip, of_type, both, median, deviation in products
        ]
        return np.concatenate([robust * weights, (values - means) / deviations, timed])

    products: list[Any] = [
        (*(place[f"{part}.{value}"] for part, value in _parts(name)), log(median), deviation)
        for name, (median, deviation) in _PRODUCTS.items()
        if f"kind.{name}" in free
    ]
    start = np.array([x[name] for name in free])
    found = least_squares(residuals, start, method="lm", x_scale=deviations).x
    x.update(zip(free, map(float, found), strict=True))


# --- how far runs stray that the constants never saw, and the score

_UNSEEN_SPREAD = log(1.4)  # where no document is left to compare with
Key = Callable[[GpuRun], str]
by_document: Key = attrgetter("document")
by_software: Key = attrgetter("software")
_Stray = tuple[str, str, float, float]  # its key, what was priced, a logarithm, a weight


class GpuScoredRow(ScoredStep):
    """Editions of one `job` count once in totals. `baseline_step_s` follows from one MFU for each
    chip and type.
    """

    job: str
    precision: str
    devices: int
    nodes: int


class GpuPart(Value):
    """The totals of some rows: `rows` that count `jobs` jobs."""

    part: str
    jobs: int
    summary: Summary


class GpuScore(Value):
    """`learned_on` tells which rows the constants had seen. Retention is the speed that a GPU keeps
    where a job has more nodes, over that with the fewest.
    """

    learned_on: str
    rows: tuple[GpuScoredRow, ...]
    left_out: tuple[SkippedRow, ...]
    parts: tuple[GpuPart, ...]
    retention: tuple[Retention, ...]


def _efficiency(run: GpuRun, constants: GpuConstants) -> GpuEfficiency | None:
    return constants.efficiency(
        catalog.chip(run.chip), run.type, run.software, mixture=run.mixture, months=run.months,
        old_kernel=run.old_kernel,
    )  # fmt: skip


def _expected_s(run: GpuRun, known: GpuEfficiency) -> float:
    return max(float(sum(step_parts(run.work, known).values())), run.lower_s)


def _strays(runs: list[GpuRun], key: Key, *, new: bool) -> list[_Stray]:
    """Return how far the rows of each key stray when it is left out, with its other editions."""
    return [
        (name, priced(run), _stray(run, known), weight)
        for name, run, known, is_new, weight in _unseen(runs, key)
        if known is not None and run.chip != OLD and is_new == new
    ]


def _stray(run: GpuRun, known: GpuEfficiency) -> float:
    return abs(log(_expected_s(run, known) / run.measured_s))


def priced(run: GpuRun) -> str:
    return "mixture" if run.mixture else "dense" if run.type == "bf16" else "narrow"


def _unseen(
    runs: list[GpuRun], key: Key
) -> Iterator[tuple[str, GpuRun, GpuEfficiency | None, bool, float]]:
    """Yield each run of each key with what all other rows know of it, other editions of the key's
    jobs left out; whether its software is new to them; and the weight of the run.
    """
    for name in sorted(set(map(key, runs))):
        test = [run for run in runs if key(run) == name]
        jobs = {run.job for run in test}
        train = [run for run in runs if run.learned and key(run) != name and run.job not in jobs]
        if train:
            constants = replace(fit(train), spreads=dict.fromkeys(_SPREADS, _UNSEEN_SPREAD))
            for run, weight in zip(test, _weights([run.job for run in test]), strict=True):
                is_new = run.software not in constants.software
                yield name, run, _efficiency(run, constants), is_new, float(weight)


_PRICED = ("dense", "narrow", "mixture")
_SPREADS = (*_PRICED, *(f"new {name}" for name in _PRICED))


def _spreads(known: list[_Stray], new: list[_Stray]) -> dict[str, float]:
    """Return the spreads by what was priced, and of that on new software."""
    found = {}
    for prefix, strays in (("", known), ("new ", new)):
        for name in _PRICED:
            own = [stray for stray in strays if stray[1] == name] or strays
            plain = [(key, stray, weight) for key, _, stray, weight in own]
            found[f"{prefix}{name}"] = unseen_spread(plain, 0.95) if own else _UNSEEN_SPREAD
    # Software without runs strays at least as far as that with some.
    return found | {f"new {name}": max(found[name], found[f"new {name}"]) for name in _PRICED}


def learn(runs: list[GpuRun]) -> GpuConstants:
    """Return the constants of these runs, how far unseen ones stray, and what all of them have."""
    new = _strays(runs, by_software, new=True)
    spreads = _spreads(_strays(runs, by_document, new=False), new)
    reached: dict[str, list[float]] = {
        "length": [run.length for run in runs],
        "chips": [run.devices for run in runs],
        "stages": [run.mesh["pp"] for run in runs],
        "step_s": [run.measured_s for run in runs],
    }
    ranges = {axis: Range(low=min(found), high=max(found)) for axis, found in reached.items()}
    return replace(fit([run for run in runs if run.learned]), spreads=spreads, ranges=ranges)


@cache
def published_gpus() -> tuple[list[GpuRun], list[SkippedRow]]:
    return gpu_runs(read(GPU_RUNS))


def _scored(run: GpuRun, known: GpuEfficiency, baseline_s: float) -> GpuScoredRow:
    expected = _expected_s(run, known)
    ends = interval(expected, run.lower_s, known.spread)
    return GpuScoredRow(
        id=run.id,
        job=run.job,
        chip=run.chip,
        software=run.software,
        precision=run.type,
        mixture=run.mixture,
        devices=run.devices,
        nodes=run.nodes,
        **step_figures(run.measured_s, expected, ends, run.lower_s, baseline_s),
    )


def _baseline(runs: list[GpuRun]) -> Callable[[GpuRun], float]:
    """Return seconds by one rate of model FLOPs for each chip and type: the median of its rows."""

    def rate(run: GpuRun) -> float:
        return run.model_flops / (run.measured_s * run.devices)

    every = float(np.median(list(map(rate, runs))))
    of_kind: dict[tuple[str, str], float] = {
        kind: float(np.median([rate(run) for run in runs if (run.chip, run.type) == kind]))
        for kind in {(run.chip, run.type) for run in runs}
    }
    return lambda run: run.model_flops / run.devices / of_kind.get((run.chip, run.type), every)


def with_catalog_constants(path: Path | None = None) -> GpuScore:
    """Score every row of a file, by default the project's own, by the catalog's constants."""
    runs, skipped = gpu_runs(read(path)) if path else published_gpus()
    constants, baseline_s = gpu_constants(), _baseline(published_gpus()[0])
    rows, left_out = [], list(skipped)
    for run in runs:
        if (known := _efficiency(run, constants)) is None:
            why = f"no run of {run.chip} was learned from: `expected` is unknown"
            left_out.append(SkippedRow(id=run.id, reason=why))
        else:
            rows.append(_scored(run, known, baseline_s(run)))
    return _score(rows, left_out, runs, "learned on the project's own file")


def cross_validated(
    without: Literal["document", "group", "software"], path: Path | None = None
) -> GpuScore:
    """Score rows by constants from a file's rows of other documents or software. Other editions of
    a job are left out with it, and the interval is that of the other keys' strays.
    """
    runs, skipped = gpu_runs(read(path)) if path else published_gpus()
    key = by_software if without == "software" else by_document
    if len(set(map(key, runs))) < 2:
        text = f"{path or GPU_RUNS}: nothing to learn from: all its runs are of one {without}"
        raise SpecError(text)
    unseen = list(_unseen(runs, key))
    strays: dict[bool, list[_Stray]] = {True: [], False: []}
    for name, run, known, new, weight in unseen:
        if known is None:
            skipped = [*skipped, SkippedRow(id=run.id, reason=f"no other run of {run.chip}")]
        else:
            strays[new].append((name, priced(run), _stray(run, known), weight))
    baselines = {name: _baseline([run for run in runs if key(run) != name]) for name, *_ in unseen}
    rows = []
    for name, run, known, new, _ in unseen:
        if known is not None:
            others = [[each for each in strays[kind] if each[0] != name] for kind in (False, True)]
            spread = _spreads(*others)[f"{'new ' if new else ''}{priced(run)}"]
            rows.append(_scored(run, replace(known, spread=spread), baselines[name](run)))
    order = {run.id: i for i, run in enumerate(runs)}
    rows.sort(key=lambda row: order[row.id])
    held_out = "software" if key is by_software else "document"
    return _score(rows, skipped, runs, f"without each {held_out} in turn")


def _score(
    rows: list[GpuScoredRow], skipped: list[SkippedRow], runs: list[GpuRun], learned_on: str
) -> GpuScore:
    """Return the score; `rows` are in the order of `runs`, of which some were left out."""
    # The speed that each GPU keeps on more nodes, for jobs that differ in dp and batch.
    first: dict[tuple[object, ...], tuple[GpuScoredRow, GpuRun]] = {}
    found, retention = {row.id: row for row in rows}, []
    for run in sorted((run for run in runs if run.id in found), key=lambda run: run.devices):
        row, mesh = found[run.id], run.mesh
        places = tuple(mesh[axis] for axis in ("tp", "cp", "pp", "interleave", "ep"))
        source, kind = run.document.split()[0], run.job.rpartition(" ")[2]
        same = (source, kind, run.chip, run.type, run.model, run.length, places, run.months)
        least, base = first.setdefault(same, (row, run))
        if run.devices != base.devices:
            work = run.sequences / run.devices / (base.sequences / base.devices)
            kept = Retention(
                id=row.id,
                slices=run.nodes,
                measured=work * least.measured_step_s / row.measured_step_s,
                expected=work * least.expected_step_s / row.expected_step_s,
            )
            retention.append(kept)
    new = [row for row in rows if row.chip != OLD]
    parts: dict[str, list[GpuScoredRow]] = {
        "all": rows,
        "bf16, H100 and later": [row for row in new if row.precision == "bf16"],
        "fp8 and below, H100 and later": [row for row in new if row.precision != "bf16"],
        "mixtures": [row for row in rows if row.mixture],
        **{f"software {name}": [row for row in rows if row.software == name]
           for name, _ in Counter(row.software for row in rows).most_common()},
    }  # fmt: skip
    return GpuScore(
        learned_on=learned_on,
        rows=tuple(rows),
        left_out=tuple(skipped),
        parts=tuple(
            GpuPart(
                part=name,
                jobs=len({row.job for row in found}),
                summary=summary(
                    found,
                    len(skipped) if name == "all" else 0,
                    _weights([row.job for row in found]),
                ),
            )
            for name, found in parts.items()
            if found
        ),
        retention=tuple(retention),
    )

"""Rows of published runs as samples: the measured step, and the ledger of the run as it was run."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot, prod
from typing import Any, Literal

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.catalog.published import OTHER, REFERENCE, Efficiency, LearnedConstant
from orchestrator.errors import OrchError
from orchestrator.evidence.score import run_work
from orchestrator.evidence.score.published_runs import (
    PublishedRun,
    Row,
    SkippedRow,
    Unscorable,
    run_of,
)
from orchestrator.network import rematerialization
from orchestrator.network.mesh_axes import GROUPS, ICI_AXES
from orchestrator.network.rematerialization import NAMED, Policy
from orchestrator.planning import expected as pricing
from orchestrator.planning import flops
from orchestrator.planning.feasibility import placements, sizes_by_name
from orchestrator.planning.layout import Training
from orchestrator.planning.search import SearchRequest, make_layout
from orchestrator.planning.step_work import StepWork, step_work, transfers
from orchestrator.planning.time import StepTime, device_peak, peak, step_time, time_lines
from orchestrator.planning.torus import (
    Floats,
    Links,
    axis_sizes,
    find_links,
    make_torus,
    plain_links,
)
from orchestrator.values.codec import MatmulType, Value
from orchestrator.values.goodput import Uncertain
from orchestrator.values.plan import LedgerLine, LineKind
from orchestrator.values.spec import Batch, Experiment, MeshRequest, Optimizer, Precision


def _lay_out(run: PublishedRun) -> tuple[Training, list[LedgerLine]]:
    chip = catalog.chip(run.chip)
    # The slice: the stated shape, or the shape with that many chips.
    if run.chips % run.slices:
        raise Unscorable(f"{run.chips} chips are not {run.slices} slices of equal size")
    chips = run.chips // run.slices
    shape = re.search(r"\b\d+(x\d+){1,2}\b", re.sub(r"^\d+x ", "", run.topology))
    text = shape[0] if shape else f"{chip.slices.names[0]}-{chips * chip.slices.named_per_chip}"
    topology = catalog.topology(chip, text)
    if topology.chips != chips:
        raise Unscorable(f"{run.topology} is {topology.chips} chips, its row says {chips} a slice")
    layout = _layout_as_run(run, chip, topology)
    # The ledger, scaled where the run's block or optimizer differ, with its attention.
    tensor = layout.devices_along(GROUPS["tensor"])
    extra = run.model.layers * run_work.extra_parameters_per_layer(run) / tensor
    wider = 1 + extra / layout.layer_elements
    factors: dict[LineKind, float] = {"matmul": wider, "matmul_recompute": wider}
    if run.parallel_block:  # one gather and one scatter serve attention and MLP together
        factors |= {"activation_gather": 0.5, "activation_scatter": 0.5}
    lines = [run_work.scaled(line, factors.get(line.kind, 1.0)) for line in time_lines(layout)]
    lines = run_work.experts_as_run(run, layout, lines)
    return layout, run_work.attention_as_run(run, layout, lines)


def _policy_of(run: PublishedRun) -> Policy:
    name = run.remat
    if name in NAMED:
        return NAMED[name]
    if name.startswith("gradient_checkpointing"):
        return NAMED["full"]  # Levanter's default keeps only the input of each block
    if not name and run.hfu and run.mfu and run.hfu > run.mfu:
        return NAMED["full"]  # unnamed, but its hardware did more FLOPs than its model has
    if not name.startswith("custom"):
        raise Unscorable(
            f"it is unknown what remat {name!r} keeps" if name else "its remat is not stated"
        )
    # MaxText's list of tensors: after `device` they stay in HBM, after `offload` on the host.
    text = name.removeprefix("custom").lstrip(": ")
    where, places = "device", dict[str, str]()
    for word in re.split(r"[\s;,=]+", text):
        if word in {"device", "offload", "remat"}:
            where = word
        elif word not in rematerialization.TENSORS:
            raise Unscorable(f"tensor {word!r} of remat {text!r} is unknown")
        else:
            places[word] = where
    return rematerialization.custom(places)


def _layout_as_run(run: PublishedRun, chip: Chip, topology: Topology) -> Training:
    """Return the fastest way to lay the run's mesh on the torus."""
    slice_torus = make_torus(chip, topology)
    # The run's mesh of one slice: devices that its axes leave are replicas.
    tensor, sequence = run.mesh["tensor"] or 1, run.mesh["sequence"] or 1
    expert = run.mesh["expert"] or 1
    rest, over = divmod(slice_torus.devices, tensor * sequence * expert)
    fsdp = run.mesh["fsdp"] or rest
    if over or rest % fsdp:
        raise Unscorable(
            f"{slice_torus.devices} devices are not fsdp {fsdp} x sequence {sequence} x tensor"
            f" {tensor} and whole replicas"
        )
    mesh = MeshRequest(
        data=rest // fsdp,
        expert=expert,
        fsdp=fsdp,
        sequence=sequence,
        tensor=tensor,
        fsdp_dcn=run.mesh["fsdp_dcn"],
    )
    experiment = Experiment(
        model=run.model,
        tokens=run.sequences * run.length,
        batch=Batch(sequences=run.sequences, length=run.length),
        optimizer=Optimizer(name=run.optimizer),
        precision=Precision(parameters=run.parameters, compute=run.compute),
    )
    request = SearchRequest(chip, topology, slice_torus, experiment, mesh, run.slices)
    # Other trainers need not split the stream by position.
    divisible = 2 * (mesh.tensor or 1) * (mesh.sequence or 1)
    factors = placements(slice_torus, run.model, divisible, mesh, run.sequences // run.slices or 1)
    if not len(factors):
        sizes = " x ".join(f"{axis} {getattr(mesh, axis)}" for axis in ICI_AXES)
        raise Unscorable(f"its mesh {sizes} does not divide its model or lie on {topology}")

    def laid_out(sizes: dict[str, Any], links: Links) -> Training:
        policy = _policy_of(run)
        return make_layout(request, sizes, run.sequences, run.microbatches, policy, links)

    # The rule of the search: bound and unoverlapped time together, less what offloading hides.
    many = laid_out(sizes_by_name(axis_sizes(factors)), find_links(slice_torus, factors))
    time = step_time(many, time_lines(many))
    cost = time.lower_s + time.unoverlapped_s - transfers(many).hidden_s()
    row = int(np.argmin(np.broadcast_to(cost, len(factors))))
    best = factors[row : row + 1]
    plain = {axis: prod(best[0, :, column].tolist()) for column, axis in enumerate(ICI_AXES)}
    return laid_out(plain, plain_links(slice_torus, best))


# Exchanges over `tensor` are sent piece by piece, next to matmuls, by software that asks for it.
# Others leave it to the compiler, and wait for the whole.
OWN_SOFTWARE = "orch"  # the trainer of this project
IN_PIECES = frozenset({REFERENCE, OWN_SOFTWARE})
_NOTHING, _ALL = LearnedConstant(value=0.0), LearnedConstant(value=1.0)


def _as_run(efficiency: Efficiency, run: PublishedRun) -> Efficiency:
    """Return the constants for a run's steady step, and the spread for its software."""
    name, attention = run.software.name, efficiency.attention
    if run.software.kernel == "flash":
        attention = efficiency.flash_attention
        attention = replace(attention, value=min(attention.value / flash_cost(run), 1.0))
    return replace(
        efficiency,
        attention=attention,
        exposed_tensor=efficiency.exposed_tensor if name in IN_PIECES else _ALL,
        spread=efficiency.reference_spread if name == REFERENCE else efficiency.spread,
    )


def flash_cost(run: PublishedRun) -> float:
    """Return the time of the older kernel over its time with a head of 128, for the same FLOPs: a
    score of either takes as long.
    """
    return 128 / max(run.model.head_dim, 128)


# Score: predictions against published runs, row by row and in total. Plain values.


class ScoredStep(Value):
    """One run, measured and expected. `error` is expected over measured, less one."""

    id: str
    chip: str
    software: str
    mixture: bool
    measured_step_s: float
    expected_step_s: float
    low_step_s: float
    high_step_s: float
    lower_step_s: float
    baseline_step_s: float
    error: float
    inside_interval: bool
    below_lower_bound: bool


class ScoredRow(ScoredStep):
    """`baseline_step_s` follows from one MFU for each kind of chip, learned on the same rows.
    `assumed` names the columns of software that the row does not state.
    """

    group: str
    kernel: str
    averages: str
    assumed: tuple[str, ...]
    compute: MatmulType
    slices: int


def step_figures(
    measured_s: float, expected_s: float, ends: tuple[float, float], lower_s: float,
    baseline_s: float,
) -> dict[str, Any]:  # fmt: skip
    return {
        "measured_step_s": measured_s,
        "expected_step_s": expected_s,
        "low_step_s": ends[0],
        "high_step_s": ends[1],
        "lower_step_s": lower_s,
        "baseline_step_s": baseline_s,
        "error": expected_s / measured_s - 1,
        "inside_interval": ends[0] <= measured_s <= ends[1],
        "below_lower_bound": measured_s < lower_s,
    }


class Retention(Value):
    """Throughput per chip at so many slices over one slice of the same job."""

    id: str
    slices: int
    measured: float
    expected: float


class Summary(Value):
    """Errors of the expected step time, as fractions; `inside_interval` is a share of rows."""

    rows: int
    left_out: int
    median_abs_error: float | None
    mean_abs_error: float | None
    p90_abs_error: float | None
    worst_abs_error: float | None
    inside_interval: float | None
    below_lower_bound: int
    baseline_median_abs_error: float | None
    baseline_p90_abs_error: float | None


Stray = tuple[str, float, float]  # the key of a row, how far it strays as a log, and its weight


def weighted_quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """Return the value below which that share of the weight lies, between the two next to it."""
    figures, weights = np.array(sorted(weighted)).T
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    return float(np.interp(share, middles, figures))


def unseen_spread(strays: list[Stray], most: float = 1.0) -> float:
    """Return the factor within which 80 % of runs lie that were predicted from other keys, as a
    log. The next run has one more key, which n keys cover to (n + 1) / n, or to `most` where few
    keys have so many rows that the worst is not to be the interval.
    """
    share = 0.8 * (1 + 1 / len({key for key, _, _ in strays}))
    return weighted_quantile([(left, weight) for _, left, weight in strays], min(share, most))


def summary(rows: Sequence[ScoredStep], skipped: int, weights: Floats | None = None) -> Summary:
    """Return the figures for all rows, which count alike or by weights; None without rows."""
    errors = np.abs([row.error for row in rows])
    baseline_errors = np.abs([row.baseline_step_s / row.measured_step_s - 1 for row in rows])
    inside = np.array([float(row.inside_interval) for row in rows])

    def quantile(values: Floats, share: float) -> float | None:
        if weights is None:
            return float(np.quantile(values, share)) if len(rows) else None
        return weighted_quantile(list(zip(values, weights, strict=True)), share)

    def mean(values: Floats) -> float | None:
        return float(np.average(values, weights=weights)) if len(rows) else None

    return Summary(
        rows=len(rows),
        left_out=skipped,
        median_abs_error=quantile(errors, 0.5),
        mean_abs_error=mean(errors),
        p90_abs_error=quantile(errors, 0.9),
        worst_abs_error=float(errors.max()) if len(rows) else None,
        inside_interval=mean(inside),
        below_lower_bound=sum(row.below_lower_bound for row in rows),
        baseline_median_abs_error=quantile(baseline_errors, 0.5),
        baseline_p90_abs_error=quantile(baseline_errors, 0.9),
    )


class SoftwareSummary(Value):
    """The figures of one software's runs; `median_error` has its sign."""

    software: str
    rows: int
    median_error: float
    median_abs_error: float
    p90_abs_error: float
    inside_interval: float


class GoodputScore(Value):
    """A published share of effective time, and the one predicted from its own rates.

    `reported_is`: a source may give a share that the run was above.
    """

    id: str
    source: str
    predicted: Uncertain
    reported: float
    reported_is: Literal["at_least", "about"]
    note: str


class RecoveryScore(Value):
    """A kind of fault of this project's campaign: median seconds until a step was done again."""

    id: str
    faults: int
    predicted_s: float
    recorded_s: float


class Score(Value):
    """`learned_on` tells which rows the constants had seen. `dense`, `mixtures` and `quantized`
    are the figures of these rows apart. `goodput` and `recoveries` are empty for rows of one's own.
    """

    learned_on: str
    rows: tuple[ScoredRow, ...]
    left_out: tuple[SkippedRow, ...]
    retention: tuple[Retention, ...]
    software: tuple[SoftwareSummary, ...]
    summary: Summary
    dense: Summary
    mixtures: Summary
    quantized: Summary
    goodput: tuple[GoodputScore, ...] = ()
    recoveries: tuple[RecoveryScore, ...] = ()


class Sample(Value):
    """A run that can be scored: its measured seconds, and the work in them."""

    run: PublishedRun
    measured_s: float
    layout: Training
    lines: list[LedgerLine]
    todo: StepWork

    @cached_property
    def time(self) -> StepTime:
        return step_time(self.layout, self.lines)

    @cached_property
    def lower_s(self) -> float:
        return float(self.time.lower_s)

    @property
    def mfu(self) -> float:
        """The measured MFU, by the project's one definition; a window counts only what it sees."""
        token_flops = run_work.counted_flops_per_token(self.run, run_work.OURS)
        step_flops = token_flops * self.run.sequences * self.run.length
        rate = device_peak(self.layout)
        return flops.mfu(step_flops, self.measured_s, int(self.layout.devices), rate)

    @property
    def averages_run(self) -> bool:
        return self.run.software.averages == "run"

    @cached_property
    def axis_values(self) -> dict[str, float]:
        values = pricing.axis_values(self.layout, self.todo, self.measured_s)
        return values | {"mixture_mfu" if self.run.model.moe else "mfu": self.mfu}

    def expected_s(self, efficiency: Efficiency) -> float:
        """Return the steady step, what its software adds, and what a whole run adds on average."""
        steady_s, (overhead_s, _) = self._steady_s(efficiency), self._overhead_s(efficiency)
        return (steady_s + overhead_s) / (1 - self.added_share(efficiency))

    def _steady_s(self, efficiency: Efficiency) -> float:
        own = _as_run(efficiency, self.run)
        ours_s = float(pricing.expected_s(self.todo, self.time, own))
        others_s = self.bias_rows * efficiency.bias_row_s.value
        others_s += (efficiency.mask_products.value - 1) * self.masks_s / own.matmul.value
        return max(ours_s + others_s, self.lower_s)

    @cached_property
    def bias_rows(self) -> float:
        """Rows of experts' biases that other software gathers, and whose gradients it scatters."""
        moe, network = self.layout.model.moe, self.layout.network
        if moe is None or not moe.biases:
            return 0.0
        biases = sum(matmul.bias is not None for matmul in network.blocks[-1].mlp.matmuls)
        return float(biases * moe.top_k * self.layout.step_tokens * network.mixture_layers)

    @cached_property
    def masks_s(self) -> float:
        """Seconds at the peak of products with masks of rows, and of what these compute again."""
        return float(sum(line.value for line in self.lines if line.name == run_work.MASKS))

    def _overhead_s(self, efficiency: Efficiency) -> tuple[float, float]:
        """Return the overhead of a whole run, and how far it may be off in four of five cases."""
        constant = efficiency.run_overhead_s
        overhead_s = constant.value if self.averages_run else 0.0
        return overhead_s, pricing.STANDARD_DEVIATIONS * constant.unsure * overhead_s

    def added_share(self, efficiency: Efficiency) -> float:
        """Return the share that its software adds, and that a whole run does between steps."""
        by_name, name = efficiency.software, self.run.software.name
        software = by_name.get(name, by_name.get(OTHER, _NOTHING))
        return software.value + (efficiency.run_share.value if self.averages_run else 0.0)

    def interval(self, efficiency: Efficiency) -> tuple[float, float]:
        """Return the interval of the steady step, wider by how unsure a whole run's overhead is."""
        own = _as_run(efficiency, self.run)
        ours_s = float(pricing.expected_s(self.todo, self.time, own))
        steady_s, (_, unsure_s) = self._steady_s(efficiency), self._overhead_s(efficiency)
        ends = pricing.interval(self.layout, self.todo, self.time, own)
        below, above = (hypot((end / ours_s - 1) * steady_s, unsure_s) for end in ends)
        expected, share = self.expected_s(efficiency), 1 - self.added_share(efficiency)
        return max(expected - below / share, self.lower_s), expected + above / share

    def uncertainty(self, efficiency: Efficiency) -> tuple[float, float]:
        """Return how far its figure may be off, as shares: for its constants and the unseen."""
        own, (_, unsure_s) = _as_run(efficiency, self.run), self._overhead_s(efficiency)
        constants = hypot(pricing.deviation(self.todo, own), unsure_s / self.measured_s)
        return constants, pricing.unseen(self.todo, self.axis_values, own)


def _sample_of(row: Row) -> Sample:
    """Return the sample of a row; an error says why it cannot be scored."""
    run = run_of(row)
    at_peak = peak(catalog.chip(run.chip), run.compute).value
    run_work.check_count(run)
    layout, lines = _lay_out(run)
    todo = step_work(layout, lines)
    if run.dispatch_matmuls:  # no row is moved: products with masks take their place
        todo = replace(todo, row_moves=0.0)
    # An evaluation is one pass of as many as training makes.
    again = flops.blocks_recompute_flops(layout) / flops.blocks_forward_flops(layout)
    evaluated = run.evaluated / float(1 + flops.BACKWARD_OVER_FORWARD + again)
    return Sample(
        run=run,
        measured_s=run_work.measured_step_s(run, at_peak) / (1 + evaluated),
        layout=layout,
        lines=lines,
        todo=todo,
    )


def samples(rows: Iterable[Row]) -> tuple[list[Sample], list[SkippedRow]]:
    usable, skipped = [], []
    for row in rows:
        try:
            usable.append(_sample_of(row))
        except OrchError as reason:
            skipped.append(SkippedRow(id=row["id"], reason=str(reason)))
    return usable, skipped

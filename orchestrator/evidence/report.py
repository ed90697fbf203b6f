"""The report of a run, from its journal."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, get_args

import numpy as np

from orchestrator.evidence.profile import kept_profile
from orchestrator.formatting import HOUR_S
from orchestrator.journal.heartbeat import read_heartbeat
from orchestrator.journal.listing import trial_of
from orchestrator.journal.run_journal import Clock, Journal, outlook_of, prediction_of
from orchestrator.journal.steps import (
    Floats,
    Mask,
    StepTable,
    TableReader,
    counted_rows,
    counted_steps,
)
from orchestrator.values import report as values
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Badput, Measurement, PredictionKind, Report, StageReport
from orchestrator.values.run import Run

_SCHEMA = 5
_MOST_BLOCKS = 24  # of an attempt's steps, in the order of time
_Span = tuple[Badput | Literal["goodput"], float]  # what time went into, and its seconds
# Keys of a report whose values are those of the run, and those of its plan.
_OF_RUN = (
    "run", "id", "name", "state", "reason", "rehearsal", "rehearses", "spec_digest", "steps",
    "steps_done", "problems", "slowdowns", "host_checks",
)  # fmt: skip
_OF_PLAN = ("chip", "chips", "devices", "pods", "model", "data")


# How the hosts of a run compare over its steps, from what each measured of itself.

_MOST_PLACES, _PER_PLACE = 60, 5  # over the steps, and samples of each
_MOST_HOSTS = 24


@dataclass(frozen=True)
class _HostRow:
    """A host, and how many times as long as the others it took, at each place of `HostHeat`."""

    rank: int
    name: str
    times: tuple[float, ...]


@dataclass(frozen=True)
class HostHeat:
    """The hosts that were slowest at any time, by rank, out of `hosts`; `steps` are the places."""

    hosts: int
    steps: tuple[float, ...]
    rows: tuple[_HostRow, ...]

    @property
    def slowest(self) -> _HostRow:
        return max(self.rows, key=lambda row: row.times[-1])


def host_heat(journal: Journal, run: Run, steps: StepTable) -> HostHeat | None:
    """Return how the processes of the newest attempt compare; None where they measured nothing."""
    newest = max(steps.hosts, default=None)
    if newest is None:
        return None
    ranks = len(steps.hosts[newest].host_s)
    known = [row for row in sorted(steps.hosts) if len(steps.hosts[row].host_s) == ranks]
    # A few samples of each place: there may be a million steps, and thousands of hosts.
    most = min(len(known), _MOST_PLACES * _PER_PLACE)
    chosen = np.array(known)[np.linspace(0, len(known) - 1, most).astype(int)]
    times = _times(steps, chosen)
    groups = np.array_split(np.arange(most), min(most, _MOST_PLACES))
    heat = np.stack([np.median(times[group], axis=0) for group in groups])
    at = tuple(float(steps.index[chosen[group[-1]]] + 1) for group in groups)
    slowest = sorted(np.argsort(-heat.max(axis=0), kind="stable")[:_MOST_HOSTS].tolist())
    paths, attempt = journal.paths, run.attempts[-1].number
    rows = []
    for rank in slowest:
        beat = read_heartbeat(paths.heartbeat(attempt, rank))
        name = f"rank {rank} ({beat.process.host})" if beat else f"rank {rank}"
        rows.append(_HostRow(rank, name, tuple(heat[:, rank].tolist())))
    return HostHeat(ranks, at, tuple(rows))


def _times(steps: StepTable, rows: np.ndarray) -> Floats:
    """Return for each row and rank: its own time of a step over that of the others."""
    told = [steps.hosts[int(row)] for row in rows]
    devices_s = np.array([each.devices_s for each in told])
    devices_s[devices_s <= 0] = np.nan  # not measured
    own_s = np.array([each.host_s for each in told]) + np.array([each.input_s for each in told])
    stopped = np.array([each.stopped for each in told])
    with warnings.catch_warnings():  # of rows in which no rank measured its devices
        warnings.simplefilter("ignore", RuntimeWarning)
        devices = devices_s / np.nanmedian(devices_s, axis=1, keepdims=True)
    # What its Python and its input take longer counts as a share of the step, like its standstill.
    later_s = own_s - np.median(own_s, axis=1, keepdims=True)
    longer = later_s / steps.step_s[rows][:, None] + stopped
    slower: Floats = np.maximum(np.nan_to_num(devices, nan=1.0), 1.0) + np.maximum(longer, 0.0)
    return slower


def make_report(journal: Journal, clock: Clock = time.time) -> Report:
    return RunReader(journal, clock).read().report


@dataclass(frozen=True)
class RunReading:
    """A run as it stands: its report, its steps in order, and those of each attempt."""

    run: Run
    report: Report
    steps: StepTable
    attempts: dict[int, StepTable]
    hosts: HostHeat | None = None

    @property
    def spans(self) -> dict[int, list[_Span]]:
        return _time_spans(self.run, self.attempts)


class RunReader:
    """Reports on a run again and again; each time it reads only the steps that are new."""

    def __init__(self, journal: Journal, clock: Clock = time.time) -> None:
        self.journal, self._clock = journal, clock
        self._tables: dict[int, TableReader] = {}

    def read(self) -> RunReading:
        journal = self.journal
        run = journal.run(self._clock)
        steps: dict[int, StepTable] = {}
        problems = list(journal.spec_problems())
        for attempt in run.attempts:
            number = attempt.number
            reader = self._tables.setdefault(number, TableReader(journal.path, number))
            steps[number], more = reader.read(attempt)
            problems += map(str, more)
        run = replace(run, problems=tuple(dict.fromkeys([*run.problems, *problems])))
        plan, proof = journal.plan(run.plan_digest), journal.proof(journal.current_plan(run).digest)
        report = _compare_run(run, plan, steps, proof, journal.deadline())
        if found := trial_of(journal, run.study):
            report = replace(report, settings=found[1].settings)
        counted = counted_steps(steps)
        report = replace(report, profile=kept_profile(journal, run, counted))
        # Those of an earlier attempt say nothing of the newest, which may have one process.
        is_told = run.attempts and steps[run.attempts[-1].number].hosts
        hosts = host_heat(journal, run, counted) if is_told else None
        return RunReading(run, report, counted, steps, hosts)


def _compare_run(
    run: Run, plan: Plan, steps: dict[int, StepTable], proof: Proof | None = None,
    deadline: str | None = None,
) -> Report:  # fmt: skip
    """Return the report of a run with these steps, compared with its newest attempt's plan."""
    whole, plan = plan, plan.stage_of(max(run.steps_done - 1, 0))
    same_plan = {
        attempt.number for attempt in run.attempts if attempt.plan_digest == run.plan_digest
    }
    every_step, counted = counted_steps(steps), counted_steps(steps, same_plan)
    measured = _measure(plan, _steps_of(plan, counted) if whole.stages else counted)
    has_forecast = not run.rehearsal or bool(plan.chip_profile)  # about the devices of the run
    compared = measured if has_forecast else None
    stages, stage_totals = _stage_reports(whole, every_step, compared=has_forecast)
    step_s = plan.forecast.step_s
    inside_interval: bool | None = None
    if compared and step_s.low is not None and step_s.high is not None:
        inside_interval = step_s.low <= compared.step_s.median <= step_s.high
    evaluation: values.EvaluationReport | None = None
    if evaluations := [every_step.evaluations[row] for row in sorted(every_step.evaluations)]:
        evaluation = values.EvaluationReport(
            count=len(evaluations),
            first=evaluations[0],
            best=min(evaluations, key=lambda evaluation: evaluation.loss),
            last=evaluations[-1],
        )
    known_hbm = _known(counted.peak_hbm_bytes)
    return Report(
        **{name: getattr(run, name) for name in _OF_RUN},
        **{name: getattr(plan, name) for name in _OF_PLAN},
        schema=_SCHEMA,
        plan_digest=whole.digest,
        attempts=len(run.attempts),
        first_loss=float(every_step.loss[0]) if len(every_step) else None,
        last_loss=float(every_step.loss[-1]) if len(every_step) else None,
        evaluation=evaluation,
        forecast=prediction_of(plan),
        measured=measured,
        not_compared=None if has_forecast else "cpu_rehearsal",
        ratios=_ratios(plan, compared) if compared else (),
        inside_interval=inside_interval,
        gap=_gap(plan, compared) if compared else None,
        goodput=_goodput(run, steps),
        outlook=outlook_of(run, whole, deadline, measured.step_s.median if measured else None),
        memory=values.MemoryReport(
            forecast_bytes=plan.forecast.memory_bytes_per_device,
            compiled_bytes=proof.peak_hbm_bytes_per_device if proof else None,
            measured_bytes=int(known_hbm.max()) if len(known_hbm) else None,
            hbm_bytes=None if run.rehearsal else plan.forecast.hbm_bytes_per_device,
        ),
        stages=stages,
        stage_totals=stage_totals,
    )


def _ratios(plan: Plan, measured: Measurement) -> tuple[values.Ratio, ...]:
    step_s = plan.forecast.step_s
    times: dict[PredictionKind, float | None] = {"lower": step_s.lower, "expected": step_s.expected}
    if step_s.unoverlapped != step_s.expected:
        times["unoverlapped"] = step_s.unoverlapped
    return tuple(
        values.Ratio(against=kind, step_s=s, measured_over_predicted=measured.step_s.median / s)
        for kind, s in times.items()
        if s is not None
    )


def _gap(plan: Plan, measured: Measurement) -> values.Gap:
    forecast, device_s = plan.forecast, measured.device_s
    predicted_s = forecast.step_s.likeliest
    usual_s, slow_s = device_times(measured)
    exposed: float | None = None
    suspects = list[values.Suspect]()
    if not plan.chip_profile:
        # The share of the time that could overlap and did not; None where nothing can.
        overlappable_s = forecast.step_s.unoverlapped - forecast.step_s.lower
        if overlappable_s > 0:
            exposed = (device_s - forecast.step_s.lower) / overlappable_s
        # Each resource as if only it set the pace, the one that had to slow down least first.
        # Latency keeps nothing busy and has no rate.
        busy_s: dict[str, float] = {}
        for line in forecast.time:
            name = line.resource or ""
            busy_s[name] = busy_s.get(name, 0.0) + line.value
        suspects = [
            values.Suspect(resource=name, busy_s=s, rate_if_alone=s / device_s)
            for name, s in sorted(busy_s.items(), key=lambda pair: -pair[1])
            if name != "latency" and device_s > 0
        ]
    return values.Gap(
        against="lower" if forecast.step_s.expected is None else "expected",
        s=measured.mean_step_s - predicted_s,
        parts=(
            values.GapPart(name="devices", s=usual_s - predicted_s),
            values.GapPart(name="slow steps", s=slow_s),
            values.GapPart(name="waiting for data", s=measured.mean_data_s),
            values.GapPart(name="saving", s=measured.mean_checkpoint_s),
        ),
        exposed=exposed,
        suspects=tuple(suspects),
    )


def device_times(measured: Measurement) -> tuple[float, float]:
    """Return the mean seconds of a step on the devices: the usual part, and what slow steps add."""
    mean_s = measured.mean_step_s - measured.mean_data_s - measured.mean_checkpoint_s
    usual_s = min(measured.device_s, mean_s)
    return usual_s, mean_s - usual_s


def _measure(plan: Plan, steps: StepTable) -> Measurement | None:
    """Return the measurement of the steps after warm-up, without first steps of attempts."""
    warm = steps.warm
    if not warm.any():
        return None
    taken_s, data_s, saving_s = steps.step_s[warm], steps.data_s[warm], steps.checkpoint_s[warm]
    step_s = _spread(taken_s)
    mfu, flops = _known(steps.mfu[warm]), _known(steps.model_flops_per_s_per_chip[warm])
    tokens_per_s = plan.batch.tokens / step_s.median
    return Measurement(
        steps=len(taken_s),
        step_s=step_s,
        mfu=_spread(mfu) if len(mfu) else None,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_chip=tokens_per_s / plan.chips,
        model_flops_per_s_per_chip=float(np.median(flops)) if len(flops) else None,
        mean_step_s=float(taken_s.mean()),
        mean_data_s=float(data_s.mean()),
        mean_checkpoint_s=float(saving_s.mean()),
        device_s=float(np.median(taken_s - data_s - saving_s)),
    )


def _known(figures: Floats) -> Floats:
    return figures[~np.isnan(figures)]


def _spread(figures: Floats) -> values.Spread:
    low, middle, high = np.quantile(figures, [0.1, 0.5, 0.9])
    return values.Spread(median=float(middle), low=float(low), high=float(high))


def _steps_of(plan: Plan, steps: StepTable) -> StepTable:
    return steps.rows((steps.index >= plan.first_step) & (steps.index < plan.end_step))


def _stage_reports(
    whole: Plan, steps: StepTable, *, compared: bool
) -> tuple[tuple[StageReport, ...], values.StageTotals | None]:
    """Return the reports of all stages and totals. `compared`: the forecast fits the devices."""
    stages = []
    for stage in whole.stages:
        own = _steps_of(stage, steps)
        measured, predicted_s = _measure(stage, own), stage.forecast.step_s.likeliest
        took_s, price = float(own.step_s.sum()), stage.forecast.dollars_per_chip_hour
        dollars, over_predicted = None, None
        if compared and measured:
            over_predicted = measured.step_s.median / predicted_s
        if compared and price is not None and stage.chip_profile is None:
            rented = stage.forecast.goodput.inputs.rented
            dollars = price * stage.chips * rented * took_s / HOUR_S
        report = StageReport(
            number=stage.stage.number if stage.stage else 1,
            first_step=stage.first_step,
            steps=stage.total_steps,
            steps_done=len(own),
            tokens_done=int(own.tokens.sum()),
            sequences=stage.batch.sequences,
            length=stage.batch.length,
            mesh=stage.mesh,
            predicted_step_s=predicted_s if compared else None,
            measured=measured,
            measured_over_predicted=over_predicted,
            steps_s=took_s,
            dollars=dollars,
        )
        stages.append(report)
    if not stages:
        return (), None
    known = [(stage, s) for stage in stages if (s := stage.predicted_step_s) is not None]
    predicted = [stage.steps_done * s for stage, s in known]
    paid = [stage.dollars for stage in stages if stage.dollars is not None]
    return tuple(stages), values.StageTotals(
        steps_done=sum(stage.steps_done for stage in stages),
        tokens_done=sum(stage.tokens_done for stage in stages),
        steps_s=sum(stage.steps_s for stage in stages),
        predicted_s=sum(predicted) if len(predicted) == len(stages) else None,
        dollars=sum(paid) if len(paid) == len(stages) else None,
    )


def _goodput(run: Run, steps: dict[int, StepTable]) -> values.Goodput | None:
    """Return where the time went; None before the first attempt."""
    if not run.attempts:
        return None
    badput_s: dict[Badput, float] = dict.fromkeys(get_args(Badput), 0.0)
    goodput_s = 0.0
    for spans in _time_spans(run, steps).values():
        for cause, span_s in spans:
            if cause == "goodput":
                goodput_s += span_s
            else:
                badput_s[cause] += span_s

    # The run ends with its end, or with the last thing known of it.
    started_s, ended_s = run.attempts[0].started_at_s, run.ended_at_s
    if ended_s is None:
        known_s = [float(table.at_s[-1]) for table in steps.values() if len(table)]
        for attempt in run.attempts:
            known_s += [at_s for at_s in (attempt.started_at_s, attempt.ended_at_s) if at_s]
        ended_s = max(known_s)
    # Clocks of two machines may differ by seconds, so the total is at least what was counted.
    counted_s = goodput_s + sum(badput_s.values())
    total_s = max(0.0, ended_s - started_s, counted_s)
    badput_s["other"] = total_s - counted_s
    return values.Goodput(
        total_s=total_s,
        goodput_s=goodput_s,
        goodput=goodput_s / total_s if total_s else 0.0,
        badput_s=badput_s,
        waited_s=max(0.0, started_s - run.submitted_at_s),
    )


def _time_spans(run: Run, steps: dict[int, StepTable]) -> dict[int, list[_Span]]:
    """Return what the time of each attempt went into, in order. Steps come in a few blocks, whose
    parts are in a fixed order and exact in their sums.
    """
    found, counted = dict[int, list[_Span]](), counted_rows(steps)
    # The median step after warm-up; 0 where no attempt did a second step.
    warm = np.concatenate([np.zeros(0), *(table.step_s[1:] for table in steps.values())])
    usual_s = float(np.median(warm)) if len(warm) else 0.0
    for attempt, later in zip_longest(run.attempts, run.attempts[1:]):
        spans, stopped_s = list[_Span](), attempt.started_at_s
        table = steps.get(attempt.number)
        if table is not None and len(table):
            stopped_s = float(table.at_s[-1])
            if startup := table.startups.get(0):
                evaluated_s = table.evaluations[0].evaluation_s if 0 in table.evaluations else 0
                first_s = float(table.at_s[0]) - evaluated_s - float(table.step_s[0])
                opening_s = first_s - startup.state_s - startup.compile_s - attempt.started_at_s
                spans.append(("tpu_initialization", max(0.0, opening_s)))
            for rows in np.array_split(np.arange(len(table)), min(len(table), _MOST_BLOCKS)):
                block = slice(int(rows[0]), int(rows[-1]) + 1)
                spans += _block_spans(table, block, counted[attempt.number][block], usual_s)
        if later:
            lost_s = max(0.0, later.started_at_s - stopped_s)
            spans.append(("infrastructure_recovery_from_disruption", lost_s))
        found[attempt.number] = spans
    return found


def _block_spans(table: StepTable, block: slice, counted: Mask, usual_s: float) -> Iterator[_Span]:
    """Yield what the time of some rows went into: starting, what was repeated, what counts."""
    rows = range(block.start, block.stop)
    for row in sorted(row for row in table.startups if row in rows):
        # The time before the second step of an attempt, and of each stage that begins in it.
        startup, first_s = table.startups[row], float(table.step_s[row])
        restores = startup.steps_done > 0
        cause: Badput = "unproductive_checkpoint_restore_time" if restores else "training_prep"
        yield cause, startup.state_s
        yield "program_startup", startup.compile_s + max(0.0, first_s - usual_s)
    # The first step of an attempt trains only as long as a usual one takes.
    step_s = table.step_s[block].copy()
    for row in table.startups:
        if row in rows:
            step_s[row - block.start] = min(step_s[row - block.start], usual_s)
    evaluated_s = {False: 0.0, True: 0.0}
    for row, evaluation in table.evaluations.items():
        if row in rows:
            evaluated_s[bool(counted[row - block.start])] += evaluation.evaluation_s
    yield "wasted_progress_from_disruption", float(step_s[~counted].sum()) + evaluated_s[False]
    data_s, saving_s = table.data_s[block][counted], table.checkpoint_s[block][counted]
    yield "data_loading_sync", float(np.maximum(data_s, 0.0).sum())
    yield "goodput", float(np.maximum(step_s[counted] - data_s - saving_s, 0.0).sum())
    yield "evaluation", evaluated_s[True]
    yield "unproductive_checkpoint_save_time", float(np.maximum(saving_s, 0.0).sum())

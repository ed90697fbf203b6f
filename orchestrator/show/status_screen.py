"""Show runs: how one starts, on this machine or on a cluster, and how it ended; all of them in a
table, one with its attempts, its logs, and what stops it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from orchestrator import formatting as fmt
from orchestrator.journal.run_journal import list_logs
from orchestrator.journal.run_state import first_line, last_attempt_text
from orchestrator.network.rematerialization import summary_of
from orchestrator.run.progress import run_command
from orchestrator.show import parts as ui
from orchestrator.storage.addresses import address, folder
from orchestrator.values import codec
from orchestrator.values.codec import short
from orchestrator.values.goodput import Outlook
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.run import LIVE, Attempt, LogLine, Run, Status
from orchestrator.values.slowdowns import worst_slowdowns
from orchestrator.values.study import StudyStatus, kind_text

_OF_MACHINE = {"unsteady_profile"}  # warnings about a rehearsal's own forecast
_VERSIONS = ("python", "jax", "libtpu", "ray", "code")


def rehearsal_screen(full: Plan, small: Plan, steps: int, changes: Sequence[str]) -> ui.Screen:
    columns: list[ui.Row] = [("", "pods", "devices", "mesh", "model", "batch", "remat", "saves")]
    for name, plan in (("plan", full), ("rehearsal", small)):
        # The axes of a pod with more than one device.
        inside = (axis for axis in plan.axes if axis.link == "ici" and axis.size > 1)
        mesh = ", ".join(f"{axis.name} {axis.size}" for axis in inside)
        shape, layers = plan.model, f"{plan.model.layers} layers"
        column = (
            name,
            f"{plan.pods} of {plan.topology}",
            f"{fmt.count(plan.devices)} on {fmt.counted(plan.hosts, 'host')}",
            mesh or "one device",
            f"{fmt.scaled(shape.parameters)}: {layers} of {fmt.count(shape.d_model)}",
            f"{fmt.count(plan.batch.sequences)} x {fmt.count(plan.batch.length)} tokens",
            summary_of(plan.remat),
            f"every {fmt.counted(plan.forecast.goodput.every_steps, 'step')}",
        )
        columns.append(column)
    rows, processes = [*zip(*columns, strict=True)], fmt.counted(small.hosts, "process", "es")
    expected: list[ui.Row] = []
    if small.chip_profile is not None:
        forecast, step_s = small.forecast, small.forecast.step_s
        text = fmt.seconds(step_s.unoverlapped)
        if step_s.low and step_s.high:
            text += f" ({fmt.span(fmt.seconds(step_s.low), fmt.seconds(step_s.high))})"
        text += " a step"
        if small.ledger_describes_trainer:  # of others, parts and FLOPs are unknown
            mfu = f"MFU {fmt.percent(forecast.mfu.unoverlapped)} of this machine's peak"
            text += f", {mfu}, measured here (profile {short(small.chip_profile)})"
        expected.append(("expected", text))
    return ui.screen(
        [ui.Title("rehearsal", f"plan {short(small.digest)}")],
        ui.indent([ui.Table(rows, "<<<")]),
        [
            *(ui.labelled("not rehearsed:", change) for change in changes),
            _labels(expected),
            *(ui.warning(note.text) for note in small.warnings if note.code in _OF_MACHINE),
            f"{fmt.counted(steps, 'step')} in {processes} on emulated slices",
        ],
    )


def _labels(rows: Sequence[ui.Row]) -> ui.Table:
    return ui.Table([(f"{name:8}", text) for name, text in rows], "<w", gap=1)


def result_screen(run: Run, plan: Plan, record: str, next_command: str) -> ui.Screen:
    """Return the end of a run: why, what was measured, against what forecast, where to look."""
    rows = [("" if i else "why", line) for i, line in enumerate(run.detail.splitlines())]
    recent, step_s, profile = run.recent, plan.forecast.step_s.unoverlapped, plan.chip_profile
    if recent:
        measured = [f"{fmt.seconds(recent.step_s)} a step, the median of {recent.steps}"]
        if run.rehearsal and profile:
            measured.append(fmt.off(recent.step_s, step_s, "expected"))
        measured += [f"MFU {fmt.percent(recent.mfu)}"] if recent.mfu is not None else []
        rows.append(("measured", "; ".join(measured)))
    if recent and run.rehearsal and not profile:
        why = "--no-calibrate skipped the calibration of this machine"
        if run.pods != run.requested_pods:
            why = "this number of pods is not calibrated"
        rows.append(("expected", f"unknown: {why}, so MFU is unknown too"))
    elif recent and run.rehearsal and profile:
        mfu = f", MFU {fmt.percent(plan.forecast.mfu.unoverlapped)}"
        known = mfu if plan.ledger_describes_trainer else ""
        source = f"from this machine's profile {short(profile)}"
        rows.append(("expected", f"{fmt.seconds(step_s)} a step{known}, {source}"))
    places = [f"journal  {run.journal}"]
    if run.profile:
        first, end = run.profile
        steps = f"step {first}" if end == first + 1 else f"steps {first} to {end - 1}"
        places.append(f"profile  {run.journal}/profile, an XProf trace of {steps}")
    state = f"{run.run}: {run.state}, {run.steps_done} of {run.steps} steps"
    commands = (ui.Command(text) for text in (*places, record))
    return ui.screen([ui.heading(state), _labels(rows), *commands, *ui.next_step(next_command)])


def cluster_screen(
    address: str, slices: str, hosts: int, versions: Mapping[str, str], storage: str,
    runs: Sequence[tuple[Plan, int]],
) -> ui.Screen:  # fmt: skip
    shown = ", ".join(f"{name} {versions[name]}" for name in _VERSIONS if name in versions)
    rows = [
        ("slices", slices),
        ("hosts", f"{fmt.count(hosts)}, all with {shown}"),
        ("storage", f"{storage}, writable from every host"),
        ("run", _cost_of_runs(runs)),
    ]
    return ui.screen([f"cluster {address}"], ui.indent([ui.Table(rows, "<w")]))


def _cost_of_runs(runs: Sequence[tuple[Plan, int]]) -> str:
    """Return the chips, time and money of a run, or of runs that follow each other."""
    largest = max((plan for plan, _ in runs), key=lambda plan: plan.chips)
    text = fmt.counted(largest.chips, f"{largest.chip} chip")
    if len(runs) > 1:
        text = f"at most {text}, {fmt.counted(len(runs), 'run')}"
    text += f", {fmt.count(sum(steps for _, steps in runs))} steps"
    if unknown := {plan.trainer for plan, _ in runs if not plan.ledger_describes_trainer}:
        return f"{text}, time and cost of {', '.join(sorted(unknown))} are unknown"
    shares = [steps * plan.batch.tokens / plan.tokens for plan, steps in runs]

    def between(estimates: Sequence[Estimate], show: ui.Show) -> str:
        """Return the sums over the ends of 80 % intervals; without them, the least it can be."""
        pairs = list(zip(estimates, shares, strict=True))
        low = sum((estimate.low or estimate.lower) * share for estimate, share in pairs)
        if any(estimate.high is None for estimate in estimates):
            return fmt.at_least(show(low))
        high = sum((estimate.high or 0.0) * share for estimate, share in pairs)
        return fmt.span(show(low), show(high))

    def duration(days: float) -> str:
        return fmt.elapsed(days * fmt.DAY_S) if days * fmt.DAY_S >= 1 else "less than 1 s"

    time = between([plan.forecast.days for plan, _ in runs], duration)
    priced = [plan.forecast.dollars for plan, _ in runs if plan.forecast.dollars]
    if len(priced) == len(runs):
        return f"{text}, {time}, {between(priced, fmt.dollars)}"
    return f"{text}, {time}; no price is known"


_HEAD = ("RUN", "STATE", "STEPS", "MFU", "PODS", "AGE", "")
_COLUMNS = "<<>>>><"
_SPARE = tuple(map(_HEAD.index, ("PODS", "AGE", "MFU")))  # a narrow terminal may lack them
_FEW = 10_000  # smaller numbers are written out
_ERROR_WIDTH = 100


def runs_screen(
    runs: list[Run],
    storage: Path,
    studies: Sequence[StudyStatus] = (),
    following: str | None = None,
) -> ui.Screen:
    """Return all runs, newest first, below their studies; `following` is a command for one."""
    if not runs and not studies:
        return ui.screen(
            [ui.Command(f"No runs in {address(storage)}"), *ui.next_step("orch submit SPEC")]
        )
    heads: dict[str, ui.Row] = {}
    for study in studies:
        done, kind = f"{study.done} / {study.total} runs", kind_text(study.scaling)
        submitted = fmt.age(study.read_at_s - study.submitted_at_s)
        heads[study.study] = (study.study, study.state, done, "", "", submitted, kind)
    groups: dict[str, list[ui.Row]] = {}
    for run, row in zip(runs, _run_rows(runs), strict=True):
        group = run.study if run.study in heads else run.run
        groups.setdefault(group, [heads[group]] if group in heads else []).append(row)
    for study_key, head in heads.items():
        groups.setdefault(study_key, [head])
    rows = [_HEAD, *(row for group in groups.values() for row in group)]
    table = ui.Table(rows, _COLUMNS, row_styles={0: "bold"}, spare=_SPARE)
    return ui.screen([table], ui.next_step(following))


def study_runs_screen(status: StudyStatus) -> ui.Screen:
    done = f"{status.done} of {status.total} runs done"
    title = ui.Title(f"{status.study}: {status.state}, {done}", kind_text(status.scaling))
    rows = [row[:-1] for row in (_HEAD, *_run_rows(status.runs))]
    return ui.screen([title], ui.indent([ui.Table(rows, _COLUMNS[:-1])] if status.runs else []))


def _run_rows(runs: Sequence[Run]) -> Iterator[ui.Row]:
    def short_count(number: int) -> str:
        return fmt.count(number) if number < _FEW else fmt.scaled(number)

    for run in runs:
        steps = f"{short_count(run.steps_done)} / {short_count(run.steps)}"
        mfu = fmt.percent(run.recent.mfu) if run.recent and run.recent.mfu is not None else "-"
        submitted = fmt.age(run.read_at_s - run.submitted_at_s)
        kind = "rehearsal" if run.rehearsal else ""
        yield run.run, run.state, steps, mfu, str(run.pods), submitted, kind


def status_screen(status: Status, next_command: str) -> ui.Screen:
    """Return the state of a run, every attempt and why it ended, and what to do next."""
    kind = ", a rehearsal" if status.rehearsal else ""
    title = f"{status.run}: {status.state}{kind}"
    facts = [*_progress(status), *_speed(status), *_surroundings(status)]
    names = max(len(name) for name, _ in facts)
    known = [(f"{name:{names}}", text) for name, text in facts if text]
    attempts = []
    for attempt in status.attempts:
        steps = f"{fmt.count(attempt.steps_done)} steps" if attempt.steps_done else "no step"
        ended, took = attempt.reason or status.state, attempt_time(attempt, status.read_at_s)
        attempts.append((str(attempt.number), ended, steps, took, cause(attempt)))
    return ui.screen(
        [ui.Title(title, f"plan {short(status.plan_digest)}")],
        ui.indent([ui.Table(known, "<w")]),
        ui.section("attempts", [ui.Table(attempts, "><>>w")] if attempts else []),
        map(ui.warning, status.problems),
        [ui.labelled("Run:", _verdict(status), "bold"), *ui.next_step(next_command)],
    )


# A name and a text, or None, for each thing that may be known of a run.
_Facts = Iterator[tuple[str, str | None]]


def _progress(status: Status) -> _Facts:
    yield "why", first_line(status.detail)
    steps = f"{fmt.count(status.steps_done)} of {fmt.count(status.steps)}"
    if status.since_last_step_s is not None:
        steps += f", the last {fmt.elapsed(status.since_last_step_s)} ago"
    yield "steps", steps
    if stage := status.stage:  # its steps are counted from 1
        first, last = fmt.count(stage.first_step + 1), fmt.count(stage.end_step)
        yield "stage", f"{stage.number} of {stage.of}, steps {first} to {last}"
    if newest := status.evaluation:
        loss, perplexity = f"{newest.loss:.4f}", fmt.to_digits(newest.perplexity, 4)
        took = f"after step {fmt.count(newest.steps_done)}, took {fmt.seconds(newest.evaluation_s)}"
        yield "held-out", f"loss {loss}, perplexity {perplexity}, {took}"
    for slowdown in worst_slowdowns(status.slowdowns)[:1]:
        number = len(status.slowdowns) - 1
        others = f"; {fmt.counted(number, 'other slowdown')}" if number else ""
        command: tuple[str, ...] = ("report", "--full")
        if slowdown.rank is not None:
            command = "logs", "--rank", str(slowdown.rank)
        elif slowdown.kind in ("level", "stall") and status.state in LIVE:
            command = "profile", "--steps", "3"
        name, *more = command
        looking = run_command(name, status.run, folder(status.journal).parent, *more)
        yield "slow", f"{slowdown.text}{others}: {looking}"
    slices = status.attempts[-1].slices if status.attempts else ()
    size = status.batch
    if size and size.sequences != size.requested_sequences:
        yield "batch", fmt.batch(size.sequences, size.length, size.requested_sequences)
    pods, requested = str(status.pods), status.requested_pods
    if status.pods != requested:  # a resume may take more than were asked for
        pods += (
            f" of {requested} requested" if status.pods < requested else f", {requested} requested"
        )
    yield "pods", f"{pods}: {', '.join(slices)}" if slices else pods


def _surroundings(status: Status) -> _Facts:
    for check in status.host_checks[-1:]:
        yield "hosts", check.text
    if status.outlook:
        yield from _outlook(status.outlook)
    if status.rehearsal and status.forecast:
        source = "none: this machine is not calibrated, and the plan's forecast is for chips"
        if profile := status.forecast.chip_profile:
            source = f"for this machine, from its chip profile {short(profile)}"
        yield "forecast", source
    if driver := status.driver:
        ago = f", last heartbeat {fmt.elapsed(status.since_last_heartbeat_s)} ago"
        beat = ago if status.ended_at_s is None else ""
        yield "driver", f"process {driver.pid} on {driver.host}{beat}"
    if (requested_at_s := status.cancel_requested_at_s) is not None:
        yield "cancel", f"requested {fmt.elapsed(status.read_at_s - requested_at_s)} ago"
    yield "cluster", status.environment.get("cluster")
    if (commit := status.environment.get("git_commit")) is not None:
        changed = status.environment.get("git_uncommitted")
        yield "code", f"commit {commit[:12]}" + (f" with {changed}" if changed else "")
    yield "journal", status.journal
    if tracked := status.tracking:
        yield tracked.tracker, f"run {tracked.run_id} in {tracked.uri}"


def _speed(status: Status) -> _Facts:
    forecast, recent = status.forecast, status.recent
    if forecast and status.rehearsal and forecast.chip_profile is None:
        forecast = None  # it is for chips
    known = fmt.percent(recent.mfu) if recent and recent.mfu is not None else None
    times = [f"{fmt.seconds(recent.step_s)} over the last {recent.steps}"] if recent else []
    if not forecast:
        yield "step time", "; ".join(times)
        yield "MFU", known
        return
    step_s, mfu = forecast.step_s, forecast.mfu
    least = f"lower bound {fmt.seconds(step_s.lower)}"
    expected = "" if step_s.expected is None else f"expected {fmt.seconds(step_s.expected)}, "
    yield "step time", "; ".join([*times, expected + least])
    text = f"at most {fmt.percent(mfu.lower)}"
    if forecast.chip_profile:
        text = f"expected {fmt.percent(mfu.unoverlapped)}, {text}, of the measured peak"
    else:
        if mfu.expected is not None:
            text = f"expected {fmt.percent(mfu.expected)}, {text}"
        if recent and recent.mfu is not None and mfu.lower:
            text += f"; measured is {fmt.percent(recent.mfu / mfu.lower)} of that bound"
    yield "MFU", f"{known or 'not measured'}; {text}"


def _outlook(outlook: Outlook) -> _Facts:

    def moment(at_s: float) -> str:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}"

    days = outlook.days_left
    value, low, high = map(fmt.lasting, (days.value, days.low, days.high))
    ends = fmt.span(moment(outlook.ends_at_s.low), moment(outlook.ends_at_s.high))
    until = f"until {ends}; goodput {fmt.percent(outlook.goodput.value)}"
    yield "left", f"{value} (80 % interval {fmt.span(low, high)}), {until}"
    cost = outlook.dollars_left
    if outlook.dollars_so_far is not None and cost is not None:
        left = fmt.span(fmt.dollars(cost.low), fmt.dollars(cost.high))
        yield "cost", f"{fmt.dollars(outlook.dollars_so_far)} so far, {left} to come"
    if outlook.deadline_at_s is not None and outlook.odds is not None:
        yield "deadline", f"{moment(outlook.deadline_at_s)}, {fmt.percent(outlook.odds)} likely"


def attempt_time(attempt: Attempt, now_s: float) -> str:
    """Return how long an attempt took, unless nobody saw its end."""
    if attempt.reason == "lost":
        return ""
    return fmt.elapsed((attempt.ended_at_s or now_s) - attempt.started_at_s)


def cause(attempt: Attempt) -> str:
    rank = attempt.first_dead_rank
    dead = f"rank {rank} died first" if rank is not None else ""
    text = ": ".join(part for part in (dead, first_line(attempt.error)) if part)
    return text if len(text) <= _ERROR_WIDTH else text[: _ERROR_WIDTH - 3] + "..."


def _verdict(status: Status) -> str:
    parts: list[str] = [status.state]
    if status.state in LIVE and status.steps_done:
        parts.append(f"step {fmt.count(status.steps_done)} of {fmt.count(status.steps)}")
    if status.recent and status.recent.mfu is not None:
        parts.append(f"MFU {fmt.percent(status.recent.mfu)}")
    parts.append(fmt.counted(len(status.attempts), "attempt"))
    if status.state not in LIVE and (why := status.detail or last_attempt_text(status.attempts)):
        parts.append(first_line(why).rstrip("."))
    return f"{', '.join(parts)}."


def next_run_command(run: Run, named: str, storage: Path) -> str:
    """Return the next command for a run; logs or a check come first where no step was done."""
    if run.state in LIVE:
        return run_command("logs", named, storage, "-f")
    if run.state == "succeeded":
        return run_command("report", named, storage)
    if run.state == "cancelled" or run.steps_done:
        return run_command("resume", named, storage)
    logs = list_logs(folder(run.journal), run, attempt=None)
    has_logs = any(not log.empty for log in logs)
    return run_command("logs", named, storage) if has_logs else "orch doctor"


def cancelled_text(run: str, changes: list[tuple[Run, Run]], *, at_once: bool) -> str:
    """Return what a request to cancel does, for each run before and after it."""
    texts = []
    for before, after in changes:
        text = f"{before.run}: stop requested" + (", at once." if at_once else ".")
        if before.cancel_requested_at_s is not None:
            ago = fmt.elapsed(before.read_at_s - before.cancel_requested_at_s)
            text += f" A stop was requested {ago} ago already."
        if before.ended_at_s is not None:
            text = f"{before.run}: already {before.state}. Nothing was requested."
        elif after.state not in LIVE:
            text += f"\nNo driver runs it any more: {after.detail}. It counts as cancelled."
        elif after.driver is None:
            text += "\nIts driver has not started yet; it will stop before it takes a chip."
        else:
            effect = "finishes the current step, saves a checkpoint and stops."
            if at_once:
                effect = "stops it; steps since the last checkpoint are lost."
            text += f"\nIts driver (process {after.driver.pid} on {after.driver.host}) {effect}"
        texts.append(ui.fit(text))
    return "\n".join(texts or [f"{run}: no run is active. Nothing to cancel."]) + "\n"


def log_line(line: LogLine, *, as_json: bool, with_rank: bool) -> str:
    """Return a line of a log, with its rank in front when several logs are mixed."""
    if as_json:
        return codec.to_json(line).decode() + "\n"
    if not with_rank:
        return line.line
    return f"{'driver' if line.rank is None else f'rank {line.rank}'} | {line.line}"

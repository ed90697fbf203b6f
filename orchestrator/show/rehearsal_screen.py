"""Show a run while it goes on: how it starts, on this machine or on a cluster, and how it ended."""

from collections.abc import Mapping, Sequence

from orchestrator import formatting as fmt
from orchestrator.journal.run_state import first_line
from orchestrator.network.rematerialization import summary_of
from orchestrator.show import parts as ui
from orchestrator.values.codec import short
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.run import Run

_OF_MACHINE = {"unsteady_profile"}  # warnings about a rehearsal's own forecast
_LARGEST = 4  # lines of a forecast that are named
_CLOSE = 0.25  # how far the forecast of an idle machine may be off
_BUSY = "Other work on this machine changes either; orch calibrate measures it again"
_VERSIONS = ("python", "jax", "libtpu", "ray", "code")


# A rehearsal on this machine.


def rehearsal_intro(plan_name: str) -> str:
    return ui.fit(
        f"{plan_name}: a rehearsal. No cluster is configured, so this machine runs a small copy;"
        " no chip is reserved.\n"
    )


def resume_intro(run: Run, plan: Plan) -> str:
    why = f", {first_line(run.detail)}" if run.detail else ""
    return ui.fit(
        f"{run.run}: a rehearsal, resumed with {fmt.counted(plan.pods, 'pod')} of {plan.topology} on"
        f" this machine.\nIt was {run.state} after {fmt.count(run.steps_done)} of {fmt.count(run.steps)}"
        f" steps{why}.\n"
    )


def rehearsal_screen(full: Plan, small: Plan, steps: int, changes: Sequence[str]) -> ui.Screen:
    """Return the plan, its small copy, and what is expected of the copy on this machine."""
    columns = []
    for plan in (full, small):
        # The axes of a pod with more than one device.
        inside = (axis for axis in plan.axes if axis.link == "ici" and axis.size > 1)
        mesh = ", ".join(f"{axis.name} {axis.size}" for axis in inside)
        shape, layers = plan.model, f"{plan.model.layers} layers"
        column = (
            f"{plan.pods} of {plan.topology}",
            f"{fmt.count(plan.devices)} on {fmt.counted(plan.hosts, 'host')}",
            mesh or "one device",
            f"{fmt.scaled(shape.parameters)}: {layers} of {fmt.count(shape.d_model)}",
            f"{fmt.count(plan.batch.sequences)} x {fmt.count(plan.batch.length)} tokens",
            summary_of(plan.remat),
        )
        columns.append(column)
    names = ("pods", "devices", "mesh", "model", "batch", "remat")
    rows = [("", "plan", "rehearsal"), *zip(names, *columns, strict=True)]
    processes = fmt.counted(small.hosts, "process", "es")
    return ui.screen(
        [ui.Title("rehearsal", f"plan {short(small.digest)}")],
        ui.indent([ui.Table(rows, "<<<")]),
        [
            *(ui.labelled("not rehearsed:", change) for change in changes),
            _labels(_expectation(small)),
            *(ui.warning(note.text) for note in small.warnings if note.code in _OF_MACHINE),
            f"{fmt.counted(steps, 'step')} in {processes} on emulated slices",
        ],
    )


def _labels(rows: Sequence[ui.Row]) -> ui.Table:
    """Return labelled lines, all labels as wide as the widest of any run's."""
    return ui.Table([(f"{name:8}", text) for name, text in rows], "<w", gap=1)


def _expectation(plan: Plan) -> list[ui.Row]:
    """Return the expected step on this machine, its parts, and the peak that its MFU is over."""
    if plan.chip_profile is None:
        return []
    forecast, step_s = plan.forecast, plan.forecast.step_s
    expected = fmt.seconds(step_s.unoverlapped)
    if step_s.low and step_s.high:
        expected += f" ({fmt.span(fmt.seconds(step_s.low), fmt.seconds(step_s.high))})"
    if not plan.ledger_describes_trainer:  # its step was measured; its parts and FLOPs are unknown
        return [("expected", f"{expected} a step")]
    parts = (
        f"{line.name} {fmt.percent(line.value / step_s.unoverlapped)}"
        for line in forecast.time[:_LARGEST]
    )
    # The peak of this machine, which takes the place of a chip's.
    peak = (
        f"{fmt.with_unit(forecast.peak_flops_per_s * plan.devices, 'FLOP/s')} in"
        f" {plan.precision.compute} on all devices together, measured on this machine (profile"
        f" {short(plan.chip_profile)})"
    )
    return [
        ("expected", f"{expected} a step, MFU {fmt.percent(forecast.mfu.unoverlapped)}"),
        ("", ", ".join(parts)),
        ("peak", peak),
    ]


def rehearsal_result(run: Run, plan: Plan, record: str, next_command: str) -> ui.Screen:
    """Return the measurement, how far the forecast was off, and where to look."""
    rows = []
    if recent := run.recent:
        measured = f"{fmt.seconds(recent.step_s)} a step, the median of {recent.steps}"
        mfu = "" if recent.mfu is None else f"; MFU {fmt.percent(recent.mfu)}"
        rows = [("measured", measured + mfu), ("expected", _forecast(run, recent.step_s, plan))]
        # An idle machine does not explain more than this.
        ratio = recent.step_s / plan.forecast.step_s.unoverlapped
        if plan.chip_profile is not None and abs(ratio - 1) > _CLOSE:
            rows.append(("", _BUSY))
    return _result(run, rows, record, next_command)


def _forecast(run: Run, measured_s: float, plan: Plan) -> str:
    """Return the forecast for this machine, and how far the measurement is from it."""
    if plan.chip_profile is None:
        cause = "--no-calibrate skipped the calibration of this machine"
        if run.pods != run.requested_pods:
            cause = "this number of pods is not calibrated"
        return f"unknown: {cause}, so MFU is unknown too"
    step_s = plan.forecast.step_s.unoverlapped
    mfu = fmt.percent(plan.forecast.mfu.unoverlapped)
    reached = f" MFU {mfu}," if plan.ledger_describes_trainer else ""
    return (
        f"{fmt.seconds(step_s)}; measured is {fmt.off(measured_s, step_s, 'that')};{reached}"
        f" from this machine's profile {short(plan.chip_profile)}"
    )


def _result(run: Run, rows: Sequence[ui.Row], record: str, next_command: str) -> ui.Screen:
    """Return the last lines about a run that has ended: why, what was measured, where to look."""
    why = [("" if i else "why", line) for i, line in enumerate(run.detail.splitlines())]
    places = [f"journal  {run.journal}"]
    if run.profile:
        first, end = run.profile
        steps = f"step {first}" if end == first + 1 else f"steps {first} to {end - 1}"
        places.append(f"profile  {run.journal}/profile, an XProf trace of {steps}")
    state = f"{run.run}: {run.state}, {run.steps_done} of {run.steps} steps"
    commands = (ui.Command(text) for text in (*places, record))
    return ui.screen([state, _labels([*why, *rows]), *commands, *ui.next_step(next_command)])


# A run on a cluster: what the cluster offers, what the run costs, how it ended.


def launch_intro(plan_name: str, address: str, origin: str) -> str:
    return ui.fit(f"{plan_name}: a run on the cluster {address}, from {origin}.\n")


def study_launch_intro(name: str, runs: int, address: str, origin: str) -> str:
    order = ", one after another," if runs != 1 else ""
    return ui.fit(
        f"{name}: {fmt.counted(runs, 'run')}{order} on the cluster {address}, from {origin}.\n"
    )


def cluster_screen(address: str, slices: str, hosts: str, storage: str, price: str) -> ui.Screen:
    """Return what a cluster has for a run, and what the run costs."""
    rows = [
        ("slices", slices),
        ("hosts", hosts),
        ("storage", f"{storage}, writable from every host"),
        ("run", price),
    ]
    return ui.screen([f"cluster {address}"], ui.indent([ui.Table(rows, "<w")]))


def hosts(number: int, versions: Mapping[str, str]) -> str:
    """Return the number of hosts and the versions that all of them share."""
    shown = [f"{name} {versions[name]}" for name in _VERSIONS if name in versions]
    return f"{fmt.count(number)}, all with {', '.join(shown)}"


def cost_of_runs(runs: Sequence[tuple[Plan, int]]) -> str:
    """Return the chips, time and money of a run, or of runs that follow each other."""
    largest = max((plan for plan, _ in runs), key=lambda plan: plan.chips)
    chips = fmt.counted(largest.chips, f"{largest.chip} chip")
    if len(runs) > 1:
        chips = f"at most {chips}, {fmt.counted(len(runs), 'run')}"
    return f"{chips}, {fmt.count(sum(steps for _, steps in runs))} steps, {_cost(runs)}"


def _cost(runs: Sequence[tuple[Plan, int]]) -> str:
    unknown = {plan.trainer for plan, _ in runs if not plan.ledger_describes_trainer}
    if unknown:
        return f"time and cost of {', '.join(sorted(unknown))} are unknown"
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
    if len(priced) < len(runs):
        return f"{time}; no price is known"
    return f"{time}, {between(priced, fmt.dollars)}"


def submitted_screen(run: Run, job: str) -> ui.Screen:
    rows = [("run", run.run), ("job", job), ("journal", run.journal)]
    return ui.screen(["submitted"], ui.indent([ui.Table(rows, "<<")]))


def detached_text(key: str, follow_command: str, cancel_command: str) -> str:
    """Return what is shown when a person stops following a run."""
    return (
        f"{key} continues without this command; {cancel_command} stops it\nNext: {follow_command}\n"
    )


def launch_result(run: Run, record: str, next_command: str) -> ui.Screen:
    rows = []
    if recent := run.recent:
        mfu = f", MFU {fmt.percent(recent.mfu)}" if recent.mfu is not None else ""
        rows.append(("measured", f"{fmt.seconds(recent.step_s)} a step{mfu}"))
    return _result(run, rows, record, next_command)

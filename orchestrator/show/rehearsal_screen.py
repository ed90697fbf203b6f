"""Show a run while it goes on: how it starts, on this machine or on a cluster, and how it ended."""

from collections.abc import Mapping, Sequence

from orchestrator import formatting as fmt
from orchestrator.network.rematerialization import summary_of
from orchestrator.show import parts as ui
from orchestrator.values.codec import short
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.run import Run

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
    return ui.Table([(f"{name:8}", text) for name, text in rows], "<w", gap=1)


def _expectation(plan: Plan) -> list[ui.Row]:
    if plan.chip_profile is None:
        return []
    forecast, step_s = plan.forecast, plan.forecast.step_s
    expected = fmt.seconds(step_s.unoverlapped)
    if step_s.low and step_s.high:
        expected += f" ({fmt.span(fmt.seconds(step_s.low), fmt.seconds(step_s.high))})"
    if not plan.ledger_describes_trainer:  # its step was measured; its parts and FLOPs are unknown
        return [("expected", f"{expected} a step")]
    mfu = f"MFU {fmt.percent(forecast.mfu.unoverlapped)} of this machine's peak"
    source = f"measured here (profile {short(plan.chip_profile)})"
    return [("expected", f"{expected} a step, {mfu}, {source}")]


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
    """Return what a cluster has for runs, and what the runs cost."""
    shown = ", ".join(f"{name} {versions[name]}" for name in _VERSIONS if name in versions)
    rows = [
        ("slices", slices),
        ("hosts", f"{fmt.count(hosts)}, all with {shown}"),
        ("storage", f"{storage}, writable from every host"),
        ("run", cost_of_runs(runs)),
    ]
    return ui.screen([f"cluster {address}"], ui.indent([ui.Table(rows, "<w")]))


def cost_of_runs(runs: Sequence[tuple[Plan, int]]) -> str:
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

"""Show a chip profile: the rate of each operation."""

from collections.abc import Sequence

from orchestrator.formatting import count, counted, percent, with_unit
from orchestrator.planning.calibrated import ChipProfile, Operation, Timing
from orchestrator.show.parts import (
    Command,
    Part,
    Screen,
    Table,
    Title,
    closing,
    heading,
    indent,
    next_step,
    screen,
    section,
    warning,
)
from orchestrator.values import codec
from orchestrator.values.run import (
    ExportedWeights,
    FileFinding,
    HealthReport,
    RunHealth,
    SyncResult,
    ViewLink,
)

UNITS: dict[Operation, str] = {
    "matmul": "FLOP/s",
    "attention": "FLOP/s",
    "copy": "B/s",
}
EXAMPLE = "specs/tiny_2pod.yaml"
HEAD = ("", "type", "small", "large", "spread")


def calibration_screen(profile: ChipProfile, path: str) -> Screen:
    """Return the rate of each operation, and the profile's path."""
    machine = profile.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    what = f"{machine.device_kind}: {machine.cores} cores of {machine.processor}"
    rows = [rate_row(one) for one in profile.timings if one.operation in UNITS]
    digest = codec.short(codec.digest(profile))
    use = "orch submit" if profile.emulated else f"orch plan --profile {digest}"
    return screen(
        [Title(left=what, right=f"profile {digest}")],
        [f"  measured on {profile.measured_on} with {versions}"],
        indent([Table(rows=[HEAD, *rows], columns="<<>>>")]),
        [Command(text=f"stored in {path}"), *next_step(f"{use} {EXAMPLE}")],
    )


def rate_row(timing: Timing) -> tuple[str, ...]:
    """Return the rate for the smallest and the largest amount."""
    unit = UNITS[timing.operation]
    name = f"{timing.operation} with heads of {timing.head_dim}"
    ends = timing.points[0], timing.points[-1]
    return (
        name if timing.head_dim else timing.operation,
        timing.dtype,
        *(with_unit(amount / taken_s, unit) for amount, taken_s in ends),
        percent(timing.spread),
    )


# Show the health of this machine, and of the files of a run, as tables.


SIGNS = {"good": "ok", "limited": "LIMITED", "broken": "BROKEN"}


def doctor_screen(report: HealthReport) -> Screen:
    """Return each finding, with advice below those that are not good."""
    signs = max(len(SIGNS[one.health]) for one in report.findings)
    names = max(len(one.name) for one in report.findings)
    lines: list[Part] = []
    for one in report.findings:
        cells = (f"{SIGNS[one.health]:{signs}}", f"{one.name:{names}}", one.detail)
        lines.append(Table(rows=[cells], columns="<<w"))
        if one.advice:
            lines.append(f"    {one.advice}")
    return screen([heading("this machine")], indent(lines), verdict(report))


def verdict(report: HealthReport) -> list[Part]:
    if report.broken:
        checks = f"{report.broken} of {len(report.findings)} checks failed"
        return closing(f"Doctor: {checks}; fix these first.")
    limits = sum(finding.health == "limited" for finding in report.findings)
    has_extras = all(one.health != "limited" for one in report.findings if one.name == "extras")
    abilities, command = ("plan and run", "orch submit specs/tiny_2pod.yaml")
    if not has_extras:
        abilities, command = "plan", "orch init my-run.yaml"
    with_limits = f", with {counted(limits, 'limit')}" if limits else ""
    return closing(f"Doctor: this machine can {abilities}{with_limits}.", command)


def run_doctor_screen(health: RunHealth, repair_command: str) -> Screen:
    """Return what is wrong with the files of a run, what was repaired, and what to do next."""
    return screen(
        section("repaired", _file_lines(health.repaired)) if health.repaired else [],
        section("files", _file_lines(health.findings)) if health.findings else [],
        _run_verdict(health, repair_command),
    )


def _file_lines(findings: Sequence[FileFinding]) -> list[Part]:
    lines: list[Part] = []
    for one in findings:
        lines += [f"{one.file}: {one.what}", f"    {one.advice}"]
    return lines


def _run_verdict(health: RunHealth, repair_command: str) -> list[Part]:
    if not health.findings:
        return closing(f"Doctor: the files of {health.run} are as they were written.")
    wrong = counted(len(health.findings), "file")
    can = "cannot go on" if health.stops else "can go on"
    verdict = f"Doctor: {wrong} of {health.run} not as written; the run {can}."
    repairable = any(one.repairable for one in health.findings)
    return closing(verdict, repair_command if repairable else None)


# Show which runs MLflow has, and where to look at them.


def sync_screen(results: Sequence[SyncResult], storage: str, next_command: str) -> Screen:
    """Return each run with its steps in MLflow, and whether any is missing."""
    if not results:
        nothing = f"No runs in {storage} that are this user's"
        return screen([Command(text=nothing), *next_step("orch submit SPEC")])
    rows = [
        (one.run, one.recorded.state, count(one.recorded.steps), one.run_id or "")
        for one in results
        if one.recorded
    ]
    table = Table(rows=[("RUN", "STATE", "STEPS", "MLFLOW RUN"), *rows], columns="<<><")
    return screen(
        [table] if rows else [], [*problems(results), *sync_verdict(results, next_command)]
    )


def problems(results: Sequence[SyncResult]) -> list[Part]:
    return [
        *(warning(f"{one.run}: {one.problem}") for one in results if one.problem),
        *(f"{one.run}: recorded by its own driver" for one in results if one.by_driver),
    ]


def sync_verdict(results: Sequence[SyncResult], next_command: str) -> list[Part]:
    missing = sum(one.problem is not None for one in results)
    if missing:
        lost = "Nothing is lost: the journals have what was trained. orch sync tries again."
        return [f"Sync: {missing} of {len(results)} runs not recorded. {lost}"]
    where = ", ".join(destinations([one for one in results if one.recorded or one.by_driver]))
    recorded = f"Sync: {counted(len(results), 'run')} recorded in {where}."
    return [Command(text=recorded), *next_step(next_command)]


def destinations(results: Sequence[SyncResult]) -> list[str]:
    """Return each database or server once, with its experiments."""
    experiments: dict[str, dict[str, None]] = {}
    for one in results:
        if where := one.destination:
            experiments.setdefault(where.label, {})[where.experiment] = None
    return [f"{label} ({', '.join(names)})" for label, names in experiments.items()]


def mlflow_links(
    address: str, shown: str, experiments: Sequence[tuple[str, Sequence[ViewLink]]]
) -> Screen:
    """Return where the MLflow UI shows the runs and their comparisons."""
    return screen(
        [Command(text=f"MLflow at {address}, showing {shown}", style="bold")],
        *(
            section(f"experiment {name}", [Table(rows=links(views), columns="<<")])
            for name, views in experiments
        ),
    )


def links(views: Sequence[ViewLink]) -> list[tuple[str, str]]:
    return [(view.name, view.url) for view in views]


# The screen of weights that were written.


def weights_screen(weights: ExportedWeights) -> str:
    files = counted(weights.files, "file")
    loads = f"AutoModelForCausalLM.from_pretrained({weights.folder!r})"
    return (
        f"{weights.folder}: {weights.parameters:,} parameters of {weights.model} after step"
        f" {weights.step:,}, {weights.dtype}, {files}\n"
        f"Next: {loads}  # {weights.architecture}\n"
    )

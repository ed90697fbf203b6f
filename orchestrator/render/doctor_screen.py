"""Show the health of this machine, and of the files of a run, as tables."""

from collections.abc import Sequence

from orchestrator.formatting import counted
from orchestrator.render.screen_parts import (
    Part,
    Screen,
    Table,
    closing,
    heading,
    indent,
    screen,
    section,
)
from orchestrator.types.health import FileFinding, HealthReport, RunHealth

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

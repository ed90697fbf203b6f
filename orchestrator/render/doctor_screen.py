"""Show the health of this machine as a table."""

from orchestrator.formatting import counted
from orchestrator.render.screen_parts import Part, Screen, Table, heading, indent, next_step, screen
from orchestrator.types.health import HealthReport

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
        return [
            f"Doctor: {report.broken} of {len(report.findings)} checks failed; fix these first."
        ]
    limits = sum(finding.health == "limited" for finding in report.findings)
    has_extras = all(one.health != "limited" for one in report.findings if one.name == "extras")
    abilities, command = ("plan and run", "orch submit specs/tiny_2pod.yaml")
    if not has_extras:
        abilities, command = "plan", "orch init my-run.yaml"
    with_limits = f", with {counted(limits, 'limit')}" if limits else ""
    return [f"Doctor: this machine can {abilities}{with_limits}.", *next_step(command)]

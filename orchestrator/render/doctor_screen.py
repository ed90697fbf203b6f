"""The report of orch doctor as a table, what is wrong in capitals."""

from orchestrator.render.layout import columns, fit
from orchestrator.types.health import HealthReport

SIGNS = {"good": "ok", "limited": "LIMITED", "broken": "BROKEN"}


def doctor_screen(report: HealthReport) -> str:
    """Each finding, with advice under it where it is not good."""
    rows = [(SIGNS[one.health], one.name, one.detail) for one in report.findings]
    lines = ["what this machine can do", ""]
    for one, line in zip(report.findings, columns(rows, "<<<"), strict=True):
        lines.append(f"  {line}")
        if one.advice:
            lines.append(f"      {one.advice}")
    return fit("\n".join([*lines, "", _verdict(report), ""]))


def _verdict(report: HealthReport) -> str:
    if report.broken:
        return f"Doctor: {report.broken} of {len(report.findings)} broken; mend these first."
    limits = sum(finding.health == "limited" for finding in report.findings)
    but = f", with {limits} limits" if limits > 1 else ", with one limit" if limits else ""
    if any(one.name == "extras" and one.health == "limited" for one in report.findings):
        return f"Doctor: this machine can plan{but}.\nNext: orch init my-run.yaml"
    return f"Doctor: this machine can plan and run{but}.\nNext: orch submit specs/tiny_2pod.yaml"

"""a Checkup as a table, what is wrong first in the eye."""

from orchestrator.render.layout import columns, fit
from orchestrator.types.health import HealthReport

SIGNS = {"good": "ok", "limited": "LIMITED", "broken": "BROKEN"}


def doctor_screen(checkup: HealthReport) -> str:
    """Each finding, with advice under it where it is not good."""
    rows = [(SIGNS[one.health], one.name, one.found) for one in checkup.findings]
    lines = ["what this machine can do", ""]
    for one, line in zip(checkup.findings, columns(rows, "<<<"), strict=True):
        lines.append(f"  {line}")
        if one.advice:
            lines.append(f"      {one.advice}")
    return fit("\n".join([*lines, "", _verdict(checkup), ""]))


def _verdict(checkup: HealthReport) -> str:
    if checkup.broken:
        return f"Doctor: {checkup.broken} of {len(checkup.findings)} broken; mend these first."
    limits = sum(finding.health == "limited" for finding in checkup.findings)
    but = f", with {limits} limits" if limits > 1 else ", with one limit" if limits else ""
    return f"Doctor: this machine can plan and run{but}.\nNext: orch submit specs/tiny_2pod.yaml"

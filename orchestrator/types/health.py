"""Station Checkup: what a machine can do for orch, and what to do about what it cannot."""

from dataclasses import dataclass
from typing import Literal

# `limited` stops one thing, which the advice names; `broken` stops most.
Health = Literal["good", "limited", "broken"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at. What is not good comes with advice."""

    name: str
    health: Health
    found: str
    advice: str | None = None


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """All findings, in the order in which a run needs the things."""

    findings: tuple[Finding, ...]
    schema: int = 1

    @property
    def broken(self) -> int:
        return sum(finding.health == "broken" for finding in self.findings)

"""What a machine can do for orch, and what to do about what it cannot."""

from dataclasses import dataclass
from typing import Literal

# `limited` stops one thing, which the advice names; `broken` stops most.
Health = Literal["good", "limited", "broken"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. A result that is not good comes with advice."""

    name: str
    health: Health
    detail: str
    advice: str | None = None


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """All findings, in the order in which a run needs the things."""

    findings: tuple[Finding, ...]
    schema: int = 2

    @property
    def broken(self) -> int:
        return sum(finding.health == "broken" for finding in self.findings)

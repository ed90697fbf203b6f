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


FileKind = Literal["event", "spec", "plan", "document", "steps", "checkpoint", "proof"]


@dataclass(frozen=True, kw_only=True)
class FileFinding:
    """A file of a run that is not as it was written, and what to do about it.

    `stops`: the run cannot go on from it. `repairable`: `orch doctor RUN --repair` repairs it.
    """

    kind: FileKind
    file: str
    what: str
    stops: bool
    repairable: bool
    advice: str


@dataclass(frozen=True, kw_only=True)
class RunHealth:
    """What is wrong with the files of a run, and what was wrong with them until it was repaired."""

    run: str
    findings: tuple[FileFinding, ...]
    repaired: tuple[FileFinding, ...] = ()
    schema: int = 1

    @property
    def stops(self) -> bool:
        """Whether the run cannot go on."""
        return any(one.stops for one in self.findings)

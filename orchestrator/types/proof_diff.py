"""The difference between two proofs, as values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.proof import Proof

FigureUnit = Literal["bytes", "flops", "s"]


@dataclass(frozen=True, kw_only=True)
class ProofFigure:
    """One figure of two compiled programs, of one device and step."""

    name: str
    unit: FigureUnit
    first: float
    second: float


@dataclass(frozen=True, kw_only=True)
class LineSeconds:
    """Seconds that a source line takes in each of two schedules; None where it is in one alone."""

    line: str
    first_s: float | None
    second_s: float | None

    @property
    def more_s(self) -> float:
        """What the second takes more than the first."""
        return (self.second_s or 0.0) - (self.first_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class ProofDiff:
    """Two proofs side by side: figures of both, and the lines that differ most first."""

    schema: int
    proofs: tuple[Proof, Proof]
    figures: tuple[ProofFigure, ...]
    lines: tuple[LineSeconds, ...]

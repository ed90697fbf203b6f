"""Two proofs side by side: two plans, two sets of compiler options, or two trainers."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from orchestrator.values.proof import Proof, Schedule

# The difference between two proofs, as values.


_FigureUnit = Literal["bytes", "flops", "s"]


@dataclass(frozen=True, kw_only=True)
class ProofFigure:
    """One figure of two compiled programs, of one device and step."""

    name: str
    unit: _FigureUnit
    first: float
    second: float


@dataclass(frozen=True, kw_only=True)
class LineSeconds:
    """Seconds that a source line takes in each of two schedules; None where it is absent."""

    line: str
    first_s: float | None
    second_s: float | None

    @property
    def more_s(self) -> float:
        """Seconds that the second takes more than the first."""
        return (self.second_s or 0.0) - (self.first_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class ProofDiff:
    """Two proofs side by side: figures of both, and the lines that differ most first."""

    schema: int
    proofs: tuple[Proof, Proof]
    figures: tuple[ProofFigure, ...]
    lines: tuple[LineSeconds, ...]


_SCHEMA = 1
_KINDS = ("products_s", "kernels_s", "copies_s", "other_s", "exposed_s", "total_s")


def diff_proofs(first: Proof, second: Proof) -> ProofDiff:
    """Figures that either proof has, and lines of source by how much their seconds differ."""
    of_first, of_second = _figures(first), _figures(second)
    names = dict.fromkeys([*of_first, *of_second])
    return ProofDiff(
        schema=_SCHEMA,
        proofs=(first, second),
        figures=tuple(
            ProofFigure(
                name=name,
                unit=unit,
                first=of_first.get((name, unit), 0.0),
                second=of_second.get((name, unit), 0.0),
            )
            for name, unit in names
        ),
        lines=_lines(first.schedule, second.schedule),
    )


def _figures(proof: Proof) -> dict[tuple[str, _FigureUnit], float]:
    """Memory, FLOPs, bytes on each link, seconds of the schedule by kind."""
    sent: dict[str, float] = defaultdict(float)
    for one in proof.collectives:
        sent[one.link] += one.bytes_per_step
    found: dict[tuple[str, _FigureUnit], float] = {
        ("peak_hbm", "bytes"): proof.peak_hbm_bytes_per_device,
        ("host", "bytes"): proof.host_bytes_per_device,
        ("flops", "flops"): proof.flops_per_device,
        **{(link, "bytes"): size for link, size in sent.items()},
    }
    if proof.schedule:
        found |= {(kind, "s"): getattr(proof.schedule, kind) for kind in _KINDS}
    return found


def _lines(first: Schedule | None, second: Schedule | None) -> tuple[LineSeconds, ...]:
    """Every line of both, those first whose seconds differ most."""
    if first is None or second is None:
        return ()
    of_first, of_second = _line_seconds(first), _line_seconds(second)
    found = [
        LineSeconds(line=line, first_s=of_first.get(line), second_s=of_second.get(line))
        for line in dict.fromkeys([*of_first, *of_second])
    ]
    return tuple(sorted(found, key=lambda one: (-abs(one.more_s), one.line)))


def _line_seconds(schedule: Schedule) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for one in schedule.lines:
        total[one.line] += one.total_s
    return dict(total)

"""A collective of a step: what one device exchanges, with which others, how often."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from orchestrator.network.mesh_axes import GROUPS, in_use, link_of
from orchestrator.plan.layout import Number
from orchestrator.types.plan import Collective, CollectiveKind, LineKind
from orchestrator.types.spec_fields import DType

GATHER: CollectiveKind = "all-gather"
SCATTER: CollectiveKind = "reduce-scatter"
REDUCE: CollectiveKind = "all-reduce"
ALL_TO_ALL: CollectiveKind = "all-to-all"

OVER_DCN = " over dcn"


@dataclass(frozen=True)
class Part:
    """`calls` collectives a step; each gathers, scatters or reduces `bytes` in all.

    `serial` of the calls come before the first layer or after the last backward pass, where no
    matmul is left to hide them.
    """

    bytes: Number
    calls: Number
    serial: Number = 0


@dataclass(frozen=True)
class Exchange:
    """What a step exchanges over some mesh axes for one purpose; `formula` names the payload.

    `calls` is how often the links' latency is paid: parts that are sent in parallel pay it once.
    """

    line: LineKind
    name: str
    kind: CollectiveKind
    axes: tuple[str, ...]
    formula: str
    ways: Number
    calls: Number
    parts: tuple[Part, ...]
    dtype: DType

    @property
    def group(self) -> str:
        """The name of the devices that it joins."""
        return next((name for name, axes in GROUPS.items() if axes == self.axes), self.axes[0])

    @property
    def moved_bytes(self) -> Number:
        """Logical payload of a device in a step: V (n - 1) / n a call, an all-reduce twice that."""
        return self.moved(sum(part.calls * part.bytes for part in self.parts))

    @property
    def serial_bytes(self) -> Number:
        """The part of it that no matmul hides."""
        return self.moved(sum(p.serial * p.bytes for p in self.parts if np.any(p.serial)))

    def moved(self, volume: Number) -> Number:
        twice = 2 if self.kind == REDUCE else 1
        return twice * volume * (self.ways - 1) / self.ways

    def collective(self, mesh: Mapping[str, Number]) -> Collective:
        """The exchange as a value of the Plan."""
        return Collective(
            kind=self.kind,
            axes=in_use(self.axes, mesh),
            link=link_of(self.axes),
            dtype=self.dtype,
            bytes_per_step=float(self.moved_bytes),
            calls_per_step=float(self.calls),
        )

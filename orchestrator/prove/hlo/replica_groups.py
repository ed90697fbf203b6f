"""The mesh axes in which the devices of a collective differ."""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from orchestrator.prove.hlo.program import Instruction, numbers

LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
PASSES = "source_target_pairs="
PAIRS = re.compile(r"\{(\d+),(\d+)\}")


@dataclass(frozen=True)
class DeviceMesh:
    """Sizes of the mesh axes of one slice, and the place of each partition in that mesh."""

    axes: dict[str, int]
    places: tuple[int, ...] | None = None

    def axes_of(self, partitions: tuple[int, ...]) -> tuple[str, ...]:
        """The axes in which the partitions differ; no partitions mean the whole slice."""
        at = np.array(partitions or range(prod(self.axes.values())))
        places = np.array(self.places)[at] if self.places else at
        indices = np.unravel_index(places, tuple(self.axes.values()))
        return tuple(
            name for name, index in zip(self.axes, indices, strict=True) if np.ptp(index) > 0
        )


def first_group(collective: Instruction, partitions: int) -> tuple[int, ...]:
    """The partitions of the first group; the others are alike."""
    if counted := COUNTED.search(collective.rest):
        return _counted(*counted.groups())
    listed = LISTED.search(collective.rest)
    return numbers(listed[1]) if listed else tuple(range(partitions))


@dataclass(frozen=True)
class Chain:
    """Partitions that pass their data on to one another, from the first; a ring is closed."""

    members: tuple[int, ...]
    is_ring: bool


def chain(permute: Instruction) -> Chain:
    """The chain of a permute. The pairs of permutes fill most of a large program's text."""
    return _chain(pairs_text(permute))


def pairs_text(permute: Instruction) -> str:
    """Its senders and receivers, as written."""
    start = permute.rest.index(PASSES)
    return permute.rest[start : permute.rest.index("}}", start) + 1]


@lru_cache(maxsize=256)
def _chain(text: str) -> Chain:
    pairs = [(int(source), int(target)) for source, target in PAIRS.findall(text)]
    after = dict(pairs)
    members = [min(after)]
    seen = set(members)
    while (following := after.get(members[-1], members[0])) not in seen:
        members.append(following)
        seen.add(following)
    return Chain(tuple(members), is_ring=set(after) == set(after.values()))


def _counted(shape: str, counted: str, order: str | None) -> tuple[int, ...]:
    """`[groups, size]<=[a, b]T(1, 0)`: an iota of a x b, transposed, cut into groups."""
    sizes = numbers(counted)
    iota = np.arange(prod(sizes)).reshape(sizes)
    if order:
        iota = iota.transpose(numbers(order))
    groups = iota.reshape(numbers(shape))
    return tuple(int(partition) for partition in groups[0])

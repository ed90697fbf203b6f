"""The mesh axes in which the devices of a collective differ."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from orchestrator.prove.hlo.program import Instruction, numbers

LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
GROUPS = "replica_groups="
NO_GROUPS = "replica_groups={}"  # all partitions are one
# A mesh of the compiler's own, whose axes need not be the trainer's: mesh['a'=2,'b'=4] {'b'}.
MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
AXIS = re.compile(r"'(\w+)'=(\d+)")
CHOSEN = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")  # 'b':(2)4 is 4 of what is left after 2
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
    if listed := LISTED.search(collective.rest):
        return numbers(listed[1])
    if mesh := MESH.search(collective.rest):
        return _along_axes(*mesh.groups())
    if GROUPS in collective.rest and NO_GROUPS not in collective.rest:
        raise ValueError(f"{collective.name} has groups of another form: {collective.rest[:200]}")
    return tuple(range(partitions))


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


def _along_axes(axes: str, counted: str | None, order: str | None, chosen: str) -> tuple[int, ...]:
    """Partitions that differ along the chosen axes alone, the first of them outermost."""
    sizes = {name: int(size) for name, size in AXIS.findall(axes)}
    parts = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in CHOSEN.findall(chosen)
    ]
    pieces = [
        (name, at, end // at)
        for name, whole in sizes.items()
        for at, end in pairwise(_cuts(whole, [part[1:] for part in parts if part[0] == name]))
    ]
    tiles = numbers(counted) if counted else (prod(sizes.values()),)
    iota = np.arange(prod(tiles)).reshape(tiles).transpose(numbers(order) if order else None)
    devices = iota.reshape([size for _, _, size in pieces])
    along = [
        number
        for name, before, size in parts
        for number, (axis, at, _) in enumerate(pieces)
        if axis == name and before <= at < before * size
    ]
    others = [number for number in range(len(pieces)) if number not in along]
    first = devices.transpose(others + along)[(0,) * len(others)]
    return tuple(int(partition) for partition in first.flat)


def _cuts(whole: int, parts: list[tuple[int, int]]) -> list[int]:
    """Where an axis is cut so that each part is made of whole pieces."""
    return sorted({1, whole} | {end for at, size in parts for end in (at, at * size)})

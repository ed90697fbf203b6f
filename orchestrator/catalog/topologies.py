"""Which slices of a chip exist, their names and closed axes, and which ones Google Cloud rents."""

import re
from functools import cache, partial
from itertools import zip_longest
from math import ceil, log, prod

from orchestrator.catalog.chips import Chip, Topology
from orchestrator.errors import NoSuchSlice, NoTopology
from orchestrator.notes import sentences
from orchestrator.values.plan import PlanWarning, WarningCode
from orchestrator.values.spec import AUTO_TOPOLOGY

_Shape = tuple[int, ...]

_SHAPE = re.compile(r"[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){0,3}")
_NAME = re.compile(r"([a-z0-9-]+)-([1-9][0-9]{0,8})")
_NEAREST = 3


def topology(chip: Chip, text: str) -> Topology:
    """Return the slice that a shape (16x20x28) or an accelerator type (v5p-128) means."""
    if text == AUTO_TOPOLOGY:
        raise NoTopology
    if _SHAPE.fullmatch(text):
        shape = tuple(map(int, text.split("x")))
        if fault := _fault(chip, shape):
            is_cluster = chip.switched and prod(shape) > chip.pod_chips.value
            nearest = sorted(_shapes(chip), key=partial(_distance, shape))[:_NEAREST]
            raise NoSuchSlice(fault, [*map(_text, nearest)], "nearest", is_cluster=is_cluster)
    else:
        shape = _named(chip, text)
    cube, ring = chip.slices.cube, chip.slices.ring
    if cube is not None:
        closed = all(length % cube == 0 for length in shape)
        return Topology(shape=shape, wraps=(closed,) * len(shape))
    return Topology(shape=shape, wraps=tuple(length == ring for length in shape))


def topologies(chip: Chip) -> tuple[str, ...]:
    """Return every slice of a chip that exists, smallest first."""
    return tuple(map(_text, _shapes(chip)))


def _fault(chip: Chip, shape: _Shape) -> str | None:
    """Return why such a slice does not exist, or None."""
    slices, text, chips = chip.slices, _text(shape), prod(shape)
    if shape in slices.listed:
        return None
    if chip.switched and chips > chip.pod_chips.value:
        most = int(chip.pod_chips.value)
        return (
            f"a slice of {chip.name} is one NVLink domain of up to {most:,} GPUs;"
            f" for {chips:,} GPUs write topology: {most} and pods: {ceil(chips / most)}"
        )
    if len(shape) != chip.torus_axes:
        axes = f"{chip.torus_axes} dimension{'s' * (chip.torus_axes != 1)}"
        return f"{chip.name} slices have {axes}, {text} has {len(shape)}"
    if chips > chip.pod_chips.value:
        return f"{text} is {chips:,} chips, {chip.name} pods have {chip.pod_chips.value:,.0f}"
    if slices.cube is None:
        return f"{text} is not among the {chip.name} slices: {', '.join(topologies(chip))}"
    if any(length % slices.cube for length in shape):
        cube, small = _text((slices.cube,) * len(shape)), ", ".join(map(_text, slices.listed))
        return f"{text} is not whole {cube} cubes, as all {chip.name} slices are but {small}"
    if list(shape) != sorted(shape):
        return f"{chip.name} slices are written with ascending dimensions, {text} is not"
    return None


def _named(chip: Chip, text: str) -> _Shape:
    """Return the shape that an accelerator type means: the most cubic one with that many chips."""
    # A shape in another notation: 4X4X4, 4*4*4, 4, 4, 4.
    meant = re.sub(r"[ ]*[xX*×,][ ]*", "x", text.strip("([ ])"))
    if meant != text and meant in topologies(chip):
        raise NoSuchSlice(f"{text!r} is not a shape", [meant], "did you mean")
    name, slices = _NAME.fullmatch(text), chip.slices
    if not name or name[1] not in slices.names:
        # The small slices, each doubling, the largest that is rented, and the whole pod.
        pod = int(chip.pod_chips.value)
        doublings = {_most_cubic(chip, 2**power) for power in range(pod.bit_length())}
        examples = {*slices.listed, *doublings, chip.largest_slice, _most_cubic(chip, pod)}
        known = [_text(shape) for shape in _shapes(chip) if shape in examples]
        known.append(f"{slices.names[0]}-{pod * slices.named_per_chip}")
        raise NoSuchSlice(f"unknown {chip.name} topology {text!r}", known, "known")
    chips, rest = divmod(int(name[2]), slices.named_per_chip)
    shape = None if rest else _most_cubic(chip, chips)
    if shape is None:
        counts = {prod(each) * slices.named_per_chip for each in _shapes(chip)}
        by_distance = sorted(counts, key=lambda count: abs(log(count) - log(int(name[2]))))
        nearest = [f"{name[1]}-{count}" for count in sorted(by_distance[:_NEAREST])]
        raise NoSuchSlice(f"no {chip.name} slice is called {text}", nearest, "nearest")
    return shape


def _most_cubic(chip: Chip, chips: int) -> _Shape | None:
    """Return the slice of that many chips with the least sum of lengths, as Google Cloud does."""
    return min((shape for shape in _shapes(chip) if prod(shape) == chips), key=sum, default=None)


def _shapes(chip: Chip) -> tuple[_Shape, ...]:
    cube = chip.slices.cube
    boxes = () if cube is None else _boxes(cube, int(chip.pod_chips.value))
    return tuple(sorted({*chip.slices.listed, *boxes}, key=lambda shape: (prod(shape), shape)))


@cache
def _boxes(edge: int, most: int) -> tuple[_Shape, ...]:
    """Return the boxes of whole cubes, dimensions ascending, that have at most `most` chips."""
    cubes = most // edge**3
    return tuple(
        (a * edge, b * edge, c * edge)
        for a in range(1, cubes + 1)
        for b in range(a, cubes // a + 1)
        for c in range(b, cubes // (a * b) + 1)
    )


def _distance(shape: _Shape, other: _Shape) -> tuple[float, float]:
    """Return how far a shape is from another: in chips, then in lengths, in any order."""
    chips = abs(log(prod(other)) - log(prod(shape)))
    lengths = zip_longest(sorted(shape, reverse=True), sorted(other, reverse=True), fillvalue=1)
    return chips, sum((log(a) - log(b)) ** 2 for a, b in lengths)


def _text(shape: _Shape) -> str:
    return "x".join(map(str, shape))


def hosts(chip: Chip, topology: Topology) -> int:
    """Return the number of hosts of one slice; each has one process."""
    if topology.chips <= chip.single_host_chips:
        return 1
    return topology.chips // chip.chips_per_host


# --- slices of Google Cloud: fewer than exist


def rental_warnings(chip: Chip, topology: Topology, pods: int) -> tuple[PlanWarning, ...]:
    """Return why so many slices of that topology cannot be rented; nothing if they can be."""
    found: list[tuple[WarningCode, dict[str, int | float | str]]] = []
    most, limit = prod(chip.largest_slice), chip.multislice_chips
    if topology.chips > most:
        largest: dict[str, int | float | str] = {"largest_slice": _text(chip.largest_slice)}
        found.append(("slice_not_rented", {**largest, "most_chips": most, "chips": topology.chips}))
    if limit is not None and topology.chips * pods > limit.value:
        joined = {"most_chips": limit.value, "pods": pods, "chips": topology.chips * pods}
        found.append(("slices_not_joined", {**joined}))
    where: dict[str, int | float | str] = {"chip": chip.name, "topology": str(topology)}
    return tuple(PlanWarning(code=code, figures=where | figures) for code, figures in found)


_TEXTS = {
    "slice_not_rented": (
        "Google Cloud schedules at most {most_chips:,} {chip} chips as one slice"
        " ({largest_slice}); {topology} is {chips:,}"
    ),
    "slices_not_joined": (
        "Google Cloud joins at most {most_chips:,.0f} {chip} chips by Multislice;"
        " {pods} x {topology} is {chips:,}"
    ),
}
sentences(PlanWarning, _TEXTS, str.format)

"""The links of one slice, and how mesh axes lie on them. On a torus axis of length L the factors of
ICI_AXES multiply to L, the first axis outermost. A row of an array is one placement, so one
function serves a search and a single plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import inf, prod
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.catalog.chips import Chip, Topology
from orchestrator.network.mesh_axes import DCN_GROUPS, GROUPS, ICI_AXES, RING_AXES
from orchestrator.values.plan import TorusSpan

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_Change = Callable[[Any], Any]


def distinct(values: Ints, axis: int | None = None) -> Ints:
    """Return the values once, in order. Without an index, np.unique would import masked arrays."""
    return np.unique(values, axis=axis, return_index=True)[0]


HOP_S = 1e-6  # one hop of one link, about
HOP_SOURCE = "scaling-book-tpus"
_DIE_AXIS = "d"
# Groups whose devices send each other different bytes: rows of experts, and matrices of Muon.
_EXCHANGING = ("expert", "replicas")


@dataclass(frozen=True)
class _TorusAxis:
    """`bytes_per_s` is what one chip sends both ways along this axis."""

    name: str
    length: int
    wraps: bool
    bytes_per_s: float


@dataclass(frozen=True)
class Torus:
    """The axes of a slice, outermost first; the dies of a chip come last, as axis `d`."""

    axes: tuple[_TorusAxis, ...]
    devices_per_chip: int
    switched: bool
    cluster_bytes_per_s: float  # of each device, to other slices

    @property
    def devices(self) -> int:
        return prod(axis.length for axis in self.axes)

    @cached_property
    def link_bytes_per_s(self) -> Floats:
        return np.array([axis.bytes_per_s for axis in self.axes])

    @cached_property
    def on_die(self) -> Bools:
        return np.array([axis.name == _DIE_AXIS for axis in self.axes])


def make_torus(chip: Chip, topology: Topology) -> Torus:
    """The links of a slice of that chip. Two links an axis, except in a switched domain."""
    links = 1 if chip.switched else 2
    axes = [
        _TorusAxis(name, length, wraps, links * chip.ici_link_bytes_per_s.value)
        for name, length, wraps in zip("xyz", topology.shape, topology.wraps, strict=False)
    ]
    if chip.devices > 1:
        assert chip.die_link_bytes_per_s is not None
        axes.append(_TorusAxis(_DIE_AXIS, chip.devices, False, 2 * chip.die_link_bytes_per_s.value))
    return Torus(tuple(axes), chip.devices, chip.switched, cluster_rate(chip))


def cluster_rate(chip: Chip) -> float:
    return chip.dcn_bytes_per_s.value / chip.devices


def factor_rows(length: int, axes: Sequence[str]) -> Ints:
    """Every way to split a torus axis between those mesh axes: rows x ICI_AXES."""
    parts = np.array(_factorizations(length, len(axes)), np.int64)
    rows = np.ones((len(parts), len(ICI_AXES)), np.int64)
    rows[:, [ICI_AXES.index(axis) for axis in axes]] = parts
    return rows


def _factorizations(length: int, parts: int) -> list[tuple[int, ...]]:
    """Every ordered way to write `length` as a product of `parts` numbers."""
    if parts == 1:
        return [(length,)]
    return [
        (first, *rest)
        for first in divisors(length)
        for rest in _factorizations(length // first, parts - 1)
    ]


def count_placements(slice_torus: Torus, axes: Sequence[str]) -> int:
    return prod(len(factor_rows(axis.length, axes)) for axis in slice_torus.axes)


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def axis_sizes(factors: Ints) -> Ints:
    """Mesh axis sizes of each placement: rows x ICI_AXES."""
    return _product(factors, 1)


def _product(numbers: Ints, axis: int) -> Ints:
    """The product along a short axis, column by column: numpy's own is slow there."""
    shape = numbers.shape[:axis] + numbers.shape[axis + 1 :]
    return reduce(np.multiply, np.moveaxis(numbers, axis, 0), np.ones(shape, np.int64))


_Spans = tuple[Ints, Ints, Bools]


def _group_spans(slice_torus: Torus, factors: Ints, group: tuple[str, ...]) -> _Spans:
    """Size and stride of a group's span on each torus axis, rows x torus axes, and whether it is a
    ring: all of an axis that wraps, or part of a switched domain.
    """
    first, last = ICI_AXES.index(group[0]), ICI_AXES.index(group[-1])
    size = _product(factors[:, :, first : last + 1], 2)
    stride = _product(factors[:, :, last + 1 :], 2)
    lengths = np.array([axis.length for axis in slice_torus.axes])
    wraps = np.array([axis.wraps for axis in slice_torus.axes])
    ring = (wraps & (size * stride == lengths)) | slice_torus.switched
    return size, stride, np.asarray(ring)


def _group_rate(slice_torus: Torus, group: tuple[str, ...], spans: _Spans) -> Floats:
    """Bytes per second at which each device receives in a collective over the group. A ring uses
    both directions of an axis, an open line half; a stride of s shares links with s - 1 interleaved
    groups; spans on several axes add up, except where devices pass data on in one ring. Devices of
    one chip share its links, unless the group holds all of them; a group within a chip has the die
    link, a single device infinity.
    """
    size, stride, ring = spans
    shape = np.where(ring, 1.0, 0.5)
    shared = np.ones_like(stride) if slice_torus.switched else stride
    link, on_die = slice_torus.link_bytes_per_s, slice_torus.on_die
    per_axis = np.where(size > 1, link * shape / shared, 0.0)
    die_rate = per_axis[:, on_die].sum(axis=1)
    share = np.where(die_rate > 0, 1.0, 1.0 / slice_torus.devices_per_chip)
    on_torus = per_axis[:, ~on_die].sum(axis=1)
    # One ring through several spans has the rate of its slowest link, both ways. A closed way
    # exists where a span has an even number of chips; else the ring is an open line.
    is_one, closed = _one_ring(slice_torus, group, size[:, ~on_die])
    if is_one.any():
        slowest = np.where((size > 1) & ~on_die, link / stride, np.inf).min(axis=1)
        on_torus = np.where(is_one, slowest * np.where(closed, 1.0, 0.5), on_torus)
    torus_rate = on_torus * share
    rate = np.where(torus_rate > 0, torus_rate, die_rate)
    return np.where(rate > 0, rate, np.inf)


def _one_ring(slice_torus: Torus, group: tuple[str, ...], chips: Ints) -> tuple[Bools, Bools]:
    """Whether a group's devices pass data on through several spans, and whether in a ring."""
    in_line = not slice_torus.switched and all(axis in RING_AXES for axis in group)
    several, closed = (chips > 1).sum(axis=1) > 1, (chips % 2 == 0).any(axis=1)
    return np.asarray(several & in_line), np.asarray(closed)


def _exchange_rate(slice_torus: Torus, spans: _Spans, gather: Floats) -> Floats:
    """Bytes per second at which each device sends in an all-to-all over a group that gathers at a
    known rate. On a ring of n devices a byte travels n / 4 links, and all bytes travel along every
    axis of the group: the slowest decides. The devices of one chip share its links.
    """
    if slice_torus.switched:
        return gather
    size, stride, ring = spans
    shape = np.where(ring, 1.0, 0.5)
    share = np.where(slice_torus.on_die, 1.0, 1.0 / slice_torus.devices_per_chip)
    rate = 4 * slice_torus.link_bytes_per_s * share * shape / stride / size
    along = np.where(size > 1, rate, np.inf).min(axis=1)
    devices = size.prod(axis=1)
    return np.where(devices > 1, np.where(devices > 1, along, 0) * (devices - 1) / devices, gather)


def _group_hops(slice_torus: Torus, group: tuple[str, ...], spans: _Spans) -> Floats:
    """Hops one collective needs: half way round a ring, to the far end of a line, in each span; or
    once through all chips, where they pass data on to the next.
    """
    size, stride, ring = spans
    if slice_torus.switched:
        return np.asarray((size > 1).any(axis=1).astype(float))
    on_die = slice_torus.on_die
    hops = (np.where(ring, size // 2, size - 1) * stride).sum(axis=1)
    is_one, closed = _one_ring(slice_torus, group, size[:, ~on_die])
    if is_one.any():
        chips = size[:, ~on_die].prod(axis=1)
        around = np.where(closed, chips // 2, chips - 1) + (size[:, on_die] - 1).sum(axis=1)
        hops = np.where(is_one, around, hops)
    return np.asarray(hops.astype(float))


@dataclass(frozen=True)
class Links:
    """What joins the devices of each group: a domain inside the slice, and the cluster network. For
    each of GROUPS: bytes per second of a gather, hops, torus axes in use (rows x torus axes); for
    _EXCHANGING bytes per second of an all-to-all. DCN_GROUPS lie on the cluster network.
    """

    rates: dict[str, Any]
    exchange_rates: dict[str, Any]
    hops: dict[str, Any]
    uses: dict[str, Any]
    cluster_bytes_per_s: float = inf

    def bytes_per_s(self, group: str, *, all_to_all: bool = False) -> Any:
        if group in DCN_GROUPS:
            return self.cluster_bytes_per_s
        return self.exchange_rates[group] if all_to_all else self.rates[group]

    def latency_s(self, group: str, calls: Any) -> Any:
        """Return the seconds of collectives without payload; unknown, and 0, between slices."""
        return 0.0 if group in DCN_GROUPS else calls * self.hops[group] * HOP_S


NO_LINKS = Links({}, {}, {}, {})


def find_links(slice_torus: Torus, factors: Ints) -> Links:
    """The links of each placement, an array an entry."""
    groups = GROUPS.items()
    spans = {name: _group_spans(slice_torus, factors, axes) for name, axes in groups}
    rates = {name: _group_rate(slice_torus, axes, spans[name]) for name, axes in groups}
    return Links(
        rates=rates,
        exchange_rates={
            name: _exchange_rate(slice_torus, spans[name], rates[name]) for name in _EXCHANGING
        },
        hops={name: _group_hops(slice_torus, axes, spans[name]) for name, axes in groups},
        uses={name: size > 1 for name, (size, _, _) in spans.items()},
        cluster_bytes_per_s=slice_torus.cluster_bytes_per_s,
    )


def _changed(links: Links, rate: _Change, hops: _Change, uses: _Change) -> Links:
    return Links(
        rates={name: rate(values) for name, values in links.rates.items()},
        exchange_rates={name: rate(values) for name, values in links.exchange_rates.items()},
        hops={name: hops(values) for name, values in links.hops.items()},
        uses={name: uses(values) for name, values in links.uses.items()},
        cluster_bytes_per_s=links.cluster_bytes_per_s,
    )


def rows_of_links(links: Links, rows: Ints) -> Links:
    return _changed(links, *[itemgetter(rows)] * 3)


def plain_links(slice_torus: Torus, factors: Ints) -> Links:

    def plain(values: Floats) -> float:
        return float(values[0])

    return _changed(find_links(slice_torus, factors), plain, plain, itemgetter(0))


def best_links(links: Links, key: Ints, keys: int) -> Links:
    """Links that no placement with a key surpasses. The torus axes that a group keeps busy are then
    shares: the fewest that it has on any placement, spread over all.
    """

    def highest(rates: Floats) -> Floats:
        found = np.zeros(keys)
        np.maximum.at(found, key, rates)
        return found

    def lowest(values: Floats) -> Floats:
        found = np.full(keys, np.inf)
        np.minimum.at(found, key, values)
        return found

    def spread(uses: Bools) -> Floats:
        return np.repeat(lowest(uses.mean(axis=1))[:, None], uses.shape[1], axis=1)

    return _changed(links, highest, lowest, spread)


def join_links(several: Sequence[Links]) -> Links:
    """The links of placements of several slices with as many torus axes, one after another."""

    def joined(name: str) -> dict[str, Any]:
        return {
            group: np.concatenate([getattr(links, name)[group] for links in several])
            for group in getattr(several[0], name)
        }

    rates, exchange_rates, hops, uses = map(joined, ("rates", "exchange_rates", "hops", "uses"))
    return Links(rates, exchange_rates, hops, uses, several[0].cluster_bytes_per_s)


def spans_of(slice_torus: Torus, factors: Ints, group: tuple[str, ...]) -> tuple[TorusSpan, ...]:
    """The spans of one placement's group, as the Plan states them."""
    size, stride, ring = _group_spans(slice_torus, factors[None], group)
    return tuple(
        TorusSpan(
            torus=axis.name, size=int(size[0, i]), stride=int(stride[0, i]), ring=bool(ring[0, i])
        )
        for i, axis in enumerate(slice_torus.axes)
        if size[0, i] > 1
    )

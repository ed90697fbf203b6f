"""The links of one slice: how fast its devices exchange, and which links an exchange keeps busy.

Every torus axis has two directed links a chip. A permute takes as long as the link with the most
messages; a collective over a group runs at the rate of its links, as the Plan's groups do.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orchestrator.types.schedule import SliceTorus

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SliceLinks:
    """`places`: torus coordinates of each partition, one row each."""

    torus: SliceTorus
    places: tuple[tuple[int, ...], ...]

    @cached_property
    def _places(self) -> Ints:
        return np.array(self.places, dtype=np.int64)

    @property
    def _torus_axes(self) -> int:
        return len(self.torus.lengths) - (self.torus.devices_per_chip > 1)

    def group_rate(self, members: tuple[int, ...], most_axes: int | None) -> float:
        """Bytes a second at which each member receives; at most that many torus axes at once."""
        at = self._places[np.array(members)]
        spans = [self._axis_rate(at[:, axis], axis) for axis in range(at.shape[1])]
        torus, die = spans[: self._torus_axes], sum(spans[self._torus_axes :])
        used = sorted((rate for rate in torus if rate), reverse=True)
        if most_axes is not None and len(used) > most_axes:
            # One ring through several axes closes, even where none of them does.
            doubled = 2 * min(self.torus.link_bytes_per_s[: self._torus_axes])
            used = [doubled] * most_axes
        share = 1.0 if die else 1.0 / self.torus.devices_per_chip
        return sum(used) * share or die

    def _axis_rate(self, at: Ints, axis: int) -> float:
        """A ring has both directions, a line one; interleaved groups share each link."""
        values = np.unique(at)
        if len(values) < 2:
            return 0.0
        stride = int(values[1] - values[0])
        closes = self.torus.wraps[axis] and len(values) * stride == self.torus.lengths[axis]
        return self.torus.link_bytes_per_s[axis] * (2 if closes else 1) / stride

    def group_hops(self, members: tuple[int, ...]) -> int:
        """Half way round a ring, to the far end of a line, on each axis."""
        at, hops = self._places[np.array(members)], 0
        for axis in range(at.shape[1]):
            values = np.unique(at[:, axis])
            if len(values) > 1:
                reach = int(values[-1] - values[0])
                hops += min(
                    reach, self.torus.lengths[axis] // 2 if self.torus.wraps[axis] else reach
                )
        return hops

    def group_links(self, members: tuple[int, ...]) -> Bools:
        """All links of the axes along which the members differ."""
        at = self._places[np.array(members)]
        used = np.zeros((*self.torus.lengths, len(self.torus.lengths), 2), dtype=bool)
        for axis in range(at.shape[1]):
            if np.ptp(at[:, axis]) > 0:
                used[..., axis, :] = True
        return used

    def permute(self, pairs: Ints) -> tuple[float, int, Bools]:
        """Seconds a byte of the busiest link, the hops of the longest way, and the links in use.

        Messages go along one axis after another, the shorter way round.
        """
        at, to = self._places[pairs[:, 0]].copy(), self._places[pairs[:, 1]]
        load = np.zeros((*self.torus.lengths, len(self.torus.lengths), 2), dtype=np.int64)
        longest = np.zeros(len(pairs), dtype=np.int64)
        for axis, length in enumerate(self.torus.lengths):
            step, left = self._way(at[:, axis], to[:, axis], axis)
            longest += left
            while (moving := left > 0).any():
                chip = at[moving].copy()
                if axis < self._torus_axes and self.torus.devices_per_chip > 1:
                    chip[:, -1] = 0  # the devices of a chip share its links
                forward = (step[moving] > 0).astype(np.int64)
                np.add.at(load, (*chip.T, axis, forward), 1)
                at[moving, axis] = (at[moving, axis] + step[moving]) % length
                left = left - moving
        rates = np.array(self.torus.link_bytes_per_s)[:, None]
        return float((load / rates).max()), int(longest.max(initial=0)), load > 0

    def _way(self, start: Ints, end: Ints, axis: int) -> tuple[Ints, Ints]:
        """The direction and the number of hops along one axis."""
        ahead = (end - start) % self.torus.lengths[axis]
        behind = (start - end) % self.torus.lengths[axis]
        if not self.torus.wraps[axis]:
            return np.sign(end - start), np.abs(end - start)
        return np.where(ahead <= behind, 1, -1), np.minimum(ahead, behind)

"""Which hosts of an attempt are slower than the rest, by what all took for the same work."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from orchestrator.values.slowdowns import HostCheck, HostTest, SlowHost

# A host is slow beyond this share of the median of the others, and five robust deviations where
# there are enough hosts to know them. Emulated hosts share a machine with other programs.
_LEAST, _LEAST_EMULATED, _LEAST_EMULATED_S = 0.1, 0.5, 1e-3
_DEVIATIONS, _MAD, _MANY = 5.0, 1.4826, 8
_MOST = 32  # slow hosts in a record
_NAMED = 2  # so often, and a host is left out


@dataclass(frozen=True)
class HostSeconds:
    """The seconds of each test, a row for each process."""

    tests: tuple[str, ...]
    rows: NDArray[np.float64]
    emulated: bool


def slow_hosts(taken: HostSeconds) -> list[SlowHost]:
    """Return each host and test that took longer than the others by more than the noise."""
    found: list[SlowHost] = []
    hosts = len(taken.rows)
    for test, column in zip(taken.tests, taken.rows.T.tolist() if hosts > 1 else (), strict=False):
        middle = median(column)
        least, least_s = _LEAST, 0.0
        if taken.emulated:
            least, least_s = _LEAST_EMULATED, _LEAST_EMULATED_S
        if hosts >= _MANY:
            spread = _MAD * median(abs(taken_s - middle) for taken_s in column)
            least = max(least, _DEVIATIONS * spread / middle)
        for rank, taken_s in enumerate(column):
            # Among few hosts, a slow one would move the median of all.
            others = middle if hosts >= _MANY else median([*column[:rank], *column[rank + 1 :]])
            if taken_s - others > max(least * others, least_s):
                slow = SlowHost(
                    rank=rank, slice_name="", host="", test=test, seconds=taken_s,
                    times=taken_s / others,
                )  # fmt: skip
                found.append(slow)
    return sorted(found, key=lambda slow: -slow.times)


def host_check(attempt: int, taken: HostSeconds, took_s: float) -> HostCheck:
    """Return the record of a check; the names of its slow hosts are still to be filled in."""
    return HostCheck(
        attempt=attempt,
        hosts=len(taken.rows),
        took_s=took_s,
        tests=tuple(
            HostTest(name=name, median_s=median(column), least_s=min(column), most_s=max(column))
            for name, column in zip(taken.tests, taken.rows.T.tolist(), strict=True)
        ),
        slow=tuple(slow_hosts(taken)[:_MOST]),
    )


def slices_to_avoid(checks: Iterable[HostCheck]) -> frozenset[str]:
    """Return the slices with a host that was slow in two checks."""
    named: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, check in enumerate(checks):
        for slow in check.slow:
            named[slow.slice_name, slow.host].add(number)
    return frozenset(name for (name, _), seen in named.items() if len(seen) >= _NAMED)

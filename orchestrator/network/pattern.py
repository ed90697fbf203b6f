"""Finds the repeated pattern in a row of layers."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

LONGEST = 32  # layers in a pattern


@dataclass(frozen=True)
class Pattern:
    """Layers `first` and following: `length` of them, again and again, `repeats` times."""

    first: int
    length: int
    repeats: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.repeats


def patterns(kinds: Sequence[Hashable]) -> list[Pattern]:
    """The patterns that make up a row of layers, each as long as it goes, of few layers each."""
    found: list[Pattern] = []
    while (first := found[-1].end if found else 0) < len(kinds):
        found.append(longest_pattern(kinds, first))
    return found


def longest_pattern(kinds: Sequence[Hashable], first: int) -> Pattern:
    """The pattern that goes farthest from a layer; of several, the one of the fewest layers."""
    best = repeated(kinds, first, 1)
    for length in range(2, min(LONGEST, (len(kinds) - first) // 2) + 1):
        if best.end == len(kinds):
            break
        longer = repeated(kinds, first, length)
        if longer.repeats > 1 and longer.end > best.end:
            best = longer
    return best


def repeated(kinds: Sequence[Hashable], first: int, length: int) -> Pattern:
    """How often the next `length` layers come again."""
    repeats, pattern = 1, kinds[first : first + length]
    while kinds[(start := first + repeats * length) : start + length] == pattern:
        repeats += 1
    return Pattern(first, length, repeats)

"""Where mesh axes lie on the torus, and the rate that each group of devices gets there."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import catalog
from orchestrator.network.mesh_axes import GROUPS, ICI_AXES
from orchestrator.planning.torus import (
    Torus,
    _factorizations,
    _group_hops,
    _group_spans,
    _TorusAxis,
    find_links,
    make_torus,
    spans_of,
)

V5P_AXIS = 200e9  # two links of 100 GB/s one way


def slice_of(chip: str, topology: str) -> Torus:
    sheet = catalog.chip(chip)
    return make_torus(sheet, catalog.topology(sheet, topology))


def rate(torus: Torus, factors: Sequence[tuple[int, ...]], group: str) -> float:
    """The rate of one placement; a tuple (data, fsdp, sequence, tensor) for each torus axis."""
    return float(find_links(torus, dense([factors])).rates[group][0])


def hops_of(torus: Torus, factors: np.ndarray, group: tuple[str, ...]) -> float:
    """The hops of one collective of a placement."""
    return float(_group_hops(torus, group, _group_spans(torus, factors, group))[0])


def dense(factors: Sequence[Sequence[tuple[int, ...]]]) -> np.ndarray:
    """The factors with one part for `pipeline`, before data, and one for `expert`, after it."""
    return np.insert(np.array(factors), (0, 1), 1, axis=2)


ONE = (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("factors", "group", "expected", "why"),
    [
        ([(1, 1, 1, 16), ONE, ONE], "tensor", V5P_AXIS, "all of a ring"),
        ([(1, 2, 1, 8), ONE, ONE], "tensor", V5P_AXIS / 2, "inner half: an open line"),
        ([(1, 2, 1, 8), ONE, ONE], "weights", V5P_AXIS / 8, "outer part: a ring shared by 8"),
        ([(2, 2, 1, 4), ONE, ONE], "weights", V5P_AXIS / 8, "middle: a line shared by 4"),
        ([(1, 4, 4, 1), ONE, ONE], "sequence", V5P_AXIS / 2, "sequence alone is open"),
        ([(1, 4, 4, 1), ONE, ONE], "weights", V5P_AXIS, "fsdp x sequence closes the ring"),
        ([(1, 16, 1, 1), (1, 16, 1, 1), ONE], "weights", 2 * V5P_AXIS, "two rings add up"),
        ([(16, 1, 1, 1), ONE, ONE], "tensor", np.inf, "one device needs no link"),
        ([(1, 4, 1, 4), (1, 4, 1, 4), ONE], "tensor", V5P_AXIS, "one ring through two lines"),
        ([(1, 1, 1, 16), (1, 1, 1, 16), ONE], "tensor", V5P_AXIS, "one ring through two rings"),
    ],
)
def test_a_group_gets_what_its_spans_allow(
    factors: list[tuple[int, ...]], group: str, expected: float, why: str
) -> None:
    """Closed rings run at full rate, open lines at half, strided spans share their links."""
    assert rate(slice_of("v5p", "16x16x16"), factors, group) == expected, why


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ((2, 1, 1), 1 / 2),  # a line: one link, one way
        ((4, 1, 1), 3 / 8),  # of 4 bytes 3 are sent, and 4 cross the link in the middle one way
        ((16, 1, 1), 15 / 64),  # a ring: a byte travels four links
        ((16, 16, 1), 255 / 1024),  # every byte travels along both axes, at the same time
    ],
)
def test_an_all_to_all_gets_what_its_bisection_allows(sizes: tuple[int, ...], share: float) -> None:
    """The share of an axis both ways at which a device sends."""
    factors = np.array([[(1, 16 // size, size, 1, 1, 1) for size in sizes]])
    found = float(find_links(slice_of("v5p", "16x16x16"), factors).exchange_rates["expert"][0])
    assert found == pytest.approx(share * V5P_AXIS)


def test_axes_of_v5e_wrap_at_sixteen_only() -> None:
    """On 8x16 the short axis is a line and the long one a ring; a link is 50 GB/s."""
    torus = slice_of("v5e", "8x16")
    assert rate(torus, [(1, 8, 1, 1), ONE], "weights") == 50e9
    assert rate(torus, [ONE, (1, 16, 1, 1)], "weights") == 100e9


def test_small_v5p_slices_do_not_wrap() -> None:
    """Less than whole cubes: every axis is an open line."""
    torus = slice_of("v5p", "2x2x4")
    assert rate(torus, [ONE, ONE, (1, 4, 1, 1)], "weights") == V5P_AXIS / 2


def test_the_devices_of_a_tpu7x_chip_share_its_links() -> None:
    """Alone each has half of the chip's links; together they fetch every byte once."""
    torus = slice_of("tpu7x", "4x4x4")
    assert torus.devices == 128
    ring = [(1, 4, 1, 1), ONE, ONE]
    assert rate(torus, [*ring, (2, 1, 1, 1)], "weights") == V5P_AXIS / 2
    assert rate(torus, [*ring, (1, 2, 1, 1)], "weights") == V5P_AXIS
    die = catalog.chip("tpu7x").die_link_bytes_per_s
    assert die is not None
    assert rate(torus, [ONE, ONE, ONE, (1, 1, 1, 2)], "tensor") == die.value


def test_a_switched_domain_has_no_neighbours() -> None:
    """In an NVLink domain any group gets all links of a GPU."""
    torus = slice_of("h100", "8")
    for factors in ([(1, 8, 1, 1)], [(2, 4, 1, 1)], [(1, 4, 1, 2)]):
        assert rate(torus, factors, "weights") == 450e9


def test_hops_are_half_a_ring_or_a_whole_line() -> None:
    """A ring of 16 is 8 hops across, a line of 8 is 7, and a stride multiplies them."""
    torus = slice_of("v5p", "16x16x16")
    for factors, group, hops in [
        ((1, 1, 1, 16), "tensor", 8),
        ((1, 2, 1, 8), "tensor", 7),
        ((1, 4, 1, 4), "weights", 8),
    ]:
        assert hops_of(torus, dense([[factors, ONE, ONE]]), GROUPS[group]) == hops


def test_devices_that_pass_data_on_are_one_ring() -> None:
    """Through 4 x 4 chips there is one closed way of 16 hops; through 3 x 5 there is none. Both
    devices of a chip are neighbours in it.
    """
    four = (4, 1, 1, 4)
    both = dense([[four, four, ONE]])
    v5p, group = slice_of("v5p", "16x16x16"), ("tensor",)
    assert hops_of(v5p, both, group) == 8
    assert hops_of(v5p, both, ("data",)) == 2 * 8
    odd = dense([[(5, 1, 1, 3), (3, 1, 1, 5)]])
    torus = Torus((_TorusAxis("x", 15, True, 1.0), _TorusAxis("y", 15, True, 1.0)), 1, False, 1.0)
    assert find_links(torus, odd).rates["tensor"][0] == 1 / 2
    assert hops_of(torus, odd, group) == 14
    tpu7x = dense([[(2, 1, 1, 2), (2, 1, 1, 2), ONE, (1, 1, 1, 2)]])
    assert find_links(slice_of("tpu7x", "4x4x4"), tpu7x).rates["tensor"][0] == V5P_AXIS
    assert hops_of(slice_of("tpu7x", "4x4x4"), tpu7x, group) == 2 + 1


def test_spans_say_what_the_rates_are_made_of() -> None:
    """The plan names the torus axis, size, stride and closure of each span."""
    torus = slice_of("v5p", "16x16x16")
    [factors] = dense([[(1, 2, 1, 8), (16, 1, 1, 1), ONE]])
    (tensor,) = spans_of(torus, factors, ("tensor",))
    assert (tensor.torus, tensor.size, tensor.stride, tensor.ring) == ("x", 8, 1, False)
    (fsdp,) = spans_of(torus, factors, ("fsdp",))
    assert (fsdp.torus, fsdp.size, fsdp.stride, fsdp.ring) == ("x", 2, 8, True)


@given(st.integers(1, 360), st.integers(1, 4))
def test_factorizations_are_all_and_each_once(length: int, parts: int) -> None:
    """As many as choosing a place for every prime, none twice, each multiplying to the length."""
    result = _factorizations(length, parts)
    assert len(result) == len(set(result))
    assert all(int(np.prod(row)) == length for row in result)
    primes: Counter[int] = Counter()
    left, prime = length, 2
    while left > 1:
        while left % prime == 0:
            primes[prime] += 1
            left //= prime
        prime += 1
    count = 1
    for power in primes.values():
        # Stars and bars.
        for step in range(parts - 1):
            count = count * (power + step + 1) // (step + 1)
    assert len(result) == count


def test_the_catalog_counts_links_one_way() -> None:
    """A v5p axis carries 200 GB/s: two links, each 100 GB/s in one direction."""
    axis = slice_of("v5p", "16x20x28").axes[1]
    assert axis == _TorusAxis("y", 20, True, V5P_AXIS)
    assert ICI_AXES == ("pipeline", "data", "expert", "fsdp", "sequence", "tensor")

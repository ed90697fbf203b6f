"""Catalog room: what a chip and a slice are, as the rest of the program sees them."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number from outside, in base units, with the key of its source in the catalog."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Which slices of a chip exist, which of their axes close, and what they are called.

    The slices are those `listed`, and any box of whole cubes of edge `cube` that the pod holds.
    With a `cube`, the axes of a box of cubes close; else those of length `ring` do, if any.
    A name like v5p-128 is one of `names` and a count, of which a chip has `named_per_chip`.
    """

    source: str
    listed: tuple[tuple[int, ...], ...]
    cube: int | None = None
    ring: int | None = None
    names: tuple[str, ...]
    named_per_chip: int


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator. Rates and sizes are per chip, except `hbm_usable_bytes`: per device.

    Every rate of a link is one direction. `ici_link_bytes_per_s` is one link, and every torus axis
    has two links a chip. A `switched` chip (a GPU in its NVLink domain) has one all-to-all axis
    instead of a torus, and `ici_link_bytes_per_s` is then all its links together.
    `die_link_bytes_per_s` joins the devices of a chip that is more than one device.
    A slice of up to `single_host_chips` has one host; the hosts of a larger one have
    `chips_per_host` each. `layout_source` holds for both, for `devices` and for `torus_axes`.
    `device_kinds` are what JAX calls its devices, by one version or another.
    `matrix_unit` is the edge of the array that multiplies matrices, where it is one.
    `book` holds what "How To Scale Your Model" reckons with instead, each under its own name.
    """

    name: str
    devices: int
    chips_per_host: int
    single_host_chips: int
    switched: bool
    torus_axes: int
    layout_source: str
    device_kinds: tuple[str, ...]
    slices: Slices
    peak_flops_per_s: dict[str, Quantity]
    hbm_bytes: Quantity
    hbm_usable_bytes: Quantity
    hbm_bytes_per_s: Quantity
    ici_link_bytes_per_s: Quantity
    die_link_bytes_per_s: Quantity | None = None
    dcn_bytes_per_s: Quantity
    host_link_bytes_per_s: Quantity | None = None
    dollars_per_hour: Quantity | None = None
    pod_chips: Quantity
    largest_slice: tuple[int, ...]
    largest_slice_source: str
    multislice_chips: Quantity | None = None
    matrix_unit: Quantity | None = None
    book: dict[str, Quantity]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A slice: its shape in chips and which of its torus axes close."""

    shape: tuple[int, ...]
    wraps: tuple[bool, ...]

    @property
    def chips(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))

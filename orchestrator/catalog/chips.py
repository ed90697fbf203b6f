"""Chips and slices as types, and the chips that the catalog's TOML files define, one each."""

import tomllib
from functools import cache
from math import prod
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, field

from orchestrator.errors import UnknownName
from orchestrator.processes import resource
from orchestrator.values.codec import COMPUTED, Value
from orchestrator.values.model import Model

FOLDER = resource("catalog")


@cache
def table(name: str) -> dict[str, Any]:
    """Return the content of a file of the catalog, which nobody changes."""
    with (FOLDER / name).open("rb") as file:
        return tomllib.load(file)


_Positive = Annotated[float, Meta(gt=0)]
_Size = Annotated[int, Meta(ge=1, le=1_000_000)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Shape = Annotated[tuple[_Size, ...], Meta(min_length=1, max_length=4)]


class Quantity(Value):
    """A number from outside, in base units, with its source: a key of the catalog, or a text."""

    value: _Positive
    source: _Name


class _Slices(Value):
    """Which slices of a chip exist, which of their axes close, and what they are called. The slices
    are those `listed`, and any box of whole cubes of edge `cube` that the pod holds. With a `cube`,
    the axes of a box of cubes close; else those of length `ring` do, if any. A name like v5p-128 is
    one of `names` and a count, of which a chip has `named_per_chip`.
    """

    source: _Name
    listed: Annotated[tuple[_Shape, ...], Meta(min_length=1)]
    cube: _Size | None = None
    ring: _Size | None = None
    names: Annotated[tuple[_Name, ...], Meta(min_length=1)]
    named_per_chip: _Size


GPU_DOMAIN = "ray.io/gpu-domain"  # Ray's label of nodes; those of one NVLink domain have the same


class RayNames(Value):
    """Ray's names for the chip and its slices: v5p-8 is the pod type of four chips."""

    accelerator: _Name
    pod_type: _Name
    named_per_chip: _Size
    source: _Name


class _CompilerOption(Value):
    """A compiler option's value, its evidence, and whether plans with shared weights have it.
    `others` are values that a search of programs tries too; `odd_copies` is the value of plans
    whose copies of the weights are odd in number along a torus axis. None is the compiler's own.
    """

    value: bool | int | float | str | None = None
    source: _Name
    others: tuple[bool | int | float | str, ...] = ()
    between_slices: bool = True
    odd_copies: bool | int | float | str | None = None


class _LibtpuNames(Value):
    """The TPU compiler's names for topologies, and how two cores are one device. `options` are of
    every plan on the chip, unless its spec sets them otherwise.
    """

    topology: _Name
    chip_config: _Name | None = None
    source: _Name
    options: dict[str, _CompilerOption] = field(default_factory=dict)


class _ProductShares(Value):
    """The share of what a large product reaches that one of fewer rows does, by rows, ascending."""

    rows: tuple[int, ...]
    shares: tuple[float, ...]
    source: _Name


class GpuTarget(Value):
    """A GPU as XLA's GPU compiler is told of it, since none is there to ask. `cores` are streaming
    multiprocessors, `lanes` the fp32 lanes of each; the shared memory is that of a core, and the
    most of it that a block of threads may have. `options` are as those of libtpu.
    """

    compute_capability: Annotated[str, Meta(pattern=r"^[1-9][0-9]*\.[0-9][af]?$")]
    cores: _Size
    lanes: _Size
    clock_hz: _Positive
    l2_bytes: _Positive
    shared_bytes_per_core: _Size
    shared_bytes_per_block: _Size
    source: _Name
    options: dict[str, _CompilerOption] = field(default_factory=dict)


class GkeNames(Value):
    """GKE's names for the chip: `accelerator` is a value of node labels, for manifests only. `arch`
    is what Kubernetes calls the processors of its nodes, where they are not those of other nodes.
    """

    accelerator: _Name
    arch: _Name | None = None
    source: _Name


class FailureRates(Value):
    """The shares of machines, cables between chips and optical switches that fail in a day. The
    interval of 80 % is the rates over and times `spread`. `assumed`: they are another chip's.
    """

    machines_per_day: Quantity
    cables_per_day: Quantity | None = None
    switches_per_day: Quantity | None = None
    spread: Annotated[float, Meta(ge=1)]
    assumed: bool = False


class Chip(Value):
    """One accelerator. Rates and sizes are per chip, except `hbm_usable_bytes`: per device. Every
    rate of a link is one direction. `ici_link_bytes_per_s` is one link, and every torus axis has
    two links a chip. A `switched` chip (a GPU in its NVLink domain) has one all-to-all axis instead
    of a torus, and `ici_link_bytes_per_s` is then all its links together. `host_bytes` is the
    memory of a host over its chips. `die_link_bytes_per_s` joins the devices of a chip that is more
    than one device. `dollars_per_hour` is on demand, reserved that with a commitment of one year;
    spot slices can be taken away at any time. A slice of up to `single_host_chips` has one host;
    the hosts of a larger one have `chips_per_host` each. `layout_source` holds for both, for
    `devices` and for `torus_axes`. `device_kinds` are what JAX calls its devices, by one version or
    another; `ray`, `libtpu` and `gke` are its names there, None where it lacks them, and `xla_gpu`
    is what the compiler for GPUs must know of it. `matrix_unit` is the edge of the array that
    multiplies matrices, where it is one. `clock_hz` is what the TPU compiler's estimates of cycles
    are over, and `products` what they say of small products. `failures` are None where nothing is
    known or assumed of them. `book` has the numbers of "How To Scale Your Model", each under its
    own name.
    """

    name: Annotated[str, COMPUTED]
    devices: _Size
    chips_per_host: _Size
    single_host_chips: _Size
    switched: bool
    torus_axes: Annotated[int, Meta(ge=1, le=4)]
    layout_source: _Name
    device_kinds: tuple[_Name, ...]
    slices: _Slices
    peak_flops_per_s: dict[str, Quantity]
    hbm_bytes: Quantity
    hbm_usable_bytes: Quantity
    hbm_bytes_per_s: Quantity
    ici_link_bytes_per_s: Quantity
    die_link_bytes_per_s: Quantity | None = None
    dcn_bytes_per_s: Quantity
    host_link_bytes_per_s: Quantity | None = None
    host_bytes: Quantity | None = None
    dollars_per_hour: Quantity | None = None
    reserved_dollars_per_hour: Quantity | None = None
    spot_dollars_per_hour: Quantity | None = None
    pod_chips: Quantity
    largest_slice: _Shape
    largest_slice_source: _Name
    multislice_chips: Quantity | None = None
    matrix_unit: Quantity | None = None
    clock_hz: Quantity | None = None
    products: _ProductShares | None = None
    ray: RayNames | None = None
    libtpu: _LibtpuNames | None = None
    xla_gpu: GpuTarget | None = None
    gke: GkeNames | None = None
    failures: FailureRates | None = None
    book: dict[str, Quantity] = field(default_factory=dict)

    @property
    def compiler_options(self) -> dict[str, _CompilerOption]:
        """Options of every plan on the chip; none where it has no compiler."""
        compiler = self.libtpu or self.xla_gpu
        return compiler.options if compiler else {}


class _NamesChip(Protocol):
    """The resources of a spec, or a plan: a chip of the catalog, or one with its definition."""

    @property
    def chip(self) -> str: ...

    @property
    def chip_definition(self) -> dict[str, Any] | None: ...


class Topology(Value):
    """A slice: its shape in chips and which of its torus axes close."""

    shape: tuple[int, ...]
    wraps: tuple[bool, ...]

    @property
    def chips(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))


# --- the files


@cache
def chips() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (FOLDER / "chips").glob("*.toml")))


@cache
def chip(name: str) -> Chip:
    if name not in chips():
        raise UnknownName("chip", name, list(chips()))
    return defined(name, table(f"chips/{name}.toml"))


def chip_of(resources: _NamesChip) -> Chip:
    if resources.chip_definition is None:
        return chip(resources.chip)
    return defined(resources.chip, resources.chip_definition)


def defined(name: str, definition: dict[str, Any]) -> Chip:
    return msgspec.convert({**definition, "name": name}, Chip)


def models() -> tuple[str, ...]:
    """Return the names of all models, families together and small ones first."""
    return tuple(table("models.toml"))


def model(name: str) -> Model:
    shape = {key: value for key, value in _entry(name).items() if key != "source"}
    return msgspec.convert({"name": name, **shape}, Model)


def model_source(name: str) -> str:
    source: str = _entry(name)["source"]
    return source


def _entry(name: str) -> dict[str, Any]:
    if name not in models():
        raise UnknownName("model", name, list(models()))
    entry: dict[str, Any] = table("models.toml")[name]
    return entry


# Where each outside number comes from.


class _Source(Value):
    """A public document or an observation. An undated one has `date` = "read" and the day."""

    key: str
    title: str
    where: str
    date: str
    note: str = ""


@cache
def sources() -> dict[str, _Source]:
    return {key: _Source(key=key, **entry) for key, entry in table("sources.toml").items()}

"""A transfer of a compiled program: the bytes it moves, over which links, for how long."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orchestrator.proving.hlo import collectives
from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction
from orchestrator.values.plan import sent_bytes
from orchestrator.values.proof import ScheduledLink, ScheduleRates, SliceTorus, TransferRates

_Bools = NDArray[np.bool_]
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SliceLinks:
    """`places`: torus coordinates of each partition, one row each."""

    torus: SliceTorus
    places: tuple[tuple[int, ...], ...]

    @cached_property
    def _places(self) -> _Ints:
        return np.array(self.places, dtype=np.int64)

    @property
    def _torus_axes(self) -> int:
        return len(self.torus.lengths) - (self.torus.devices_per_chip > 1)

    def group_rate(self, members: tuple[int, ...], most_axes: int | None) -> float:
        """Bytes per second at which each member receives, over `most_axes` torus axes at once."""
        at = self._places[np.array(members)]
        spans = [0.0] * at.shape[1]
        for axis, values in enumerate(map(np.unique, at.T)):
            if len(values) > 1:
                # A ring has both directions, a line one; interleaved groups share each link.
                stride = int(values[1] - values[0])
                closes = self.torus.wraps[axis] and len(values) * stride == self.torus.lengths[axis]
                spans[axis] = self.torus.link_bytes_per_s[axis] * (2 if closes else 1) / stride
        torus, die = spans[: self._torus_axes], sum(spans[self._torus_axes :])
        used = sorted((rate for rate in torus if rate), reverse=True)
        if most_axes is not None and len(used) > most_axes:
            # One ring through several axes closes, even where none of them does.
            doubled = 2 * min(self.torus.link_bytes_per_s[: self._torus_axes])
            used = [doubled] * most_axes
        share = 1.0 if die else 1.0 / self.torus.devices_per_chip
        return sum(used) * share or die

    def group_hops(self, members: tuple[int, ...]) -> int:
        """Half way round a ring, to the far end of a line, on each axis."""
        hops = 0
        reaches = np.ptp(self._places[np.array(members)], axis=0)
        for reach, length, wraps in zip(reaches, self.torus.lengths, self.torus.wraps, strict=True):
            hops += min(int(reach), length // 2) if wraps else int(reach)
        return hops

    def group_links(self, members: tuple[int, ...]) -> _Bools:
        """All links of the axes along which the members differ."""
        used = np.zeros((*self.torus.lengths, len(self.torus.lengths), 2), dtype=bool)
        used[..., np.ptp(self._places[np.array(members)], axis=0) > 0, :] = True
        return used

    def permute(self, pairs: _Ints) -> tuple[float, int, _Bools]:
        """Seconds per byte of the busiest link, hops of the longest way, and the links in use.
        Messages go along one axis after another, the shorter way round.
        """
        at, to = self._places[pairs[:, 0]].copy(), self._places[pairs[:, 1]]
        load = np.zeros((*self.torus.lengths, len(self.torus.lengths), 2), dtype=np.int64)
        longest = np.zeros(len(pairs), dtype=np.int64)
        for axis, length in enumerate(self.torus.lengths):
            way = to[:, axis] - at[:, axis]
            if self.torus.wraps[axis]:
                ahead, behind = way % length, -way % length
                step, left = np.where(ahead <= behind, 1, -1), np.minimum(ahead, behind)
            else:
                step, left = np.sign(way), np.abs(way)
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


@dataclass(frozen=True)
class DomainLinks:
    """Switched domains of GPUs, one after another, and the network that joins them."""

    rates: ScheduleRates

    def seconds(
        self, kind: str, volume: float, members: tuple[int, ...]
    ) -> tuple[ScheduledLink, float, float]:
        """The slowest link in use, and a device's bytes and seconds: between the domains of a group
        each sends for its whole domain's part, within a domain for the rest.
        """
        torus = self.rates.torus
        domains = len({member // torus.lengths[0] for member in members})
        inside = len(members) // domains
        near = sent_bytes(kind, volume, inside)
        far = sent_bytes(kind, volume / inside, domains)
        if kind == collectives.PERMUTE:  # from one device to another
            near, far = (0.0, volume) if domains > 1 else (volume, 0.0)
        seconds = near / torus.link_bytes_per_s[0] + far / self.rates.transfers.dcn_bytes_per_s
        hops = (inside > 1) + (domains > 1)
        return "dcn" if domains > 1 else "ici", near + far, seconds + hops * torus.hop_s


_RAGGED = "ragged-all-to-all"
_EMITTER = re.compile(r'"emitter":"([^"]+)"')
_STRATEGY = re.compile(r'"strategy":"([^"]+)"')
_DIMENSIONS = re.compile(r"^(\d)D|Type: (\d)D")
_ONE_RING = "StrategyRing"
_HOST_SPACE = "S(5)"
START = "-start"
_SPARSE_CORES = "sparse cores"
_OFFLOADED = re.compile(r'"offload":"OFFLOAD_(\w+)"')
# A collective on the sparse cores is split: each part goes round in one direction, along one torus
# axis after another. Some rings name no axis.
_PARTS = '"phase_rings"'
_RING_AXIS = re.compile(r'ring_dim":"ICI_RING_DIM_([XYZ])')
ASYNC_START, ASYNC_DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_CHAIN = re.compile(r'chain_id="(\d+)"')


@dataclass(frozen=True)
class Transfer:
    """One transfer. On a `lane` one waits for another; links of the slice carry several at once."""

    kind: str
    axes: tuple[str, ...]
    link: ScheduledLink
    algorithm: str
    bytes: float
    seconds: float
    lane: str = ""
    links: _Bools | None = None

    def meets(self, other: "Transfer") -> bool:
        if self.links is None or other.links is None:
            return bool(self.lane) and self.lane == other.lane
        return bool((self.links & other.links).any())


_Way = tuple[float, int, _Bools]  # bytes per second or seconds per byte, hops, links


@dataclass
class TransferReader:
    """Reads the transfers of one program. Of alike groups and permutes each is routed once."""

    program: HloProgram
    mesh: collectives.DeviceMesh
    between: collectives.DeviceMesh
    links: SliceLinks | DomainLinks
    rates: TransferRates
    exchanges: Mapping[str, str] = field(default_factory=dict)  # collective → the ledger's line
    groups: dict[tuple[tuple[int, ...], int | None], _Way] = field(default_factory=dict)
    permutes: dict[str, _Way] = field(default_factory=dict)

    def collective(self, where: Computation, op: Instruction, outside: Instruction) -> Transfer:
        """A collective of the program; `outside` is the fusion that it runs in, or itself."""
        kind = op.opcode.removesuffix(START)
        operands = op.operands[:1] if kind == _RAGGED else op.operands
        size = sum(where.instructions[name].arrays[0].bytes for name in operands)
        if isinstance(self.links, DomainLinks):
            return self._over_switches(self.links, op, kind, size)
        hop_s = self.links.torus.hop_s
        if kind == collectives.PERMUTE:
            pairs = collectives.pairs_text(op)
            if pairs not in self.permutes:
                ends = np.array(re.findall(r"\d+", pairs), dtype=np.int64).reshape(-1, 2)
                self.permutes[pairs] = self.links.permute(ends)
            per_byte, hops, links = self.permutes[pairs]
            seconds = size * per_byte + hops * hop_s
            axes = self.mesh.axes_of(collectives.chain(pairs)[0])
            return Transfer(
                collectives.PERMUTE, axes, "ici", f"{hops} hops", size, seconds, links=links
            )
        if where.name.startswith(collectives.SCATTERS):
            kind = collectives.SCATTER
        members = collectives.first_group(op, self.program.partitions)
        algorithm = _algorithm_of(outside) or _algorithm_of(op)
        moved = sent_bytes(
            kind, size * (len(members) if kind == collectives.GATHER else 1), len(members)
        )
        group = members, _torus_axes(op, outside, algorithm)
        if group not in self.groups:
            hops, links = self.links.group_hops(members), self.links.group_links(members)
            self.groups[group] = self.links.group_rate(*group), hops, links
        rate, hops, links = self.groups[group]
        seconds = moved / rate + hops * hop_s if len(members) > 1 else 0.0
        axes = self.mesh.axes_of(members)
        return Transfer(kind, axes, "ici", algorithm, moved, seconds, links=links)

    def _over_switches(
        self, links: DomainLinks, op: Instruction, kind: str, size: float
    ) -> Transfer:
        """Collectives on one kind of link take turns."""
        if kind == collectives.PERMUTE:
            # A pair at a time; one that leaves its domain makes the others wait.
            pairs = np.array(re.findall(r"\d+", collectives.pairs_text(op))).reshape(-1, 2)
            ends = pairs.astype(np.int64)
            leaving = ends[np.ptp(ends // links.rates.torus.lengths[0], axis=1) > 0]
            members = tuple(int(end) for end in (leaving if len(leaving) else ends)[0])
        else:
            members = collectives.first_group(op, self.program.partitions)
        volume = size * (len(members) if kind == collectives.GATHER else 1)
        link, moved, seconds = links.seconds(kind, volume, members)
        axes = self.mesh.axes_of(members)
        return Transfer(kind, axes, link, "", moved, seconds, link)

    def copy(self, op: Instruction) -> Transfer:
        """An asynchronous copy: to or from the host, or into the chip's fast memory."""
        # The part that moves is the smallest: the others are what it is cut from or put into.
        arrays = [array for array in op.arrays if array.elements > 1]
        floats = [array.bytes for array in arrays if array.dtype[0] in "bf"]
        size = min(floats or [array.bytes for array in arrays] or [0.0])
        if _HOST_SPACE not in op.shape:
            seconds = size / self.rates.hbm_bytes_per_s
            return Transfer("prefetch", (), "hbm", "", size, seconds, "hbm")
        # The result is the first array of a copy, the last but one of a slice.
        result = 0 if op.opcode == "copy-start" else -1
        name = "offload" if arrays and _HOST_SPACE in arrays[result].layout else "fetch"
        rate = self.rates.host_bytes_per_s
        seconds = size / rate if rate else 0.0
        return Transfer(name, (), "host", "", size, seconds, f"host {name}")

    def on_sparse_core(self, op: Instruction) -> Transfer:
        """A call that moves data in HBM while other work runs: it reads and writes its result."""
        [called] = self.program.called(op)
        size = sum(array.bytes for array in called.root.arrays)
        found = _OFFLOADED.search(op.rest)
        kind = found[1].lower().replace("_", " ") if found else "call"
        seconds = 2 * size / self.rates.hbm_bytes_per_s
        return Transfer(kind, (), "hbm", _SPARSE_CORES, size, seconds, _SPARSE_CORES)

    def send(self, op: Instruction, kind: str, slices: tuple[int, ...]) -> Transfer:
        ways = max(len(slices), 1)
        moved = sent_bytes(
            kind, op.arrays[0].bytes * (ways if kind == collectives.GATHER else 1), ways
        )
        seconds = moved / self.rates.dcn_bytes_per_s
        return Transfer(kind, self.between.axes_of(slices), "dcn", "", moved, seconds, "dcn")


def _algorithm_of(op: Instruction) -> str:
    if parts := op.rest.count(_PARTS):
        return f"{_SPARSE_CORES}, {parts} rings"
    emitter, strategy = _EMITTER.search(op.rest), _STRATEGY.search(op.rest)
    return " ".join(match[1] for match in (emitter, strategy) if match)


def _torus_axes(op: Instruction, outside: Instruction, algorithm: str) -> int | None:
    """On how many torus axes an algorithm sends at once; None where it does not say so."""
    if found := _DIMENSIONS.search(algorithm):
        return int(found[1])
    if _ONE_RING in algorithm:
        found = re.search(r"Type: (\d)D", outside.rest)
        return int(found[1]) if found else 1
    # On the sparse cores, two parts have the two directions of an axis, and others meanwhile those
    # of another.
    parts, axes = op.rest.count(_PARTS), set(_RING_AXIS.findall(op.rest))
    return max(min(parts // 2, len(axes)), 1) if parts else None


def inside(program: HloProgram, caller: Instruction) -> list[tuple[Computation, Instruction]]:
    """Everything that a fusion or an asynchronous call contains."""
    found, todo = [], list(caller.called)
    while todo:
        where = program.computations[todo.pop()]
        for op in where.instructions.values():
            found.append((where, op))
            if op.opcode in {"fusion", "call"}:
                todo += op.called
    return found


_SLICES = {"slice", "dynamic-slice"}
_UPDATE = "dynamic-update-slice"


def moved_bytes(program: HloProgram, where: Computation, op: Instruction) -> float:
    """Return the bytes of HBM that an operation reads and writes. Of an array from which it takes a
    slice, or into which it puts one, only the slice counts.
    """
    operands = [where.operand(op, place) for place in range(len(op.operands))]
    if op.opcode == "fusion":
        [fused] = program.called(op)
        read = sum(
            min(_read_bytes(program, fused, fused.parameters[place]), _hbm_bytes(operand))
            for place, operand in enumerate(operands)
        )
        return read + _written_bytes(fused, fused.root)
    if op.opcode == _UPDATE:
        return 2 * _hbm_bytes(operands[1])
    if op.opcode in _SLICES:
        return 2 * _hbm_bytes(op)
    return sum(map(_hbm_bytes, operands)) + _hbm_bytes(op)


def _hbm_bytes(op: Instruction) -> float:
    return sum(array.bytes for array in op.arrays if array.is_in_hbm)


def _read_bytes(program: HloProgram, fused: Computation, given: Instruction) -> float:
    """Return the bytes that a fusion reads of a parameter, in whichever memory."""
    whole = sum(array.bytes for array in given.arrays)
    names, size = {given.name}, 0.0
    for part in fused.instructions.values():
        places = [place for place, operand in enumerate(part.operands) if operand in names]
        if not places:
            continue
        if part.opcode == "bitcast":
            names.add(part.name)
        elif part.opcode == "fusion":
            [inner] = program.called(part)
            size += sum(_read_bytes(program, inner, inner.parameters[at]) for at in places)
        elif part.opcode in _SLICES:
            size += sum(array.bytes for array in part.arrays)
        elif part.opcode != _UPDATE or places != [0]:  # it reads nothing of what it writes into
            return whole
    return min(size, whole)


def _written_bytes(fused: Computation, root: Instruction) -> float:
    if root.opcode == "tuple":
        parts = (fused.instructions[name] for name in root.operands)
        return sum(_written_bytes(fused, part) for part in parts)
    into = root
    while into.opcode == "bitcast":
        into = fused.operand(into, 0)
    written = _hbm_bytes(root)
    if into.opcode == _UPDATE:
        written = min(written, sum(array.bytes for array in fused.operand(into, 1).arrays))
    return written


def is_collective(op: Instruction) -> bool:
    return op.opcode.removesuffix(START) in collectives.KINDS | {_RAGGED}


def chain_of(program: HloProgram, fusion: Instruction) -> str:
    """The number that joins the parts of an asynchronous collective in fusions."""
    found = (_CHAIN.search(op.rest) for _, op in inside(program, fusion))
    return next((match[1] for match in found if match), "")

"""The search: price every realizable way to run, under each policy of rematerialization."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.network import rematerialization
from orchestrator.network.decoder import decoder
from orchestrator.network.mesh_axes import (
    DCN_AXES,
    GATHERED,
    ICI_AXES,
    PIPELINE,
    SLICE_REPLICAS,
    ways,
)
from orchestrator.planning.fastest_ways import (
    LeastMemory,
    Ways,
    fastest_ways,
    policy_array,
    searched_policies,
)
from orchestrator.planning.feasibility import (
    Sizes,
    batch_range,
    batches_next_to,
    meshes_between,
    model_rules,
    placements,
    realizable,
    sharing,
    sizes_by_name,
    usable_axes,
)
from orchestrator.planning.layout import Number, Training
from orchestrator.planning.memory import peak_bytes
from orchestrator.planning.step_work import never_hidden_s, transfers
from orchestrator.planning.time import step_time, time_lines
from orchestrator.planning.torus import (
    NO_LINKS,
    Bools,
    Floats,
    Ints,
    Links,
    Torus,
    axis_sizes,
    count_placements,
    distinct,
    divisors,
    find_links,
    make_torus,
    plain_links,
    rows_of_links,
)
from orchestrator.values.codec import Treatment
from orchestrator.values.spec import Experiment, MeshRequest, Remat, Spec

# `remat: auto` leaves this share of HBM, and of the host's memory, free: the forecast may be off by
# that much (docs/proof-bench.md).
MEMORY_MARGIN = 0.05
_CELLS = 2**18  # of an array that is priced at once, so that it stays in the processor's cache


@dataclass(frozen=True)
class SearchRequest:
    chip: Chip
    topology: Topology
    torus: Torus
    experiment: Experiment
    mesh: MeshRequest
    pods: int


@dataclass(frozen=True)
class Choice:
    """One way to run: factors of a placement (torus axes x ICI_AXES), batch and policy; the sizes
    of DCN_AXES where they are not those of the request; how a pipeline runs.
    """

    factors: tuple[tuple[int, ...], ...]
    sequences: int
    microbatches: int
    remat: Remat
    between: tuple[int, ...] = ()
    chunks: int = 1
    gathers_once: int = 0

    @property
    def mesh(self) -> dict[str, int]:
        columns = zip(*self.factors, strict=True)
        inside = {axis: prod(column) for axis, column in zip(ICI_AXES, columns, strict=True)}
        return inside | dict(zip(DCN_AXES, self.between, strict=False))


@dataclass(frozen=True)
class Candidates:
    """Ways to run, one per row: factors of the placement, sizes between slices (rows x DCN_AXES),
    what runs there, and what it costs.
    `remat` is a place in `policies`. The cost ranks first: the mean of the lower and the
    unoverlapped time, without hidden transfers to the host, plus what nothing hides.
    """

    factors: Ints
    sequences: Ints
    microbatches: Ints
    remat: Ints
    cost_s_per_token: Floats
    between: Ints
    chunks: Ints
    gathers_once: Ints
    policies: tuple[rematerialization.Policy, ...]

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def offloads(self) -> Bools:
        return np.array([each.needs_host for each in self.policies], bool)[self.remat]

    def rows(self, rows: Ints) -> "Candidates":
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    @staticmethod
    def join(several: Sequence["Candidates"]) -> "Candidates":
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in several]) for name in _COLUMNS
        }
        return replace(several[0], **columns)

    def choice(self, row: int) -> Choice:
        return Choice(
            factors=tuple(map(tuple, self.factors[row].tolist())),
            sequences=int(self.sequences[row]),
            microbatches=int(self.microbatches[row]),
            remat=rematerialization.remat_of(self.policies[self.remat[row]]),
            between=tuple(self.between[row].tolist()),
            chunks=int(self.chunks[row]),
            gathers_once=int(self.gathers_once[row]),
        )

    @property
    def meshes(self) -> Ints:
        """Sizes of all axes, rows x (ICI_AXES, DCN_AXES)."""
        return np.concatenate([axis_sizes(self.factors), self.between], axis=1)


_COLUMNS = tuple(each.name for each in fields(Candidates) if each.name != "policies")


@dataclass(frozen=True)
class SearchResult:
    """The work of a search. `smallest_bytes`: the lowest peak of any realizable plan;
    `smallest_host_bytes`: the least host memory per chip where HBM suffices; `margin`: left free.
    """

    enumerated: int
    realizable: int
    smallest_bytes: float
    smallest_host_bytes: float
    margin: float
    candidates: Candidates


def search_request(spec: Spec) -> SearchRequest:
    resources = spec.resources
    chip = catalog.chip_of(resources)
    topology = catalog.topology(chip, resources.topology)
    torus = make_torus(chip, topology)
    return SearchRequest(chip, topology, torus, spec.experiment, resources.mesh, resources.pods.max)


def make_layout(
    request: SearchRequest,
    sizes: dict[str, Number],
    batch: Number,
    microbatches: Number,
    remat: rematerialization.Treatments,
    group_links: Links,
    chunks: Number = 1,
    gathers_once: Number = 0,
) -> Training:
    """Return meshes and what they run; plain numbers make one layout, arrays many."""
    return Training(
        chip=request.chip,
        model=request.experiment.model,
        precision=request.experiment.precision,
        optimizer=request.experiment.optimizer,
        remat=remat,
        length=request.experiment.batch.length,
        sequences=batch,
        microbatches=microbatches,
        mesh={**_slice_sizes(request), **sizes},
        links=group_links,
        chunks=chunks,
        gathers_once=gathers_once,
    )


def _slice_sizes(request: SearchRequest) -> dict[str, int]:
    shared = sharing(request.mesh)
    return {SLICE_REPLICAS: max(request.pods // prod(shared.values()), 1), **shared}


def factors_of(choice: Choice) -> Ints:
    return np.array([choice.factors], np.int64)


def layout_of_choice(request: SearchRequest, choice: Choice) -> Training:
    return make_layout(
        request, choice.mesh, choice.sequences, choice.microbatches,
        rematerialization.policy(choice.remat), plain_links(request.torus, factors_of(choice)),
        choice.chunks, choice.gathers_once,
    )  # fmt: skip


def layout_of_rows(request: SearchRequest, candidates: Candidates, rows: Ints) -> Training:
    factors = candidates.factors[rows]
    treated = policy_array(candidates.policies, request.experiment.model)
    return make_layout(
        request, sizes_by_name(candidates.meshes[rows]), candidates.sequences[rows],
        candidates.microbatches[rows], treated[candidates.remat[rows]],
        find_links(request.torus, factors), candidates.chunks[rows], candidates.gathers_once[rows],
    )  # fmt: skip


def memory_margins(experiment: Experiment) -> tuple[float, ...]:
    return (MEMORY_MARGIN, 0.0) if experiment.remat == rematerialization.AUTO else (0.0,)


def every_mesh(request: SearchRequest) -> tuple[Ints, Ints, int]:
    """Return what is realizable with some batch: placements in a slice, the sizes of all axes, and
    in how many ways the mesh was laid over slices.
    """
    experiment, batch = request.experiment, request.experiment.batch
    between = meshes_between(request.torus, experiment.model, request.mesh, request.pods)
    # Replicas within a pod that the largest batch can feed.
    over_dcn = [ways(sizes_by_name(np.r_[_NO_SIZES, row]), "batch") for row in between]
    least = min(over_dcn, default=1) * (batch.microbatches or 1)
    most_replicas = max(batch_range(batch)[1] // int(least), 1)
    inside = placements(request.torus, experiment.model, batch.length, request.mesh, most_replicas)
    place, row = (each.reshape(-1) for each in np.indices((len(inside), len(between))))
    sizes = np.concatenate([axis_sizes(inside)[place], between[row]], axis=1)
    if len(between) > 1:
        rules = model_rules(experiment.model, batch.length)
        named = sizes_by_name(sizes)
        holds = realizable(rules, request.mesh, named)
        if request.mesh.data is None:  # with several domains, replicas lie apart
            holds &= named["data"] == 1
        place, sizes = place[holds], sizes[holds]
    return inside[place], sizes, len(between)


def search(request: SearchRequest) -> SearchResult:
    """Price everything that is realizable and fits; first with the margin, then without."""
    experiment = request.experiment
    batch = experiment.batch
    factors, sizes, tried = every_mesh(request)
    # Each placement once with the batch below the requested one, and once with the batch above.
    multiples = multiple_of(request, sizes_by_name(sizes))
    sequences = np.concatenate(batches_next_to(batch, multiples))
    rows = np.tile(np.arange(len(sizes)), 2)[sequences > 0]
    sequences = sequences[sequences > 0]
    meshes = np.column_stack([sizes[rows], sequences])
    for margin in memory_margins(experiment):
        candidates, least_memory = _price(request, factors[rows], meshes, margin)
        if len(candidates) or least_memory[0] > request.chip.hbm_usable_bytes.value:
            break
    return SearchResult(
        enumerated=count_placements(request.torus, usable_axes(experiment.model)) * tried,
        realizable=len(distinct(rows)),
        smallest_bytes=least_memory[0],
        smallest_host_bytes=least_memory[1],
        margin=margin,
        candidates=candidates,
    )


_NO_SIZES = np.ones(len(ICI_AXES), np.int64)


def multiple_of(request: SearchRequest, sizes: Sizes) -> Ints:
    """Return what each mesh's batch is a multiple of: replicas times requested microbatches."""
    microbatches = request.experiment.batch.microbatches or 1
    return np.asarray(ways(_slice_sizes(request) | sizes, "batch") * microbatches)


class _Columns:
    """What a search prices: a column for each mesh with its batch, each number of microbatches and
    each way to run a pipeline. Those of one `cell` differ only in microbatches, ascending. Rows
    are placements on the torus: memory depends on none, so what fits is found once for all rows of
    a mesh and a batch, their `key`.
    """

    def __init__(self, request: SearchRequest, factors: Ints, meshes: Ints) -> None:
        self.request, self.factors, self.meshes = request, factors, meshes
        self.policies = searched_policies(request.chip, request.experiment)
        self.treated = policy_array(self.policies, request.experiment.model)
        self.keys, key_of_row = np.unique(meshes, axis=0, return_inverse=True)
        self.key_of_row, sizes = key_of_row.reshape(-1), sizes_by_name(self.keys[:, :-1])
        key, microbatches = splits(request, self.keys[:, -1], ways(sizes, "batch"))
        place, self.chunks, self.once = _ways_of_pipeline(request, sizes, key, microbatches)
        self.key, self.microbatches = key[place], microbatches[place]
        # Ways to run a pipeline do not compare as numbers of microbatches do.
        is_cut = (ways(sizes, "layers") > 1)[self.key]
        self.cell = np.cumsum(np.diff(self.key, prepend=-1).astype(bool) | is_cut) - 1
        self.first = np.flatnonzero(np.diff(self.cell, prepend=-1))

    def layout(self, columns: Any, remat: rematerialization.Treatments, links: Links) -> Training:
        of_column = self.keys[self.key[columns]]
        return make_layout(
            self.request, sizes_by_name(of_column[:, :-1]), of_column[:, -1],
            self.microbatches[columns], remat, links, self.chunks[columns], self.once[columns],
        )  # fmt: skip

    def fastest(self, columns: Any, margin: float) -> tuple[Ways, LeastMemory]:
        layout = self.layout(columns, self.treated[:, None], NO_LINKS)
        return fastest_ways(layout, self.cell[columns], margin)

    def priced(self, found: Sequence[Ways]) -> Candidates:
        """Return the rows of these ways with what each costs."""
        way_cell, remat, passes = map(np.concatenate, zip(*found, strict=True))
        row, way = matching(self.key_of_row, self.key[self.first[way_cell]])
        place = self.first[way_cell][way]
        links = rows_of_links(find_links(self.request.torus, self.factors), row)
        layout = make_layout(
            self.request, sizes_by_name(self.meshes[row, :-1]), self.meshes[row, -1], passes[way],
            self.treated[remat[way]], links, self.chunks[place], self.once[place],
        )  # fmt: skip
        return Candidates(
            self.factors[row], layout.sequences, layout.microbatches, remat[way],
            cost_s_per_token(layout), self.meshes[row, len(ICI_AXES) : -1], self.chunks[place],
            self.once[place], self.policies,
        )  # fmt: skip


def _price(
    request: SearchRequest, factors: Ints, meshes: Ints, margin: float
) -> tuple[Candidates, LeastMemory]:
    """Price each row under the policies, and with the microbatches, that may be its fastest. A row
    of `meshes` has the sizes of all axes and the batch.
    """
    columns = _Columns(request, factors, meshes)
    key, cell = columns.key, columns.cell
    if not request.torus.switched or request.pods == 1:
        # Priced in parts of about a size, all columns of a key in the same part.
        starts = np.searchsorted(cell, cell[:: max(_CELLS // len(columns.policies), 1)]).tolist()
        ends = pairwise(sorted({*starts, len(cell)}))
        parts = [slice(*pair) for pair in ends] or [slice(0, 0)]
        found, least = zip(*(columns.fastest(part, margin) for part in parts), strict=True)
        least_hbm, least_host = map(min, zip(*least, strict=True))
        return columns.priced(found), (least_hbm, least_host)
    # Over many nodes there are too many ways for all policies. None is faster than without what a
    # policy costs: in the order of that bound, ways are priced until none is near the best. In a
    # switched domain a mesh has one placement.
    row_of_key = np.unique(columns.key_of_row, return_index=True)[1]
    links = find_links(request.torus, factors[row_of_key])
    room = request.chip.hbm_usable_bytes.value * (1 - margin)
    bounds, peaks = np.full(cell[-1:].sum() + 1, np.inf), np.full(len(key), np.inf)
    for begin in range(0, len(key), _COLUMNS_AT_ONCE):
        part = np.arange(begin, min(begin + _COLUMNS_AT_ONCE, len(key)))
        peaks[part] = peak_bytes(columns.layout(part, FreePolicy(), NO_LINKS))
        part = part[peaks[part] <= room]
        free = columns.layout(part, FreePolicy(), rows_of_links(links, key[part]))
        np.minimum.at(bounds, cell[part], cost_s_per_token(free))
    order, best, least_hbm, least_host = np.argsort(bounds, kind="stable"), np.inf, np.inf, np.inf
    joined = [columns.priced([columns.fastest(slice(0, 0), margin)[0]])]
    for begin, end in pairwise([0, *np.cumsum(_ROUNDS).tolist()]):
        of_round = order[begin:end]
        near = of_round[(bounds[of_round] <= _REACH * best) & (bounds[of_round] < np.inf)]
        chosen = np.flatnonzero(np.isin(cell, near))
        if not len(chosen):
            break
        own, memory = columns.fastest(chosen, margin)
        joined.append(columns.priced([own]))
        best = joined[-1].cost_s_per_token.min(initial=best)
        least_hbm, least_host = min(least_hbm, memory[0]), min(least_host, memory[1])
    # What was not priced needs more than there is even without what a policy takes.
    least_hbm = min(least_hbm, float(peaks[peaks > room].min(initial=np.inf)))
    return Candidates.join(joined), (least_hbm, least_host)


_COLUMNS_AT_ONCE = 16_000  # of an array, so that it stays in the processor's cache
_ROUNDS = (200, 800, 3200, 12_800, 1_000_000)  # ways whose policies are priced, round by round
_REACH = 1.15  # what takes longer is not shown as a runner-up


class FreePolicy:
    """Treatments that take neither time nor memory: no policy undercuts them."""

    needs_host = False

    def share(self, tensor: str, treatment: Treatment) -> int:  # noqa: ARG002
        return 0


def splits(request: SearchRequest, sequences: Ints, replicas: Number) -> tuple[Ints, Ints]:
    """Return each key's place and its numbers of microbatches, ascending, or the requested one."""
    requested = request.experiment.batch.microbatches
    per_replica = sequences // replicas
    counts = {n: [requested] if requested else divisors(n) for n in distinct(per_replica).tolist()}
    listed = [counts[n] for n in per_replica.tolist()]
    key = np.repeat(np.arange(len(sequences)), list(map(len, listed)))
    return key, np.array(list(chain(*listed)), np.int64)


def _ways_of_pipeline(
    request: SearchRequest, sizes: Sizes, key: Ints, microbatches: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return places of keys with microbatches, each with the chunks of a stage and with whether it
    gathers matrices once: all that a pipeline may have, and one chunk without a pipeline.
    """
    stages, split = (np.asarray(ways(sizes, axis))[key] for axis in ("layers", GATHERED))
    if not (stages > 1).any():
        return np.arange(len(key)), np.ones(len(key), np.int64), np.zeros(len(key), np.int64)
    [*segments], wanted = decoder(request.experiment.model).segments, request.mesh.pipeline_chunks
    is_asked = any((getattr(request.mesh, axis) or 1) > 1 for axis in PIPELINE)

    def ways_of(count: int, is_split: int, passes: int) -> Iterator[tuple[int, int]]:
        if count == 1:
            yield 1, 0
            return
        # As few chunks as have one, two or four repeats of the pattern, or all of the stage. With
        # several, microbatches pass in groups of as many as there are stages. Fewer microbatches
        # than stages leave most of these idle.
        repeats = -(-segments[0].repeats // count)
        fewest = {-(-segments[0].repeats // (count * each)) for each in (1, 2, 4, repeats)}
        for chunks in sorted({wanted} if wanted else fewest):
            if passes % count == 0 or (chunks == 1 and (passes > count or is_asked)):
                for once in range(1 + is_split):
                    yield chunks, once

    kinds, kind = np.unique(
        np.column_stack([stages, split > 1, microbatches]), axis=0, return_inverse=True
    )
    listed = [np.array([*ways_of(*row)], np.int64).reshape(-1, 2) for row in kinds.tolist()]
    kind, counts = kind.reshape(-1), np.array(list(map(len, listed)))
    # The rows of each place's kind, one after another.
    place = np.repeat(np.arange(len(key)), counts[kind])
    begins = np.cumsum(counts[kind]) - counts[kind]
    own = np.arange(len(place)) - np.repeat(begins, counts[kind])
    chunks, once = np.concatenate(listed)[(np.cumsum(counts) - counts)[kind[place]] + own].T
    return place, chunks, once


def matching(key_of_row: Ints, key_of_way: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of a row and a way to run it; ways are in the order of their keys."""
    first, last = (np.searchsorted(key_of_way, key_of_row, side) for side in ("left", "right"))
    row = np.repeat(np.arange(len(key_of_row)), last - first)
    before = np.repeat(np.cumsum(last - first) - (last - first), last - first)
    return row, np.repeat(first, last - first) + np.arange(len(row)) - before


def cost_s_per_token(layout: Training) -> Floats:
    """Return the cost of each row, as `Candidates` has it."""
    lines = time_lines(layout)
    time = step_time(layout, lines)
    unhidden_s = time.unoverlapped_s - transfers(layout).hidden_s()
    step_s = (time.lower_s + unhidden_s) / 2 + never_hidden_s(layout, lines)
    return np.asarray(step_s / (layout.sequences * layout.length))

"""The best choice for each of many slices of one chip, as `ranking` picks it for one, only faster.
A step under a policy that costs nothing, on the same links, is a bound for each mesh: once some way
to run is priced, meshes whose bound is above it need no policies. All slices are priced in the same
arrays, by the formulas of `search`.

The invariant: a mesh, or one of its placements, is left out only if its bound exceeds _REACH times
the cost of a way that is priced already, of the same slice. Three things keep such a mesh from
being chosen. (1) The bound is below every way to run it: treatments without cost undercut every
policy, the best links of its placements undercut each of them, and more microbatches than the
fewest that may fit save at most _BOUND_SLACK. (2) The ranking chooses no candidate whose cost is
beyond 1 + SURE_WITHIN times the lowest of its slice. (3) `best` only falls. So what is priced in
the end holds every contender of `ranking`, in the order of the slice's own search: both choose
alike (tests/test_offers.py compares them).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import numpy as np

from orchestrator.network.mesh_axes import DCN_AXES, PIPELINE, SLICE_REPLICAS
from orchestrator.network.rematerialization import Treatments
from orchestrator.planning import feasibility, search
from orchestrator.planning.fastest_ways import fastest_ways, policy_array, searched_policies
from orchestrator.planning.layout import Number, Training
from orchestrator.planning.memory import peak_bytes
from orchestrator.planning.ranking import SURE_WITHIN, best_choice, contenders, expected_s_of, pick
from orchestrator.planning.torus import (
    NO_LINKS,
    Floats,
    Ints,
    Links,
    axis_sizes,
    best_links,
    distinct,
    find_links,
    join_links,
    rows_of_links,
)


@dataclass(frozen=True)
class _Meshes:
    """Realizable meshes of a slice, each size once, with its best links and the mesh of each
    placement. `first_place` and `first_size` are where they begin in the joint table.
    """

    first_place: int
    first_size: int
    factors: Ints
    sizes: Ints
    key_of_placement: Ints
    links: Links
    best_links: Links


@dataclass(frozen=True)
class _SlicesTable:
    """Meshes with a batch, the keys, and their placements, the rows. `place` is a row's place in
    `factors` and `links`, `order` its place in the search of its own slice.
    """

    slice: Ints
    sizes: Ints
    batch: Ints
    pods: Ints
    mesh: Ints
    key_of_row: Ints
    place: Ints
    order: Ints
    factors: Ints
    links: Links
    best_links: Links


def _parts_of(
    request: search.SearchRequest, number: int, mesh: _Meshes, keys: int
) -> Iterator[dict[str, Ints]]:
    """Yield columns of one slice: meshes with the batch below, and with the one above."""
    multiples = search.multiple_of(request, feasibility.sizes_by_name(mesh.sizes))
    sides = feasibility.batches_next_to(request.experiment.batch, multiples)
    for side, sequences in enumerate(sides):
        exists = sequences > 0
        key = np.cumsum(exists) - 1 + keys
        rows = np.flatnonzero(exists[mesh.key_of_placement])
        ones = np.ones(int(exists.sum()), np.int64)
        yield {
            "slice": number * ones,
            "sizes": mesh.sizes[exists],
            "batch": sequences[exists],
            "pods": request.pods * ones,
            "mesh": np.flatnonzero(exists) + mesh.first_size,
            "key_of_row": key[mesh.key_of_placement[rows]],
            "place": rows + mesh.first_place,
            "order": rows + side * len(mesh.factors),
        }
        keys += len(ones)


_ROWS_AT_ONCE = 16_000  # of the arrays, so that they stay in the processor's cache
_CELLS_AT_ONCE = 2**16  # of meshes with their placements
_COLUMNS_AT_ONCE = 400  # meshes with microbatches, each of which is priced under all policies
_MOST_KEYS = (2, 6, 24, 1_000_000)  # meshes of each slice that are priced, round by round
# More microbatches may save padding of gradients, most of all in small models.
_BOUND_SLACK = 0.02
_REACH = (1 + SURE_WITHIN) / (1 - _BOUND_SLACK)


def best_of_slices(
    requests: Sequence[search.SearchRequest], report: Callable[[int], None] = lambda _: None
) -> list[search.Choice | None]:
    """Return each request's choice, or None; requests differ only in topology and pods. `report` is
    told how many more are done.
    """
    asked = requests[0].mesh if requests else None
    if requests and (requests[0].torus.switched or any(getattr(asked, axis) for axis in PIPELINE)):
        # Only the search of one slice knows pipelines.
        alone: list[search.Choice | None] = []
        for request in requests:
            alone.append(best_choice(request, search.search(request).candidates))
            report(1)
        return alone
    found: list[search.Choice | None] = [None] * len(requests)

    def shape(place: int) -> tuple[int, ...]:
        return requests[place].topology.shape

    # In batches of about _ROWS_AT_ONCE devices; topologies stay together.
    batches: list[list[int]] = [[]]
    devices = 0
    for _, group in groupby(sorted(range(len(requests)), key=shape), shape):
        if devices > _ROWS_AT_ONCE:
            batches.append([])
            devices = 0
        same = list(group)
        batches[-1] += same
        devices += len(same) * requests[same[0]].torus.devices
    for batch in filter(None, batches):
        choices = _best_of_some([requests[place] for place in batch])
        for place, choice in zip(batch, choices, strict=True):
            found[place] = choice
        report(len(batch))
    return found


def _best_of_some(requests: Sequence[search.SearchRequest]) -> list[search.Choice | None]:
    # All meshes of the requests with the batches that they would take.
    meshes: dict[tuple[int, ...], _Meshes] = {}
    parts: list[dict[str, Ints]] = []
    placed = sized = keys = 0
    for i, request in enumerate(requests):
        shape = request.topology.shape
        if shape not in meshes:
            # The realizable meshes of a slice, whatever the number of slices.
            batch = request.experiment.batch
            factors = feasibility.placements(
                request.torus, request.experiment.model, batch.length, request.mesh,
                feasibility.batch_range(batch)[1],
            )  # fmt: skip
            sizes = axis_sizes(factors)
            # The last size follows from the others, and all are at most the number of devices.
            code = sizes[:, :-1] @ (request.torus.devices + 1) ** np.arange(sizes.shape[1] - 1)
            _, first, key = np.unique(code, return_index=True, return_inverse=True)
            links = find_links(request.torus, factors)
            best = best_links(links, key, len(first))
            meshes[shape] = _Meshes(placed, sized, factors, sizes[first], key, links, best)
            placed, sized = placed + len(factors), sized + len(first)
        for part in _parts_of(request, i, meshes[shape], keys):
            parts.append(part)
            keys += len(part["batch"])
    every = meshes.values()
    table = _SlicesTable(
        **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
        factors=np.concatenate([mesh.factors for mesh in every]),
        links=join_links([mesh.links for mesh in every]),
        best_links=join_links([mesh.best_links for mesh in every]),
    )
    found: dict[int, search.Choice] = {}
    for margin in search.memory_margins(requests[0].experiment):
        left = ~np.isin(table.slice, list(found))
        if left.any():
            found |= _SlicesSearch(requests, table, margin).choices(np.flatnonzero(left))
    return [found.get(i) for i in range(len(requests))]


class _SlicesSearch:
    """The search over one table, with `margin` as the share of memory left free. `bounds` are
    seconds per token that no way to run a mesh undercuts, `row_bounds` those of a placement; `best`
    are those of the best way yet of each slice.
    """

    def __init__(
        self, requests: Sequence[search.SearchRequest], table: _SlicesTable, margin: float
    ) -> None:
        self.requests, self.table, self.margin = requests, table, margin
        request = requests[0]
        self.policies = searched_policies(request.chip, request.experiment)
        self.treated = policy_array(self.policies, request.experiment.model)
        self.bounds = np.full(len(table.slice), np.inf)
        self.row_bounds = np.full(len(table.key_of_row), -np.inf)
        self.best = np.full(len(requests), np.inf)
        self.slice_of_row = table.slice[table.key_of_row]
        self.parts: list[tuple[search.Candidates, Ints]] = []  # with the row of each in the table

    def choices(self, keys: Ints) -> dict[int, search.Choice]:
        """Return the choice of each slice that has one among these meshes."""
        table = self.table
        # Every number of microbatches of each mesh, ascending: those that fit if activations took
        # no memory.
        replicas = self.layout(keys, 1, search.FreePolicy(), NO_LINKS).ways("batch")
        place, microbatches = search.splits(self.requests[0], table.batch[keys], replicas)
        keys = keys[place]
        layout = self.layout(keys, microbatches, search.FreePolicy(), NO_LINKS)
        fits = peak_bytes(layout) <= layout.chip.hbm_usable_bytes.value * (1 - self.margin)
        keys, microbatches = keys[fits], microbatches[fits]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        fewest = np.zeros(len(self.bounds), np.int64)
        fewest[keys[first]] = microbatches[first]
        open_keys = keys[first]
        links = rows_of_links(table.best_links, table.mesh[open_keys])
        self.bounds[open_keys] = self.cost_bounds(open_keys, fewest, links)
        for most in _MOST_KEYS:
            # For each slice, the `most` meshes with the lowest bound.
            order = open_keys[np.lexsort((self.bounds[open_keys], table.slice[open_keys]))]
            ordered = table.slice[order]
            place_in_slice = np.arange(len(order)) - np.searchsorted(ordered, ordered)
            now = np.sort(order[place_in_slice < most])
            self.bound_placements(now, fewest)
            self.price(keys, microbatches, self.within_reach(now))
            open_keys = self.within_reach(np.setdiff1d(open_keys, now))
        return self.chosen() if np.isfinite(self.best).any() else {}

    def layout(self, keys: Ints, microbatches: Number, remat: Treatments, links: Links) -> Training:
        table = self.table
        made = search.make_layout(
            self.requests[0], feasibility.sizes_by_name(table.sizes[keys]), table.batch[keys],
            microbatches, remat, links,
        )  # fmt: skip
        replicas = table.pods[keys] // prod(feasibility.sharing(self.requests[0].mesh).values())
        return replace(made, mesh={**made.mesh, SLICE_REPLICAS: replicas})

    def layout_of_rows(self, rows: Ints, microbatches: Number, remat: Treatments) -> Training:
        links = rows_of_links(self.table.links, self.table.place[rows])
        return self.layout(self.table.key_of_row[rows], microbatches, remat, links)

    def cost_bounds(self, keys: Ints, fewest: Ints, links: Links) -> Floats:
        layout = self.layout(keys, fewest[keys], search.FreePolicy(), links)
        return search.cost_s_per_token(layout)

    def bound_placements(self, keys: Ints, fewest: Ints) -> None:
        """Bound the placements of meshes, each on its own links, and with them the meshes."""
        table = self.table
        rows = np.flatnonzero(np.isin(table.key_of_row, keys))
        rows = rows[np.argsort(table.key_of_row[rows], kind="stable")]
        counts = np.bincount(table.key_of_row[rows], minlength=len(table.batch))[keys]
        ends = np.cumsum(counts)
        # A row for each mesh and a column for each of its placements, so that what links do not
        # change is computed once for a mesh. Those with about as many placements go together; the
        # last placement completes the row.
        by_count = np.argsort(-counts, kind="stable")
        while len(by_count):
            chunk, by_count = np.split(by_count, [max(_CELLS_AT_ONCE // counts[by_count[0]], 1)])
            columns = np.minimum(np.arange(counts[chunk[0]]), counts[chunk, None] - 1)
            places = rows[ends[chunk, None] - counts[chunk, None] + columns]
            links = rows_of_links(table.links, table.place[places])
            self.row_bounds[places] = self.cost_bounds(keys[chunk, None], fewest, links)
            self.bounds[keys[chunk]] = self.row_bounds[places].min(axis=1)

    def within_reach(self, keys: Ints) -> Ints:
        return keys[self.bounds[keys] <= _REACH * self.best[self.table.slice[keys]]]

    def price(self, keys: Ints, microbatches: Ints, now: Ints) -> None:
        """Price some of the meshes under all policies, on the placements that may be chosen."""
        key_of_row = self.table.key_of_row
        may_win = self.row_bounds <= _REACH * self.best[self.slice_of_row]
        rows = np.flatnonzero(may_win & np.isin(key_of_row, now))
        columns = np.flatnonzero(np.isin(keys, now))
        # In parts, the columns of a mesh together.
        while len(columns):
            end = min(_COLUMNS_AT_ONCE, len(columns))
            while end < len(columns) and keys[columns[end]] == keys[columns[end - 1]]:
                end += 1
            chunk, columns = columns[:end], columns[end:]
            own_rows = rows[np.isin(key_of_row[rows], keys[chunk])]
            candidates, priced_rows = self.priced(keys[chunk], microbatches[chunk], own_rows)
            self.parts.append((candidates, priced_rows))
            slices = self.slice_of_row[priced_rows]
            np.minimum.at(self.best, slices, candidates.cost_s_per_token)

    def priced(self, keys: Ints, microbatches: Ints, rows: Ints) -> tuple[search.Candidates, Ints]:
        own, place = np.unique(keys, return_inverse=True)
        layout = self.layout(keys, microbatches, self.treated[:, None], NO_LINKS)
        (way_key, remat, microbatches), _ = fastest_ways(layout, place, self.margin)
        row, way = search.matching(np.searchsorted(own, self.table.key_of_row[rows]), way_key)
        rows, remat = rows[row], remat[way]
        layout = self.layout_of_rows(rows, microbatches[way], self.treated[remat])
        # Nobody asked for a pipeline here.
        mesh, ones = layout.mesh, np.ones(len(rows), np.int64)
        between = np.column_stack([mesh[axis] * ones for axis in DCN_AXES])
        candidates = search.Candidates(
            self.table.factors[self.table.place[rows]], layout.sequences, layout.microbatches,
            remat, search.cost_s_per_token(layout), between, ones, 0 * ones, self.policies,
        )  # fmt: skip
        return candidates, rows

    def chosen(self) -> dict[int, search.Choice]:
        """Return each slice's choice by the ranking, among candidates within reach of its best."""
        near = [
            np.flatnonzero(made.cost_s_per_token <= _REACH * self.best[self.slice_of_row[rows]])
            for made, rows in self.parts
        ]
        pairs = list(zip(self.parts, near, strict=True))
        candidates = search.Candidates.join([made.rows(places) for (made, _), places in pairs])
        rows = np.concatenate([rows[places] for (_, rows), places in pairs])
        order = np.lexsort((
            candidates.remat, candidates.microbatches, self.table.order[rows],
            self.slice_of_row[rows],
        ))  # fmt: skip
        candidates, rows = candidates.rows(order), rows[order]
        slices = self.slice_of_row[rows]
        best = {int(i): contenders(candidates, slices == i) for i in distinct(slices)}
        every = np.concatenate(list(best.values()))
        expected = np.full(len(rows), np.nan)
        microbatches, remat = candidates.microbatches[every], candidates.remat[every]
        layout = self.layout_of_rows(rows[every], microbatches, self.treated[remat])
        expected[every] = expected_s_of(layout)
        return {
            i: candidates.choice(pick(self.requests[i], candidates, places, expected[places]))
            for i, places in best.items()
        }

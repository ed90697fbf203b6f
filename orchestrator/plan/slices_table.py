"""The meshes of many slices of one chip in one table: with each batch they would take, and placed.

Memory depends on mesh and batch alone, the keys of the table; time also on the placement, its rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from orchestrator.plan.feasibility import (
    batch_range,
    batches_next_to,
    placements,
    replicas_in_pod,
    sizes_by_name,
)
from orchestrator.plan.search import SearchRequest
from orchestrator.plan.torus import Ints, Links, axis_sizes, best_links, find_links, join_links


@dataclass(frozen=True)
class Meshes:
    """Realizable meshes of a slice: the sizes of each once, with the links that none of its
    placements surpasses, and which one a placement has.
    """

    factors: Ints
    sizes: Ints
    key_of_placement: Ints
    links: Links
    best_links: Links


@dataclass(frozen=True)
class SlicePart:
    """Meshes with a batch, the keys, and their placements, the rows.

    `slice`, `sizes`, `batch`, `pods` and `mesh` are of keys, `mesh` the row in a table's
    `best_links`. The others are of rows: `place` that of a placement in a table's `factors` and
    `links`, `order` the place in the search of its slice alone.
    """

    slice: Ints
    sizes: Ints
    batch: Ints
    pods: Ints
    mesh: Ints
    key_of_row: Ints
    place: Ints
    order: Ints


@dataclass(frozen=True)
class SlicesTable(SlicePart):
    """The same of many slices, with their placements and links."""

    factors: Ints
    links: Links
    best_links: Links


def make_table(requests: Sequence[SearchRequest]) -> SlicesTable:
    """All meshes of the requests with the batches that they would take."""
    meshes: dict[tuple[int, ...], tuple[Meshes, int, int]] = {}
    parts: list[SlicePart] = []
    placed = sized = keys = 0
    for i, request in enumerate(requests):
        shape = request.topology.shape
        if shape not in meshes:
            mesh = meshes_of(request)
            meshes[shape] = mesh, placed, sized
            placed, sized = placed + len(mesh.factors), sized + len(mesh.sizes)
        for part in parts_of(request, i, *meshes[shape], keys):
            parts.append(part)
            keys += len(part.batch)
    every = [mesh for mesh, *_ in meshes.values()]
    columns = {
        one.name: np.concatenate([getattr(part, one.name) for part in parts])
        for one in fields(SlicePart)
    }
    return SlicesTable(
        **columns,
        factors=np.concatenate([mesh.factors for mesh in every]),
        links=join_links([mesh.links for mesh in every]),
        best_links=join_links([mesh.best_links for mesh in every]),
    )


def parts_of(
    request: SearchRequest, number: int, mesh: Meshes, first_place: int, first_size: int, keys: int
) -> Iterator[SlicePart]:
    """The rows of one slice: meshes with the batch below, and with the one above, if they move."""
    batch = request.experiment.batch
    multiples = request.pods * replicas_in_pod(sizes_by_name(mesh.sizes))
    sides = batches_next_to(batch, multiples * (batch.microbatches or 1))
    for side, sequences in enumerate(sides):
        exists = sequences > 0
        key = np.cumsum(exists) - 1 + keys
        rows = np.flatnonzero(exists[mesh.key_of_placement])
        one = np.ones(int(exists.sum()), np.int64)
        yield SlicePart(
            slice=number * one,
            sizes=mesh.sizes[exists],
            batch=sequences[exists],
            pods=request.pods * one,
            mesh=np.flatnonzero(exists) + first_size,
            key_of_row=key[mesh.key_of_placement[rows]],
            place=rows + first_place,
            order=rows + side * len(mesh.factors),
        )
        keys += len(one)


def meshes_of(request: SearchRequest) -> Meshes:
    """The realizable meshes of a slice, whatever the number of slices."""
    batch = request.experiment.batch
    factors = placements(
        request.torus, request.experiment.model, batch.length, request.mesh,
        batch_range(batch)[1],
    )  # fmt: skip
    sizes = axis_sizes(factors)
    # The last size follows from the others, and all are at most the number of devices.
    code = sizes[:, :-1] @ (request.torus.devices + 1) ** np.arange(sizes.shape[1] - 1)
    _, first, key = np.unique(code, return_index=True, return_inverse=True)
    links = find_links(request.torus, factors)
    return Meshes(factors, sizes[first], key, links, best_links(links, key, len(first)))

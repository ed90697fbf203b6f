"""Which ways to serve a model a slice allows, each on its best placement."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from orchestrator.catalog.chips import Chip, Topology
from orchestrator.network.decoder import split_sizes
from orchestrator.network.mesh_axes import DCN_AXES, ICI_AXES
from orchestrator.network.mlp import expert_d_ff
from orchestrator.planning.layout import Number
from orchestrator.planning.torus import (
    Ints,
    Links,
    axis_sizes,
    divisors,
    factor_rows,
    find_links,
    make_torus,
    rows_of_links,
)
from orchestrator.serving.layout import AXES, Serving
from orchestrator.values.model import Model
from orchestrator.values.serving import ServingMesh, StoredType
from orchestrator.values.spec import Precision

_COLUMNS = {name: ICI_AXES.index(axis) for name, axis in AXES.items()}
_COPY = [_COLUMNS["attention"], _COLUMNS["tensor"]]  # the devices of one copy of the model


def layouts(
    chip: Chip, topology: Topology, model: Model, weights: StoredType, kv_cache: StoredType,
    mesh: ServingMesh,
) -> Serving | None:  # fmt: skip
    """Return all ways to serve on a slice as one layout of columns, if there are any."""
    torus = make_torus(chip, topology)
    axes = [axis for name, axis in AXES.items() if model.moe or name != "attention"]
    rows = [factor_rows(axis.length, axes) for axis in torus.axes]
    # Factors of all torus axes: rows x torus axes x ICI_AXES.
    places = product(*(range(len(part)) for part in rows))
    picked = np.array(list(places)).reshape(-1, len(rows))
    factors = np.stack([part[picked[:, i]] for i, part in enumerate(rows)], axis=1)
    sizes = axis_sizes(factors)
    # Whether `tensor` divides what it splits; KV heads may be replicated instead.
    tensor = sizes[:, _COLUMNS["tensor"]]
    kept = np.ones(len(tensor), bool)
    for axis, _, total in split_sizes(model):
        if axis in {"heads", "ff", "global_kv_heads"}:
            kept &= total % tensor == 0
        elif axis == "kv_heads":
            kept &= (total % tensor == 0) | (tensor % total == 0)
    for name, column in _COLUMNS.items():
        wanted = getattr(mesh, name)
        kept &= (wanted is None) | (sizes[:, column] == (wanted or 1))
    factors, sizes = factors[kept], sizes[kept]
    if not len(factors):
        return None
    # The placement of each mesh whose `tensor` and copies have the fastest links.
    links = find_links(torus, factors)
    order = np.lexsort((-links.rates["replicas"], -links.rates["tensor"], *sizes.T))
    _, first = np.unique(sizes[order], axis=0, return_index=True)
    chosen = order[first]
    ways = [_expert_ways(model, int(sizes[row][_COPY].prod()), mesh.experts) for row in chosen]
    picks = np.array([row for row, own in zip(chosen.tolist(), ways, strict=True) if own], int)
    if not len(picks):
        return None
    expert_ways = np.array([own for own in ways if own])
    made = serving(
        chip, model, weights, kv_cache, sizes[picks], expert_ways, rows_of_links(links, picks)
    )
    return replace(made, factors=factors[picks])


def serving(
    chip: Chip, model: Model, weights: StoredType, kv_cache: StoredType, sizes: Ints,
    expert_ways: Number, links: Links,
) -> Serving:  # fmt: skip
    """Return meshes as one layout of columns, so that batches may be its rows."""
    columns = {axis: sizes[:, i, None] for i, axis in enumerate(ICI_AXES)}

    def in_columns(rates: dict[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(values)[:, None] for name, values in rates.items()}

    column: Any = Links(in_columns(links.rates), in_columns(links.exchange_rates), {}, {})
    return Serving(
        chip=chip, model=model, precision=Precision(parameters="bf16"), length=1, sequences=1,
        mesh={**dict.fromkeys(DCN_AXES, 1), **columns}, links=column, weights=weights,
        kv_cache=kv_cache, expert_ways=np.asarray(expert_ways)[:, None],
    )  # fmt: skip


def _expert_ways(model: Model, devices: int, wanted: int | None) -> int:
    """Return the parts into which experts are split on so many devices: whole experts as far as
    that goes, which engines multiply best; 0 where the wanted number does not divide them.
    """
    moe = model.moe
    if moe is None:
        return 1 if wanted in (None, 1) else 0
    width = expert_d_ff(model, moe)
    ways = (
        ways
        for ways in reversed(divisors(devices))
        if moe.experts % ways == 0 and width % (devices // ways) == 0 and wanted in (None, ways)
    )
    return next(ways, 0)

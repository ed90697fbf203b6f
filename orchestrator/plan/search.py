"""The search: prices every realizable way to run, and chooses the fastest."""

from dataclasses import dataclass, fields
from math import prod

import numpy as np

from orchestrator.catalog.chip import Chip, Topology
from orchestrator.network.mesh_axes import ICI_AXES, SLICE_REPLICAS
from orchestrator.network.rematerialization import POLICIES, Policy, policy
from orchestrator.plan.feasibility import (
    batch_range,
    batches_next_to,
    placements,
    replicas_in_pod,
    sharing,
    sizes_by_name,
)
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.memory import peak_bytes
from orchestrator.plan.time import step_time, time_lines
from orchestrator.plan.torus import (
    NO_LINKS,
    Floats,
    Ints,
    Links,
    Torus,
    axis_sizes,
    count_placements,
    divisors,
    find_links,
    plain_links,
)
from orchestrator.types.spec import Experiment, MeshRequest

# `remat: auto` leaves this share of HBM free, for the error of the memory forecast.
MEMORY_MARGIN = 0.10
# Plans this close are equal within the accuracy of a forecast: the batch decides.
TIE = 0.01
RULE = (
    "fastest per token, by the mean of lower and unoverlapped time (a run hides some of its"
    f" exchanges, not all); of plans within {TIE:.0%}, the batch nearest to the requested one"
)


@dataclass(frozen=True)
class SearchRequest:
    """The input of a search."""

    chip: Chip
    topology: Topology
    torus: Torus
    experiment: Experiment
    mesh: MeshRequest
    pods: int


@dataclass(frozen=True)
class Choice:
    """One way to run: factors of a placement (torus axes x ICI_AXES), batch and remat."""

    factors: tuple[tuple[int, ...], ...]
    sequences: int
    microbatches: int
    remat: str

    @property
    def mesh(self) -> dict[str, int]:
        """The size of each mesh axis inside a pod."""
        columns = zip(*self.factors, strict=True)
        return {axis: prod(column) for axis, column in zip(ICI_AXES, columns, strict=True)}


@dataclass(frozen=True)
class Candidates:
    """One row a candidate: factors of its placement, what it runs, and what it costs."""

    factors: Ints
    sequences: Ints
    microbatches: Ints
    remat: Ints
    lower_s_per_token: Floats
    unoverlapped_s_per_token: Floats

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def cost_s_per_token(self) -> Floats:
        """What RULE ranks by."""
        return (self.lower_s_per_token + self.unoverlapped_s_per_token) / 2

    def choice(self, row: int) -> Choice:
        return Choice(
            factors=tuple(tuple(int(f) for f in axis) for axis in self.factors[row]),
            sequences=int(self.sequences[row]),
            microbatches=int(self.microbatches[row]),
            remat=list(POLICIES)[self.remat[row]],
        )


@dataclass(frozen=True)
class SearchResult:
    """What a search went through. `smallest_bytes` is the least peak of any realizable plan.

    `margin` is the share of HBM that the candidates leave free.
    """

    enumerated: int
    realizable: int
    smallest_bytes: float
    margin: float
    candidates: Candidates


def make_layout(
    request: SearchRequest,
    sizes: dict[str, Number],
    batch: Number,
    microbatches: Number,
    remat: Policy,
    group_links: Links,
) -> Layout:
    """Meshes and what they run; plain numbers make one layout, arrays many."""
    return Layout(
        chip=request.chip,
        model=request.experiment.model,
        precision=request.experiment.precision,
        optimizer=request.experiment.optimizer,
        remat=remat,
        length=request.experiment.batch.length,
        sequences=batch,
        microbatches=microbatches,
        mesh={**slice_sizes(request), **sizes},
        links=group_links,
    )


def slice_sizes(request: SearchRequest) -> dict[str, int]:
    """Sizes of the mesh axes that join slices."""
    shared = sharing(request.mesh)
    return {SLICE_REPLICAS: max(request.pods // prod(shared.values()), 1), **shared}


def factors_of(choice: Choice) -> Ints:
    return np.array([choice.factors], np.int64)


def layout_of_choice(request: SearchRequest, choice: Choice) -> Layout:
    """The layout of one choice, as plain numbers."""
    return make_layout(
        request,
        choice.mesh,
        choice.sequences,
        choice.microbatches,
        policy(choice.remat),
        plain_links(request.torus, factors_of(choice)),
    )


def search(request: SearchRequest) -> SearchResult:
    """Price everything that is realizable and fits; first with the margin, then without."""
    experiment = request.experiment
    realizable = placements(
        request.torus, experiment.model, experiment.batch.length, request.mesh,
        most_replicas(request),
    )  # fmt: skip
    if request.pods % prod(sharing(request.mesh).values()):
        realizable = realizable[:0]
    factors, batch = with_batches(request, realizable)
    auto = experiment.remat == "auto"
    margin = MEMORY_MARGIN if auto else 0.0
    candidates, smallest = price(request, factors, batch, margin)
    if auto and not len(candidates):
        margin = 0.0
        candidates, smallest = price(request, factors, batch, margin)
    count = count_placements(request.torus)
    return SearchResult(count, len(np.unique(factors, axis=0)), smallest, margin, candidates)


def most_replicas(request: SearchRequest) -> int:
    """Replicas within a pod that the largest batch can feed."""
    return max(batch_range(request.experiment.batch)[1] // request.pods, 1)


def with_batches(request: SearchRequest, factors: Ints) -> tuple[Ints, Ints]:
    """Each placement with each batch that it would take."""
    replicas = request.pods * replicas_in_pod(sizes_by_name(axis_sizes(factors)))
    below, above = batches_next_to(request.experiment.batch, replicas)
    batch = np.concatenate([below, above])
    exists = batch > 0
    return np.concatenate([factors, factors])[exists], batch[exists]


def policies(request: SearchRequest) -> list[Policy]:
    """Policies to price. The search offloads only on request: few host links have a known rate."""
    if request.experiment.remat != "auto":
        return [policy(request.experiment.remat)]
    return [one for one in POLICIES.values() if not one.needs_host]


def price(
    request: SearchRequest, factors: Ints, batch: Ints, margin: float
) -> tuple[Candidates, float]:
    """All rows under all policies, each with the fewest microbatches that fit."""
    limit = request.chip.hbm_usable_bytes.value * (1 - margin)
    parts, smallest = [], np.inf
    for remat in policies(request):
        microbatches, least = fewest_microbatches(request, factors, batch, remat, limit)
        smallest = min(smallest, least)
        fits = microbatches > 0
        parts.append(price_rows(request, factors[fits], batch[fits], microbatches[fits], remat))
    return concatenate(parts), float(smallest)


def concatenate(parts: list[Candidates]) -> Candidates:
    columns = [[getattr(part, field.name) for part in parts] for field in fields(Candidates)]
    return Candidates(*map(np.concatenate, columns))


def fewest_microbatches(
    request: SearchRequest, factors: Ints, batch: Ints, remat: Policy, limit_bytes: float
) -> tuple[Ints, float]:
    """For each row the fewest microbatches that fit (more only cost time), zero where none does.

    Memory depends on meshes, not on links, so each mesh and batch is computed once.
    """
    if not len(batch):
        return np.zeros(0, np.int64), np.inf
    keys, key_of_row = np.unique(
        np.column_stack([axis_sizes(factors), batch]), axis=0, return_inverse=True
    )
    per_replica = keys[:, -1] // (request.pods * replicas_in_pod(sizes_by_name(keys)))
    counts = {int(k): divisors(int(k)) for k in np.unique(per_replica)}
    rows = np.repeat(np.arange(len(keys)), [len(counts[int(k)]) for k in per_replica])
    microbatches = np.concatenate([counts[int(k)] for k in per_replica])
    sizes = sizes_by_name(keys[rows])
    peaks = peak_bytes(make_layout(request, sizes, keys[rows, -1], microbatches, remat, NO_LINKS))
    none, fits = np.iinfo(np.int64).max, peaks <= limit_bytes
    fewest = np.full(len(keys), none)
    np.minimum.at(fewest, rows[fits], microbatches[fits])
    fewest[fewest == none] = 0
    return fewest[key_of_row.reshape(-1)], float(peaks.min())


def price_rows(
    request: SearchRequest, factors: Ints, batch: Ints, microbatches: Ints, remat: Policy
) -> Candidates:
    """The cost of each row per token of the batch."""
    group_links = find_links(request.torus, factors)
    sizes = sizes_by_name(axis_sizes(factors))
    layout = make_layout(request, sizes, batch, microbatches, remat, group_links)
    time = step_time(layout, time_lines(layout))
    tokens = batch * request.experiment.batch.length
    return Candidates(
        factors,
        batch,
        microbatches,
        np.full(len(batch), list(POLICIES).index(remat.name)),
        time.lower_s / tokens,
        time.unoverlapped_s / tokens,
    )


def best_choices(request: SearchRequest, candidates: Candidates, most: int) -> list[Choice]:
    """The best choice, then the best of each other mesh, by RULE."""
    meshes = axis_sizes(candidates.factors)
    remaining = np.ones(len(candidates), bool)
    choices: list[Choice] = []
    while remaining.any() and len(choices) < most:
        row = best_row(request, candidates, remaining)
        choices.append(candidates.choice(row))
        remaining &= (meshes != meshes[row]).any(axis=1)
    return choices


def best_row(request: SearchRequest, candidates: Candidates, among: np.ndarray) -> int:
    """The row that RULE picks; of equal rows the first enumerated."""
    cost = candidates.cost_s_per_token
    fast = among & (cost <= cost[among].min() * (1 + TIE))
    change = np.abs(candidates.sequences - request.experiment.batch.sequences)
    nearest = fast & (change == change[fast].min())
    return int(np.argmin(np.where(nearest, cost, np.inf)))

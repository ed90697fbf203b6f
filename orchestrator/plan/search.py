"""Plan room: every realizable way to run an experiment, priced, and the fastest chosen."""

from dataclasses import dataclass, fields
from math import prod

import numpy as np

from orchestrator.catalog.chip import Chip, Topology
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.network.rematerialization import POLICIES, Policy, policy
from orchestrator.plan import torus as links
from orchestrator.plan.feasibility import (
    as_sizes,
    batch_range,
    batches_next_to,
    placements,
    replicas_in_pod,
)
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.memory import peak_bytes
from orchestrator.plan.time import step_time, time_lines
from orchestrator.plan.torus import Floats, Ints, Torus
from orchestrator.types.spec import Experiment, MeshRequest

# `remat: auto` leaves this share of HBM free, for what the forecast of memory can be off.
MEMORY_MARGIN = 0.10
# Plans this close are equal to the accuracy of a forecast: the batch decides.
TIE = 0.01
RULE = (
    "least mean of lower and unoverlapped time per token (a run hides some of its exchanges, not"
    f" all); within {TIE:.0%}, the batch nearest to the asked one"
)


@dataclass(frozen=True)
class SearchRequest:
    """What a search is given."""

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
    def mesh(self) -> tuple[int, ...]:
        return tuple(prod(row[i] for row in self.factors) for i in range(len(ICI_AXES)))


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
    """How far a search got. `smallest_bytes` is the least peak of any realizable plan."""

    enumerated: int
    realizable: int
    smallest_bytes: float
    margin: float
    candidates: Candidates


def layout_of(
    ask: SearchRequest,
    sizes: dict[str, Number],
    batch: Number,
    microbatches: Number,
    remat: Policy,
    found: links.Links,
) -> Layout:
    """Meshes and what they run; plain numbers make one layout, arrays many."""
    return Layout(
        chip=ask.chip,
        model=ask.experiment.model,
        precision=ask.experiment.precision,
        remat=remat,
        length=ask.experiment.batch.length,
        sequences=batch,
        microbatches=microbatches,
        mesh={"pods": ask.pods, **sizes},
        links=found,
    )


def factors_of(choice: Choice) -> links.Ints:
    return np.array([choice.factors], np.int64)


def plain_layout(ask: SearchRequest, choice: Choice) -> Layout:
    """The layout of one choice, as plain numbers."""
    found = links.links_of(ask.torus, factors_of(choice))
    row = links.Links(
        rates={name: float(rate[0]) for name, rate in found.rates.items()},
        hops={name: float(hops[0]) for name, hops in found.hops.items()},
        uses={name: uses[0] for name, uses in found.uses.items()},
    )
    sizes = dict(zip(ICI_AXES, choice.mesh, strict=True))
    remat = policy(choice.remat)
    return layout_of(ask, sizes, choice.sequences, choice.microbatches, remat, row)


def search(ask: SearchRequest) -> SearchResult:
    """Price everything that is realizable and fits; first with the margin, then without."""
    found = placements(
        ask.torus, ask.experiment.model, ask.experiment.batch.length, ask.mesh, most_replicas(ask)
    )
    factors, batch = with_batches(ask, found)
    auto = ask.experiment.remat == "auto"
    margin = MEMORY_MARGIN if auto else 0.0
    candidates, smallest = price(ask, factors, batch, margin)
    if auto and not len(candidates):
        margin = 0.0
        candidates, smallest = price(ask, factors, batch, margin)
    count = links.count_placements(ask.torus)
    return SearchResult(count, len(np.unique(factors, axis=0)), smallest, margin, candidates)


def most_replicas(ask: SearchRequest) -> int:
    """Replicas within a pod that the largest batch can feed."""
    return max(batch_range(ask.experiment.batch)[1] // ask.pods, 1)


def with_batches(ask: SearchRequest, found: Ints) -> tuple[Ints, Ints]:
    """Each placement with each batch that it would take."""
    sizes = as_sizes(links.sizes(found))
    sides = batches_next_to(ask.experiment.batch, ask.pods * replicas_in_pod(sizes))
    batch = np.concatenate(sides)
    served = batch > 0
    return np.concatenate([found] * len(sides))[served], batch[served]


def policies(ask: SearchRequest) -> list[Policy]:
    """Policies to price. Offloading is never chosen unasked: few host links have a known rate."""
    if ask.experiment.remat != "auto":
        return [policy(ask.experiment.remat)]
    return [p for p in POLICIES.values() if not p.needs_host]


def price(
    ask: SearchRequest, factors: Ints, batch: Ints, margin: float
) -> tuple[Candidates, float]:
    """All rows under all policies, each with the fewest microbatches that fit."""
    limit = ask.chip.hbm_usable_bytes.value * (1 - margin)
    parts, smallest = [], np.inf
    for remat in policies(ask):
        microbatches, least = fewest_microbatches(ask, factors, batch, remat, limit)
        smallest = min(smallest, least)
        fits = microbatches > 0
        parts.append(priced(ask, factors[fits], batch[fits], microbatches[fits], remat))
    return joined(parts), float(smallest)


def joined(parts: list[Candidates]) -> Candidates:
    columns = [[getattr(part, field.name) for part in parts] for field in fields(Candidates)]
    return Candidates(*map(np.concatenate, columns))


def fewest_microbatches(
    ask: SearchRequest, factors: Ints, batch: Ints, remat: Policy, limit_bytes: float
) -> tuple[Ints, float]:
    """For each row the fewest microbatches that fit (more only cost time), zero where none does.

    Memory knows meshes, not links, so each mesh and batch is asked once.
    """
    if not len(batch):
        return np.zeros(0, np.int64), np.inf
    keys, back = np.unique(
        np.column_stack([links.sizes(factors), batch]), axis=0, return_inverse=True
    )
    per_replica = keys[:, -1] // (ask.pods * replicas_in_pod(as_sizes(keys)))
    counts = {int(k): links.divisors(int(k)) for k in np.unique(per_replica)}
    rows = np.repeat(np.arange(len(keys)), [len(counts[int(k)]) for k in per_replica])
    tries = np.concatenate([counts[int(k)] for k in per_replica])
    sizes = as_sizes(keys[rows])
    peaks = peak_bytes(layout_of(ask, sizes, keys[rows, -1], tries, remat, links.NO_LINKS))
    fewest = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(fewest, rows[peaks <= limit_bytes], tries[peaks <= limit_bytes])
    fewest[fewest == np.iinfo(np.int64).max] = 0
    return fewest[back.reshape(-1)], float(peaks.min())


def priced(
    ask: SearchRequest, factors: Ints, batch: Ints, microbatches: Ints, remat: Policy
) -> Candidates:
    """The cost of each row per token of the batch."""
    found = links.links_of(ask.torus, factors)
    layout = layout_of(ask, as_sizes(links.sizes(factors)), batch, microbatches, remat, found)
    time = step_time(layout, time_lines(layout))
    tokens = batch * ask.experiment.batch.length
    index = list(POLICIES).index(remat.name)
    return Candidates(
        factors,
        batch,
        microbatches,
        np.full(len(batch), index),
        time.lower_s / tokens,
        time.unoverlapped_s / tokens,
    )


def ranked(ask: SearchRequest, candidates: Candidates, most: int) -> list[Choice]:
    """The best choice, then the best of each other mesh, by RULE."""
    meshes = links.sizes(candidates.factors)
    left = np.ones(len(candidates), bool)
    choices: list[Choice] = []
    while left.any() and len(choices) < most:
        row = best(ask, candidates, left)
        choices.append(candidates.choice(row))
        left &= (meshes != meshes[row]).any(axis=1)
    return choices


def best(ask: SearchRequest, candidates: Candidates, among: np.ndarray) -> int:
    """The row that RULE picks; what is still equal falls to the first enumerated."""
    cost = candidates.cost_s_per_token
    among = among & (cost <= cost[among].min() * (1 + TIE))
    moved = np.abs(candidates.sequences - ask.experiment.batch.sequences)
    among = among & (moved == moved[among].min())
    return int(np.argmin(np.where(among, cost, np.inf)))

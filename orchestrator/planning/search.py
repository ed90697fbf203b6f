"""The search: prices every realizable way to run, and chooses the fastest."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain, combinations_with_replacement, pairwise, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, LatentAttention, Network, Tensor
from orchestrator.network.mesh_axes import ICI_AXES, SLICE_REPLICAS
from orchestrator.network.rematerialization import (
    AUTO,
    POLICIES,
    Policy,
    Treatments,
    policy,
    remat_of,
)
from orchestrator.planning.fastest_ways import LeastMemory, fastest_ways, joined
from orchestrator.planning.feasibility import (
    Sizes,
    batch_range,
    batches_next_to,
    placements,
    replicas_in_pod,
    sharing,
    sizes_by_name,
    usable_axes,
)
from orchestrator.planning.layout import Number, Training
from orchestrator.planning.step_work import knows_host, transfers
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
    divisors,
    find_links,
    make_torus,
    plain_links,
    rows_of_links,
)
from orchestrator.values.fields import Treatment
from orchestrator.values.model import Model
from orchestrator.values.spec import Experiment, MeshRequest, Remat, Spec

# Policies of rematerialization as arrays, and those that a search goes through.


TREATMENTS: tuple[Treatment, ...] = ("keep", "offload", "recompute")


@dataclass(frozen=True)
class PolicyArray:
    """A policy at each place of an array; `treated` has a tensor's treatments, by their number."""

    treated: dict[str, NDArray[np.int8]]

    def share(self, tensor: str, treatment: Treatment) -> NDArray[np.bool_]:
        return np.equal(self.treated[tensor], TREATMENTS.index(treatment))

    @property
    def needs_host(self) -> bool:
        return any(self.share(tensor, "offload").any() for tensor in self.treated)

    def __getitem__(self, places: Any) -> "PolicyArray":
        return PolicyArray({name: array[places] for name, array in self.treated.items()})


def policy_array(policies: Sequence[Policy], model: Model) -> PolicyArray:
    """These policies, one after another."""
    treated = {
        tensor.name: np.array([TREATMENTS.index(one.treatment(tensor.name)) for one in policies],
                              np.int8)
        for tensor in decoder(model).tensors
    }  # fmt: skip
    return PolicyArray(treated)


def searched_policies(chip: Chip, experiment: Experiment) -> tuple[Policy, ...]:
    """The policies that a request allows: its own, or all where it leaves them to the search."""
    if experiment.remat != AUTO:
        return (policy(experiment.remat),)
    return all_policies(experiment.model, offloads=knows_host(chip))


@cache
def all_policies(model: Model, *, offloads: bool) -> tuple[Policy, ...]:
    """Every way to treat the tensors of a block, but for two that come to nothing new.

    Queries, keys and values are treated alike: keys and values are small. So are all latents. Of
    the MLP's inputs, which are of one size, the first is never treated better than the next.
    """
    network = decoder(model)
    treatments = [one for one in TREATMENTS if offloads or one != "offload"]
    inputs = [one for one in treatments if one != "recompute"]
    first, *others, of_mlp = tensor_groups(network)
    groups = [first, *others]
    mlp = list(combinations_with_replacement(treatments[::-1], len(of_mlp)))
    groups += [(name,) for name in of_mlp]
    found = (
        policy_of(groups, (of_input, *chosen, *inside))
        for of_input in inputs
        for chosen in product(treatments, repeat=len(others))
        for inside in mlp[::-1]
    )
    # An MLP without a gate has fewer tensors, and policies with the names of those with one.
    names = {treatments_of(known, network): known for known in POLICIES.values()}
    return tuple(names.get(treatments_of(one, network), one) for one in found)


def treatments_of(one: Policy, network: Network) -> tuple[Treatment, ...]:
    """How a policy treats the tensors of a network, in their order."""
    return tuple(one.treatment(tensor.name) for tensor in network.tensors)


def tensor_groups(network: Network) -> list[tuple[str, ...]]:
    """Tensors of blocks that are treated alike: the input, the latents if attention has them, its
    inputs, its result, the stream after it; and the inputs of the MLP, each of which is treated for
    itself.
    """
    alike = zip(*map(tensors_by_place, network.blocks), strict=True)
    return [tuple(dict.fromkeys(one.name for one in chain(*groups))) for groups in alike]


def tensors_by_place(block: Block) -> list[list[Tensor]]:
    attention, mlp = block.attention, block.mlp
    latents = attention.latents if isinstance(attention, LatentAttention) else ()
    return [
        [block.input],
        *([[one.output for one in latents]] if latents else []),
        [one.output for one in attention.inputs],
        [attention.result],
        [attention.output.output],
        [one.output for one in mlp.inputs],
    ]


def policy_of(groups: list[tuple[str, ...]], chosen: tuple[Treatment, ...]) -> Policy:
    """The policy that treats each group as chosen."""
    kept, offloaded = (
        frozenset(
            name
            for group, one in zip(groups, chosen, strict=True)
            if one == treatment
            for name in group
        )
        for treatment in ("keep", "offload")
    )
    return Policy(keep=kept, offload=offloaded)


# `remat: auto` leaves this share of HBM, and of the host's memory, free: so far the forecast may be
# off (docs/proof-bench.md).
MEMORY_MARGIN = 0.05
CELLS = 2**18  # of an array that is priced at once: more of them leave the processor's cache


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
    remat: Remat

    @property
    def mesh(self) -> dict[str, int]:
        """The size of each mesh axis inside a pod."""
        columns = zip(*self.factors, strict=True)
        return {axis: prod(column) for axis, column in zip(ICI_AXES, columns, strict=True)}


@dataclass(frozen=True)
class Candidates:
    """One row a candidate: factors of its placement, what it runs, and what it costs.

    `remat` is a place in `policies`; `hidden` is what computation hides of transfers to the host.
    """

    factors: Ints
    sequences: Ints
    microbatches: Ints
    remat: Ints
    lower_s_per_token: Floats
    unoverlapped_s_per_token: Floats
    hidden_s_per_token: Floats
    policies: tuple[Policy, ...]

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def cost_s_per_token(self) -> Floats:
        """What the ranking begins with."""
        overlapping = self.unoverlapped_s_per_token - self.hidden_s_per_token
        return (self.lower_s_per_token + overlapping) / 2

    @property
    def offloads(self) -> Bools:
        """Whether a row offloads anything to the host."""
        return np.array([one.needs_host for one in self.policies], bool)[self.remat]

    def rows(self, rows: Ints) -> "Candidates":
        """Some of the rows, in that order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ROWS})

    @staticmethod
    def join(several: Sequence["Candidates"]) -> "Candidates":
        """The rows of several searches with the same policies, one after another."""
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(one, name) for one in several]) for name in ROWS
        }
        return replace(several[0], **joined)

    def choice(self, row: int) -> Choice:
        return Choice(
            factors=tuple(tuple(int(f) for f in axis) for axis in self.factors[row]),
            sequences=int(self.sequences[row]),
            microbatches=int(self.microbatches[row]),
            remat=remat_of(self.policies[self.remat[row]]),
        )


ROWS = tuple(one.name for one in fields(Candidates) if one.name != "policies")


@dataclass(frozen=True)
class SearchResult:
    """What a search went through. `smallest_bytes` is the least peak of any realizable plan,
    `smallest_host_bytes` the least memory of the host for one chip where HBM suffices.

    `margin` is the share of memory that the candidates leave free.
    """

    enumerated: int
    realizable: int
    smallest_bytes: float
    smallest_host_bytes: float
    margin: float
    candidates: Candidates


def search_request(spec: Spec) -> SearchRequest:
    """What a spec asks for."""
    chip = catalog.chip_of(spec.resources)
    topology = catalog.topology(chip, spec.resources.topology)
    return SearchRequest(
        chip=chip,
        topology=topology,
        torus=make_torus(chip, topology),
        experiment=spec.experiment,
        mesh=spec.resources.mesh,
        pods=spec.resources.pods.max,
    )


def make_layout(
    request: SearchRequest,
    sizes: dict[str, Number],
    batch: Number,
    microbatches: Number,
    remat: Treatments,
    group_links: Links,
) -> Training:
    """Meshes and what they run; plain numbers make one layout, arrays many."""
    return Training(
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


def layout_of_choice(request: SearchRequest, choice: Choice) -> Training:
    """The layout of one choice, as plain numbers."""
    return make_layout(
        request,
        choice.mesh,
        choice.sequences,
        choice.microbatches,
        policy(choice.remat),
        plain_links(request.torus, factors_of(choice)),
    )


def layout_of_rows(request: SearchRequest, candidates: Candidates, rows: Ints) -> Training:
    """The layouts of some candidates, as arrays."""
    factors = candidates.factors[rows]
    treated = policy_array(candidates.policies, request.experiment.model)
    return make_layout(
        request,
        sizes_by_name(axis_sizes(factors)),
        candidates.sequences[rows],
        candidates.microbatches[rows],
        treated[candidates.remat[rows]],
        find_links(request.torus, factors),
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
    rows, batch = with_batches(request, realizable)
    factors = realizable[rows]
    auto = experiment.remat == AUTO
    margin = MEMORY_MARGIN if auto else 0.0
    candidates, least = price(request, factors, batch, margin)
    if auto and not len(candidates):
        margin = 0.0
        candidates, least = price(request, factors, batch, margin)
    count = count_placements(request.torus, usable_axes(experiment.model))
    return SearchResult(
        enumerated=count,
        realizable=len(np.unique(rows)),
        smallest_bytes=least.hbm_bytes,
        smallest_host_bytes=least.host_bytes,
        margin=margin,
        candidates=candidates,
    )


def most_replicas(request: SearchRequest) -> int:
    """Replicas within a pod that the largest batch can feed."""
    batch = request.experiment.batch
    return max(batch_range(batch)[1] // (request.pods * (batch.microbatches or 1)), 1)


def multiple_of(request: SearchRequest, sizes: Sizes) -> Ints:
    """What the batch of each mesh is a multiple of: replicas times requested microbatches."""
    return request.pods * replicas_in_pod(sizes) * (request.experiment.batch.microbatches or 1)


def with_batches(request: SearchRequest, factors: Ints) -> tuple[Ints, Ints]:
    """Places of placements, each with each batch that it would take."""
    multiples = multiple_of(request, sizes_by_name(axis_sizes(factors)))
    below, above = batches_next_to(request.experiment.batch, multiples)
    batch = np.concatenate([below, above])
    exists = batch > 0
    places = np.arange(len(factors))
    return np.concatenate([places, places])[exists], batch[exists]


def price(
    request: SearchRequest, factors: Ints, batch: Ints, margin: float
) -> tuple[Candidates, LeastMemory]:
    """Each row under the policies, and with the microbatches, that may be its fastest."""
    policies = searched_policies(request.chip, request.experiment)
    keys, key_of_row = meshes_with_batch(factors, batch)
    key, microbatches = splits(request, keys, request.pods)
    treated = policy_array(policies, request.experiment.model)
    parts = []
    for part in parts_of_keys(key, max(CELLS // len(policies), 1)):
        key_of_column = key[part]
        layout = make_layout(
            request, sizes_by_name(keys[key_of_column]), keys[key_of_column, -1],
            microbatches[part], treated[:, None], NO_LINKS,
        )  # fmt: skip
        parts.append(fastest_ways(layout, key_of_column, margin))
    ways, least = joined(parts)
    row, way = matching(key_of_row, ways.key)
    remat = ways.remat[way]
    links = rows_of_links(find_links(request.torus, factors), row)
    layout = make_layout(
        request, sizes_by_name(axis_sizes(factors)[row]), batch[row], ways.microbatches[way],
        treated[remat], links,
    )  # fmt: skip
    return price_layouts(layout, factors[row], remat, policies), least


def meshes_with_batch(factors: Ints, batch: Ints) -> tuple[Ints, Ints]:
    """Each mesh and batch once, and which of them a row has: memory depends on no link."""
    rows = np.column_stack([axis_sizes(factors), batch])
    keys, key_of_row = np.unique(rows, axis=0, return_inverse=True)
    return keys, key_of_row.reshape(-1)


def splits(request: SearchRequest, keys: Ints, pods: Number) -> tuple[Ints, Ints]:
    """Every number of microbatches of each mesh and batch, or the requested one, ascending; first
    the place of its key.
    """
    requested = request.experiment.batch.microbatches
    per_replica = keys[:, -1] // (pods * replicas_in_pod(sizes_by_name(keys)))
    counts = {
        int(k): [requested] if requested else divisors(int(k)) for k in np.unique(per_replica)
    }
    key = np.repeat(np.arange(len(keys)), [len(counts[int(k)]) for k in per_replica])
    listed = [counts[int(k)] for k in per_replica]
    return key, np.array([n for numbers in listed for n in numbers], np.int64)


def parts_of_keys(key: Ints, size: int) -> list[slice]:
    """Columns in parts of about a size, each with all columns of its keys."""
    starts = np.searchsorted(key, key[::size]).tolist()
    return [slice(*ends) for ends in pairwise(sorted({*starts, len(key)}))] or [slice(0, 0)]


def matching(key_of_row: Ints, key_of_way: Ints) -> tuple[Ints, Ints]:
    """Pairs of a row and a way to run it; ways are in the order of their keys."""
    first, last = (np.searchsorted(key_of_way, key_of_row, side) for side in ("left", "right"))
    row = np.repeat(np.arange(len(key_of_row)), last - first)
    before = np.repeat(np.cumsum(last - first) - (last - first), last - first)
    return row, np.repeat(first, last - first) + np.arange(len(row)) - before


def price_layouts(
    layout: Training, factors: Ints, remat: Ints, policies: tuple[Policy, ...]
) -> Candidates:
    """The cost of each row per token of the batch."""
    time = step_time(layout, time_lines(layout))
    tokens = layout.sequences * layout.length
    return Candidates(
        factors,
        layout.sequences,
        layout.microbatches,
        remat,
        time.lower_s / tokens,
        time.unoverlapped_s / tokens,
        transfers(layout).hidden_s() / tokens,
        policies,
    )

"""Policies of rematerialization as arrays, and those that a search goes through."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations_with_replacement, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.catalog import Chip
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, LatentAttention, Network, Tensor
from orchestrator.network.rematerialization import AUTO, POLICIES, Policy, policy
from orchestrator.plan.host import knows_host
from orchestrator.types.model import Model
from orchestrator.types.spec import Experiment
from orchestrator.types.spec_fields import Treatment

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

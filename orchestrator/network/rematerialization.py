"""Rematerialization policies: what happens to each tensor of a block."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.errors import UnknownName
from orchestrator.network import attention, mlp
from orchestrator.network.decoder import BLOCK_INPUT

Treatment = Literal["keep", "offload", "recompute"]


@dataclass(frozen=True)
class Policy:
    """Tensors that wait for the backward pass in HBM or on the host; it recomputes all others.

    The block's input is never recomputed. `attention` stays with its log-sum-exp, so that the
    attention kernel does not run again.
    """

    name: str
    keep: frozenset[str] = frozenset({BLOCK_INPUT})
    offload: frozenset[str] = frozenset()

    def treatment(self, tensor: str) -> Treatment:
        if tensor in self.offload:
            return "offload"
        return "keep" if tensor in self.keep else "recompute"

    def recomputes(self, tensor: str) -> bool:
        return self.treatment(tensor) == "recompute"

    @property
    def needs_host(self) -> bool:
        return bool(self.offload)


def keeping(name: str, *tensors: str) -> Policy:
    """A policy that keeps these tensors and each block's input."""
    return Policy(name, keep=frozenset({BLOCK_INPUT, *tensors}))


def offloading(name: str, *tensors: str) -> Policy:
    """A policy that offloads these tensors and keeps each block's input."""
    return Policy(name, offload=frozenset(tensors))


POLICIES = {
    policy.name: policy
    for policy in (
        keeping("none", *attention.TENSORS, *mlp.TENSORS),
        keeping("keep_qkv", *attention.TENSORS),
        keeping("keep_mlp", *mlp.TENSORS),
        keeping("keep_attention", "attention"),
        keeping("full"),
        offloading("offload_qkv", *attention.TENSORS),
        Policy("offload_input", keep=frozenset(), offload=frozenset({BLOCK_INPUT})),
    )
}


def policy(name: str) -> Policy:
    """The policy of that name; unknown is an error that lists the known."""
    if name not in POLICIES:
        raise UnknownName("remat policy", name, [*POLICIES, "auto"])
    return POLICIES[name]

"""Rematerialization policies: what happens to each tensor of a block."""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from orchestrator.errors import UnknownName
from orchestrator.network import attention, mlp
from orchestrator.network.decoder import BLOCK_INPUT
from orchestrator.types.spec import Remat, TensorTreatments
from orchestrator.types.spec_fields import Treatment

AUTO = "auto"


class Treatments(Protocol):
    """One policy, or an array of policies."""

    def share(self, tensor: str, treatment: Treatment) -> Any:
        """One where the tensor is treated so, zero elsewhere."""

    @property
    def needs_host(self) -> bool:
        """Whether any tensor goes to the host."""


@dataclass(frozen=True)
class Policy:
    """Tensors that wait for the backward pass in HBM or on the host; it recomputes all others.

    The block's input is never recomputed. `attention` stays with its log-sum-exp, so that the
    attention kernel does not run again.
    """

    keep: frozenset[str] = frozenset({BLOCK_INPUT})
    offload: frozenset[str] = frozenset()

    def treatment(self, tensor: str) -> Treatment:
        if tensor in self.offload:
            return "offload"
        return "keep" if tensor in self.keep else "recompute"

    def share(self, tensor: str, treatment: Treatment) -> int:
        return int(self.treatment(tensor) == treatment)

    def recomputes(self, tensor: str) -> bool:
        return self.treatment(tensor) == "recompute"

    @property
    def needs_host(self) -> bool:
        return bool(self.offload)


def keeping(*tensors: str) -> Policy:
    """A policy that keeps these tensors and each block's input."""
    return Policy(keep=frozenset({BLOCK_INPUT, *tensors}))


def offloading(*tensors: str) -> Policy:
    """A policy that offloads these tensors, and keeps each block's input unless it is one."""
    return Policy(keep=frozenset({BLOCK_INPUT}) - {*tensors}, offload=frozenset(tensors))


POLICIES = {
    "none": keeping(*attention.TENSORS, *mlp.TENSORS),
    "keep_qkv": keeping(*attention.TENSORS),
    "keep_mlp": keeping(*mlp.TENSORS),
    "keep_attention": keeping("attention"),
    "full": keeping(),
    "offload_qkv": offloading(*attention.TENSORS),
    "offload_input": offloading(BLOCK_INPUT),
}


def policy(remat: Remat) -> Policy:
    """The policy of that name, or that a mapping describes; an unknown name is an error."""
    if isinstance(remat, TensorTreatments):
        treated = asdict(remat)
        kept, offloaded = (
            frozenset(tensor for tensor, treatment in treated.items() if treatment == one)
            for one in ("keep", "offload")
        )
        return Policy(keep=kept, offload=offloaded)
    if remat not in POLICIES:
        raise UnknownName("remat policy", remat, [*POLICIES, AUTO])
    return POLICIES[remat]


def remat_of(one: Policy) -> Remat:
    """The policy as a spec has it: by name if it has one, else tensor by tensor."""
    names = [name for name, known in POLICIES.items() if known == one]
    if names:
        return names[0]
    treated = {tensor: one.treatment(tensor) for tensor in asdict(TensorTreatments())}
    return TensorTreatments(**treated)  # type: ignore[arg-type]


def treatments(one: Policy, *, latent: bool, gated: bool) -> dict[str, Treatment]:
    """What the policy does to the tensors that a model has."""
    absent = {*(() if latent else ("latent",)), *(() if gated else ("gate",))}
    return {name: one.treatment(name) for name in asdict(TensorTreatments()) if name not in absent}


def text_of(remat: Remat) -> str:
    """The policy as a person writes it: `full`, or `{block_input: offload, query: keep}`."""
    if isinstance(remat, str):
        return remat
    usual = asdict(TensorTreatments())
    changes = {tensor: what for tensor, what in asdict(remat).items() if what != usual[tensor]}
    return "{" + ", ".join(f"{tensor}: {what}" for tensor, what in changes.items()) + "}"


def summary_of(remat: Remat) -> str:
    """The policy in a few characters: its name, or how many tensors it keeps and offloads."""
    if isinstance(remat, str):
        return remat
    treated = [*asdict(remat).values()]
    counts = [f"{what} {treated.count(what)}" for what in ("keep", "offload") if what in treated]
    return ", ".join(counts)

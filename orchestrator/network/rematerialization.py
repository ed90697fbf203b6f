"""Rematerialization policies: what happens to each tensor of a block."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from orchestrator.errors import UnknownName
from orchestrator.network import attention, mlp
from orchestrator.network.decoder import BLOCK_INPUT
from orchestrator.values.codec import Treatment
from orchestrator.values.spec import Remat, TensorTreatments

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
    """Tensors that wait for the backward pass in HBM or on the host; it recomputes all others but
    the block's input. `attention` stays with its log-sum-exp, so that its kernel runs once.
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


def _keeping(*tensors: str) -> Policy:
    return Policy(keep=frozenset({BLOCK_INPUT, *tensors}))


def _offloading(*tensors: str) -> Policy:
    """A policy that offloads these tensors, and keeps each block's input unless it is one."""
    return Policy(keep=frozenset({BLOCK_INPUT}) - {*tensors}, offload=frozenset(tensors))


POLICIES = {
    "none": _keeping(*attention.TENSORS, *mlp.TENSORS),
    "keep_qkv": _keeping(*attention.TENSORS),
    "keep_mlp": _keeping(*mlp.TENSORS),
    "keep_attention": _keeping("attention"),
    "full": _keeping(),
    "offload_qkv": _offloading(*attention.TENSORS),
    "offload_input": _offloading(BLOCK_INPUT),
}


def policy(remat: Remat) -> Policy:
    """The policy of that name, or that a mapping describes; an unknown name is an error."""
    if isinstance(remat, TensorTreatments):
        treated = asdict(remat)
        kept, offloaded = (
            frozenset(tensor for tensor, treatment in treated.items() if treatment == kind)
            for kind in ("keep", "offload")
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


# MaxText's names of rematerialization policies and of the tensors of a block.
TENSORS = {
    "query_proj": "query",
    "key_proj": "key",
    "value_proj": "value",
    "q": "query",
    "k": "key",
    "v_proj": "value",
    "qkv_proj": "query key value",
    "query_wa_proj": "latent",
    "kv_wa_proj": "latent",
    "mla_q": "latent",
    "mla_kv": "latent",
    "context": "attention",
    "out_proj": "mlp_input",
    "mlpwi_0": "gate",
    "mlpwi_1": "up",
    "mlpwi": "gate up",
    "moe_mlpwi_0": "gate",
    "moe_mlpwi_1": "up",
    "moe_mlpwo": "",
    "mlpwo": "",  # a layer's result: the next layer's input, which is always kept
    "decoder_layer_input": "",
}
_QKV = frozenset({"query", "key", "value"})
_DOTS = _QKV | {"mlp_input", "gate", "up"}  # results of matmuls; the attention is none
NAMED = {
    "full": POLICIES["full"],
    "none": POLICIES["none"],
    "minimal": _keeping(*_DOTS),
    "minimal_flash": _keeping(*_DOTS, "attention"),
    "minimal_with_context": _keeping(*_DOTS, "attention"),
    "save_dot_with_context_except_mlp": _keeping(*_QKV, "attention", "mlp_input"),
    "save_dot_except_mlp": _keeping(*_QKV, "mlp_input"),
    "save_dot_except_mlpwi": _keeping(*_QKV, "mlp_input"),  # `mlpwo` is the next block's input
    "save_qkv_proj": _keeping(*_QKV),
    "save_out_proj": _keeping("mlp_input"),
    "qkv_proj_offloaded": _offloading(*_QKV),
    "minimal_offloaded": _offloading(*_DOTS),
}


def custom(places: Mapping[str, str]) -> Policy:
    """The policy that keeps tensors where they stand in `places`: device, offload or remat."""
    tensors: dict[str, set[str]] = {"device": set(), "offload": set(), "remat": set()}
    for name, where in places.items():
        if name not in TENSORS:
            raise UnknownName("tensor of a MaxText policy", name, [*TENSORS])
        tensors[where].update(TENSORS[name].split())
    offloads_input = places.get("decoder_layer_input") == "offload"
    tensors["offload" if offloads_input else "device"].add(BLOCK_INPUT)
    return Policy(keep=frozenset(tensors["device"]), offload=frozenset(tensors["offload"]))

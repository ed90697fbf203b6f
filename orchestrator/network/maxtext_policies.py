"""MaxText's names of rematerialization policies and of the tensors of a block."""

from collections.abc import Mapping

from orchestrator.errors import UnknownName
from orchestrator.network.decoder import BLOCK_INPUT
from orchestrator.network.rematerialization import POLICIES, Policy, keeping, offloading

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
QKV = frozenset({"query", "key", "value"})
DOTS = QKV | {"mlp_input", "gate", "up"}  # results of matmuls; the attention is none
NAMED = {
    "full": POLICIES["full"],
    "none": POLICIES["none"],
    "minimal": keeping(*DOTS),
    "minimal_flash": keeping(*DOTS, "attention"),
    "minimal_with_context": keeping(*DOTS, "attention"),
    "save_dot_with_context_except_mlp": keeping(*QKV, "attention", "mlp_input"),
    "save_dot_except_mlp": keeping(*QKV, "mlp_input"),
    "save_dot_except_mlpwi": keeping(*QKV, "mlp_input"),  # `mlpwo` is the next block's input
    "save_qkv_proj": keeping(*QKV),
    "save_out_proj": keeping("mlp_input"),
    "qkv_proj_offloaded": offloading(*QKV),
    "minimal_offloaded": offloading(*DOTS),
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

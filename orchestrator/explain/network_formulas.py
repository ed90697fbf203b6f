"""Parameters and FLOPs as formulas in the book's letters, from the description of the network."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from orchestrator.explain.formula import Formula
from orchestrator.network.description import Block, Network, Sublayer, Weight

# Logical axis → the book's letter, in the order in which a product names them.
LETTERS = {
    "embed": "D",
    "residual": "D",
    "ff": "F",
    "heads": "N",
    "kv_heads": "K",
    "head_dim": "H",
    "vocab": "V",
    "expert_ff": "F_exp",
    "shared_ff": "F_shared",
    "expert_embed": "D",
    "experts": "E",
    "routed_experts": "E",
    "value_dim": "H_v",
    "nope_dim": "H_nope",
    "rope_dim": "H_rope",
    "query_rank": "R_q",
    "query_latent": "R_q",
    "kv_rank": "R_kv",
    "kv_latent": "R_kv",
}
ACTIVE = LETTERS | {"experts": "k"}  # of experts, a token is multiplied by so many
FORWARD_AND_BACKWARD = 3
CAUSAL_PRODUCTS = 2  # two products of two FLOPs a pair of positions, of which half are causal


def parameter_formulas(network: Network) -> list[Formula]:
    """What each part of the network has, and what every token is multiplied by."""
    unit = "parameters"
    ffw = in_all_layers(network, lambda block: matrices(block.mlp))
    attention = in_all_layers(network, lambda block: matrices(block.attention))
    blocks = in_all_layers(network, lambda block: elements(block.vectors))
    norms = f"{blocks} + {elements(network.norm.weights)}"
    active = "P_ffw"
    experts, used = list[Formula](), list[Formula]()
    if network.mixture_layers:
        active = "P_act"
        multiplied = in_all_layers(network, lambda block: active_matrices(block.mlp))
        experts = [Formula("FFW of one token", active, multiplied, unit)]
        vectors = "P_norm"
        if any(is_of_experts(one) for block in network.blocks for one in block.vectors):
            vectors = "P_norm_act"
            met = in_all_layers(network, lambda block: elements(block.vectors, ACTIVE))
            met = f"{met} + {elements(network.norm.weights)}"
            experts.append(Formula("norms and biases of one token", vectors, met, unit))
        used = [Formula("used by one token", "P_used", f"P_act + P_att + P_voc + {vectors}", unit)]
    return [
        Formula("FFW", "P_ffw", ffw, unit),
        *experts,
        Formula("attention", "P_att", attention, unit),
        Formula("vocabulary", "P_voc", elements(network.tables), unit),
        Formula("norms", "P_norm", norms, unit),
        Formula("all", "P", "P_ffw + P_att + P_voc + P_norm", unit),
        *used,
        Formula("multiplied by every token", "P_mat", f"{active} + P_att + {head(network)}", unit),
    ]


def is_of_experts(weight: Weight) -> bool:
    return weight.dimensions[0].axis == "experts"


def flop_formulas(network: Network) -> list[Formula]:
    """The book's rule of thumb, and the definition that MFU uses here."""
    attention = in_all_layers(network, attention_flops)
    used = "P_used" if network.mixture_layers else "P"
    windows = any(block.attention.scores.window for block in network.blocks)
    return [
        *([Formula("positions in a window", "S_loc", "min(S, S_win)", "tokens")] * windows),
        Formula("of a token, by 6 P", "f", f"6 * {used}", "FLOP"),
        Formula("of a token, as MFU counts", "f_mfu", f"6 * P_mat + {attention}", "FLOP"),
        Formula("of all tokens, by 6 P", "flops", "f * T", "FLOP"),
        Formula("of all tokens, as MFU counts", "flops_mfu", "f_mfu * T", "FLOP"),
    ]


def head(network: Network) -> str:
    """Parameters of the matmul that makes logits."""
    return elements([network.head])


def elements(weights: Iterable[Weight], letters: Mapping[str, str] = LETTERS) -> str:
    """The sum of the weights' sizes; alike ones are counted: `2 * D * H + 2 * D * K`."""
    sizes = Counter(product((one.axis for one in weight.dimensions), letters) for weight in weights)
    return " + ".join(f"{count} * {size}" if count > 1 else size for size, count in sizes.items())


def active_matrices(part: Sublayer) -> str:
    """Those that one token is multiplied by: of each weight of experts, as many as it goes to."""
    every = [one.weight for one in part.matmuls if one.share == 1]
    routed = [one.weight for one in part.matmuls if one.share < 1]
    return " + ".join(text for text in (elements(routed, ACTIVE), elements(every)) if text)


def product(axes: Iterable[str], letters: Mapping[str, str] = LETTERS) -> str:
    ordered = sorted((letters[axis] for axis in axes), key=[*letters.values()].index)
    return " * ".join(ordered)


def matrices(part: Sublayer) -> str:
    return elements(matmul.weight for matmul in part.matmuls)


def attention_flops(block: Block) -> str:
    """Forward and backward FLOPs of a token's attention in one layer."""
    scores, values = (
        [dimension.axis for dimension in tensor.dimensions]
        for tensor in (block.attention.queries, block.attention.result)
    )
    seen = "S" if block.attention.scores.window is None else "(2 * S_loc - S_loc * S_loc / S)"
    if scores == values:
        return f"{FORWARD_AND_BACKWARD} * {CAUSAL_PRODUCTS} * {seen} * {product(values)}"
    return f"{FORWARD_AND_BACKWARD} * {seen} * ({product(scores)} + {product(values)})"


def in_all_layers(network: Network, text_of: Callable[[Block], str]) -> str:
    """What blocks have, times the layers of their kind; kinds that have the same count as one."""
    layers: Counter[str] = Counter()
    for block, count in network.kinds:
        layers[text_of(block)] += count
    if len(layers) == 1:
        return f"{bracketed(*layers)} * L"
    return " + ".join(f"{bracketed(text)} * {count}" for text, count in layers.items())


def bracketed(text: str) -> str:
    return f"({text})" if "+" in text else text

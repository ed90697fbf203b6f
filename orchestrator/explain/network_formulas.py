"""Parameters and FLOPs as formulas in the book's letters, from the description of the network."""

from collections import Counter
from collections.abc import Iterable

from orchestrator.explain.formula import Formula
from orchestrator.network.description import Network, Weight

# Logical axis → the book's letter, in the order in which a product names them.
LETTERS = {
    "embed": "D",
    "residual": "D",
    "ff": "F",
    "heads": "N",
    "kv_heads": "K",
    "head_dim": "H",
    "vocab": "V",
}
FORWARD_AND_BACKWARD = 3
CAUSAL_PRODUCTS = 2  # two products of two FLOPs a pair of positions, of which half are causal


def parameter_formulas(network: Network) -> list[Formula]:
    """What each part of the network has, and what every token is multiplied by."""
    block, unit = network.block, "parameters"
    matrices = {
        "P_ffw": [matmul.weight for matmul in block.mlp.matmuls],
        "P_att": [matmul.weight for matmul in block.attention.matmuls],
    }
    norms = f"{in_all_layers(elements(block.norms))} + {elements([network.norm])}"
    return [
        Formula("FFW", "P_ffw", in_all_layers(elements(matrices["P_ffw"])), unit),
        Formula("attention", "P_att", in_all_layers(elements(matrices["P_att"])), unit),
        Formula("vocabulary", "P_voc", elements(network.tables), unit),
        Formula("norms", "P_norm", norms, unit),
        Formula("all", "P", "P_ffw + P_att + P_voc + P_norm", unit),
        Formula("multiplied by every token", "P_mat", f"P_ffw + P_att + {head(network)}", unit),
    ]


def flop_formulas(network: Network) -> list[Formula]:
    """The book's rule of thumb, and the definition that MFU uses here."""
    width = product(dimension.axis for dimension in network.block.attention.result.dimensions)
    attention = f"{FORWARD_AND_BACKWARD} * {CAUSAL_PRODUCTS} * S * {width} * L"
    return [
        Formula("of a token, by 6 P", "f", "6 * P", "FLOP"),
        Formula("of a token, as MFU counts", "f_mfu", f"6 * P_mat + {attention}", "FLOP"),
        Formula("of all tokens, by 6 P", "flops", "f * T", "FLOP"),
        Formula("of all tokens, as MFU counts", "flops_mfu", "f_mfu * T", "FLOP"),
    ]


def head(network: Network) -> str:
    """Parameters of the matmul that makes logits."""
    return elements([network.head])


def elements(weights: Iterable[Weight]) -> str:
    """The sum of the weights' sizes; alike ones are counted: `2 * D * H + 2 * D * K`."""
    sizes = Counter(product(one.axis for one in weight.dimensions) for weight in weights)
    return " + ".join(f"{count} * {size}" if count > 1 else size for size, count in sizes.items())


def product(axes: Iterable[str]) -> str:
    letters = sorted((LETTERS[axis] for axis in axes), key=[*LETTERS.values()].index)
    return " * ".join(letters)


def in_all_layers(text: str) -> str:
    return f"({text}) * L" if "+" in text else f"{text} * L"

"""Rotary positions of a layer: which part of a head turns, and at what base."""

from math import log

from orchestrator.network.description import Rotary
from orchestrator.types.model import Model

# How a program names the products that exchange the halves of heads: they compute nothing.
EXCHANGE = "exchange_of_halves"


def rotary(model: Model, window: int | None) -> Rotary:
    """The rotary positions of a layer. Local layers may have a base of their own, and then nothing
    stretches their positions.
    """
    if window is not None and model.local_rope_theta is not None:
        return Rotary(rotated_width(model), model.local_rope_theta)
    return Rotary(rotated_width(model), model.rope_theta, model.rope_scaling)


def rotated_width(model: Model) -> int:
    """Numbers of a head that turn, the first of them; whole pairs. Of latent attention they are a
    part of their own.
    """
    if model.latent is not None:
        return model.latent.rope_dim
    return 2 * int(model.head_dim * model.rotary_share / 2)


def yarn_growth(factor: float, share: float = 1) -> float:
    """How much YaRN enlarges vectors for sequences longer by a factor; or a share of that."""
    return 0.1 * share * log(factor) + 1 if factor > 1 else 1.0

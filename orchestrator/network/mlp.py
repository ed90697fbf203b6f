"""The MLP of a block: matmuls to d_ff, an activation function, and a matmul back."""

from dataclasses import replace
from math import ceil
from typing import Any

from orchestrator.network.description import (
    MLP,
    Dimension,
    Matmul,
    Mixture,
    Tensor,
    Weight,
    bias_of,
    norm,
    norms_around,
    plain_norm,
)
from orchestrator.network.mesh_axes import GATHERED, GATHERED_OF_EXPERTS
from orchestrator.values.model import Activation, MixtureOfExperts, Model

TENSORS = ("gate", "up")


def _activation_of(model: Model) -> Activation:
    return model.activation or ("silu" if model.gated else "gelu")


def _inputs_of(model: Model) -> tuple[str, ...]:
    """The matmuls whose results the activation function takes."""
    return TENSORS if model.gated else TENSORS[1:]


def mlp(
    model: Model, stream: Tensor, residual_scale: float, shared: Dimension | None = None
) -> MLP:
    """The MLP of a model, or that of the experts that every token has: side by side, they are
    `shared` wide. `residual_scale` shrinks the initial weights of its output.
    """
    embed, ff = Dimension("embed", model.d_model), shared or Dimension("ff", model.d_ff)
    before, after = (None, None) if shared else norms_around(model, "mlp")
    prefix, part = ("shared_", "shared_experts.") if shared else ("", "")

    def matmul(name: str, weight: tuple[Dimension, ...], deviation: float, to: Tensor) -> Matmul:
        published = f"mlp.{part}{name}_proj"
        has_bias = model.mlp_bias and not shared
        bias = bias_of(name, to.dimensions, published) if has_bias else None
        return Matmul(Weight(f"{prefix}{name}", weight, deviation, published), to, bias=bias)

    return MLP(
        before=before,
        after=after,
        inputs=tuple(
            matmul(name, (embed, ff), model.d_model**-0.5, Tensor(name, "length", (ff,)))
            for name in _inputs_of(model)
        ),
        output=matmul("down", (ff, embed), residual_scale * ff.size**-0.5, stream),
        activation=_activation_of(model),
    )


# Mixtures of experts: a router chooses `top_k` of many MLPs for each token.
CHOICES = "choices"  # logical axis of the experts that a token goes to
EXPERTS = "experts"
BALANCE_BIAS = "balance_bias"  # no gradient moves it, but the load of its expert


def is_mixture(model: Model, layer: int) -> bool:
    """Whether a layer has experts: those after the first dense ones, or one in so many of them."""
    moe = model.moe
    if moe is None or layer < moe.dense_layers:
        return False
    return (layer - moe.dense_layers) % moe.every == moe.every - 1


def expert_rows(moe: MixtureOfExperts, length: int) -> int | None:
    """The most rows of an expert for one sequence; None where none is dropped."""
    if moe.capacity_factor is None:
        return None
    return min(ceil(moe.capacity_factor * length * moe.top_k / moe.experts), length)


def rows_of_token(moe: MixtureOfExperts, length: int) -> float:
    """Rows of all experts for each token, empty ones too."""
    rows = expert_rows(moe, length)
    return moe.top_k if rows is None else moe.experts * rows / length


def expert_d_ff(model: Model, moe: MixtureOfExperts) -> int:
    return moe.d_ff or model.d_ff


def mixture(model: Model, stream: Tensor, residual_scale: float) -> Mixture:
    """The mixture of a layer. `residual_scale` shrinks the initial weights of its outputs."""
    moe = model.moe
    assert moe is not None
    width, deviation = expert_d_ff(model, moe), model.d_model**-0.5
    embed, ff = Dimension(GATHERED_OF_EXPERTS, model.d_model), Dimension("expert_ff", width)
    experts, residual = Dimension(EXPERTS, moe.experts), Dimension("residual", model.d_model)
    choices = Dimension(CHOICES, moe.top_k), ff
    shared = Dimension("shared_ff", moe.shared_experts * width)
    before, after = norms_around(model, "mlp")

    def matmul(
        name: str, ends: tuple[Dimension, Dimension], deviation: float, output: Tensor,
        to: Dimension,
    ) -> Matmul:  # fmt: skip
        """Each expert has weights of its own for it, and each token does it with some."""
        published = f"mlp.experts.{{expert}}.{name}_proj"
        bias = bias_of(f"expert_{name}", (experts, to), published) if moe.biases else None
        weight = Weight(f"expert_{name}", (experts, *ends), deviation, published)
        return Matmul(weight, output, moe.top_k / moe.experts, bias)

    # The router scores the experts for a token; a bias spreads tokens over them.
    scored = (Dimension("routed_experts", moe.experts),)
    router, bias_name = Dimension(GATHERED, model.d_model), "mlp.gate.e_score_correction_bias"
    balance = Weight(BALANCE_BIAS, scored, None, bias_name, start=0.0)
    own: dict[str, Any] = {}
    if moe.with_mlp:
        # The mixture and the MLP see the stream, each through a norm of its own; so does the
        # router, whose norm has no weights but a scale of its input and of each expert's share.
        of_experts, added, after_mlp = (
            norm(model, name, f"{side}_feedforward_layernorm_{number}", residual)
            for name, side, number in (
                ("experts_norm", "pre", 2),
                ("experts_after_norm", "post", 2),
                ("shared_after_norm", "post", 1),
            )
        )
        own["shared"] = replace(mlp(model, stream, residual_scale), before=before, after=after_mlp)
        own["own_norms"] = of_experts, added, plain_norm(model)
        own["router_scales"] = (
            Weight("router_scale", (residual,), None, "router.scale"),
            Weight("expert_scale", scored, None, "router.per_expert_scale"),
        )
        before = None
    elif moe.shared_experts:
        own["shared"] = mlp(model, stream, residual_scale, shared)
    return Mixture(
        before=before,
        after=after,
        inputs=tuple(
            matmul(name, (embed, ff), deviation, Tensor(name, "length", choices), ff)
            for name in _inputs_of(model)
        ),
        output=matmul("down", (ff, embed), residual_scale * width**-0.5, stream, residual),
        activation=_activation_of(model),
        router=Matmul(
            Weight("router", (router, *scored), deviation, "mlp.gate"),
            Tensor("router", "length", scored),
            bias=bias_of("router", scored, "mlp.gate") if moe.router_bias else None,
        ),
        balance=balance if moe.balance_bias is not None else None,
        **own,
    )

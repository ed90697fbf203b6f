"""Mixtures of experts: a router chooses `top_k` of many MLPs for each token.

Shared experts, which every token has besides, are one MLP as wide as all of them.
"""

from math import ceil

from orchestrator.network.description import MLP, Dimension, Matmul, Mixture, Tensor, Weight
from orchestrator.network.mesh_axes import GATHERED, GATHERED_OF_EXPERTS
from orchestrator.network.mlp import activation_of, inputs_of
from orchestrator.network.norms import norms_around
from orchestrator.types.model import Model
from orchestrator.types.moe import MixtureOfExperts

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
    """The hidden width of an expert."""
    return moe.d_ff or model.d_ff


def mixture(model: Model, stream: Tensor, residual_scale: float) -> Mixture:
    """The mixture of a layer. `residual_scale` shrinks the initial weights of its outputs."""
    moe = model.moe
    assert moe is not None
    width, share = expert_d_ff(model, moe), moe.top_k / moe.experts
    embed, ff = Dimension(GATHERED_OF_EXPERTS, model.d_model), Dimension("expert_ff", width)
    outputs = Dimension("routed_experts", moe.experts)
    experts, choices = Dimension(EXPERTS, moe.experts), Dimension(CHOICES, moe.top_k)
    deviation = residual_scale * width**-0.5
    router = Matmul(
        Weight(
            "router", (Dimension(GATHERED, model.d_model), outputs), model.d_model**-0.5, "mlp.gate"
        ),
        Tensor("router", "length", (outputs,)),
        bias=Weight("router_bias", (outputs,), None, "mlp.gate.bias", start=0.0)
        if moe.router_bias
        else None,
    )

    def bias(name: str, to: Dimension) -> Weight | None:
        published = f"mlp.experts.{{expert}}.{name}_proj.bias"
        one = Weight(f"expert_{name}_bias", (experts, to), None, published, start=0.0)
        return one if moe.biases else None

    before, after = norms_around(model, "mlp")
    return Mixture(
        before=before,
        after=after,
        inputs=tuple(
            Matmul(
                Weight(f"expert_{name}", (experts, embed, ff), model.d_model**-0.5,
                       f"mlp.experts.{{expert}}.{name}_proj"),
                Tensor(name, "length", (choices, ff)),
                share,
                bias(name, ff),
            )
            for name in inputs_of(model)
        ),
        output=Matmul(
            Weight("expert_down", (experts, ff, embed), deviation,
                   "mlp.experts.{expert}.down_proj"),
            stream,
            share,
            bias("down", Dimension("residual", model.d_model)),
        ),
        activation=activation_of(model),
        router=router,
        balance=None
        if moe.balance_bias is None
        else Weight(BALANCE_BIAS, (outputs,), None, "mlp.gate.e_score_correction_bias", start=0.0),
        shared=shared_experts(model, moe, stream, residual_scale),
    )  # fmt: skip


def shared_experts(
    model: Model, moe: MixtureOfExperts, stream: Tensor, residual_scale: float
) -> MLP | None:
    """The experts that every token has, side by side as one MLP."""
    if not moe.shared_experts:
        return None
    width = moe.shared_experts * expert_d_ff(model, moe)
    embed, ff = Dimension("embed", model.d_model), Dimension("shared_ff", width)
    deviation = residual_scale * width**-0.5
    return MLP(
        before=None,
        after=None,
        inputs=tuple(
            Matmul(
                Weight(f"shared_{name}", (embed, ff), model.d_model**-0.5,
                       f"mlp.shared_experts.{name}_proj"),
                Tensor(name, "length", (ff,)),
            )
            for name in inputs_of(model)
        ),
        output=Matmul(
            Weight("shared_down", (ff, embed), deviation, "mlp.shared_experts.down_proj"), stream
        ),
        activation=activation_of(model),
    )  # fmt: skip

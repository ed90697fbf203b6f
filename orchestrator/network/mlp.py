"""The MLP of a block: matmuls to d_ff, an activation function, and a matmul back."""

from math import ceil

from orchestrator.network.description import (
    MLP,
    Dimension,
    Matmul,
    Mixture,
    Tensor,
    Weight,
    norms_around,
)
from orchestrator.network.mesh_axes import GATHERED, GATHERED_OF_EXPERTS
from orchestrator.values.model import Activation, MixtureOfExperts, Model

TENSORS = ("gate", "up")


def _activation_of(model: Model) -> Activation:
    return model.activation or ("silu" if model.gated else "gelu")


def _inputs_of(model: Model) -> tuple[str, ...]:
    """The matmuls whose results the activation function takes."""
    return TENSORS if model.gated else TENSORS[1:]


def mlp(model: Model, stream: Tensor, residual_scale: float) -> MLP:
    """The MLP of a model. `residual_scale` shrinks the initial weights of its output."""
    embed, ff = Dimension("embed", model.d_model), Dimension("ff", model.d_ff)
    deviation = residual_scale * model.d_ff**-0.5
    before, after = norms_around(model, "mlp")

    def matmul(name: str, weight: tuple[Dimension, ...], deviation: float, to: Tensor) -> Matmul:
        published = f"mlp.{name}_proj"
        bias = Weight(f"{name}_bias", to.dimensions, None, f"{published}.bias", start=0.0)
        return Matmul(
            Weight(name, weight, deviation, published), to, bias=bias if model.mlp_bias else None
        )

    return MLP(
        before=before,
        after=after,
        inputs=tuple(
            matmul(name, (embed, ff), model.d_model**-0.5, Tensor(name, "length", (ff,)))
            for name in _inputs_of(model)
        ),
        output=matmul("down", (ff, embed), deviation, stream),
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
    """The hidden width of an expert."""
    return moe.d_ff or model.d_ff


def mixture(model: Model, stream: Tensor, residual_scale: float) -> Mixture:
    """The mixture of a layer. `residual_scale` shrinks the initial weights of its outputs."""
    moe = model.moe
    assert moe is not None
    width = expert_d_ff(model, moe)
    embed, ff = Dimension(GATHERED_OF_EXPERTS, model.d_model), Dimension("expert_ff", width)
    of_choice = Dimension(CHOICES, moe.top_k)
    before, after = norms_around(model, "mlp")
    return Mixture(
        before=before,
        after=after,
        inputs=tuple(
            _of_experts(
                moe, name, (embed, ff), model.d_model**-0.5,
                Tensor(name, "length", (of_choice, ff)), ff,
            )
            for name in _inputs_of(model)
        ),
        output=_of_experts(
            moe, "down", (ff, embed), residual_scale * width**-0.5,
            stream, Dimension("residual", model.d_model),
        ),
        activation=_activation_of(model),
        router=_router_of(model, moe),
        balance=_balance_of(moe),
        shared=_shared_experts(model, moe, stream, residual_scale),
    )  # fmt: skip


def _of_experts(
    moe: MixtureOfExperts,
    name: str,
    dimensions: tuple[Dimension, Dimension],
    deviation: float,
    output: Tensor,
    to: Dimension,
) -> Matmul:
    """A matmul that each expert has weights of its own for, and each token does with some."""
    experts = Dimension(EXPERTS, moe.experts)
    published = f"mlp.experts.{{expert}}.{name}_proj"
    bias = Weight(f"expert_{name}_bias", (experts, to), None, f"{published}.bias", start=0.0)
    return Matmul(
        Weight(f"expert_{name}", (experts, *dimensions), deviation, published),
        output,
        moe.top_k / moe.experts,
        bias if moe.biases else None,
    )


def _router_of(model: Model, moe: MixtureOfExperts) -> Matmul:
    """The matmul that scores the experts for a token."""
    width, scored = Dimension(GATHERED, model.d_model), Dimension("routed_experts", moe.experts)
    bias = Weight("router_bias", (scored,), None, "mlp.gate.bias", start=0.0)
    return Matmul(
        Weight("router", (width, scored), model.d_model**-0.5, "mlp.gate"),
        Tensor("router", "length", (scored,)),
        bias=bias if moe.router_bias else None,
    )


def _balance_of(moe: MixtureOfExperts) -> Weight | None:
    """The bias that spreads tokens over the experts."""
    if moe.balance_bias is None:
        return None
    scored = Dimension("routed_experts", moe.experts)
    return Weight(BALANCE_BIAS, (scored,), None, "mlp.gate.e_score_correction_bias", start=0.0)


def _shared_experts(
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
            for name in _inputs_of(model)
        ),
        output=Matmul(
            Weight("shared_down", (ff, embed), deviation, "mlp.shared_experts.down_proj"), stream
        ),
        activation=_activation_of(model),
    )  # fmt: skip

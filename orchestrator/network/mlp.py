"""The MLP of a block: matmuls to d_ff, an activation function, and a matmul back."""

from orchestrator.network.description import MLP, Dimension, Matmul, Tensor, Weight
from orchestrator.network.norms import norms_around
from orchestrator.types.model import Activation, Model

TENSORS = ("gate", "up")


def activation_of(model: Model) -> Activation:
    return model.activation or ("silu" if model.gated else "gelu")


def inputs_of(model: Model) -> tuple[str, ...]:
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
            for name in inputs_of(model)
        ),
        output=matmul("down", (ff, embed), deviation, stream),
        activation=activation_of(model),
    )

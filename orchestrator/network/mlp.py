"""The MLPs of a block: matmuls to d_ff, an activation function, and a matmul back."""

from orchestrator.network.description import MLP, Dimension, Matmul, Tensor, Weight
from orchestrator.types.spec import Model

# Kind of MLP → the matmuls whose results its activation function takes.
INPUTS: dict[str, tuple[str, ...]] = {
    "swiglu": ("gate", "up"),
    "gelu": ("up",),
}
TENSORS = tuple(dict.fromkeys(name for names in INPUTS.values() for name in names))


def kind_of(model: Model) -> str:
    return "swiglu" if model.gated else "gelu"


def mlp(model: Model, stream: Tensor, residual_scale: float) -> MLP:
    """The MLP of a model. `residual_scale` shrinks the initial weights of its output."""
    embed, ff = Dimension("embed", model.d_model), Dimension("ff", model.d_ff)
    kind = kind_of(model)
    deviation = residual_scale * model.d_ff**-0.5
    return MLP(
        norm=Weight("mlp_norm", stream.dimensions, None, "post_attention_layernorm"),
        inputs=tuple(
            Matmul(
                Weight(name, (embed, ff), model.d_model**-0.5, f"mlp.{name}_proj"),
                Tensor(name, "length", (ff,)),
            )
            for name in INPUTS[kind]
        ),
        output=Matmul(Weight("down", (ff, embed), deviation, "mlp.down_proj"), stream),
        kind=kind,
    )

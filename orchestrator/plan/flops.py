"""Plan room: parameters, model FLOPs and MFU. Forecast and measurement call the same functions."""

from orchestrator.types.plan import PlannedBatch
from orchestrator.types.spec import Model

MFU_DEFINITION = (
    "forward + backward matmul FLOPs with the unembedding + causal attention, no recompute,"
    " over peak FLOP/s in the compute type"
)


def mlp_matrices(model: Model) -> int:
    """Matrices of one MLP: gate, up and down, or up and down."""
    return 3 if model.gated else 2


def mlp_parameters(model: Model) -> int:
    """One layer's MLP: 3 D F when gated, else 2 D F."""
    return mlp_matrices(model) * model.d_model * model.d_ff


def attention_parameters(model: Model) -> int:
    """One layer's attention: 2 D H (N + K)."""
    return 2 * model.d_model * model.head_dim * (model.heads + model.kv_heads)


def layer_matmul_parameters(model: Model) -> int:
    return mlp_parameters(model) + attention_parameters(model)


def norm_parameters(model: Model) -> int:
    """All norms: (2 L + 1) D."""
    return (2 * model.layers + 1) * model.d_model


def table_parameters(model: Model) -> int:
    """One vocabulary table: D V."""
    return model.d_model * model.vocab


def vocabulary_parameters(model: Model) -> int:
    """Embedding and unembedding: 2 D V, or D V when tied."""
    return table_parameters(model) * (1 if model.tied else 2)


def parameters(model: Model) -> int:
    """Every trained number, exactly."""
    layers = model.layers * layer_matmul_parameters(model)
    return layers + vocabulary_parameters(model) + norm_parameters(model)


def matmul_parameters(model: Model) -> int:
    """Parameters that a token is multiplied by: all layers and the unembedding."""
    return model.layers * layer_matmul_parameters(model) + table_parameters(model)


def attention_flops_per_token(model: Model, length: int) -> float:
    """Causal scores and values of the forward pass, mean over the sequence: 2 S N H a layer.

    Half of the full 4 S N H. Backward takes twice as much.
    """
    return 2.0 * length * model.heads * model.head_dim * model.layers


def model_flops_per_token(model: Model, length: int) -> float:
    """FLOPs a token that MFU counts: 6 x matmul parameters + 3 x causal attention."""
    return 6.0 * matmul_parameters(model) + 3.0 * attention_flops_per_token(model, length)


def model_flops_per_step(model: Model, batch: PlannedBatch) -> float:
    """The same for all tokens of a batch."""
    return batch.tokens * model_flops_per_token(model, batch.length)


def simple_flops_per_token(model: Model) -> float:
    """The rule of thumb 6 P: every parameter counts, attention does not."""
    return 6.0 * parameters(model)


def mfu(flops_per_step: float, step_s: float, devices: int, peak_flops_per_s: float) -> float:
    """Model FLOPs utilization: FLOPs of a step over what the devices could do in its time."""
    return flops_per_step / (step_s * devices * peak_flops_per_s)

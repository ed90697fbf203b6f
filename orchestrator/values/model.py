"""The model of a spec: the shape of a decoder-only transformer.

Docstrings, descriptions, bounds and examples are published in the JSON Schema of a spec.
"""

from typing import Annotated, Literal

from msgspec import Meta

from orchestrator.values.codec import (
    Name,
    NonNegativeNumber,
    PositiveInteger,
    PositiveNumber,
    Value,
    about,
)

# Multi-head latent attention of a model, as a spec has it (arXiv 2405.04434).


class LatentDimensions(Value):
    """Queries, keys and values that are made from narrow latents of the stream.

    A head of queries and keys has a part without positions and a part that RoPE turns: together
    they are the model's `head_dim`. All heads share the turned part of keys.
    """

    query_rank: Annotated[
        PositiveInteger | None,
        about(
            "The width of the latent that queries are made from; when left out, they are made"
            " from the stream.",
            1536,
        ),
    ] = None
    kv_rank: Annotated[
        PositiveInteger, about("The width of the latent that keys and values are made from.", 512)
    ]
    nope_dim: Annotated[
        PositiveInteger, about("The numbers of a head of queries or keys without positions.", 128)
    ]
    rope_dim: Annotated[
        PositiveInteger, about("The numbers of such a head that RoPE turns; even.", 64)
    ]
    value_dim: Annotated[PositiveInteger, about("The width of a head of values.", 128)]

    @property
    def head_dim(self) -> int:
        return self.nope_dim + self.rope_dim


class MixtureOfExperts(Value):
    """A mixture of experts in place of the MLP: a router chooses `top_k` experts for each token."""

    experts: Annotated[int, about("The number of experts of a layer.", 128, ge=2, le=100_000)]
    top_k: Annotated[int, about("The number of experts that a token goes to.", 8, ge=1, le=100_000)]
    d_ff: Annotated[
        PositiveInteger | None,
        about("The hidden width of an expert; that of the model's `d_ff` when left out.", 1536),
    ] = None
    shared_experts: Annotated[
        int, about("The number of further experts that every token goes to.", ge=0, le=1000)
    ] = 0
    dense_layers: Annotated[
        int,
        Meta(ge=0, le=10_000),
        about(
            "The number of layers before the first mixture. They have a plain MLP of the model's"
            " `d_ff`."
        ),
    ] = 0
    every: Annotated[
        int,
        Meta(ge=1, le=10_000),
        about("The number of layers of which the last is a mixture; others have a plain MLP."),
    ] = 1
    router: Annotated[
        Literal["softmax", "sigmoid"], about("The function that makes scores of experts.")
    ] = "softmax"
    normalized: Annotated[
        bool, about("Whether the scores of a token's experts are divided by their sum.")
    ] = True
    scale: Annotated[PositiveNumber, about("The factor of the scores of a token's experts.")] = 1.0
    groups: Annotated[
        int,
        Meta(ge=1, le=100_000),
        about("The number of groups of experts, of which a token first chooses some."),
    ] = 1
    top_groups: Annotated[
        int, about("The number of groups that a token chooses.", ge=1, le=100_000)
    ] = 1
    balance_loss: Annotated[
        NonNegativeNumber,
        about(
            "The weight of the load-balancing loss of each layer: experts x their shares of a"
            " sequence's choices x their mean scores, summed over experts."
        ),
    ] = 0.0
    balance_bias: Annotated[
        NonNegativeNumber | None,
        about(
            "How far a bias of each expert moves after a step: down where the expert had more than"
            " the mean load, up where it had less. The choice adds it to the scores; there is none"
            " when left out.",
            0.001,
        ),
    ] = None
    z_loss: Annotated[
        NonNegativeNumber,
        about("The weight of the router's z-loss: the squared logarithm of its denominator."),
    ] = 0.0
    imbalance: Annotated[
        float,
        Meta(ge=1, le=1000),
        about(
            "The load of the busiest devices of the mesh axis `expert` over the mean, where none is"
            " dropped: the others wait for them. It is planned, and changes no training.",
            1.2,
        ),
    ] = 1.0
    biases: Annotated[bool, about("Whether the matrices of experts have biases.")] = False
    router_bias: Annotated[
        bool, about("Whether the router has a trained bias, besides a `balance_bias`.")
    ] = False
    capacity_factor: Annotated[
        PositiveNumber | None,
        about(
            "The rows of an expert for each sequence, over those of even loads. Choices beyond"
            " them are dropped; none is when left out.",
            1.25,
        ),
    ] = None


Activation = Literal["silu", "gelu", "gelu_exact", "relu2", "clamped_swiglu"]


class RopeScaling(Value):
    """How RoPE is stretched by a factor: all frequencies alike (linear), the slow ones alone
    (llama3), or between the two by how often they turn (yarn).
    """

    kind: Annotated[Literal["linear", "llama3", "yarn"], about("The rule.", "llama3")]
    factor: Annotated[PositiveNumber, about("How much longer sequences become.", 8.0)]
    original_length: Annotated[
        PositiveInteger, about("llama3 and yarn: the length of sequences before.")
    ] = 8192
    low_frequency_factor: Annotated[
        PositiveNumber,
        about("llama3: frequencies that turn less often in the original length are stretched."),
    ] = 1.0
    high_frequency_factor: Annotated[
        PositiveNumber, about("llama3: frequencies that turn more often stay as they are.")
    ] = 4.0
    beta_fast: Annotated[
        PositiveNumber, about("yarn: frequencies that turn more often stay as they are.")
    ] = 32.0
    beta_slow: Annotated[
        PositiveNumber, about("yarn: frequencies that turn less often are stretched.")
    ] = 1.0
    attention_factor: Annotated[
        PositiveNumber | None,
        about(
            "yarn: the factor of turned queries and keys; 0.1 ln(factor) + 1 when left out.", 1.0
        ),
    ] = None
    truncate: Annotated[
        bool, about("yarn: whether the bounds between frequencies are whole pairs.")
    ] = True


class Model(Value):
    """The shape of a decoder-only transformer."""

    name: Annotated[Name, about("The name of the model in plans and reports.", default="custom")]
    layers: Annotated[int, about("The number of transformer layers.", 32, ge=1, le=10_000)]
    d_model: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        about(
            "The width of the residual stream: how many numbers a token has between layers.", 4096
        ),
    ]
    d_ff: Annotated[
        int,
        Meta(ge=1, le=10_000_000),
        about("The hidden width of the MLP. A gated MLP has three matrices of this width.", 14_336),
    ]
    heads: Annotated[int, about("The number of attention (query) heads.", 32, ge=1, le=10_000)]
    kv_heads: Annotated[
        int,
        Meta(ge=1, le=10_000),
        about(
            "The number of key and value heads. It divides `heads`; with fewer of them this"
            " is grouped-query attention.",
            8,
        ),
    ]
    head_dim: Annotated[
        int,
        Meta(ge=2, le=10_000),
        about("The width of an attention head. It is even, because RoPE rotates pairs.", 128),
    ]
    vocab: Annotated[
        int,
        Meta(ge=2, le=100_000_000),
        about("The size of the vocabulary: the number of rows of the embedding table.", 128_256),
    ]
    gated: Annotated[
        bool, about("Whether the MLP is gated: a third matrix makes factors of its inner numbers.")
    ] = True
    activation: Annotated[
        Activation | None,
        about(
            "The activation function of the MLP; when left out, silu where it is gated (SwiGLU) and"
            " gelu where it is not. gelu is the tanh approximation; clamped_swiglu is gpt-oss's, of"
            " gate and up together.",
            "silu",
        ),
    ] = None
    mlp_bias: Annotated[bool, about("Whether the matrices of the MLP have biases.")] = False
    tied: Annotated[
        bool, about("Whether the output layer shares its weights with the embedding table.")
    ] = False
    embedding_scale: Annotated[
        bool, about("Whether word vectors are multiplied by the root of d_model.")
    ] = False
    logit_cap: Annotated[
        PositiveNumber | None,
        about("The cap c of logits z, as c tanh(z / c); no cap when left out.", 30.0),
    ] = None
    rope_theta: Annotated[PositiveNumber, about("The base of RoPE's frequencies.")] = 500_000.0
    local_rope_theta: Annotated[
        PositiveNumber | None,
        about(
            "The base of RoPE's frequencies in layers with a window, which `rope_scaling` then does"
            " not stretch; that of the others when left out.",
            10_000.0,
        ),
    ] = None
    rope_scaling: Annotated[
        RopeScaling | None, about("How RoPE is stretched to sequences longer than the first ones.")
    ] = None
    rotary_share: Annotated[
        float, about("The share of a head that RoPE turns, from its begin.", 0.5, gt=0, le=1)
    ] = 1.0
    norm: Annotated[
        Literal["rms", "layer"], about("The norm: RMSNorm, or LayerNorm with a bias.")
    ] = "rms"
    norm_placement: Annotated[
        Literal["before", "after", "both"],
        about(
            "Where norms are: before attention and MLP (Llama), after them on what they add to the"
            " stream (OLMo 2), or both (Gemma 2)."
        ),
    ] = "before"
    norm_offset: Annotated[
        bool, about("Whether a norm multiplies by one plus its scale, which then starts at zero.")
    ] = False
    norm_epsilon: Annotated[
        PositiveNumber, about("A small number that a norm adds to the mean square.")
    ] = 1e-5
    qk_norm: Annotated[
        Literal["none", "head", "heads"],
        about(
            "The norm of queries and keys before RoPE: each head by itself (head), or all heads"
            " together (heads)."
        ),
    ] = "none"
    qkv_bias: Annotated[bool, about("Whether queries, keys and values have biases.")] = False
    output_bias: Annotated[bool, about("Whether attention's output projection has a bias.")] = False
    attention_scale: Annotated[
        PositiveNumber | None,
        about(
            "What scores are multiplied by before the softmax; 1 / root of head_dim when left out.",
            0.0625,
        ),
    ] = None
    attention_cap: Annotated[
        PositiveNumber | None,
        about("The cap c of scores z, as c tanh(z / c); no cap when left out.", 50.0),
    ] = None
    sinks: Annotated[
        bool, about("Whether each head has a trained score for attending to nothing (a sink).")
    ] = False
    window: Annotated[
        PositiveInteger | None,
        about(
            "The number of positions that attention with a sliding window sees: a token's own and"
            " those before it; when left out, every layer sees the whole sequence.",
            1024,
        ),
    ] = None
    window_pattern: Annotated[
        str,
        about(
            "Which layers have the window, again and again until the last layer: L is local, with"
            " the window; G is global, without.",
            "LLLLLG",
            pattern="^[LG]+$",
            max_length=1000,
        ),
    ] = "L"
    latent: Annotated[
        LatentDimensions | None,
        about(
            "Multi-head latent attention in place of grouped-query attention. `kv_heads` is then"
            " `heads`, and `head_dim` the sum of `nope_dim` and `rope_dim`.",
            {"kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128},
        ),
    ] = None
    moe: Annotated[
        MixtureOfExperts | None,
        about("The mixture of experts in place of the MLP.", {"experts": 8, "top_k": 2}),
    ] = None
    mtp_layers: Annotated[
        int,
        Meta(ge=0, le=100),
        about(
            "The number of layers that predict further tokens (multi-token prediction). They are"
            " neither planned nor trained, and a plan says so.",
            1,
        ),
    ] = 0

"""The shape of a decoder-only transformer; its docstrings are published in the JSON Schema."""

from typing import Annotated, Literal

from orchestrator.values import codec

# Multi-head latent attention of a model, as a spec has it (arXiv 2405.04434).


class LatentDimensions(codec.Value):
    """Queries, keys and values that are made from narrow latents of the stream.

    A head of queries and keys has a part without positions and a part that RoPE turns: together
    they are the model's `head_dim`. All heads share the turned part of keys.

    Attributes:
        query_rank: The width of the latent that queries are made from; when left out, they are made
            from the stream.
        kv_rank: The width of the latent that keys and values are made from.
        nope_dim: The numbers of a head of queries or keys without positions.
        rope_dim: The numbers of such a head that RoPE turns; even.
        value_dim: The width of a head of values.
    """

    query_rank: Annotated[codec.PositiveInteger | None, codec.about(1536)] = None
    kv_rank: Annotated[codec.PositiveInteger, codec.about(512)]
    nope_dim: Annotated[codec.PositiveInteger, codec.about(128)]
    rope_dim: Annotated[codec.PositiveInteger, codec.about(64)]
    value_dim: Annotated[codec.PositiveInteger, codec.about(128)]

    @property
    def head_dim(self) -> int:
        return self.nope_dim + self.rope_dim


class MixtureOfExperts(codec.Value):
    """A mixture of experts in place of the MLP: a router chooses `top_k` experts for each token.

    Attributes:
        experts: The number of experts of a layer.
        top_k: The number of experts that a token goes to.
        d_ff: The hidden width of an expert; that of the model's `d_ff` when left out.
        shared_experts: The number of further experts that every token goes to.
        with_mlp: Whether a mixture has the model's MLP next to it, each with norms of its own, and
            its router a norm and scales (Gemma 4).
        dense_layers: The number of layers before the first mixture. They have a plain MLP of the
            model's `d_ff`.
        every: The number of layers of which the last is a mixture; others have a plain MLP.
        router: The function that makes scores of experts.
        normalized: Whether the scores of a token's experts are divided by their sum.
        scale: The factor of the scores of a token's experts.
        groups: The number of groups of experts, of which a token first chooses some.
        top_groups: The number of groups that a token chooses.
        balance_loss: The weight of the load-balancing loss of each layer: experts x their shares of
            a sequence's choices x their mean scores, summed over experts.
        balance_bias: How far a bias of each expert moves after a step: down where the expert had
            more than the mean load, up where it had less. The choice adds it to the scores; there
            is none when left out.
        z_loss: The weight of the router's z-loss: the squared logarithm of its denominator.
        imbalance: The load of the busiest devices of the mesh axis `expert` over the mean, where
            none is dropped: the others wait for them. It is planned, and changes no training.
        biases: Whether the matrices of experts have biases.
        router_bias: Whether the router has a trained bias, besides a `balance_bias`.
        capacity_factor: The rows of an expert for each sequence, over those of even loads. Choices
            beyond them are dropped; none is when left out.
    """

    experts: Annotated[int, codec.about(128, ge=2, le=100_000)]
    top_k: Annotated[int, codec.about(8, ge=1, le=100_000)]
    d_ff: Annotated[codec.PositiveInteger | None, codec.about(1536)] = None
    shared_experts: Annotated[int, codec.about(ge=0, le=1000)] = 0
    with_mlp: bool = False
    dense_layers: Annotated[int, codec.about(ge=0, le=10_000)] = 0
    every: Annotated[int, codec.about(ge=1, le=10_000)] = 1
    router: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True
    scale: codec.PositiveNumber = 1.0
    groups: Annotated[int, codec.about(ge=1, le=100_000)] = 1
    top_groups: Annotated[int, codec.about(ge=1, le=100_000)] = 1
    balance_loss: codec.NonNegativeNumber = 0.0
    balance_bias: Annotated[codec.NonNegativeNumber | None, codec.about(0.001)] = None
    z_loss: codec.NonNegativeNumber = 0.0
    imbalance: Annotated[float, codec.about(1.2, ge=1, le=1000)] = 1.0
    biases: bool = False
    router_bias: bool = False
    capacity_factor: Annotated[codec.PositiveNumber | None, codec.about(1.25)] = None


Activation = Literal["silu", "gelu", "gelu_exact", "relu", "relu2", "clamped_swiglu"]


class RopeScaling(codec.Value):
    """How RoPE is stretched by a factor: all frequencies alike (linear), only the slow ones
    (llama3), or between the two by how often they turn (yarn).

    Attributes:
        kind: The rule.
        factor: How much longer sequences become.
        original_length: llama3 and yarn: the length of sequences before.
        low_frequency_factor: llama3: frequencies that turn less often in the original length are
            stretched.
        high_frequency_factor: llama3: frequencies that turn more often stay as they are.
        beta_fast: yarn: frequencies that turn more often stay as they are.
        beta_slow: yarn: frequencies that turn less often are stretched.
        attention_factor: yarn: the factor of turned queries and keys; 0.1 ln(factor) + 1 when left
            out.
        truncate: yarn: whether the bounds between frequencies are whole pairs.
    """

    kind: Annotated[Literal["linear", "llama3", "yarn"], codec.about("llama3")]
    factor: Annotated[codec.PositiveNumber, codec.about(8.0)]
    original_length: codec.PositiveInteger = 8192
    low_frequency_factor: codec.PositiveNumber = 1.0
    high_frequency_factor: codec.PositiveNumber = 4.0
    beta_fast: codec.PositiveNumber = 32.0
    beta_slow: codec.PositiveNumber = 1.0
    attention_factor: Annotated[codec.PositiveNumber | None, codec.about(1.0)] = None
    truncate: bool = True


class Model(codec.Value):
    """The shape of a decoder-only transformer.

    Attributes:
        name: The name of the model in plans and reports.
        layers: The number of transformer layers.
        d_model: The width of the residual stream: how many numbers a token has between layers.
        d_ff: The hidden width of the MLP. A gated MLP has three matrices of this width.
        heads: The number of attention (query) heads.
        kv_heads: The number of key and value heads. It divides `heads`; with fewer of them this is
            grouped-query attention.
        head_dim: The width of an attention head. It is even, because RoPE rotates pairs.
        vocab: The size of the vocabulary: the number of rows of the embedding table.
        gated: Whether the MLP is gated: a third matrix makes factors of its inner numbers.
        activation: The activation function of the MLP; when left out, silu where it is gated
            (SwiGLU) and gelu where it is not. gelu is the tanh approximation; clamped_swiglu is
            gpt-oss's, of gate and up together.
        mlp_bias: Whether the matrices of the MLP have biases.
        tied: Whether the output layer shares its weights with the embedding table.
        embedding_scale: Whether word vectors are multiplied by the root of d_model.
        logit_cap: The cap c of logits z, as c tanh(z / c); no cap when left out.
        rope_theta: The base of RoPE's frequencies.
        local_rope_theta: The base of RoPE's frequencies in layers with a window, which
            `rope_scaling` then does not stretch; that of the others when left out.
        rope_scaling: How RoPE is stretched to sequences longer than the first ones.
        rotary_share: The share of a head that RoPE turns, from its begin.
        learned_positions: The number of positions that have a learned vector each, which is added
            to word vectors (GPT-3): sequences are no longer. Nothing turns then; RoPE when left
            out.
        norm: The norm: RMSNorm, or LayerNorm with a bias.
        norm_placement: Where norms are: before attention and MLP (Llama), after them on what they
            add to the stream (OLMo 2), or both (Gemma 2).
        norm_offset: Whether a norm multiplies by one plus its scale, which then starts at zero.
        norm_epsilon: A small number that a norm adds to the mean square.
        qk_norm: The norm of queries and keys before RoPE: each head by itself (head), or all heads
            together (heads).
        qkv_bias: Whether queries, keys and values have biases.
        output_bias: Whether attention's output projection has a bias.
        attention_scale: What scores are multiplied by before the softmax; 1 / root of head_dim when
            left out.
        attention_cap: The cap c of scores z, as c tanh(z / c); no cap when left out.
        sinks: Whether each head has a trained score for attending to nothing (a sink).
        window: The number of positions that attention with a sliding window sees: a token's own and
            those before it; when left out, every layer sees the whole sequence.
        window_pattern: Which layers have the window, again and again until the last layer: L is
            local, with the window; G is global, without.
        global_head_dim: The width of a head in global layers; `head_dim` when left out.
        global_kv_heads: The number of key and value heads of global layers; `kv_heads` when left
            out. A mesh axis `tensor` divides it.
        global_rotary_share: The share of a head's pairs that RoPE turns in global layers, the
            fastest ones (proportional RoPE); `rotary_share` when left out.
        keys_as_values: Whether values of global layers are their keys, before norm and RoPE.
        value_norm: Whether each head of values is normalized, without a scale.
        layer_scale: Whether the stream after a layer is multiplied by a number of that layer, which
            stays as it starts: at one, or as published.
        latent: Multi-head latent attention in place of grouped-query attention. `kv_heads` is then
            `heads`, and `head_dim` the sum of `nope_dim` and `rope_dim`; both may be left out.
        moe: The mixture of experts in place of the MLP.
        mtp_layers: The number of layers that predict further tokens (multi-token prediction). They
            are neither planned nor trained, and a plan says so.
    """

    name: Annotated[codec.Name, codec.about(default="custom")]
    layers: Annotated[int, codec.about(32, ge=1, le=10_000)]
    d_model: Annotated[int, codec.about(4096, ge=1, le=1_000_000)]
    d_ff: Annotated[int, codec.about(14_336, ge=1, le=10_000_000)]
    heads: Annotated[int, codec.about(32, ge=1, le=10_000)]
    kv_heads: Annotated[int, codec.about(8, ge=1, le=10_000), codec.FROM_LATENT]
    head_dim: Annotated[int, codec.about(128, ge=2, le=10_000), codec.FROM_LATENT]
    vocab: Annotated[int, codec.about(128_256, ge=2, le=100_000_000)]
    gated: bool = True
    activation: Annotated[Activation | None, codec.about("silu")] = None
    mlp_bias: bool = False
    tied: bool = False
    embedding_scale: bool = False
    logit_cap: Annotated[codec.PositiveNumber | None, codec.about(30.0)] = None
    rope_theta: codec.PositiveNumber = 500_000.0
    local_rope_theta: Annotated[codec.PositiveNumber | None, codec.about(10_000.0)] = None
    rope_scaling: RopeScaling | None = None
    rotary_share: Annotated[float, codec.about(0.5, gt=0, le=1)] = 1.0
    learned_positions: Annotated[codec.PositiveInteger | None, codec.about(2048)] = None
    norm: Literal["rms", "layer"] = "rms"
    norm_placement: Literal["before", "after", "both"] = "before"
    norm_offset: bool = False
    norm_epsilon: codec.PositiveNumber = 1e-5
    qk_norm: Literal["none", "head", "heads"] = "none"
    qkv_bias: bool = False
    output_bias: bool = False
    attention_scale: Annotated[codec.PositiveNumber | None, codec.about(0.0625)] = None
    attention_cap: Annotated[codec.PositiveNumber | None, codec.about(50.0)] = None
    sinks: bool = False
    window: Annotated[codec.PositiveInteger | None, codec.about(1024)] = None
    window_pattern: Annotated[str, codec.about("LLLLLG", pattern="^[LG]+$", max_length=1000)] = "L"
    global_head_dim: Annotated[codec.PositiveInteger | None, codec.about(512)] = None
    global_kv_heads: Annotated[codec.PositiveInteger | None, codec.about(4)] = None
    global_rotary_share: Annotated[codec.Share | None, codec.about(0.25)] = None
    keys_as_values: bool = False
    value_norm: bool = False
    layer_scale: bool = False
    latent: Annotated[
        LatentDimensions | None,
        codec.about({"kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}),
    ] = None
    moe: Annotated[MixtureOfExperts | None, codec.about({"experts": 8, "top_k": 2})] = None
    mtp_layers: Annotated[int, codec.about(1, ge=0, le=100)] = 0

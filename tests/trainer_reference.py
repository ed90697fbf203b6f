"""A transformer as a textbook has it, on one device in float32: what trainers are compared with.

Whole sequences, whole score and logit matrices, no sharding, no code of the trainers. Parameters
come under the trainer's names, since those are what is compared.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orchestrator.network.decoder import decoder
from orchestrator.values.model import Model, RopeScaling
from orchestrator.values.spec import Optimizer
from tests.mixture_reference import mixture

Tree = Any


def loss(
    params: Tree,
    tokens: jax.Array,
    model: Model,
    z_loss: float = 0.0,
    separator: int | None = None,
) -> jax.Array:
    """Mean over all predicted tokens of the next token's cross-entropy plus the penalty."""
    entropy, penalty = losses(params, tokens, model, z_loss, separator)
    return entropy + penalty


def losses(
    params: Tree, tokens: jax.Array, model: Model, z_loss: float, separator: int | None = None
) -> tuple[jax.Array, jax.Array]:
    x, routers = params["embedding"][tokens[:, :-1]], jnp.float32(0)
    if model.learned_positions:
        x = x + params["positions"][: x.shape[1]]
    if model.embedding_scale:
        x = x * model.d_model**0.5
    apart = other_documents(tokens[:, :-1], separator)
    for i in range(model.layers):
        layer = layer_of(params, model, i)
        is_local = model.window_pattern[i % len(model.window_pattern)] == "L"
        window = model.window if is_local else None
        kind = latent_attention if model.latent else attention
        x = x + around(kind, "attention", x, layer, model, window, apart)
        if model.moe and model.moe.with_mlp:
            added, of_router = next_to_mlp(x, layer, model)
            x = x + leaving("mlp", added, layer, model)
            routers = routers + of_router / tokens[:, 1:].size
        elif "router" in layer:
            added, of_router = mixture(entering("mlp", x, layer, model), layer, model)
            x = x + leaving("mlp", added, layer, model)
            routers = routers + of_router / tokens[:, 1:].size
        else:
            x = x + around(mlp, "mlp", x, layer, model)
        if model.layer_scale:
            x = x * jax.lax.stop_gradient(layer["layer_scale"])
    words = params["embedding"] if model.tied else params["unembedding"]
    logits = capped(norm(x, params, "norm", model) @ words.T, model.logit_cap)
    log_z = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
    right = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    predicted = tokens[:, :-1] != (-1 if separator is None else separator)
    mean = partial(jnp.mean, where=predicted)
    return mean(log_z - right), mean(z_loss * log_z**2) + routers


def next_to_mlp(x: jax.Array, layer: Tree, model: Model) -> tuple[jax.Array, jax.Array]:
    """A mixture and an MLP of the same stream, each with norms of its own."""
    plain = {"plain": jnp.ones(model.d_model)}
    of_router = norm(x, plain, "plain", model) * layer["router_scale"] * model.d_model**-0.5
    mixed, of_routers = mixture(norm(x, layer, "experts_norm", model), layer, model, of_router)
    of_mlp = mlp(norm(x, layer, "mlp_norm", model), layer, model)
    added = norm(mixed, layer, "experts_after_norm", model)
    return added + norm(of_mlp, layer, "shared_after_norm", model), of_routers


def other_documents(words: jax.Array, separator: int | None) -> jax.Array:
    """Which keys [b, S, S] are in another document than the query: a separator lies between."""
    if separator is None:
        return jnp.zeros((1, 1, 1), bool)
    before = jnp.cumsum(words == separator, axis=1) - (words == separator)
    return before[:, :, None] != before[:, None, :]


def layer_of(params: Tree, model: Model, i: int) -> Tree:
    """The parameters of a layer, from the stack that has it."""
    [stack] = [stack for stack in decoder(model).stacks if i in stack.layers]
    return {name: array[stack.layers.index(i)] for name, array in params[stack.name].items()}


def around(part: Any, name: str, x: jax.Array, layer: Tree, model: Model, *how: Any) -> jax.Array:
    """A sublayer with the norms before and after it."""
    return leaving(name, part(entering(name, x, layer, model), layer, model, *how), layer, model)


def entering(name: str, x: jax.Array, layer: Tree, model: Model) -> jax.Array:
    has_norm = model.norm_placement in ("before", "both")
    return norm(x, layer, f"{name}_norm", model) if has_norm else x


def leaving(name: str, x: jax.Array, layer: Tree, model: Model) -> jax.Array:
    has_norm = model.norm_placement in ("after", "both")
    return norm(x, layer, f"{name}_after_norm", model) if has_norm else x


def norm(x: jax.Array, params: Tree, name: str, model: Model) -> jax.Array:
    scale = params[name] + 1 if model.norm_offset else params[name]
    if model.norm == "layer":
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + model.norm_epsilon) * scale + params[f"{name}_bias"]
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + model.norm_epsilon) * scale


def capped(x: jax.Array, cap: float | None) -> jax.Array:
    return x if cap is None else cap * jnp.tanh(x / cap)


def projected(x: jax.Array, layer: Tree, name: str, model: Model) -> jax.Array:
    """Queries, keys or values [b, S, heads, H] with their bias and their norm."""
    y = jnp.einsum("bsd,dnh->bsnh", x, layer[name])
    if model.qkv_bias:
        y = y + layer[f"{name}_bias"]
    if name == "value" and model.value_norm:
        return norm(y, {"plain": jnp.ones(y.shape[-1])}, "plain", model)
    if name == "value" or model.qk_norm == "none":
        return y
    if model.qk_norm == "head":
        return norm(y, layer, f"{name}_norm", model)
    flat = {f"{name}_norm": layer[f"{name}_norm"].reshape(-1)}
    return norm(y.reshape(*y.shape[:2], -1), flat, f"{name}_norm", model).reshape(y.shape)


def attention(
    x: jax.Array, layer: Tree, model: Model, window: int | None, apart: jax.Array
) -> jax.Array:
    """Every query head by itself, with the whole [S, S] matrix of scores."""
    hidden = unseen(x.shape[1], window)
    if "value" not in layer:
        layer = layer | {"value": layer["key"]}
    queries, keys, values = (projected(x, layer, name, model) for name in ("query", "key", "value"))
    scale, out = model.attention_scale or model.head_dim**-0.5, jnp.zeros_like(x)
    for n in range(model.heads):
        kv = n * keys.shape[2] // model.heads
        q, k = (rope(heads, model, window) for heads in (queries[:, :, n], keys[:, :, kv]))
        scores = capped(q @ k.swapaxes(1, 2) * scale, model.attention_cap)
        weights = jnp.exp(jnp.where(hidden | apart, -1e30, scores))
        total = weights.sum(-1, keepdims=True)
        if model.sinks:
            total = total + jnp.exp(layer["sinks"][n])
        out = out + weights / total @ values[:, :, kv] @ layer["output"][n]
    return out + layer["output_bias"] if model.output_bias else out


def unseen(length: int, window: int | None) -> np.ndarray:
    """Which keys [S, S] a query does not see."""
    hidden = np.triu(np.ones((length, length), bool), k=1)
    if window is not None:
        hidden |= np.tril(np.ones((length, length), bool), k=-window)
    return hidden


def latent_attention(
    x: jax.Array, layer: Tree, model: Model, window: int | None, apart: jax.Array
) -> jax.Array:
    """As the paper writes it: every head has its own keys without positions, and all share one key
    that is turned.
    """
    shape = model.latent
    assert shape is not None
    hidden, source = unseen(x.shape[1], window), x
    if shape.query_rank:
        source = norm(x @ layer["query_down"], layer, "query_latent_norm", model)
    latent = norm(x @ layer["kv_down"], layer, "kv_latent_norm", model)
    turned_key = rope(x @ layer["key_rope"], model, window)
    scale, out = model.attention_scale or model.head_dim**-0.5, jnp.zeros_like(x)
    for n in range(model.heads):
        query = source @ layer["query"][:, n]
        still, turning = query[..., : shape.nope_dim], query[..., shape.nope_dim :]
        scores = still @ (latent @ layer["key"][:, n]).swapaxes(1, 2)
        scores = scores + rope(turning, model, window) @ turned_key.swapaxes(1, 2)
        scores = capped(scores * scale, model.attention_cap)
        weights = jnp.exp(jnp.where(hidden | apart, -1e30, scores))
        total = weights.sum(-1, keepdims=True)
        if model.sinks:
            total = total + jnp.exp(layer["sinks"][n])
        out = out + weights / total @ (latent @ layer["value"][:, n]) @ layer["output"][n]
    return out + layer["output_bias"] if model.output_bias else out


def rope(x: jax.Array, model: Model, window: int | None) -> jax.Array:
    """Component i and component i + W/2, of the W that turn, are a complex number, turned by
    position x speed.
    """
    if model.learned_positions:
        return x
    width = model.latent.rope_dim if model.latent else int(model.head_dim * model.rotary_share)
    if window is None and model.global_rotary_share:
        width = x.shape[-1]
    own = model.local_rope_theta if window is not None else None
    speeds = (own or model.rope_theta) ** -(np.arange(0, width, 2) / width)
    size = 1.0
    if window is None and model.global_rotary_share:
        speeds[int(model.global_rotary_share * width / 2) :] = 0
    if model.rope_scaling and own is None:
        speeds, size = stretched(speeds, width, model.rope_theta, model.rope_scaling)
    turn = size * jnp.exp(1j * np.arange(x.shape[1])[:, None] * speeds)
    half = width // 2
    turned = (x[..., :half] + 1j * x[..., half:width]) * turn
    parts = [turned.real, turned.imag, x[..., width:]]
    return jnp.concatenate(parts, axis=-1).astype(x.dtype)


def stretched(
    speeds: np.ndarray, width: int, theta: float, how: RopeScaling
) -> tuple[np.ndarray, float]:
    """Pair by pair, as the papers write it; and the size of a turned vector."""
    if how.kind == "linear":
        return speeds / how.factor, 1.0
    found, waves = [], 2 * np.pi / speeds
    if how.kind == "llama3":
        for speed, wave in zip(speeds, waves, strict=True):
            smooth = (how.original_length / wave - how.low_frequency_factor) / (
                how.high_frequency_factor - how.low_frequency_factor
            )
            if wave < how.original_length / how.high_frequency_factor:
                found.append(speed)
            elif wave > how.original_length / how.low_frequency_factor:
                found.append(speed / how.factor)
            else:
                found.append((1 - smooth) * speed / how.factor + smooth * speed)
        return np.array(found), 1.0

    def place(turns: float) -> float:
        return float(width * np.log(how.original_length / (turns * 2 * np.pi)) / 2 / np.log(theta))

    low, high = np.floor(place(how.beta_fast)), np.ceil(place(how.beta_slow))
    low, high = max(low, 0), min(high, width - 1)
    for pair, speed in enumerate(speeds):
        ramp = min(max((pair - low) / (high - low), 0), 1)
        found.append(speed / how.factor * ramp + speed * (1 - ramp))
    return np.array(found), how.attention_factor or 0.1 * float(np.log(how.factor)) + 1


def mlp(x: jax.Array, layer: Tree, model: Model) -> jax.Array:
    up = x @ layer["up"] + (layer["up_bias"] if model.mlp_bias else 0)
    gate = up
    if model.gated:
        gate = x @ layer["gate"] + (layer["gate_bias"] if model.mlp_bias else 0)
    kind = model.activation or ("silu" if model.gated else "gelu")
    inner = {
        "silu": gate * jax.nn.sigmoid(gate),
        "gelu": 0.5 * gate * (1 + jnp.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3))),
        "gelu_exact": 0.5 * gate * (1 + jax.scipy.special.erf(gate / 2**0.5)),
        "relu": jnp.maximum(gate, 0),
        "relu2": jnp.maximum(gate, 0) ** 2,
    }[kind]
    out = (inner * up if model.gated else inner) @ layer["down"]
    return out + layer["down_bias"] if model.mlp_bias else out


def adamw(
    params: Tree, gradients: Tree, moments: tuple[Tree, Tree], step: int, lr: float, how: Optimizer
) -> tuple[Tree, tuple[Tree, Tree], float]:
    """Step number `step` (from 1) of AdamW with clipping, in numpy, leaf by leaf."""
    size = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g * min(1.0, how.clip_norm / size), gradients)
    first = jax.tree.map(lambda m, g: how.beta1 * m + (1 - how.beta1) * g, moments[0], gradients)
    second = jax.tree.map(
        lambda m, g: how.beta2 * m + (1 - how.beta2) * g * g, moments[1], gradients
    )

    def change(path: Any, p: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        m, v = m / (1 - how.beta1**step), v / (1 - how.beta2**step)
        is_vector = any(name in path[-1].key for name in ("norm", "bias", "sinks", "scale"))
        decay = 0.0 if is_vector else how.weight_decay
        return np.asarray(p - lr * (m / (np.sqrt(v) + how.epsilon) + decay * p))

    return jax.tree_util.tree_map_with_path(change, params, first, second), (first, second), size

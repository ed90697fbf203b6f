"""A transformer as a textbook has it, on one device in float32: what trainers are compared with.

Whole sequences, whole score and logit matrices, no sharding, no code of the trainers. Parameters
come under the trainer's names, since those are what is compared.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orchestrator.network.decoder import decoder
from orchestrator.types.spec import Model, Optimizer
from tests.mixture_reference import mixture

Tree = Any


def loss(params: Tree, tokens: jax.Array, model: Model, z_loss: float = 0.0) -> jax.Array:
    """Mean over all tokens of the next token's cross-entropy plus the penalty."""
    entropy, penalty = losses(params, tokens, model, z_loss)
    return entropy + penalty


def losses(
    params: Tree, tokens: jax.Array, model: Model, z_loss: float
) -> tuple[jax.Array, jax.Array]:
    x, routers = params["embedding"][tokens[:, :-1]], jnp.float32(0)
    for i in range(model.layers):
        layer = layer_of(params, model, i)
        is_local = model.window_pattern[i % len(model.window_pattern)] == "L"
        window = model.window if is_local else None
        x = x + attention(rms_norm(x, layer["attention_norm"], model), layer, model, window)
        y = rms_norm(x, layer["mlp_norm"], model)
        if "router" in layer:
            added, of_router = mixture(y, layer, model)
            x, routers = x + added, routers + of_router / tokens[:, 1:].size
        else:
            x = x + mlp(y, layer, model)
    words = params["embedding"] if model.tied else params["unembedding"]
    logits = rms_norm(x, params["norm"], model) @ words.T
    log_z = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
    right = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(log_z - right), jnp.mean(z_loss * log_z**2) + routers


def layer_of(params: Tree, model: Model, i: int) -> Tree:
    """The parameters of a layer, from the stack that has it."""
    [stack] = [one for one in decoder(model).stacks if i in one.layers]
    return {name: array[stack.layers.index(i)] for name, array in params[stack.name].items()}


def rms_norm(x: jax.Array, scale: jax.Array, model: Model) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + model.norm_epsilon) * scale


def attention(x: jax.Array, layer: Tree, model: Model, window: int | None = None) -> jax.Array:
    """Every query head by itself, with the whole [S, S] matrix of scores."""
    length = x.shape[1]
    hidden = np.triu(np.ones((length, length), bool), k=1)
    if window is not None:
        hidden |= np.tril(np.ones((length, length), bool), k=-window)
    out = jnp.zeros_like(x)
    for n in range(model.heads):
        kv = n * model.kv_heads // model.heads
        q = rope(x @ layer["query"][:, n], model)
        k = rope(x @ layer["key"][:, kv], model)
        v = x @ layer["value"][:, kv]
        scores = jnp.where(hidden, -1e30, q @ k.swapaxes(1, 2) / model.head_dim**0.5)
        out = out + jax.nn.softmax(scores, axis=-1) @ v @ layer["output"][n]
    return out


def rope(x: jax.Array, model: Model) -> jax.Array:
    """Component i and component i + H/2 are a complex number, turned by position / theta^(2i/H)."""
    half = model.head_dim // 2
    speeds = model.rope_theta ** -(np.arange(half) / half)
    turn = jnp.exp(1j * np.arange(x.shape[1])[:, None] * speeds)
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return jnp.concatenate([turned.real, turned.imag], axis=-1).astype(x.dtype)


def mlp(x: jax.Array, layer: Tree, model: Model) -> jax.Array:
    up = x @ layer["up"]
    gate = x @ layer["gate"] if model.gated else None
    inner = jax.nn.gelu(up) if gate is None else gate * jax.nn.sigmoid(gate) * up
    return inner @ layer["down"]


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
        decay = 0.0 if "norm" in path[-1].key else how.weight_decay
        return np.asarray(p - lr * (m / (np.sqrt(v) + how.epsilon) + decay * p))

    return jax.tree_util.tree_map_with_path(change, params, first, second), (first, second), size

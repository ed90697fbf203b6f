"""Rotary positions and activation functions of the trainer, by hand and by published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestrator.network.description import Rotary
from orchestrator.values.model import Activation, RopeScaling
from tests import trainer_reference
from trainers.llama.layers import _ACTIVATIONS, _frequencies, _magnitude, rotate

SCALINGS = (
    RopeScaling(kind="linear", factor=8.0),
    RopeScaling(kind="llama3", factor=8.0, original_length=8192),
    RopeScaling(kind="llama3", factor=32.0, original_length=8192),
    RopeScaling(kind="yarn", factor=4.0, original_length=32_768),
    RopeScaling(kind="yarn", factor=40.0, original_length=4096, attention_factor=1.0),
)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda one: f"{one.kind} {one.factor:g}")
def test_frequencies_are_stretched_by_each_rule(scaling: RopeScaling) -> None:
    """Pair by pair, as the papers write it."""
    theta, width = 500_000.0, 128
    plain = theta ** -(np.arange(0, width, 2) / width)
    right, size = trainer_reference.stretched(plain, width, theta, scaling)
    found = _frequencies(Rotary(width, theta, scaling))
    assert np.allclose(found, right, rtol=1e-5)
    assert _magnitude(scaling) == pytest.approx(size)


def test_llama_3_1_leaves_fast_pairs_and_stretches_slow_ones() -> None:
    """Waves below 2,048 positions stay; those above 8,192 are eight times as long."""
    rotary = Rotary(128, 500_000.0, RopeScaling(kind="llama3", factor=8.0))
    plain = np.asarray(_frequencies(Rotary(128, 500_000.0)))
    share, waves = np.asarray(_frequencies(rotary)) / plain, 2 * np.pi / plain
    assert np.allclose(share[waves < 2048], 1)
    assert np.allclose(share[waves > 8192], 1 / 8)
    between = share[(waves > 2048) & (waves < 8192)]
    assert ((between > 1 / 8) & (between < 1)).all()


def test_part_of_a_head_turns() -> None:
    """The rest stays as it is; what turns keeps its length."""
    x = np.random.default_rng(0).standard_normal((1, 6, 2, 16), np.float32)
    turned = np.asarray(rotate(Rotary(8, 100.0), jnp.asarray(x), jnp.arange(6)))
    assert (turned[..., 8:] == x[..., 8:]).all()
    assert not np.allclose(turned[:, 1:, :, :8], x[:, 1:, :, :8])
    before, after = (np.linalg.norm(rows[..., :8], axis=-1) for rows in (x, turned))
    assert np.allclose(before, after, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_halves_are_exchanged_by_a_matrix_to_the_bit(dtype: jnp.dtype) -> None:
    """Turned numbers and their gradient, as the pairs give them one by one."""
    kind, positions = Rotary(64, 10_000.0), jnp.arange(16)
    x, gradient = (
        jax.random.normal(jax.random.key(n), (2, 16, 3, 96)).astype(dtype) for n in (0, 1)
    )

    def by_pairs(x: jax.Array) -> jax.Array:
        angles = positions[:, None] * _frequencies(kind)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        left, right = jnp.split(x[..., :64].astype(jnp.float32), 2, axis=-1)
        turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
        return jnp.concatenate([turned.astype(dtype), x[..., 64:]], axis=-1)

    expected, back = jax.vjp(by_pairs, x)
    found, turned_back = jax.vjp(lambda x: rotate(kind, x, positions), x)
    assert (found == expected).all()
    assert (turned_back(gradient)[0] == back(gradient)[0]).all()


# Of 1.0 and of -0.5.
VALUES: dict[Activation, tuple[float, float]] = {
    "silu": (0.7310586, -0.1887703),
    "gelu": (0.8411920, -0.1542860),
    "gelu_exact": (0.8413447, -0.1542688),
    "relu": (1.0, 0.0),
    "relu2": (1.0, 0.0),
}


@pytest.mark.parametrize("name", VALUES)
def test_activation_functions(name: Activation) -> None:
    """By their published values; gelu is the tanh approximation."""
    found = _ACTIVATIONS[name](jnp.array([1.0, -0.5]))
    assert np.asarray(found) == pytest.approx(VALUES[name], abs=2e-6)

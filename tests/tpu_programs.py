"""Small programs compiled by the real TPU compiler and read: run as a script, prints JSON.

    python -m tests.tpu_programs [NAME ...]    one line for each, its name and what was read

The environment must be the compiler's own, so tests start it as a process of its own.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator.network.description import Scores
from orchestrator.proving.hlo import collectives
from orchestrator.proving.hlo.program import program_of
from orchestrator.proving.hlo.summary import summarize
from orchestrator.proving.jax_private_api import program_text
from orchestrator.values import codec
from trainers.llama.attention_kernels import _splash

Array = Any  # jax leaves much of itself unannotated
AXES = ("pods", "data", "tensor")
SHAPE = (2, 2, 4)  # two slices of 2x4
LAYERS, WIDTH, ROWS = 6, 512, 1024  # ROWS on each device
SPLIT = P(("pods", "data"), None)


def layer(x: Array, weight: Array) -> Array:
    return jax.nn.relu(x @ weight)


def forward(x: Array, weights: Array) -> Array:
    return jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0]


def loss(weights: Array, x: Array) -> Array:
    return jnp.sum(forward(x, weights).astype(jnp.float32) ** 2)


def gradients_alone(weights: Array, x: Array) -> Array:
    """Pure data parallelism: the gradient is summed over replicas, and a scalar with it."""
    value, gradient = jax.value_and_grad(loss)(weights, x)
    gradient = jax.lax.psum(gradient, ("pods", "data"))
    return weights - 0.1 * gradient + jax.lax.psum(value, "pods").astype(weights.dtype)


def activations_too(weights: Array, x: Array) -> Array:
    """Statistics of the forward pass are summed over pods, and are no scalars."""
    x = x - jax.lax.psum(x, "pods") / ROWS
    return gradients_alone(weights, x)


def weights_gathered(weights: Array, x: Array) -> Array:
    """Weights lie over pods: they cross to be used, and no gradient is reduced."""
    whole = jax.lax.all_gather(weights, "pods", axis=1, tiled=True)
    gradient = jax.grad(loss)(whole, x)
    return jax.lax.psum_scatter(gradient, "pods", scatter_dimension=1, tiled=True)


def ring(weights: Array, x: Array) -> Array:
    """A product whose rows come round `tensor`, in a loop of as many rounds as devices less one."""
    to_next = [(i, (i + 1) % SHAPE[2]) for i in range(SHAPE[2])]

    def hop(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, total = state
        rows = jax.lax.ppermute(rows, "tensor", to_next)
        return rows, total + layer(rows, weights[0])

    return jax.lax.fori_loop(0, SHAPE[2] - 1, hop, (x, layer(x, weights[0])))[1]


def two_axes(_: Array, x: Array) -> Array:
    """Gathered over one axis, scattered over both."""
    whole = jax.lax.all_gather(x, "tensor", axis=0, tiled=True)
    both = ("data", "tensor")
    return jax.lax.psum_scatter(whole @ whole.T, both, scatter_dimension=0, tiled=True)


def windowed(_: Array, x: Array) -> Array:
    """Attention to the last 1,024 of 4,096 positions, one head, in a loop of two layers; and its
    gradients.
    """
    attend = _splash(4096, 1, Scores(scale=1.0, cap=None, window=1024))

    def attended(x: Array, _: None) -> tuple[Array, None]:
        heads = x.reshape(1, 4096, 1, 128)
        return attend(heads, heads, heads, None, None).reshape(x.shape), None

    def total(x: Array) -> Array:
        return jnp.sum(jax.lax.scan(attended, x, length=2)[0].astype(jnp.float32) ** 2)

    return jax.grad(total)(x)


Body = Callable[[Array, Array], Array]
WHOLE = (P(), SPLIT)
PROGRAMS: dict[str, tuple[Body, Any, P]] = {
    "gradients_alone": (gradients_alone, WHOLE, P()),
    "activations_too": (activations_too, WHOLE, P()),
    "weights_gathered": (weights_gathered, (P(None, "pods"), SPLIT), P(None, "pods")),
    "ring": (ring, WHOLE, SPLIT),
    "windowed": (windowed, WHOLE, SPLIT),
    "two_axes": (two_axes, WHOLE, P(("pods", "data", "tensor"))),
}


def mesh() -> Mesh:
    devices = topologies.get_topology_desc("v5e:2x4", "tpu", num_slices=SHAPE[0]).devices
    return Mesh(np.array(devices).reshape(SHAPE), AXES)


def compiled(body: Body, specs: Any, out: P, on: Mesh) -> str:
    """The program's text."""
    shapes = ((LAYERS, WIDTH, WIDTH), (ROWS * SHAPE[0] * SHAPE[1], WIDTH))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(on, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    mapped = partial(jax.shard_map, mesh=on, in_specs=specs, out_specs=out, check_vma=False)
    return program_text(jax.jit(mapped(body)).lower(*arguments).compile())


def main() -> None:
    on = mesh()
    in_slice = collectives.DeviceMesh(dict(zip(AXES[1:], SHAPE[1:], strict=True)))
    slices = collectives.DeviceMesh({AXES[0]: SHAPE[0]})
    for name in sys.argv[1:] or PROGRAMS:
        reading = summarize(program_of(compiled(*PROGRAMS[name], on)), in_slice, slices, LAYERS)
        print(json.dumps({"name": name, "summary": codec.to_json(reading).decode()}), flush=True)


if __name__ == "__main__":
    main()

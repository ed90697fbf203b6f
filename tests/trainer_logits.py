"""Logits of the built-in trainer on a mesh, in the order of the words."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from orchestrator.network.mesh_axes import ways
from trainers.contract import Program, place
from trainers.llama import attention_kernels, parameters
from trainers.llama.collectives import BATCH, MESH, SEQUENCE, TENSOR, all_gather
from trainers.llama.layers import Runtime
from trainers.llama.model import embed, pattern_of_blocks
from trainers.llama.parameters import norm
from trainers.llama.step import _TOKENS


def logits_of(program: Program, runtime: Runtime, weights: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits [sequences, length, vocab] of tokens [sequences, length + 1], but for the last."""
    network, plan = runtime.network, program.plan

    def of_chip(weights: Any, batch: dict[str, jax.Array]) -> jax.Array:
        x = embed(runtime, weights, batch["inputs"])
        for segment in network.segments:
            x, _ = pattern_of_blocks(runtime, segment, weights, x)
        x = all_gather(norm(network.norm, weights, x), TENSOR, 1)
        table = runtime.gather_rows(weights[network.head.name], 1)
        logits = jnp.einsum("bsd,dv->bsv", x, table, precision="highest")
        cap = network.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    body = jax.shard_map(
        of_chip,
        mesh=program.mesh,
        in_specs=(parameters.shardings(plan), _TOKENS),
        out_specs=P(BATCH, SEQUENCE, TENSOR),
        axis_names=set(MESH),
        check_vma=False,
    )
    batch = place(program, lambda start, stop: tokens[start:stop])
    stored = np.asarray(jax.jit(body)(weights, batch))[..., : plan.model.vocab]
    natural = np.empty_like(stored)
    natural[:, attention_kernels.order(plan.batch.length, ways(plan.mesh, "length"))] = stored
    return natural

"""Prefill and decoding as each chip runs them, with the trainer's network and every collective in
sight. The stream is whole on each chip of `tensor`, whose parts are summed after each sublayer.

    b sequences, T new tokens of each, S positions of each in the cache, D d_model, N heads, K kv
    heads, G = N / K, H head_dim, R latent; those of a chip

Along `expert` attention has sequences of its own, and weights are whole but for experts, which all
chips of a copy share. The cache of a layer is written once a pass, after all layers have read it.
Position p lies at p modulo S, so a layer with a window caches no more than that.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator.errors import SpecError
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Attention, LatentAttention, Mixture, Stack
from orchestrator.network.mlp import EXPERTS
from orchestrator.planning.layout import is_of_experts
from orchestrator.values.model import MixtureOfExperts
from orchestrator.values.program import ServedProgram
from trainers.llama import collectives, parameters
from trainers.llama.attention_kernels import blockwise, dot
from trainers.llama.collectives import EXPERT, MESH, TENSOR, all_reduce, line
from trainers.llama.layers import Runtime, activate, of_heads, rotate, with_biases
from trainers.llama.mixture import Routing, grouped_on, mixture_parts
from trainers.llama.model import lookup
from trainers.llama.parameters import DTYPES, Parameters, norm

_STORED = {"bf16": jnp.bfloat16, "int8": jnp.int8, "fp8": jnp.float8_e4m3fn}
_LARGEST = {"int8": 127.0, "fp8": 448.0}
_SCALE = "_scale"  # of a stored matrix, one for each layer and expert
_COPY = (*EXPERT, *TENSOR)  # chips that serve one copy of the model
_SEQUENCES = ("data", *EXPERT)
_Cache = dict[str, jax.Array]


@dataclass(frozen=True)
class _ServingRuntime(Runtime):
    """Weights are whole where they are used, in the type in which they are stored."""

    def gather_matrix(self, shard: jax.Array, *_: Any) -> jax.Array:
        return shard.astype(DTYPES[self.plan.precision.compute])

    @property
    def program(self) -> ServedProgram:
        assert isinstance(self.plan, ServedProgram)
        return self.plan

    @property
    def experts_apart(self) -> tuple[jax.Array, int, int]:
        ways = self.program.expert_ways
        width_ways = jax.lax.axis_size(_COPY) // ways
        return jax.lax.axis_index(_COPY) // width_ways, ways, width_ways


# --- what is stored: weights and cache


def stored_weights(program: ServedProgram, trained: Parameters) -> Parameters:
    """Return a trainer's parameters as they are served: matrices of layers in their type, experts
    by chips of a copy: [layers, chips, experts of a chip, ...].
    """
    leaves = parameters.leaves(program)
    compute = DTYPES[program.precision.compute]
    copy = program.mesh["expert"] * program.mesh["tensor"]

    def of_chips(array: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        ways = program.expert_ways
        wide = array.reshape(array.shape[0], ways, -1, *array.shape[2:])
        if "expert_ff" not in axes:
            return jnp.repeat(wide, copy // ways, axis=1)
        at = axes.index("expert_ff") + 1
        cut = wide.reshape(*wide.shape[:at], copy // ways, -1, *wide.shape[at + 1 :])
        return jnp.moveaxis(cut, at, 2).reshape(
            wide.shape[0], copy, *wide.shape[2:at], -1, *wide.shape[at + 1 :]
        )

    def stored(name: str, leaf: Any, array: jax.Array) -> Parameters:
        array = array.astype(compute)
        if is_of_experts := EXPERTS in leaf.axes:
            array = of_chips(array, leaf.axes)
        if not leaf.is_matrix or program.weights == "bf16":
            return {name: array}
        kept = 3 if is_of_experts else 1
        most = jnp.abs(array).max(tuple(range(kept, array.ndim)), keepdims=True)
        scale = most.astype(jnp.float32) / _LARGEST[program.weights]
        return {name: _narrow(array / scale, program.weights), name + _SCALE: scale}

    tree = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, dict):
            pairs = [stored(key, leaf[key], trained[name][key]) for key in leaf]
            tree[name] = {key: array for pair in pairs for key, array in pair.items()}
        else:
            tree[name] = trained[name].astype(compute)
    return tree


def _narrow(x: jax.Array, kind: str) -> jax.Array:
    if kind == "int8":
        x = jnp.round(x)
    if kind in _LARGEST:
        x = jnp.clip(x, -_LARGEST[kind], _LARGEST[kind])
    return x.astype(_STORED[kind])


def _weight_specs(program: ServedProgram, tree: Parameters) -> Parameters:
    leaves = parameters.leaves(program)

    def spec(leaf: Any) -> P:
        if EXPERTS in leaf.axes:
            return P(None, _COPY)
        splits = [[a for a in collectives.mesh_axes(axis) if a in TENSOR] for axis in leaf.axes]
        return P(*(tuple(split) or None for split in splits))

    def specs(name: str) -> Any:
        leaf = leaves[name]
        if not isinstance(leaf, dict):
            return spec(leaf)
        found = {key: spec(own) for key, own in leaf.items()}
        scales = {key: P(None, _COPY) if EXPERTS in leaf[key].axes else P() for key in found}
        return found | {
            key: scales[key.removesuffix(_SCALE)] for key in tree[name] if key not in found
        }

    return {name: specs(name) for name in tree}


def _cache_leaves(program: ServedProgram, stack: Stack) -> dict[str, tuple[tuple[int, ...], P]]:
    """Return shape and sharding of a stack's cache: keys and values [layers, b, K, S, H], or the
    part of keys that all heads share, and latents in place of values.
    """
    attention, mesh = stack.block.attention, program.mesh
    window = attention.scores.window
    slots = program.positions if window is None else min(window, program.positions)
    sequences = program.sequences * mesh["data"] * mesh["expert"]
    if isinstance(attention, LatentAttention):
        widths = [matmul.output.width for matmul in reversed(attention.latents[-2:])]
        heads, split = 1, None
    else:
        dimensions = [tensor.dimensions for tensor in attention.whole]
        widths = [own[-1].size for own in dimensions]
        heads, axis = dimensions[0][0].size, dimensions[0][0].axis
        split = collectives.mesh_axes(axis)
    spec = P(None, _SEQUENCES, split)
    shape = (len(stack.layers), sequences, heads, slots)
    found: dict[str, tuple[tuple[int, ...], P]] = {
        name: ((*shape, width), spec) for name, width in zip(("key", "value"), widths, strict=True)
    }
    if program.kv_cache in _LARGEST:
        found |= {name + _SCALE: ((len(stack.layers),), P()) for name in ("key", "value")}
    return found


def _empty_cache(program: ServedProgram) -> dict[str, _Cache]:
    """Return a cache without positions. A narrow type is in units of a scale, here one."""

    def leaf(name: str, shape: tuple[int, ...]) -> jax.Array:
        if name.endswith(_SCALE):
            return jnp.ones(shape, jnp.float32)
        narrow = _STORED[program.kv_cache]
        wide = DTYPES[program.precision.compute]
        return jnp.zeros(shape, wide if program.kv_cache == "bf16" else narrow)

    return {
        stack.name: {
            name: leaf(name, shape) for name, (shape, _) in _cache_leaves(program, stack).items()
        }
        for stack in decoder(program.model).stacks
    }


# --- the program


def lowered(program: ServedProgram, mesh: Mesh) -> jax.stages.Lowered:
    """Return the program of a plan that serves, for its shapes."""
    step, state, batch = served(program, mesh)
    return step.lower(state, batch)


def served(program: ServedProgram, mesh: Mesh | AbstractMesh) -> tuple[Any, Any, Any]:
    """Return the jitted pass (state, batch) -> (state, logits), and the shapes of both."""
    for key in ("weights", "kv_cache"):
        if getattr(program, key) not in _STORED:
            raise SpecError(
                f"serve.{key} {getattr(program, key)} can be planned, not compiled: the trainer's"
                f" network stores {', '.join(_STORED)}; write --set serve.{key}=fp8"
            )
    mesh = collectives.with_copies(mesh, program.model.kv_heads)
    platform = collectives.platform(mesh)
    runtime = _ServingRuntime(program, {}, grouped_on(platform), on_gpu=platform == "gpu")
    start = partial(parameters.start, program, DTYPES[program.precision.compute])
    weights = jax.eval_shape(lambda: stored_weights(program, start(jnp.int32(0))))
    shapes = {"cache": jax.eval_shape(lambda: _empty_cache(program)), "parameters": weights}
    specs = {
        "cache": {
            stack.name: {name: spec for name, (_, spec) in _cache_leaves(program, stack).items()}
            for stack in runtime.network.stacks
        },
        "parameters": _weight_specs(program, weights),
    }
    parts = program.mesh["data"] * program.mesh["expert"]
    if program.phase == "decode":
        batch = {"words": (parts * program.sequences, 1), "first": (parts * program.sequences,)}
    else:
        batch = {"words": (parts, program.tokens), "first": (parts,), "slot": (parts,)}
    split = P(_SEQUENCES)
    logits = P(_SEQUENCES, TENSOR)

    def placed(shape: jax.ShapeDtypeStruct, spec: P) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    inputs = {
        name: placed(jax.ShapeDtypeStruct(shape, jnp.int32), split) for name, shape in batch.items()
    }
    step = jax.shard_map(
        partial(_pass, runtime),
        mesh=mesh,
        in_specs=(specs, dict.fromkeys(batch, split)),
        out_specs=(specs, logits),
        axis_names=set(MESH),
        check_vma=False,
    )
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(places, NamedSharding(mesh, logits)))
    return jitted, jax.tree.map(placed, shapes, specs), inputs


def _pass(
    runtime: _ServingRuntime, state: dict[str, Any], batch: dict[str, jax.Array]
) -> tuple[dict[str, Any], jax.Array]:
    """Words [b, T] from position `first` [b] on -> the state with them, and logits of the last."""
    weights, cache, network = state["parameters"], state["cache"], runtime.network
    words, first = batch["words"], batch["first"]
    places = first[:, None] + jnp.arange(words.shape[1])
    x = lookup(weights["embedding"], words, runtime.on_gpu)
    if network.positions is not None:
        x = x + lookup(weights["positions"], places, runtime.on_gpu)
    x = _summed(x)
    x = (x * network.embedding_scale).astype(x.dtype)
    # Where a pass writes: to one sequence, or to all. Scales are of all sequences.
    slot = batch["slot"][0] if "slot" in batch else None
    own = (
        cache
        if slot is None
        else {
            name: {
                key: array
                if array.ndim == 1
                else jax.lax.dynamic_slice_in_dim(array, slot, 1, axis=1)
                for key, array in leaves.items()
            }
            for name, leaves in cache.items()
        }
    )
    added: dict[str, _Cache] = {}
    for segment in network.segments:

        def step(
            x: jax.Array, repeat: list[tuple[Parameters, _Cache]], stacks: Any = segment.stacks
        ) -> tuple[jax.Array, list[_Cache]]:
            entries = []
            for stack, (layer, cached) in zip(stacks, repeat, strict=True):
                x, new = _block(runtime, stack, x, layer, cached, first, places)
                entries.append(new)
            return x, entries

        layers = [(weights[stack.name], own[stack.name]) for stack in segment.stacks]
        x, entries = jax.lax.scan(step, x, layers)
        added |= {s.name: new for s, new in zip(segment.stacks, entries, strict=True)}
    x = norm(network.norm, weights, x[:, -1])
    with line("unembedding"):
        logits = jnp.einsum(
            "bd,vd->bv", x, weights[network.head.name], preferred_element_type=jnp.float32
        )
    if network.logit_cap is not None:
        logits = network.logit_cap * jnp.tanh(logits / network.logit_cap)
    cache = {
        name: leaves
        | {key: _written(leaves[key], new, first, slot) for key, new in added[name].items()}
        for name, leaves in cache.items()
    }
    return {"cache": cache, "parameters": weights}, logits


def _summed(x: jax.Array) -> jax.Array:
    with line("activation_scatter"):
        return all_reduce(x, TENSOR)


@line("kv_scatter")
def _written(
    cached: jax.Array, new: jax.Array, first: jax.Array, slot: jax.Array | None
) -> jax.Array:
    """The cache [layers, b, K, S, H] with new positions [layers, b or 1, K, T, H]."""
    slots, tokens = cached.shape[3], new.shape[3]
    if slot is None:
        # One sequence after another, in place: a scatter would copy the cache.
        new = jax.lax.optimization_barrier(jnp.moveaxis(new, 1, 0))

        def write(row: jax.Array, cached: jax.Array) -> jax.Array:
            own = jax.lax.dynamic_slice_in_dim(new, row, 1, axis=0)
            place = (0, row, 0, first[row] % slots, 0)
            cached = with_layout_constraint(cached, Layout(tuple(range(cached.ndim))))
            return jax.lax.dynamic_update_slice(cached, jnp.moveaxis(own, 0, 1), place)

        return jax.lax.fori_loop(0, len(new), write, cached)
    new = new[:, :, :, -slots:]
    places = (first[0] + tokens - new.shape[3] + jnp.arange(new.shape[3])) % slots
    own = jax.lax.dynamic_slice_in_dim(cached, slot, 1, axis=1)
    own = own.at[:, :, :, places].set(new)
    return jax.lax.dynamic_update_slice_in_dim(cached, own, slot, axis=1)


# --- a layer


def _block(
    runtime: _ServingRuntime,
    stack: Stack,
    x: jax.Array,
    layer: Parameters,
    cached: _Cache,
    first: jax.Array,
    places: jax.Array,
) -> tuple[jax.Array, _Cache]:
    """One transformer block, and what its new positions [b, K, T, H] leave in the cache."""
    kind, moe, compute = stack.block, runtime.plan.model.moe, x.dtype
    if moe is not None:  # no token is dropped
        moe = replace(moe, capacity_factor=None)
    # Matrices as they are multiplied, and of experts this chip's.
    layer = {
        key: array if key + _SCALE not in layer else (array * layer[key + _SCALE]).astype(compute)
        for key, array in ((key, array.astype(compute)) for key, array in layer.items())
    }
    if isinstance(kind.mlp, Mixture):
        own = [matmul for matmul in kind.mlp.matmuls if is_of_experts(matmul)]
        names = {w.name for matmul in own for w in (matmul.weight, matmul.bias) if w}
        layer |= {name: layer[name][0] for name in names}
    y = norm(kind.attention.before, layer, x)
    with line("attention"):
        heads, new = _attention(runtime, kind.attention, layer, y, cached, first, places)
    with line("matmul"):
        y = jnp.einsum("btnh,nhd->btd", heads, layer[kind.attention.output.weight.name])
    [added] = with_biases([kind.attention.output], layer, [_summed(y)])
    x = x + norm(kind.attention.after, layer, added)
    y = norm(kind.mlp.before, layer, x)
    if moe is not None and isinstance(kind.mlp, Mixture):
        every = runtime.program.phase == "decode" or runtime.on_gpu
        through = _own_experts if every else None
        parts, _ = mixture_parts(runtime, kind.mlp, moe, layer, y, through)
        sums = [norm(after, layer, _summed(part)) for part, after in parts]
        added = sum(sums[1:], sums[0])
    else:
        with line("matmul"):
            products = [y @ layer[matmul.weight.name] for matmul in kind.mlp.inputs]
            hidden = activate(kind.mlp, with_biases(kind.mlp.inputs, layer, products))
            y = _summed(hidden @ layer[kind.mlp.output.weight.name])
        [added] = with_biases([kind.mlp.output], layer, [y])
    x = x + norm(kind.mlp.after, layer, added)
    if kind.scale is not None:
        x = x * layer[kind.scale.name].astype(x.dtype)
    return x, {
        key: _narrow(array / cached[key + _SCALE], runtime.program.kv_cache)
        if key + _SCALE in cached
        else array
        for key, array in new.items()
    }


@line("matmul")
def _own_experts(
    runtime: _ServingRuntime,
    kind: Mixture,
    moe: MixtureOfExperts,
    layer: Parameters,
    x: jax.Array,
    routing: Routing,
) -> tuple[jax.Array, jax.Array]:
    """What this chip's experts make of tokens: each of all. Decoding reads their weights anyway,
    and none is apart from its type in memory, as in a kernel for groups of rows. For GPUs XLA has
    no such kernel: a prefill would multiply each token once for every choice and expert.
    """
    tokens, experts, weights = (
        collectives.all_gather(array.reshape(-1, array.shape[-1]), EXPERT, 0)
        for array in (x, routing.experts, routing.weights)
    )
    part, ways, width_ways = runtime.experts_apart
    own = moe.experts // ways
    chosen = experts[..., None] == part * own + jnp.arange(own)
    shares = jnp.where(chosen, weights[..., None], 0).sum(1).astype(x.dtype)  # [T, E]
    products = []
    for matmul in kind.inputs:
        product = jnp.einsum("td,edf->tef", tokens, layer[matmul.weight.name])
        products += with_biases([matmul], layer, [product])
    hidden = activate(kind, products) * shares[..., None]
    out = jnp.einsum("tef,efd->td", hidden, layer[kind.output.weight.name])
    if kind.output.bias is not None:
        out += (shares / width_ways) @ layer[kind.output.bias.name]
    return collectives.reduce_scatter(out, EXPERT, 0).reshape(x.shape), jnp.int32(0)


def _attention(
    runtime: _ServingRuntime,
    kind: Attention,
    layer: Parameters,
    y: jax.Array,
    cached: _Cache,
    first: jax.Array,
    places: jax.Array,
) -> tuple[jax.Array, _Cache]:
    """Heads [b, T, N, H] of new positions, and their keys and values [b, K, T, H]."""
    sinks = layer[kind.sinks.name] if kind.sinks else None
    decodes = runtime.program.phase == "decode"
    if not isinstance(kind, LatentAttention):
        shards = [layer[matmul.weight.name] for matmul in kind.inputs]
        products = [jnp.einsum("btd,dnh->btnh", y, shard) for shard in shards]
        q, k, v = of_heads(kind, layer, with_biases(kind.inputs, layer, products), places)
        new = {"key": k.swapaxes(1, 2), "value": v.swapaxes(1, 2)}
        if decodes:
            return _decoded(kind, {"key": q}, cached, new, first, sinks), new
        k, v = (_joined(cached, new, name, first) for name in ("key", "value"))
        return _prefilled(kind, q, k, v, first, sinks), new
    to_q, to_k, to_v = (layer[matmul.weight.name] for matmul in kind.inputs)
    *query_latents, latent, turning = (y @ layer[matmul.weight.name] for matmul in kind.latents)
    source = norm(kind.query_latent_norm, layer, query_latents[0] if query_latents else y)
    q = jnp.einsum("btr,rnh->btnh", source, to_q)
    still, turned = q[..., : kind.nope], rotate(kind.rotary, q[..., kind.nope :], places)
    v = norm(kind.kv_latent_norm, layer, latent)
    k = rotate(kind.rotary, turning[:, :, None], places)
    new = {"key": k.swapaxes(1, 2), "value": v[:, None]}
    if decodes:
        # Queries meet latents as these lie in the cache: q (W l) = (q W) l.
        queries = {"key": turned, "value": jnp.einsum("btnh,rnh->btnr", still, to_k)}
        averaged = _decoded(kind, queries, cached, new, first, sinks)
        return jnp.einsum("btnr,rnv->btnv", averaged, to_v), new
    k, v = (_joined(cached, new, name, first) for name in ("key", "value"))
    own, v = (jnp.einsum("bskr,rnh->bsnh", v, matrix) for matrix in (to_k, to_v))
    shared = jnp.broadcast_to(k, (*own.shape[:-1], k.shape[-1]))
    q, k = jnp.concatenate([still, turned], -1), jnp.concatenate([own, shared], -1)
    return _prefilled(kind, q, k, v, first, sinks), new


def _decoded(
    kind: Attention,
    queries: dict[str, jax.Array],
    cached: _Cache,
    new: _Cache,
    first: jax.Array,
    sinks: jax.Array | None,
) -> jax.Array:
    """Attention of one position of each sequence to its cache and to itself. Of each leaf with
    keys `queries` has a part of the products, [b, 1, N, H].
    """
    compute, slots = new["value"].dtype, cached["value"].shape[2]
    b, kv_heads = new["value"].shape[:2]

    def by_head(x: jax.Array, rows: int) -> jax.Array:
        """One dimension of sequences and heads: of two, the compiler may exchange them."""
        return x.astype(compute).reshape(b * kv_heads, rows, x.shape[-1])

    of_cache: jax.Array | float = 0.0
    of_itself: jax.Array | float = 0.0
    for name, part in queries.items():
        q = by_head(part, part.shape[2] // kv_heads)
        narrow = (q * cached.get(name + _SCALE, 1)).astype(compute)
        of_cache += dot("igh,ish->igs", narrow, by_head(cached[name], slots))
        of_itself += dot("igh,ith->igt", q, by_head(new[name], 1))
    scores = jnp.concatenate([of_cache, of_itself], axis=-1) * kind.scores.scale
    if kind.scores.cap is not None:
        scores = kind.scores.cap * jnp.tanh(scores / kind.scores.cap)
    # Slot j has the last position before `first` that is j modulo the slots; below zero, none yet.
    before = 1 + (first[:, None] - 1 - jnp.arange(slots)) % slots
    seen = before <= first[:, None]
    if kind.scores.window is not None:
        seen &= before < kind.scores.window
    seen = jnp.pad(jnp.repeat(seen, kv_heads, 0), ((0, 0), (0, 1)), constant_values=True)
    scores = jnp.where(seen[:, None], scores, -jnp.inf)
    if sinks is not None:
        more = jnp.tile(sinks.astype(jnp.float32).reshape(kv_heads, -1, 1), (b, 1, 1))
        scores = jnp.concatenate([scores, more], -1)
    weights = jax.nn.softmax(scores).astype(compute)
    averaged = dot("igs,ish->igh", weights[..., :slots], by_head(cached["value"], slots))
    averaged = averaged * cached.get("value" + _SCALE, 1)
    averaged += dot("igt,ith->igh", weights[..., slots : slots + 1], by_head(new["value"], 1))
    return averaged.astype(compute).reshape(b, 1, -1, averaged.shape[-1])


def _joined(cached: _Cache, new: _Cache, name: str, first: jax.Array) -> jax.Array:
    """The S positions before `first` of one sequence, then the new ones: [1, S + T, K, H]."""
    compute, slots = new[name].dtype, cached[name].shape[2]
    own = (cached[name].astype(compute) * cached.get(name + _SCALE, 1)).astype(compute)
    rolled = jnp.roll(own, -(first[0] % slots), axis=2)
    return jnp.concatenate([rolled, new[name]], axis=2).swapaxes(1, 2)


def _prefilled(
    kind: Attention,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    first: jax.Array,
    sinks: jax.Array | None,
) -> jax.Array:
    """Causal attention of a chunk [1, T, N, H] to what `_joined` returns."""
    slots = k.shape[1] - q.shape[1]
    own = slots + jnp.arange(q.shape[1])
    # Places before the prompt are of another document than its positions.
    theirs = jnp.where(jnp.arange(k.shape[1]) < slots - first[0], -1, 0)[None]
    mine = jnp.zeros(q.shape[:2], theirs.dtype)
    return blockwise(q, k, v, own, sinks, (mine, theirs), kind.scores)

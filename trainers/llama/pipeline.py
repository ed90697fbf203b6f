"""The passes of a pipeline: 1F1B, and interleaved where a stage has several chunks of layers.

p stages, v chunks of a stage, m microbatches; b sequences of a microbatch, S positions split s ways
over `sequence`, Y ways of `tensor`, D d_model

In each tick every stage runs a chunk forward and a chunk backward, of another microbatch. Stage i
runs forward what stage i - 1 ran the tick before, and backward what stage i + 1 did. So all stages
take one path through one program, without a branch: v p - 1 ticks forward, m v + p - v p with both,
v p - 1 backward. All stages together look up words and make losses: each has a part of the
vocabulary. They do so in the first p of every v p ticks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from orchestrator.errors import SpecError
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Stack
from orchestrator.network.mesh_axes import GATHERED_AXES, GATHERED_OF_EXPERTS, PIPELINE
from orchestrator.network.rematerialization import policy
from orchestrator.values.plan import Plan, PlannedPipeline
from trainers.jax_private_api import needs, replace_residuals, residuals
from trainers.llama import collectives
from trainers.llama.layers import Runtime
from trainers.llama.loss import Loss
from trainers.llama.mixture import Routed
from trainers.llama.model import embed, head_loss, joined, pattern_of_blocks, with_documents
from trainers.llama.parameters import DTYPES, Parameter, Parameters, leaves

_Batch = dict[str, jax.Array]
_Sizes = tuple[int, int, int]  # p, v, m

# The schedule


class _Turn(NamedTuple):
    """What a stage runs in a tick: arrays [ticks, p]. What a forward pass keeps waits in a slot for
    the backward pass.
    """

    is_busy: Any
    chunk: Any
    microbatch: Any
    slot: Any


class _Turns(NamedTuple):
    """Work of stages in each tick. Arrays [ticks] have the microbatches whose words are looked up
    for the next tick, whose loss is made, and whose words got their gradient the tick before; -1
    where there is none.
    """

    forward: _Turn
    backward: _Turn
    looked_up: Any
    head: Any
    finished: Any


def schedule(stages: int, chunks: int, microbatches: int) -> tuple[_Turns, int]:
    """Return the turns of all stages, and how many slots they need."""
    # Microbatches pass in groups of p: each chunk takes a group before the next chunk does.
    work, group = microbatches * chunks, stages * chunks
    ticks = work + group + stages - 2
    both = np.zeros((2, 4, ticks, stages), np.int32)
    number = np.arange(work)
    chunk, microbatch = number % group // stages, number // group * stages + number % stages
    for stage in range(stages):
        first = stage, group - 1 + stages - 1 - stage  # ticks of a stage's first passes
        for backward, own in enumerate((chunk, chunks - 1 - chunk)):
            span = slice(first[backward], first[backward] + work)
            both[backward, :3, span, stage] = np.stack([np.ones_like(own), own, microbatch])
    # A tick without a forward pass keeps something too, in a slot that is free.
    slots = 0
    for stage in range(stages):
        held: dict[tuple[int, ...], int] = {}
        for tick in range(ticks):
            free = min({*range(len(held) + 1)} - {*held.values()})
            slots = max(slots, free + 1)
            both[0, 3, tick, stage] = free
            for backward in (0, 1):
                is_busy, *what = both[backward, :3, tick, stage].tolist()
                if is_busy and not backward:
                    held[tuple(what)] = free
                elif is_busy:
                    both[1, 3, tick, stage] = held.pop(tuple(what))
    forward, back = (_Turn(*rows) for rows in both)

    def microbatches_of(turn: _Turn, stage: int, chunk: int) -> Any:
        is_there = (turn.is_busy[:, stage] == 1) & (turn.chunk[:, stage] == chunk)
        return np.where(is_there, turn.microbatch[:, stage], -1)

    begun, ended = microbatches_of(forward, 0, 0), microbatches_of(back, 0, 0)
    turns = _Turns(
        forward,
        back,
        looked_up=np.append(begun[1:], -1),
        head=microbatches_of(forward, stages - 1, chunks - 1),
        finished=np.append(-1, ended[:-1]),
    )
    return turns, slots


class Kind(NamedTuple):
    """What all stages do in a tick: passes, a loss, look up words, sum the gradients of words."""

    forward: bool = False
    backward: bool = False
    head: bool = False
    begins: bool = False
    finishes: bool = False


def phases(sizes: _Sizes, *, train: bool) -> Iterator[tuple[int, list[tuple[Kind, int]]]]:
    """Yield the kinds of ticks that follow one another, and how often they come again."""
    # The first words are looked up before all ticks; the last gradient of words comes after them.
    stages, chunks, microbatches = sizes
    plain = (chunks - 1) * stages  # of v p ticks
    both, ends = Kind(forward=True, backward=train), Kind(True, train, True, True, train)
    yield 1, [(Kind(forward=True, begins=True), stages - 1)]
    if plain:
        yield 1, [(Kind(forward=True), plain)]
        yield microbatches // stages - 1, [(ends, stages), (both, plain)]
    yield 1, [(ends._replace(begins=not plain), stages if plain else microbatches)]
    if train and plain:
        yield 1, [(Kind(backward=True), plain)]
    if train:
        yield 1, [(Kind(backward=True, finishes=True), stages - 1)]


# The passes


def check(plan: Plan) -> None:
    """Raise SpecError if the plan has a pipeline that this trainer cannot run."""
    pipeline, segments = plan.pipeline, decoder(plan.model).segments
    if pipeline is None:
        return
    if len(segments) > 1 or pipeline.layers_per_chunk % len(segments[0].stacks):
        raise SpecError(
            f"resources.mesh.pipeline: the {plan.model.layers} layers of {plan.model.name} are not"
            f" {pipeline.stages * pipeline.chunks} equal chunks of one repeated pattern; leave"
            " pipeline out, or choose fewer stages or chunks"
        )
    if pipeline.chunks > 1 and pipeline.microbatches % pipeline.stages:
        raise SpecError(
            f"resources.mesh.pipeline_chunks: {pipeline.chunks} chunks take a number of"
            f" microbatches that {pipeline.stages} stages divide, against {pipeline.microbatches};"
            " use one chunk, or another batch"
        )
    if policy(plan.remat).needs_host:
        raise SpecError(
            "experiment.remat: a pipeline keeps nothing on the host; choose a policy that does not"
            " offload"
        )
    if plan.gradient_reduction == "per_layer":
        raise SpecError("a pipeline reduces gradients at the end, and the plan says per_layer")


class _Sums(NamedTuple):
    """The sums over ticks. Losses and gradients are this chip's parts."""

    loss: Loss
    routed: Routed | None = None  # [chunks, layers of a chunk, ...]
    blocks: Parameters | None = None  # gradients in fp32
    tables: Parameters | None = None  # of what comes before and after the blocks


class _State(NamedTuple):
    arrived: jax.Array  # the input of the next forward pass [b, S/(s Y), D]
    gradient: jax.Array  # what the last backward pass made of its input
    kept: Any  # what forward passes keep [slots, ...], as the plan's policy says
    sums: _Sums


def loss_and_gradients(
    runtime: Runtime, weights: Parameters, batch: _Batch, tokens: jax.Array | int
) -> tuple[tuple[Loss, Routed | None], Parameters]:
    """This chip's share of the sums over tokens, and of the gradient of the mean loss in fp32; a
    leaf of the batch is [m, b, S/s].
    """
    runtime, weights = _gathered(runtime, weights)
    passes = _Passes(runtime, weights, batch, tokens)
    sums = replace(passes, varies=passes.varying()).run(train=True)
    assert sums.blocks is not None
    assert sums.tables is not None
    routed, blocks = sums.routed, sums.blocks
    if passes.plan.chunks == 1:
        blocks = jax.tree.map(lambda gradient: gradient[None], blocks)
    else:
        routed = jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:]), routed)
    return (sums.loss, routed), _scattered(runtime, {**blocks, **sums.tables})


def batch_loss(runtime: Runtime, weights: Parameters, batch: _Batch) -> Loss:
    """This chip's share of the sums over tokens; nothing is kept for a backward pass."""
    runtime, weights = _gathered(runtime, weights)
    return _Passes(runtime, weights, batch, 1).run(train=False).loss


@dataclass(frozen=True)
class _Passes:
    runtime: Runtime
    weights: Parameters
    batch: _Batch
    tokens: jax.Array | int
    varies: tuple[bool, ...] = ()  # whether what a pass needs is another in each, of each array

    @property
    def plan(self) -> PlannedPipeline:
        assert self.runtime.plan.pipeline is not None
        return self.runtime.plan.pipeline

    @property
    def blocks(self) -> Parameters:
        """Weights of this stage [chunks, repeats of a chunk, ...]; of one chunk without the first
        dimension, which would be taken off in a copy.
        """
        return {stack.name: self.weights[stack.name] for stack in self.runtime.network.stacks}

    @property
    def tables(self) -> Parameters:
        blocks = self.blocks
        return {name: leaf for name, leaf in self.weights.items() if name not in blocks}

    def run(self, *, train: bool) -> _Sums:
        sizes = self.plan.stages, self.plan.chunks, self.plan.microbatches
        turns, slots = schedule(*sizes)
        first = jnp.where(_stage() == 0, self._look_up(self.tables, 0), 0)
        sums, kept = _Sums(Loss(*jnp.zeros(3, jnp.float32))), None
        if train:

            def zeros(tree: Any, *more: int, dtype: Any = None) -> Any:
                return jax.tree.map(lambda x: jnp.zeros((*more, *x.shape), dtype or x.dtype), tree)

            shapes = jax.eval_shape(
                lambda x, n: self._differentiated(x, n, n)[2:], first, jnp.int32(0)
            )
            gradients = (zeros(tree, dtype=jnp.float32) for tree in (self.blocks, self.tables))
            kept = zeros(shapes[0], slots)
            chunks = (self.plan.chunks,) if self.plan.chunks > 1 else ()
            sums = _Sums(sums.loss, zeros(shapes[1], *chunks), *gradients)
        state, tick = _State(first, jnp.zeros_like(first), kept, sums), 0
        for repeats, parts in phases(sizes, train=train):
            length = sum(count for _, count in parts)
            span = jax.tree.map(lambda row: row[tick : tick + repeats * length], turns)  # noqa: B023
            cut = jax.tree.map(lambda row: row.reshape(repeats, length, *row.shape[1:]), span)  # noqa: B023
            tick += repeats * length
            if repeats == 1:
                state, _ = self._run_parts(parts, state, jax.tree.map(lambda row: row[0], cut))
            elif repeats:
                state, _ = jax.lax.scan(partial(self._run_parts, parts), state, cut)
        return self._with_word_gradients(state, self.plan.microbatches - 1) if train else state.sums

    def _run_parts(
        self, parts: list[tuple[Kind, int]], state: _State, turns: _Turns
    ) -> tuple[_State, None]:
        for kind, count in parts:
            own = jax.tree.map(lambda row: jnp.asarray(row[:count]), turns)  # noqa: B023
            turns = jax.tree.map(lambda row: row[count:], turns)  # noqa: B023
            state, _ = jax.lax.scan(partial(self._tick, kind), state, own)
        return state, None

    def _tick(self, kind: Kind, state: _State, turns: _Turns) -> tuple[_State, None]:
        # Each transfer has a pass to run with: the gradient of the last tick this forward pass, and
        # the output of that this backward pass.
        around, gradient, y = self.plan.chunks > 1, state.gradient, state.arrived
        if kind.backward:
            gradient = collectives.from_stage(gradient, -1, around=around)
        if kind.finishes:
            state = state._replace(sums=self._with_word_gradients(state, turns.finished))
        if kind.forward:
            state, y = self._with_forward_pass(state, _of_stage(turns.forward))
            arrived = collectives.from_stage(y, 1, around=around)
            if kind.begins:
                words = self._look_up(self.tables, jnp.maximum(turns.looked_up, 0))
                arrived = jnp.where((_stage() == 0) & (turns.looked_up >= 0), words, arrived)
            state = state._replace(arrived=arrived)
        if kind.head:
            sums, own = self._with_loss(state.sums, y, turns.head, train=kind.backward)
            gradient = jnp.where(_stage() == self.plan.stages - 1, own, gradient)
            state = state._replace(sums=sums)
        if kind.backward:
            state = self._with_backward_pass(state, _of_stage(turns.backward), gradient)
        return state, None

    def _with_forward_pass(self, state: _State, turn: _Turn) -> tuple[_State, jax.Array]:
        if state.kept is None:
            (y, _), _ = self._run_chunk(self._chunk, state.arrived, turn.chunk, turn.microbatch)
            return state, y
        y, _, new, routed = self._differentiated(state.arrived, turn.chunk, turn.microbatch)
        kept = _put(state.kept, new, turn.slot)
        routed = jax.tree.map(lambda rows: jnp.where(turn.is_busy, rows, 0), routed)
        routed = self._added(state.sums.routed, routed, turn.chunk)
        return state._replace(kept=kept, sums=state.sums._replace(routed=routed)), y

    def _with_backward_pass(self, state: _State, turn: _Turn, gradient: jax.Array) -> _State:
        # Only how to pull back is taken from this forward pass, so the compiler leaves it out.
        _, pull, _, _ = self._differentiated(jnp.zeros_like(gradient), turn.chunk, turn.microbatch)
        kept = iter(_at(state.kept, turn.slot))
        needed = zip(self.varies, residuals(pull), strict=True)
        replace_residuals(pull, [next(kept) if is_kept else own for is_kept, own in needed])
        # The gradients of nothing are zero. Those of the routers' penalties are of their mean.
        share = jnp.float32(1 / self.runtime.training.batch.tokens)
        d_blocks, d_x = pull(tuple(jnp.where(turn.is_busy, d, 0) for d in (gradient, share)))
        blocks = self._added(state.sums.blocks, d_blocks, turn.chunk)
        return state._replace(gradient=d_x, sums=state.sums._replace(blocks=blocks))

    def _differentiated(
        self, x: jax.Array, chunk: jax.Array | int, microbatch: jax.Array | int
    ) -> tuple[jax.Array, Any, Any, Routed | None]:
        """Return a chunk's output for x, the pull of gradients, what it keeps, what routers say."""
        run = partial(self._run_chunk, chunk=chunk, microbatch=microbatch)
        (y, _), pull, routed = jax.vjp(run, self._chunk, x, has_aux=True)
        needed = residuals(pull)
        varies = self.varies or (True,) * len(needed)
        kept = [own for own, is_kept in zip(needed, varies, strict=True) if is_kept]
        return y, pull, kept, routed

    def varying(self) -> tuple[bool, ...]:
        """Whether an array that a backward pass needs depends on the pass; masks do not."""

        def needed(x: jax.Array, chunk: jax.Array, microbatch: jax.Array) -> list[jax.Array]:
            return list(self._differentiated(x, chunk, microbatch)[2])

        x = jax.eval_shape(lambda: self._look_up(self.tables, 0))
        jaxpr = jax.make_jaxpr(needed)(x, jnp.int32(0), jnp.int32(0)).jaxpr
        return tuple(needs(jaxpr, n) for n in range(len(jaxpr.outvars)))

    def _added(self, totals: Any, parts: Any, chunk: jax.Array) -> Any:
        def add(total: jax.Array, part: jax.Array) -> jax.Array:
            return total + part.astype(jnp.float32)

        if self.plan.chunks == 1:
            return jax.tree.map(add, totals, parts)

        # By layers: the compilers would copy the sums of a whole chunk to add to them.
        def add_layer(layer: jax.Array, totals: Any) -> Any:
            def in_place(total: jax.Array, part: jax.Array) -> jax.Array:
                place = [chunk, layer] + [jnp.int32(0)] * (part.ndim - 1)
                own = jax.lax.dynamic_slice(total, place, (1, 1, *part.shape[1:]))
                return jax.lax.dynamic_update_slice(total, add(own, part[layer]), place)

            return jax.tree.map(in_place, totals, parts)

        repeats = self.plan.layers_per_chunk // len(self.runtime.network.segments[0].stacks)
        return jax.lax.fori_loop(0, repeats, add_layer, totals)

    def _with_loss(
        self, sums: _Sums, y: jax.Array, microbatch: jax.Array, *, train: bool
    ) -> tuple[_Sums, jax.Array]:
        """The sums with the loss of what the last stage made, and the gradient of that."""

        def mean_loss(tables: Parameters, y: jax.Array) -> tuple[jax.Array, Loss]:
            is_last = _stage() == self.plan.stages - 1
            last = collectives.over_stages(jnp.where(is_last, y, 0))
            loss = head_loss(self.runtime, tables, last, self._of_batch(microbatch)["targets"])
            return loss.objective / self.tokens, loss

        if not train:
            _, loss = mean_loss(self.tables, y)
            return sums._replace(loss=jax.tree.map(jnp.add, sums.loss, loss)), y
        network = self.runtime.network
        names = [network.head.name, *(weight.name for weight in network.norm.weights)]
        tables = {name: self.weights[name] for name in names}
        differentiate = jax.value_and_grad(mean_loss, argnums=(0, 1), has_aux=True)
        (_, loss), (d_tables, d_y) = differentiate(tables, y)
        total = jax.tree.map(jnp.add, sums.loss, loss)
        return _with_gradients(sums._replace(loss=total), d_tables), d_y

    def _with_word_gradients(self, state: _State, microbatch: jax.Array | int) -> _Sums:
        """The sums with the gradient of the words that the first stage has run backward."""
        is_first = (_stage() == 0) & (jnp.asarray(microbatch) >= 0)
        names = {"embedding", "positions"} & self.tables.keys()
        tables = {name: self.tables[name] for name in sorted(names)}
        run = partial(self._look_up, microbatch=jnp.maximum(microbatch, 0))
        _, pull = jax.vjp(run, tables)
        [d_tables] = pull(jnp.where(is_first, state.gradient, 0))
        return _with_gradients(state.sums, d_tables)

    def _look_up(self, tables: Parameters, microbatch: jax.Array | int) -> jax.Array:
        return embed(self.runtime, tables, self._of_batch(microbatch)["inputs"])

    def _run_chunk(
        self, blocks: Parameters, x: jax.Array, chunk: jax.Array | int, microbatch: jax.Array | int
    ) -> tuple[tuple[jax.Array, jax.Array], Routed | None]:
        """The stream after a chunk, the routers' penalties, and what else they say."""
        [segment], is_filled = self.runtime.network.segments, None
        if self.plan.empty_layers:
            repeats = self.plan.layers_per_chunk // len(segment.stacks)
            first = (chunk * self.plan.stages + _stage()) * repeats
            is_filled = first + jnp.arange(repeats) < segment.repeats
        runtime = with_documents(self.runtime, self._of_batch(microbatch))
        taken = None if self.plan.chunks == 1 else partial(self._taken, chunk)
        x, layers = pattern_of_blocks(runtime, segment, blocks, x, is_filled, taken)
        routed = joined(layers)
        return (x, routed.penalty.sum() if routed else jnp.float32(0)), routed

    @property
    def _chunk(self) -> Parameters:
        """The variables of a chunk's derivative: its weights, or zeros in their place."""
        if self.plan.chunks == 1:
            return self.blocks
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), self.blocks)

    def _taken(
        self, chunk: jax.Array | int, stack: Stack, zeros: Parameters, layer: jax.Array | None
    ) -> Parameters:
        take = partial(_of_layer, chunk=chunk, layer=layer)
        return jax.tree.map(take, zeros, self.blocks[stack.name])

    def _of_batch(self, microbatch: jax.Array | int) -> _Batch:
        return _at(self.batch, microbatch)


@jax.custom_vjp
def _of_layer(zeros: jax.Array, whole: jax.Array, chunk: Any, layer: Any) -> jax.Array:
    """The layer of a chunk, as if `zeros` were its weights: compilers copy a chunk to loop over it,
    and nothing is read of `zeros`.
    """
    place = [chunk, layer] + [0] * zeros.ndim
    return jax.lax.dynamic_slice(whole, place, (1, 1, *zeros.shape)).reshape(zeros.shape)


_of_layer.defvjp(lambda *given: (_of_layer(*given), None), lambda _, d: (d, None, None, None))


def _stage() -> jax.Array:
    return jax.lax.axis_index(PIPELINE)


def _of_stage(turn: _Turn) -> _Turn:
    return _Turn(*_at(tuple(turn), _stage()))


def _at(tree: Any, index: jax.Array | int) -> Any:
    unsigned = jnp.asarray(index).astype(jnp.uint32)  # or a negative one would count from the end

    def at_index(rows: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(rows, unsigned, 0, keepdims=False)

    return jax.tree.map(at_index, tree)


def _put(tree: Any, new: Any, index: jax.Array) -> Any:
    unsigned = index.astype(jnp.uint32)

    def put(rows: jax.Array, row: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(rows, row, unsigned, 0)

    return jax.tree.map(put, tree, new)


def _with_gradients(sums: _Sums, gradients: Parameters) -> _Sums:
    assert sums.tables is not None
    added = {
        name: sums.tables[name] + gradient.astype(jnp.float32)
        for name, gradient in gradients.items()
    }
    return sums._replace(tables={**sums.tables, **added})


# Matrices gathered once for all ticks


def _gathered(runtime: Runtime, weights: Parameters) -> tuple[Runtime, Parameters]:
    """The weights as ticks take them: whole along d_model, if the plan gathers them once, and of
    one chunk as that.
    """
    plan = runtime.training
    assert plan.pipeline is not None

    def gathered(leaf: Parameter, weight: jax.Array) -> jax.Array:
        found = _gathered_dimension(leaf)
        return weight if found is None else runtime.gather_matrix(weight, *found)

    if plan.pipeline.weight_gather == "per_step":
        weights = jax.tree.map(gathered, leaves(plan), weights)
        runtime = replace(runtime, matrices_are_whole=True)
    if plan.pipeline.chunks == 1:
        stacks = {stack.name for stack in runtime.network.stacks}
        weights = {
            name: jax.tree.map(lambda x: x[0], leaf) if name in stacks else leaf
            for name, leaf in weights.items()
        }
    return runtime, weights


def _scattered(runtime: Runtime, gradients: Parameters) -> Parameters:
    """This chip's part of the sums of gradients, of matrices that were gathered once."""
    if not runtime.matrices_are_whole:
        return gradients
    wire = DTYPES[runtime.plan.precision.gradients]

    def scattered(leaf: Parameter, gradient: jax.Array) -> jax.Array:
        if (found := _gathered_dimension(leaf)) is None:
            return gradient
        dimension, axes = found
        own = collectives.scatter_matrix(gradient, dimension, wire, axes)
        return own.astype(jnp.float32)

    return jax.tree.map(scattered, leaves(runtime.plan), gradients)


def _gathered_dimension(leaf: Parameter) -> tuple[int, tuple[str, ...]] | None:
    """The dimension of a matrix that is stored split, and the chips along which it is."""
    for dimension, axis in enumerate(leaf.axes):
        if axis in GATHERED_AXES:
            is_of_experts = axis == GATHERED_OF_EXPERTS
            axes = collectives.WEIGHTS_OF_EXPERTS if is_of_experts else collectives.WEIGHTS
            return dimension, axes
    return None

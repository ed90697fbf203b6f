"""A network on devices that serve it: bytes of weights and cache, the work of a pass, and the ways
to serve that a slice allows, each on its best placement.
"""

from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from orchestrator.catalog.chips import Chip, Topology
from orchestrator.network.decoder import split_sizes
from orchestrator.network.description import Block, LatentAttention
from orchestrator.network.mesh_axes import DCN_AXES, ICI_AXES, LOGICAL_AXES, ways
from orchestrator.network.mlp import EXPERTS, expert_d_ff
from orchestrator.planning.layout import Layout, Number, is_of_experts
from orchestrator.planning.torus import (
    Ints,
    Links,
    axis_sizes,
    divisors,
    factor_rows,
    find_links,
    make_torus,
    rows_of_links,
)
from orchestrator.values.model import Model
from orchestrator.values.serving import ServingMesh, StoredType
from orchestrator.values.spec import Precision

# Bytes of an element with its scales: an fp16 scale for 128 int4, an 8-bit one for 32 fp4 (mxfp4).
STORED_BYTES: dict[StoredType, float] = {
    "bf16": 2.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5 + 2 / 128, "fp4": 0.5 + 1 / 32,
}  # fmt: skip
STREAM_BYTES, _FP32_BYTES = 2, 4
# The mesh axes of serving by their names in a spec. Attention of a copy is split by requests along
# `expert` and by heads along `tensor`; `data` are copies.
AXES = {"replicas": "data", "attention": "expert", "tensor": "tensor"}


class Pass(NamedTuple):
    """Tokens that one copy of the model works on at once. `positions` are those that a token sees,
    beyond those of the pass itself that it is multiplied by `together`. `sequences` are those whose
    cache is read, and `logits` the tokens that become others.
    """

    tokens: Number
    positions: Number
    sequences: Number
    context: Number  # positions of a sequence in the cache
    logits: Number
    together: Number = 0.0


def decode(batch: Number, context: Number) -> Pass:
    return Pass(batch, context, batch, context, batch)


def prefill(tokens: Number, positions: Number, prompt: Number) -> Pass:
    """A chunk of prompts of `prompt` tokens in the mean: a token sees half of the `positions` of
    its own. The cache that chunks read again is small next to the weights.
    """
    requests = tokens / prompt
    return Pass(tokens, positions / 2, requests, positions, requests)


class Serving(Layout):
    """A layout without gradients: weights are whole for use, and experts lie over all devices of a
    copy: `expert_ways` of these have different experts, the others parts of their width.
    """

    weights: StoredType
    kv_cache: StoredType
    expert_ways: Number
    factors: Any = None  # of the torus axes, [layouts, torus axes, ICI_AXES]

    @cached_property
    def _ways(self) -> dict[str, Number]:
        width_ways = self.copy_devices / self.expert_ways
        own = {EXPERTS: self.expert_ways, "expert_ff": width_ways}
        return {axis: ways(self.mesh, axis) for axis in LOGICAL_AXES} | own

    @property
    def copy_devices(self) -> Number:
        return self.mesh["expert"] * self.mesh["tensor"]

    @property
    def requests_split(self) -> Number:
        """Parts into which attention splits the requests of a copy."""
        return self.mesh["expert"]

    def column(self, at: int) -> "Serving":
        """Return one of several layouts, as arrays of one row."""

        def part(values: Any) -> Any:
            return values[at : at + 1] if isinstance(values, np.ndarray) else values

        def parts(rates: dict[str, Any]) -> dict[str, Any]:
            return {name: part(rate) for name, rate in rates.items()}

        links = Links(parts(self.links.rates), parts(self.links.exchange_rates), {}, {})
        mesh = {axis: part(size) for axis, size in self.mesh.items()}
        return replace(
            self, mesh=mesh, links=links, expert_ways=part(self.expert_ways),
            factors=part(self.factors),
        )  # fmt: skip

    # --- bytes of one device

    def _matrix_elements(self, *, of_experts: bool) -> Number:
        """Elements of the blocks' matrices on a device: those of routed experts, or the others."""
        return self.over_layers(
            lambda block: sum(
                self.elements(matmul.weight)
                for matmul in block.matmuls
                if is_of_experts(matmul) == of_experts
            )
        )

    @cached_property
    def shared_weight_bytes(self) -> Number:
        """Bytes that every pass reads: all but experts and the embedding. The head, norms and
        biases are in bf16.
        """
        plain = self.elements(self.network.head) + self.vector_elements
        matrices = STORED_BYTES[self.weights] * self._matrix_elements(of_experts=False)
        return matrices + STREAM_BYTES * plain

    @cached_property
    def expert_elements(self) -> Number:
        return self._matrix_elements(of_experts=True)

    @property
    def _all_expert_bytes(self) -> Number:
        return STORED_BYTES[self.weights] * self.expert_elements

    def expert_weight_bytes(self, work: Pass) -> Number:
        """Bytes of the experts to which a token of the pass goes. Tokens choose k of E experts:
        one is left out with (1 - k / E)^tokens.
        """
        moe = self.model.moe
        if moe is None:
            return 0.0
        return self._all_expert_bytes * (1 - (1 - moe.top_k / moe.experts) ** work.tokens)

    @cached_property
    def weights_bytes(self) -> Number:
        """Bytes of everything that stays on a device."""
        tables = [table for table in self.network.tables if table is not self.network.head]
        others = STREAM_BYTES * sum(map(self.elements, tables))
        return self.shared_weight_bytes + self._all_expert_bytes + others

    def cache_bytes(self, context: Number, *, whole: bool = False) -> Number:
        """Bytes of one sequence of `context` positions on each device that has its cache, or of the
        `whole` model where nothing is replicated.
        """

        def of_block(block: Block) -> Number:
            attention, window = block.attention, block.attention.scores.window
            seen = context if window is None else np.minimum(context, window)
            if isinstance(attention, LatentAttention):  # the latent and the part of keys for RoPE
                return seen * sum(m.output.width for m in attention.latents[-2:])
            return seen * sum(
                tensor.width if whole else self.elements(tensor) for tensor in attention.whole
            )

        return STORED_BYTES[self.kv_cache] * self.over_layers(of_block)

    def activation_bytes(self, tokens: Number, batch: Number) -> Number:
        """Bytes of a step with so many tokens: the stream twice, the widest results of a sublayer,
        and logits in fp32 of the requests.
        """

        def widest(block: Block) -> Number:
            parts = [
                sum(self.elements(matmul.output) for matmul in parallel)
                for part in block.sublayers
                for parallel in part.parallel
            ]
            return np.maximum.reduce(np.broadcast_arrays(*parts))

        widths = [widest(block) for block in self.network.blocks]
        width = 2 * self.model.d_model + np.maximum.reduce(np.broadcast_arrays(*widths))
        own_tokens, own_batch = tokens / self.requests_split, batch / self.requests_split
        logits = _FP32_BYTES * own_batch * self.size(self.network.head.dimensions[0])
        return STREAM_BYTES * own_tokens * width + logits

    @property
    def hbm_bytes(self) -> float:
        return self.chip.hbm_usable_bytes.value

    def room(self, chunk: Number) -> Number:
        """Bytes of a device that weights and a step leave for the cache; at least zero."""
        taken = self.weights_bytes + self.activation_bytes(chunk, 0)
        return np.maximum(self.hbm_bytes - taken, 0.0)

    def most_requests(self, chunk: Number, context: Number) -> Number:
        """Requests of a copy whose caches of `context` positions fit, with their logits."""
        logits = _FP32_BYTES * self.size(self.network.head.dimensions[0])
        each = self.cache_bytes(context) + logits
        return np.floor(self.room(chunk) / each) * self.requests_split

    # --- work of one device in a pass

    def shared_flops(self, work: Pass) -> Number:
        """Products with matrices that every token meets, by the device's part of the requests."""
        matrices = work.tokens * self._matrix_elements(of_experts=False)
        head = work.logits * self.elements(self.network.head)
        return 2 * (matrices + head) / self.requests_split

    def expert_flops(self, work: Pass) -> Number:
        """Products with routed experts: an even share of those of all tokens of the copy."""

        def of_block(block: Block) -> float:
            return sum(m.weight.elements * m.share for m in block.matmuls if is_of_experts(m))

        return 2 * work.tokens * self.over_layers(of_block) / self.copy_devices

    def attention_flops(self, work: Pass) -> Number:
        """Scores and values. Latents are multiplied as they lie in the cache where a token sees
        only positions of the cache, as keys and values of every head otherwise.
        """
        own_tokens = work.tokens / self.requests_split
        in_cache = work.tokens <= work.sequences

        def of_block(block: Block) -> Number:
            attention, window = block.attention, block.attention.scores.window
            seen = work.positions if window is None else np.minimum(work.positions, window)
            seen = seen + work.together
            width: Number = self.elements(attention.queries) + self.elements(attention.result)
            if isinstance(attention, LatentAttention):
                latent, rope = (m.output.width for m in attention.latents[-2:])
                heads = self.size(attention.queries.dimensions[0])
                width = np.where(in_cache, heads * (2 * latent + rope), width)
            return 2 * own_tokens * seen * width

        return self.over_layers(of_block)

    # --- exchanges of one device in a pass: bytes, and calls that pay for hops

    @property
    def sums(self) -> Number:
        """The sums over `tensor` of a pass: of attention, of an MLP without experts, and one of the
        words' vectors.
        """
        return 1 + self.over_layers(
            lambda block: 1 if any(is_of_experts(m) for m in block.mlp.matmuls) else 2
        )

    def tensor_bytes(self, work: Pass) -> Number:
        """Sums over `tensor` of what sublayers add to the stream: each travels twice."""
        n, stream = self.mesh["tensor"], work.tokens / self.requests_split * self.model.d_model
        return self.sums * 2 * STREAM_BYTES * stream * (n - 1) / n

    def expert_bytes(self, work: Pass) -> Number:
        """Tokens to the experts of all devices of a copy and back: each device takes all tokens
        and adds up results, or sends each token to the devices of its experts.
        """
        moe, n = self.model.moe, self.copy_devices
        if moe is None:
            return 0.0
        stream = work.tokens * self.model.d_model * STREAM_BYTES
        gathered = 2 * stream * (n - 1) / n
        sent = 2 * stream / self.requests_split * np.minimum(moe.top_k, n) * (n - 1) / n
        return self.network.mixture_layers * np.minimum(gathered, sent)


# --- the ways to serve a model on a slice

_COLUMNS = {name: ICI_AXES.index(axis) for name, axis in AXES.items()}
_COPY = [_COLUMNS["attention"], _COLUMNS["tensor"]]  # the devices of one copy of the model


def layouts(
    chip: Chip, topology: Topology, model: Model, weights: StoredType, kv_cache: StoredType,
    mesh: ServingMesh,
) -> Serving | None:  # fmt: skip
    """Return all ways to serve on a slice as one layout of columns, if there are any."""
    torus = make_torus(chip, topology)
    axes = [axis for name, axis in AXES.items() if model.moe or name != "attention"]
    rows = [factor_rows(axis.length, axes) for axis in torus.axes]
    # Factors of all torus axes: rows x torus axes x ICI_AXES.
    places = product(*(range(len(part)) for part in rows))
    picked = np.array(list(places)).reshape(-1, len(rows))
    factors = np.stack([part[picked[:, i]] for i, part in enumerate(rows)], axis=1)
    sizes = axis_sizes(factors)
    # Whether `tensor` divides what it splits; KV heads may be replicated instead.
    tensor = sizes[:, _COLUMNS["tensor"]]
    kept = np.ones(len(tensor), bool)
    for axis, _, total in split_sizes(model):
        if axis in {"heads", "ff", "global_kv_heads"}:
            kept &= total % tensor == 0
        elif axis == "kv_heads":
            kept &= (total % tensor == 0) | (tensor % total == 0)
    for name, column in _COLUMNS.items():
        wanted = getattr(mesh, name)
        kept &= (wanted is None) | (sizes[:, column] == (wanted or 1))
    factors, sizes = factors[kept], sizes[kept]
    if not len(factors):
        return None
    # The placement of each mesh whose `tensor` and copies have the fastest links.
    links = find_links(torus, factors)
    order = np.lexsort((-links.rates["replicas"], -links.rates["tensor"], *sizes.T))
    _, first = np.unique(sizes[order], axis=0, return_index=True)
    chosen = order[first]
    ways = [_expert_ways(model, int(sizes[row][_COPY].prod()), mesh.experts) for row in chosen]
    picks = np.array([row for row, own in zip(chosen.tolist(), ways, strict=True) if own], int)
    if not len(picks):
        return None
    expert_ways = np.array([own for own in ways if own])
    made = serving(
        chip, model, weights, kv_cache, sizes[picks], expert_ways, rows_of_links(links, picks)
    )
    return replace(made, factors=factors[picks])


def serving(
    chip: Chip, model: Model, weights: StoredType, kv_cache: StoredType, sizes: Ints,
    expert_ways: Number, links: Links,
) -> Serving:  # fmt: skip
    """Return meshes as one layout of columns, so that batches may be its rows."""
    columns = {axis: sizes[:, i, None] for i, axis in enumerate(ICI_AXES)}

    def in_columns(rates: dict[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(values)[:, None] for name, values in rates.items()}

    column: Any = Links(in_columns(links.rates), in_columns(links.exchange_rates), {}, {})
    return Serving(
        chip=chip, model=model, precision=Precision(parameters="bf16"), length=1, sequences=1,
        mesh={**dict.fromkeys(DCN_AXES, 1), **columns}, links=column, weights=weights,
        kv_cache=kv_cache, expert_ways=np.asarray(expert_ways)[:, None],
    )  # fmt: skip


def _expert_ways(model: Model, devices: int, wanted: int | None) -> int:
    """Return the parts into which experts are split on so many devices: whole experts as far as
    that goes, which engines multiply best; 0 where the wanted number does not divide them.
    """
    moe = model.moe
    if moe is None:
        return 1 if wanted in (None, 1) else 0
    width = expert_d_ff(model, moe)
    ways = (
        ways
        for ways in reversed(divisors(devices))
        if moe.experts % ways == 0 and width % (devices // ways) == 0 and wanted in (None, ways)
    )
    return next(ways, 0)

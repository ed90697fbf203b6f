"""Plan room: one way to lay a step out on the chips, or arrays of ways, one element each.

Every formula of the room takes a Layout. Given plain numbers it yields one ledger; given numpy
arrays it prices all of a search at once. There is no second, faster copy of any formula.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.catalog.chip import Chip
from orchestrator.plan.remat import Policy
from orchestrator.plan.torus import Links
from orchestrator.types.spec import Model, Precision

Number = Any  # a plain number, or a numpy array of them

DTYPE_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is asked (model, types, length), what is decided, and the links it leads to."""

    chip: Chip
    model: Model
    precision: Precision
    remat: Policy
    length: int
    sequences: Number
    microbatches: Number
    pods: int
    data: Number
    fsdp: Number
    sequence: Number
    tensor: Number
    links: Links

    @property
    def compute_bytes(self) -> int:
        return DTYPE_BYTES[self.precision.compute]

    @property
    def gradient_bytes(self) -> int:
        return DTYPE_BYTES[self.precision.gradients]

    @property
    def devices(self) -> Number:
        return self.pods * self.data * self.fsdp * self.sequence * self.tensor

    @property
    def weight_ways(self) -> Number:
        """Ways in which every matrix is split beside `tensor`: the book's X."""
        return self.fsdp * self.sequence

    @property
    def replicas(self) -> Number:
        """Ways in which the sequences of a batch are split."""
        return self.pods * self.data * self.fsdp

    @property
    def step_tokens(self) -> Number:
        """Tokens a step that the devices of one `tensor` group work on together."""
        return self.sequences / self.replicas * self.length / self.sequence

    @property
    def tokens(self) -> Number:
        """The same for one microbatch."""
        return self.step_tokens / self.microbatches

    @property
    def heads(self) -> Number:
        """Query heads on a device."""
        return self.model.heads / self.tensor

    @property
    def kv_heads(self) -> Number:
        """Key heads on a device: one, copied, where `tensor` exceeds them."""
        return np.maximum(self.model.kv_heads / self.tensor, 1)

    @property
    def kv_copies(self) -> Number:
        return np.maximum(self.tensor / self.model.kv_heads, 1)

    @property
    def d_ff(self) -> Number:
        return self.model.d_ff / self.tensor

    @property
    def vocab(self) -> Number:
        return self.model.vocab / self.tensor

    @property
    def layer_matrices(self) -> dict[str, Number]:
        """Elements of each matrix of a layer on a device once gathered, by the tensor it makes."""
        d_model, head = self.model.d_model, self.model.head_dim
        matrices = {
            "q": d_model * self.heads * head,
            "k": d_model * self.kv_heads * head,
            "v": d_model * self.kv_heads * head,
            "mid": d_model * self.heads * head,
            "up": d_model * self.d_ff,
            "down": d_model * self.d_ff,
        }
        return matrices | ({"gate": d_model * self.d_ff} if self.model.gated else {})

    @property
    def layer_elements(self) -> Number:
        return sum(self.layer_matrices.values())

    @property
    def table_elements(self) -> Number:
        """One vocabulary table on a device once gathered."""
        return self.model.d_model * self.vocab

    @property
    def tables(self) -> int:
        return 1 if self.model.tied else 2

    @property
    def matrix_elements(self) -> Number:
        """All matrix elements that a device owns."""
        whole = self.model.layers * self.layer_elements + self.tables * self.table_elements
        return whole / self.weight_ways

    @property
    def norm_elements(self) -> int:
        """Norm scales; every device holds all of them."""
        return (2 * self.model.layers + 1) * self.model.d_model

    @property
    def owned_elements(self) -> Number:
        return self.matrix_elements + self.norm_elements

    @property
    def copied_heads(self) -> Number:
        """Key heads on a device beyond its even share: zero unless heads are copied."""
        return self.kv_heads - self.model.kv_heads / self.tensor

    @property
    def copied_elements(self) -> Number:
        """Owned elements that are copies of another device's."""
        heads = 2 * self.model.layers * self.copied_heads
        return heads * self.model.d_model * self.model.head_dim / self.weight_ways

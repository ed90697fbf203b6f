"""The mesh axes and the logical axes that they split, each declared once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from orchestrator.values.plan import LineKind, Link


@dataclass(frozen=True)
class Parallelism:
    """A mesh axis, its links and exchanges. On the torus the devices of a `ring` are neighbours."""

    name: str
    links: tuple[Link, ...]
    exchanges: tuple[LineKind, ...]
    ring: bool = False


WEIGHT_EXCHANGES: tuple[LineKind, ...] = (
    "weight_gather",
    "gradient_scatter",
    "gradient_reduction",
    "moment_exchange",  # of Muon alone
)

# With a capacity tokens go to their experts; without one, all tokens are gathered for them.
EXPERT_EXCHANGES: tuple[LineKind, ...] = ("expert_exchange", "expert_gather", "expert_scatter")

# Outermost first: neighbours along the last axis are the nearest on the torus.
_MESH_AXES = (
    Parallelism("pods", links=("dcn",), exchanges=("gradient_reduction",)),
    Parallelism("fsdp_dcn", links=("dcn",), exchanges=WEIGHT_EXCHANGES),
    Parallelism("data", links=("ici",), exchanges=("gradient_reduction",)),
    Parallelism("expert", links=("ici",), exchanges=(*WEIGHT_EXCHANGES, *EXPERT_EXCHANGES)),
    Parallelism("fsdp", links=("ici",), exchanges=WEIGHT_EXCHANGES),
    Parallelism(
        "sequence", links=("ici",), exchanges=(*WEIGHT_EXCHANGES, "kv_gather", "kv_scatter")
    ),
    Parallelism(
        "tensor",
        links=("ici",),
        exchanges=("activation_gather", "activation_scatter", "gradient_reduction",
                   "moment_exchange"),
        ring=True,
    ),
)  # fmt: skip

# Logical axis → the mesh axes that split it, outermost first.
LOGICAL_AXES: dict[str, tuple[str, ...]] = {
    # activations
    "batch": ("pods", "fsdp_dcn", "data", "expert", "fsdp"),
    "length": ("sequence",),
    "residual_length": ("sequence", "tensor"),  # positions of the stream between matmuls
    "residual": (),  # d_model of the stream, and of norm scales
    "choices": (),  # experts of one token
    # weights
    "layers": (),
    "layer_scale": (),
    # d_model of matrices: stored split, gathered for use. Each device first gets its own part from
    # the other slices, so these parts are neighbours: `fsdp_dcn` is innermost.
    "embed": ("expert", "fsdp", "sequence", "fsdp_dcn"),
    "experts": ("expert",),  # an expert's weights stay where they are stored
    "expert_embed": ("fsdp", "sequence", "fsdp_dcn"),  # d_model of these
    "routed_experts": (),  # the outputs of a router
    # Latents: d_in of the matrices that make heads from them, and what the stream is multiplied to.
    "query_rank": ("expert", "fsdp", "sequence", "fsdp_dcn"),
    "kv_rank": ("expert", "fsdp", "sequence", "fsdp_dcn"),
    "query_latent": (),
    "kv_latent": (),
    "rope_dim": (),
    "nope_dim": (),
    # both
    "heads": ("tensor",),
    "global_kv_heads": ("tensor",),  # of global layers, if they have another number
    "kv_heads": ("tensor",),  # copied where `tensor` has more devices than there are kv heads
    "head_dim": (),
    "global_head_dim": (),
    "value_dim": (),  # of a head of values, where it is not that of queries
    "ff": ("tensor",),
    "expert_ff": ("tensor",),
    "shared_ff": ("tensor",),
    "vocab": ("tensor",),
    "positions": ("tensor",),  # that have a learned vector
}
GATHERED = "embed"
GATHERED_OF_EXPERTS = "expert_embed"
GATHERED_AXES = (GATHERED, GATHERED_OF_EXPERTS, "query_rank", "kv_rank")  # one of each matrix
COPIED = "kv_heads"
PADDED = "vocab"  # filled up with rows that no token has, where the mesh does not divide it
_PADDED_TO = 128  # rows on each device, of which a padded table has a multiple
HEADS = ("head_dim", "global_head_dim", "value_dim")

AXES = tuple(axis.name for axis in _MESH_AXES)
DCN_AXES = tuple(axis.name for axis in _MESH_AXES if axis.links == ("dcn",))
ICI_AXES = tuple(axis.name for axis in _MESH_AXES if "ici" in axis.links)
RING_AXES = tuple(axis.name for axis in _MESH_AXES if axis.ring)


def in_use(axes: Iterable[str], mesh: Mapping[str, Any]) -> tuple[str, ...]:
    """The axes without those that only mixtures have, where a plan does not use them."""
    return tuple(axis for axis in axes if axis not in LOGICAL_AXES["experts"] or mesh[axis] > 1)


def link_of(axes: Iterable[str]) -> Link:
    """The slowest link between the devices that these axes join."""
    return "dcn" if any(axis in DCN_AXES for axis in axes) else "ici"


def in_slice(axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis in ICI_AXES)


def between_slices(axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis in DCN_AXES)


# The axes that split parameters; along the others each device has a copy.
_SPLITTING = {*LOGICAL_AXES[GATHERED], *LOGICAL_AXES["heads"]}
PARAMETER_AXES = tuple(axis for axis in AXES if axis in _SPLITTING)
REPLICA_AXES = tuple(axis for axis in AXES if axis not in PARAMETER_AXES)
# The one axis that joins slices and splits no parameters: it has what slices are left.
(SLICE_REPLICAS,) = between_slices(REPLICA_AXES)
# The axes that join slices and split parameters. They cost DCN traffic in every layer, so a plan
# has them only on request.
SHARED_OVER_DCN = between_slices(PARAMETER_AXES)

# The devices of a slice that one collective joins, by the name that plans give the group. The axes
# of a group are neighbours in AXES, so that it is one span on every torus axis. Each of DCN_AXES is
# a group of its own, by its own name.
GROUPS: dict[str, tuple[str, ...]] = {
    "data": ("data",),
    "expert": ("expert",),
    "weights": in_slice(LOGICAL_AXES[GATHERED]),
    "experts": in_slice(LOGICAL_AXES[GATHERED_OF_EXPERTS]),
    "sequence": LOGICAL_AXES["length"],
    "tensor": LOGICAL_AXES["heads"],
    "replicas": in_slice(PARAMETER_AXES),
    "expert_replicas": tuple(
        axis for axis in in_slice(PARAMETER_AXES) if axis not in LOGICAL_AXES["experts"]
    ),
}


def ways(mesh: Mapping[str, Any], logical_axis: str) -> Any:
    """Parts that a mesh splits a logical axis into; an axis that the mesh lacks has one device."""
    return prod(mesh[axis] for axis in LOGICAL_AXES[logical_axis] if axis in mesh)


def padded(rows: int, parts: Any) -> Any:
    """Rows of a vocabulary table: where `parts` do not divide them, PADDED_TO divides each part."""
    uneven = (rows % parts) != 0
    quantum = parts * _PADDED_TO
    return rows + uneven * (-rows % quantum)

"""The mesh axes and the logical axes that they split, each declared once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from orchestrator.values.plan import LineKind, Link


@dataclass(frozen=True)
class Parallelism:
    """A mesh axis and its link. On the torus the devices of a `ring` are neighbours."""

    name: str
    link: Link
    ring: bool = False


WEIGHT_EXCHANGES: tuple[LineKind, ...] = (
    "weight_gather",
    "gradient_scatter",
    "gradient_reduction",
    "moment_exchange",  # of Muon alone
)

# With a capacity tokens go to their experts; without one, all tokens are gathered for them.
EXPERT_EXCHANGES: tuple[LineKind, ...] = ("expert_exchange", "expert_gather", "expert_scatter")

# Outermost first: neighbours along the last axis are the nearest on the torus. What spans several
# slices and the devices of each has two axes: `sequence_dcn` between slices, `sequence` in each.
_MESH_AXES = (
    Parallelism("pods", "dcn"),
    Parallelism("pipeline_dcn", "dcn"),
    Parallelism("expert_dcn", "dcn"),
    Parallelism("sequence_dcn", "dcn"),
    Parallelism("fsdp_dcn", "dcn"),
    Parallelism("pipeline", "ici"),
    Parallelism("data", "ici"),
    Parallelism("expert", "ici"),
    Parallelism("fsdp", "ici"),
    Parallelism("sequence", "ici"),
    Parallelism("tensor", "ici", ring=True),
)

_GATHERED = ("expert", "fsdp", "sequence", "expert_dcn", "sequence_dcn", "fsdp_dcn")
# Logical axis → the mesh axes that split it, outermost first.
LOGICAL_AXES: dict[str, tuple[str, ...]] = {
    # activations
    "batch": ("pods", "expert_dcn", "fsdp_dcn", "data", "expert", "fsdp"),
    "length": ("sequence_dcn", "sequence"),
    # positions of the stream between matmuls
    "residual_length": ("sequence_dcn", "sequence", "tensor"),
    "residual": (),  # d_model of the stream, and of norm scales
    "choices": (),  # experts of one token
    # weights
    "layers": ("pipeline_dcn", "pipeline"),  # stages of a pipeline, each with its own layers
    "chunks": (),  # of the layers of a stage, one after another
    "layer_scale": (),
    # d_model of matrices: stored split, gathered for use. Each device first gets its own part from
    # the other slices, so these parts are neighbours: what joins slices is innermost.
    "embed": _GATHERED,
    "experts": ("expert_dcn", "expert"),  # an expert's weights stay where they are stored
    "expert_embed": ("fsdp", "sequence", "sequence_dcn", "fsdp_dcn"),  # d_model of these
    "routed_experts": (),  # the outputs of a router
    # Latents: d_in of the matrices that make heads from them, and what the stream is multiplied to.
    "query_rank": _GATHERED,
    "kv_rank": _GATHERED,
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
    "vocab": ("pipeline_dcn", "pipeline", "tensor"),  # all stages look up words and make logits
    "positions": ("pipeline_dcn", "pipeline", "tensor"),  # that have a learned vector
}
GATHERED = "embed"
GATHERED_OF_EXPERTS = "expert_embed"
GATHERED_AXES = (GATHERED, GATHERED_OF_EXPERTS, "query_rank", "kv_rank")  # one of each matrix
COPIED = "kv_heads"
PADDED = "vocab"  # filled up with rows that no token has, where the mesh does not divide it
_PADDED_TO = 128  # rows on each device, of which a padded table has a multiple
HEADS = ("head_dim", "global_head_dim", "value_dim")

AXES = tuple(axis.name for axis in _MESH_AXES)
DCN_AXES = tuple(axis.name for axis in _MESH_AXES if axis.link == "dcn")
ICI_AXES = tuple(axis.name for axis in _MESH_AXES if axis.link == "ici")
RING_AXES = tuple(axis.name for axis in _MESH_AXES if axis.ring)


# The stages of a pipeline, outermost first. They split the layers, so each parameter of a layer is
# on one stage; the axes below split it there, or have replicas of it.
PIPELINE = LOGICAL_AXES["layers"]
# Axes that a plan names only where they have several devices: only mixtures have experts.
_NAMED_IN_USE = {"expert", "expert_dcn", "sequence_dcn", *PIPELINE}
# Those that a plan's mesh has only then; trainers' meshes always have all of AXES.
OPTIONAL_AXES = tuple(axis for axis in AXES if axis in _NAMED_IN_USE - {"expert"})


def in_use(axes: Iterable[str], mesh: Mapping[str, Any]) -> tuple[str, ...]:
    """The axes without those that only some plans have, where a plan does not use them."""
    return tuple(axis for axis in axes if axis not in _NAMED_IN_USE or mesh.get(axis, 1) > 1)


def named_sizes(mesh: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a plan states, outermost first: those that only some plans have where they
    have several devices.
    """
    return {
        axis: mesh[axis]
        for axis in AXES
        if axis in mesh and (axis not in OPTIONAL_AXES or mesh[axis] > 1)
    }


def sizes(mesh: Mapping[str, int], axes: Iterable[str] = AXES) -> dict[str, int]:
    """Sizes of the axes of a plan's mesh; an axis that it lacks has one device."""
    return {axis: mesh.get(axis, 1) for axis in axes}


def link_of(axes: Iterable[str]) -> Link:
    """The slowest link between the devices that these axes join."""
    return "dcn" if any(axis in DCN_AXES for axis in axes) else "ici"


def in_slice(axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis in ICI_AXES)


def between_slices(axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis in DCN_AXES)


# The axes that split a parameter of a stage; along the others but PIPELINE are copies of it.
_SPLITTING = {*LOGICAL_AXES[GATHERED], *LOGICAL_AXES["heads"]}
PARAMETER_AXES = tuple(axis for axis in AXES if axis in _SPLITTING)
REPLICA_AXES = tuple(axis for axis in AXES if axis not in (*PARAMETER_AXES, *PIPELINE))
# The one axis that joins slices and splits no parameters: it has what slices are left.
(SLICE_REPLICAS,) = between_slices(REPLICA_AXES)
# The axes that join slices and split parameters. They cost DCN traffic in every layer, so a plan
# for TPUs has them only on request.
SHARED_OVER_DCN = between_slices(PARAMETER_AXES)
# The axes whose slices together hold one copy of the model.
MODEL_OVER_DCN = tuple(axis for axis in DCN_AXES if axis != SLICE_REPLICAS)

# The devices of a slice that one collective joins, by the name that plans give the group. The axes
# of a group are neighbours in AXES, so that it is one span on every torus axis.
GROUPS: dict[str, tuple[str, ...]] = {
    "pipeline": in_slice(PIPELINE),
    "data": ("data",),
    "expert": ("expert",),
    "weights": in_slice(LOGICAL_AXES[GATHERED]),
    "experts": in_slice(LOGICAL_AXES[GATHERED_OF_EXPERTS]),
    "sequence": in_slice(LOGICAL_AXES["length"]),
    "tensor": LOGICAL_AXES["heads"],
    "replicas": in_slice(PARAMETER_AXES),
    "expert_replicas": tuple(
        axis for axis in in_slice(PARAMETER_AXES) if axis not in LOGICAL_AXES["experts"]
    ),
}
# The same between slices. `fsdp_dcn` is the group of all that split a matrix there.
DCN_GROUPS: dict[str, tuple[str, ...]] = {
    **{axis: (axis,) for axis in DCN_AXES},
    "fsdp_dcn": SHARED_OVER_DCN,
    "experts_dcn": between_slices(LOGICAL_AXES[GATHERED_OF_EXPERTS]),
}


def ways(mesh: Mapping[str, Any], logical_axis: str) -> Any:
    """Parts that a mesh splits a logical axis into; an axis that the mesh lacks has one device."""
    return prod(mesh[axis] for axis in LOGICAL_AXES[logical_axis] if axis in mesh)


def padded(rows: int, parts: Any) -> Any:
    """Rows of a vocabulary table: `parts` that do not divide them get multiples of _PADDED_TO."""
    uneven = (rows % parts) != 0
    quantum = parts * _PADDED_TO
    return rows + uneven * (-rows % quantum)

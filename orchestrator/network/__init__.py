"""A network described once, as data: its blocks, its weights, its activations and its mesh axes.

Parameter counts, FLOPs, bytes, collectives, the trainer's parameter tree and the derivation of
`orch explain` all follow from this description. Imports `orchestrator.values` alone.

mesh_axes          the mesh axes, and which of them split each logical axis
description        what blocks are made of: dimensions, weights, matmuls, tensors
attention, mlp     the two parts of a block, one file for each kind
decoder            the whole network of a model
rematerialization  which tensors of a block a policy keeps, offloads or recomputes
"""

"""The names of resources, as ledgers show them."""

from orchestrator.network.mesh_axes import DCN_AXES

RESOURCES = {
    "mxu": "matmul",
    "latency": "ici",
    **{axis: f"dcn {axis}" for axis in DCN_AXES},
    **{name: name for name in ("hbm", "host", "cores")},
}

IN_WORDS = {
    "matmul": "the chips' matrix units",
    "hbm": "the chips' memory bandwidth",
    "host": "the link between chip and host",
    "cores": "the cores of this machine",
    "ici": "the links inside a slice",
    "dcn": "the network between slices",
}


def resource_name(name: str) -> str:
    """Return the display name of a ledger line's resource; unlisted ones are ICI links."""
    return RESOURCES.get(name, f"ici {name}")


def in_words(bound: str) -> str:
    """Return what a resource is, from its display name."""
    return IN_WORDS.get(bound) or IN_WORDS[bound.partition(" ")[0]]

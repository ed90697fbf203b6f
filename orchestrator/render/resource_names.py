"""The names of resources, as ledgers show them."""

from orchestrator.network.mesh_axes import DCN_AXES

RESOURCES = {
    "mxu": "matmul",
    "latency": "ici",
    **{axis: f"dcn {axis}" for axis in DCN_AXES},
    **{name: name for name in ("hbm", "host", "cores")},
}


def resource_name(name: str) -> str:
    """Return the display name of a ledger line's resource; unlisted ones are ICI links."""
    return RESOURCES.get(name, f"ici {name}")

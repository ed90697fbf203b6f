"""Render room: what people call the resources that ledger lines keep busy."""

NAMES = {
    "mxu": "matmul",
    "pods": "dcn pods",
    "latency": "ici",
    **{name: name for name in ("hbm", "host", "cores", "exchanges")},
}


def resource(name: str) -> str:
    """A resource as a bound names it; every other one is the links of a group."""
    return NAMES.get(name, f"ici {name}")

"""The files that travel with orch: catalog, example specs, dashboards. Imports nothing of orch.

`orchestrator/dashboards` and `orchestrator/examples` are links to the folders at the top of the
checkout; a wheel holds the files themselves.
"""

from importlib.resources import files
from pathlib import Path


def resource(*parts: str) -> Path:
    """A file or folder of the package, by its path inside it."""
    return Path(str(files("orchestrator"))).joinpath(*parts)

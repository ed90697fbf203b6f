"""Files that a spec names and this machine lacks: hosts that train may have them."""

from collections.abc import Iterator
from pathlib import Path

from orchestrator.spec.starting_weights import KEY
from orchestrator.spec.training_data import data_paths
from orchestrator.types.spec import Spec


def missing_inputs(spec: Spec, folder: Path) -> Iterator[tuple[str, str]]:
    """The key and the path of each, relative to the folder of the spec."""
    start = spec.experiment.start
    paths = [(KEY, start.huggingface)] if start else []
    for key, path in (*paths, *data_paths(spec)):
        if not (folder / path).exists():
            yield key, path

"""Files that a spec names and this machine lacks: hosts that train may have them."""

from collections.abc import Iterator
from pathlib import Path

from orchestrator.spec.starting_weights import KEY
from orchestrator.spec.training_data import data_paths
from orchestrator.storage import is_address
from orchestrator.storage.inputs import has_input, input_path
from orchestrator.types.spec import Spec


def missing_inputs(spec: Spec, folder: Path) -> Iterator[tuple[str, str]]:
    """The key and the path of each, relative to the folder of the spec. Buckets are not asked."""
    for key, path in input_paths(spec):
        if not is_address(path) and not (folder / path).exists():
            yield key, path


def absent_objects(spec: Spec) -> Iterator[tuple[str, str]]:
    """The key and the address of each that its bucket does not have; they are asked."""
    for key, path in input_paths(spec):
        if is_address(path) and not has_input(input_path(Path(), path)):
            yield key, path


def input_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """The key and the path of whatever a run reads."""
    if start := spec.experiment.start:
        yield KEY, start.huggingface
    yield from data_paths(spec)

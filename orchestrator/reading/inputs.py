"""Checks that the data of a spec are token sets, where this machine has them."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from orchestrator.network.decoder import decoder
from orchestrator.reading import huggingface
from orchestrator.reading.instance import ResolvedSpec
from orchestrator.reading.problems import FileReference, Problem, SpecProblems, named_by
from orchestrator.storage.addresses import has_input, input_path, is_address
from orchestrator.values.model import Model
from orchestrator.values.spec import Spec

MANIFEST = "manifest.json"


def check_data(spec: Spec, resolved: ResolvedSpec, folder: Path) -> None:
    """Raise `SpecProblems` if a path names text, or the folder of a set.

    What this machine does not have, or a bucket has, is for the hosts that train to find.
    """
    if problems := [*_problems(spec, resolved, folder)]:
        raise SpecProblems(problems)


def _problems(spec: Spec, resolved: ResolvedSpec, folder: Path) -> Iterator[Problem]:
    for key, path in data_paths(spec):
        if is_address(path):
            continue
        found = folder / path
        is_set = (found / MANIFEST).is_file()
        if found.is_dir() or (found.is_file() and found.suffix != ".json"):
            place = resolved.place(tuple(int(n) if n.isdigit() else n for n in key.split(".")))
            fields = {"path": path, "found": found, "manifest": Path(path) / MANIFEST}
            yield place.problem(
                "folder-of-a-set" if is_set else "no-token-set", key, None, **fields
            )


def data_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """Every path of tokens, with its key."""
    stages, evaluation = spec.experiment.stages or (), spec.run.evaluation
    if stages:
        sources = [(f"experiment.stages.{n}.data", one.data) for n, one in enumerate(stages)]
    else:
        sources = [("experiment.data", spec.experiment.data)]
    yield from ((f"{key}.path", one.path) for key, one in sources if one.path)
    if evaluation and evaluation.path:
        yield "run.evaluation.path", evaluation.path


# Checks that the weights a spec starts from are those of its model.


KEY = "experiment.start.huggingface"
CONFIG = "config.json"


def check_start(spec: Spec, resolved: ResolvedSpec, folder: Path) -> None:
    """Raise `SpecProblems` if the folder of the weights describes another model.

    A folder that this machine does not have, or a bucket has, is for the hosts that train to read.
    """
    start = spec.experiment.start
    if start is None or is_address(start.huggingface) or not (folder / start.huggingface).exists():
        return
    place = resolved.place(tuple(KEY.split(".")))
    config = folder / start.huggingface / CONFIG
    try:
        theirs = huggingface.model_of(config, spec.experiment.model.name)
    except SpecProblems as error:
        raise SpecProblems(named_by(FileReference(place, KEY), error.problems)) from None
    if not any(config.parent.glob("*.safetensors")):
        raise SpecProblems([place.problem("no-weights", KEY)])
    if decoder(theirs) != decoder(spec.experiment.model):
        names = ", ".join(differing(theirs, spec.experiment.model))
        written = f"{start.huggingface}/{CONFIG}"
        raise SpecProblems([place.problem("other-model", KEY, names=names, config=written)])


def differing(one: Model, other: Model) -> list[str]:
    """The keys whose values differ."""
    values = asdict(other)
    return [key for key, value in asdict(one).items() if value != values[key]]


# Files that a spec names and this machine lacks: hosts that train may have them.


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

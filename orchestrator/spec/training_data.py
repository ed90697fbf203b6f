"""Checks that the data of a spec are token sets, where this machine has them."""

from collections.abc import Iterator
from pathlib import Path

from orchestrator.spec.problem import Problem, SpecProblems
from orchestrator.spec.resolved import ResolvedSpec
from orchestrator.storage import is_address
from orchestrator.types.spec import Spec

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

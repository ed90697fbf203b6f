"""Checks that the weights a spec starts from are those of its model."""

from dataclasses import asdict
from pathlib import Path

from orchestrator.network.decoder import decoder
from orchestrator.spec import huggingface
from orchestrator.spec.problem import FileReference, SpecProblems, named_by
from orchestrator.spec.resolved import ResolvedSpec
from orchestrator.storage import is_address
from orchestrator.types.model import Model
from orchestrator.types.spec import Spec

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

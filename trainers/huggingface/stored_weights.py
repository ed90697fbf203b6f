"""How a trainer's parameters are stored in the files of an architecture."""

from collections.abc import Sequence

import numpy as np

from orchestrator.errors import SpecError
from orchestrator.network.published import PublishedWeight
from trainers.contract import Program

Shape = tuple[int, ...]


def stored_weights(program: Program, model_type: str) -> Sequence[PublishedWeight]:
    """The program's parameters as checkpoints of that `model_type` have them."""
    if program.published is None:
        raise SpecError(
            f"trainer {program.plan.trainer} does not say how checkpoints store its parameters"
        )
    return program.published(model_type)


def stored_shapes(weights: Sequence[PublishedWeight]) -> dict[str, Shape]:
    """The shape of each array of the files, by its name."""
    return {
        weight.name_at(index): weight.published_shape
        for weight in weights
        for index in np.ndindex(*weight.stacked)
    }

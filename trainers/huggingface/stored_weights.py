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


def selection(places: np.ndarray) -> slice | np.ndarray:
    """These places of an axis: as a slice, which copies nothing, where they are evenly spaced."""
    steps = np.diff(places)
    if steps.size and ((steps != steps[0]).any() or steps[0] < 1):
        return places
    return slice(int(places[0]), int(places[-1]) + 1, int(steps[0]) if steps.size else 1)

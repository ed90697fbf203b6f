"""Other slices and other chips on which a spec has a plan."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import inf, log, prod

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Topology
from orchestrator.plan.feasibility import usable_axes
from orchestrator.plan.spec_changes import CHIP, PODS, PRICE, TOPOLOGY, Change, Nearby
from orchestrator.plan.torus import count_placements, make_torus
from orchestrator.types.model import Model
from orchestrator.types.plan import Estimate
from orchestrator.types.refusal import Suggestion

MOST_TRIES = 12  # searches for one suggestion
MOST_PLACEMENTS = 400_000  # of a slice that is tried: larger ones take seconds to search
CHIPS = 3  # other chips that are suggested, the cheapest first


@dataclass(frozen=True)
class SliceChoice:
    """So many slices of a chip."""

    chip: Chip
    topology: Topology
    pods: int

    @property
    def chips(self) -> int:
        return self.topology.chips * self.pods


def requested_slices(near: Nearby) -> SliceChoice:
    resources = near.changed.resources
    chip = catalog.chip_of(resources)
    return SliceChoice(chip, catalog.topology(chip, resources.topology), resources.pods.max)


def rentable(chip: Chip, model: Model) -> list[Topology]:
    """The slices of a chip that one may rent, smallest first; of equal ones the most cubic."""
    axes = usable_axes(model)
    every = [catalog.topology(chip, text) for text in catalog.topologies(chip)]
    some = [one for one in every if one.chips <= prod(chip.largest_slice)]
    by_size = groupby(some, key=lambda one: one.chips)
    cubic = (min(group, key=lambda one: sum(one.shape)) for _, group in by_size)
    return [
        one for one in cubic if count_placements(make_torus(chip, one), axes) <= MOST_PLACEMENTS
    ]


def smaller_slices(near: Nearby) -> Iterator[Suggestion]:
    """The largest smaller slice, where memory is not what is lacking."""
    now = requested_slices(near)
    if not near.lacks_memory:
        fewer = [
            one
            for one in rentable(now.chip, near.changed.experiment.model)
            if one.chips < now.topology.chips
        ]
        yield from first_with_plan(
            near, now, [SliceChoice(now.chip, t, now.pods) for t in fewer[::-1]]
        )


def larger_slices(near: Nearby) -> Iterator[Suggestion]:
    """The smallest larger slice."""
    now = requested_slices(near)
    more = [
        one
        for one in rentable(now.chip, near.changed.experiment.model)
        if one.chips > now.topology.chips
    ]
    yield from first_with_plan(near, now, [SliceChoice(now.chip, t, now.pods) for t in more])


def other_chips(near: Nearby) -> Iterator[Suggestion]:
    """Of other chips that compute in the spec's type about as many, or as many as hold the model;
    the cheapest first.
    """
    now, experiment = requested_slices(near), near.changed.experiment
    found: list[Suggestion] = []
    for chip in map(catalog.chip, catalog.chips()):
        if chip.name != now.chip.name and experiment.precision.compute in chip.peak_flops_per_s:
            others = about_as_many(chip, now.chips, experiment.model)
            found += first_with_plan(near, now, others)
    yield from sorted(found, key=lambda one: (cost(one.dollars), one.chips))[:CHIPS]


def cost(dollars: Estimate | None) -> float:
    """A chip without a price comes last."""
    return inf if dollars is None else dollars.likeliest


def about_as_many(chip: Chip, chips: int, model: Model) -> list[SliceChoice]:
    """Slices of a chip, together nearest to a number of chips first; then those in fewer pods."""
    every = [
        SliceChoice(chip, one, max(1, round(chips / one.chips))) for one in rentable(chip, model)
    ]
    most = chip.multislice_chips.value if chip.multislice_chips else inf
    every = [one for one in every if one.chips <= most]
    return sorted(every, key=lambda one: (abs(log(one.chips / chips)), one.pods))


def first_with_plan(
    near: Nearby, now: SliceChoice, slices: Iterable[SliceChoice]
) -> Iterator[Suggestion]:
    """The first that has a plan. A search that fails says how much memory the next one needs."""
    least_chips = 0.0
    tries = 0
    for one in slices:
        change = change_to(near, now, one)
        if one.topology.chips < least_chips or change is None or tries == MOST_TRIES:
            continue
        attempt = near.attempt(change)
        tries += attempt.searched
        if attempt.suggestion:
            yield attempt.suggestion
            return
        least_chips = max(least_chips, one.topology.chips * attempt.memory_times)


def change_to(near: Nearby, now: SliceChoice, then: SliceChoice) -> Change | None:
    """What leads from slices to others; None where the spec's own price would be of no chip."""
    change: dict[str, int | float | str] = {}
    if then.chip.name != now.chip.name:
        change[CHIP] = then.chip.name
        if near.spec.resources.dollars_per_chip_hour is not None:
            if then.chip.dollars_per_hour is None:
                return None
            change[PRICE] = then.chip.dollars_per_hour.value
    if change or then.topology != now.topology:
        change[TOPOLOGY] = str(then.topology)
    if then.pods != now.pods:
        change[PODS] = then.pods
    return change

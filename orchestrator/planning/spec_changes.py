"""Changes of a spec by dotted keys, as `--set` makes them, and the plans that they lead to."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from typing import Any

from orchestrator.network.rematerialization import AUTO
from orchestrator.planning import flops
from orchestrator.planning.feasibility import sharing
from orchestrator.planning.forecast import forecast
from orchestrator.planning.layout import DTYPE_BYTES, moment_bytes
from orchestrator.planning.ranking import best_choices
from orchestrator.planning.search import (
    Choice,
    SearchRequest,
    layout_of_choice,
    search,
    search_request,
)
from orchestrator.values.refusal import Suggestion
from orchestrator.values.spec import Experiment, MeshRequest, Pods, Spec

Change = Mapping[str, int | float | str]  # dotted key → value

CHIP, TOPOLOGY, PODS = "resources.chip", "resources.topology", "resources.pods"
PRICE = "resources.dollars_per_chip_hour"
MESH, REMAT, SEQUENCES = "resources.mesh", "experiment.remat", "experiment.batch.sequences"
MICROBATCHES = "experiment.batch.microbatches"
MOMENTS, PARAMETERS = "experiment.precision.optimizer", "experiment.precision.parameters"
MOST_PODS, MOST_SEQUENCES = 10_000, 10_000_000  # what a spec may ask for


def overrides(change: Change) -> tuple[str, ...]:
    """What is typed after `--set`."""
    return tuple(f"{key}={value}" for key, value in change.items())


def changed(spec: Spec, change: Change) -> Spec:
    """The spec that these overrides lead to."""
    for key, value in change.items():
        spec = _with(spec, key.split("."), _meaning(key, value))
    if CHIP in change:
        return replace(spec, resources=replace(spec.resources, chip_definition=None))
    return spec


def _meaning(key: str, value: Any) -> Any:
    if key == PODS:
        return Pods(min=value, max=value)
    if key == MESH:
        return MeshRequest()
    chosen = key == MICROBATCHES or key.startswith(f"{MESH}.")
    return None if value == AUTO and chosen else value


def _with(part: Any, keys: list[str], value: Any) -> Any:
    first, *rest = keys
    return replace(part, **{first: _with(getattr(part, first), rest, value) if rest else value})


@dataclass(frozen=True)
class ChangeResult:
    """What came of planning a change: its plan, or how many times the memory it needs, at least.

    A change that cannot have a plan is not `searched`.
    """

    suggestion: Suggestion | None
    memory_times: float = 0.0
    searched: bool = True
    priced: int = 0


@dataclass
class Budget:
    """How many candidates may still be priced: nobody waits long for a refusal."""

    left: int = 250_000


@dataclass(frozen=True)
class Nearby:
    """A spec without a plan, what is changed in any case, and whether memory is what it lacks."""

    spec: Spec
    base: Change
    lacks_memory: bool
    budget: Budget

    @cached_property
    def changed(self) -> Spec:
        """The spec with what is changed in any case."""
        return changed(self.spec, self.base)

    def attempt(self, change: Change) -> ChangeResult:
        """A further change."""
        if self.budget.left <= 0:
            return ChangeResult(None, searched=False)
        made = attempt(self.spec, {**self.base, **change})
        self.budget.left -= made.priced
        return made

    def plan(self, change: Change) -> Suggestion | None:
        return self.attempt(change).suggestion

    def planned(self, changes: Iterable[Change], most: int = 1) -> Iterator[Suggestion]:
        """The first of further changes that have a plan."""
        return islice(filter(None, map(self.plan, changes)), most)


def attempt(spec: Spec, change: Change) -> ChangeResult:
    """Plan a changed spec."""
    other = changed(spec, change)
    if not is_legal(other):
        return ChangeResult(None, searched=False)
    request = search_request(other)
    # What follows saves the search of what it would refuse too.
    times = state_bytes(other.experiment) / memory_that_shares(request)
    if times > 1 or not divides(request):
        return ChangeResult(None, times, searched=False)
    result = search(request)
    choices = best_choices(request, result.candidates, 1)
    if not choices:
        usable = request.chip.hbm_usable_bytes.value
        times = result.smallest_bytes / usable if result.realizable else 0.0
        return ChangeResult(None, times, priced=result.realizable)
    suggestion = suggested(spec, other, change, request, choices[0])
    return ChangeResult(suggestion, priced=len(result.candidates))


def suggested(
    spec: Spec, other: Spec, change: Change, request: SearchRequest, choice: Choice
) -> Suggestion:
    """The best choice of the other spec, to which a change leads, in figures."""
    layout = layout_of_choice(request, choice)
    predicted = forecast(layout, other)
    return Suggestion(
        overrides=overrides(change),
        chip=request.chip.name,
        topology=str(request.topology),
        pods=request.pods,
        chips=request.topology.chips * request.pods,
        mesh=choice.mesh,
        sequences=choice.sequences,
        batch_change=choice.sequences / spec.experiment.batch.sequences - 1,
        remat=choice.remat,
        memory_bytes_per_device=predicted.memory_bytes_per_device,
        hbm_bytes_per_device=predicted.hbm_bytes_per_device,
        step_s=predicted.step_s,
        mfu=predicted.mfu,
        days=predicted.days,
        dollars=predicted.dollars,
    )


def is_legal(spec: Spec) -> bool:
    """Whether a file may say so: its tokens fill a batch, its numbers are in range."""
    batch = spec.experiment.batch
    return (
        1 <= batch.sequences <= MOST_SEQUENCES
        and batch.sequences * batch.length <= spec.experiment.tokens
        and spec.resources.pods.max <= MOST_PODS
    )


def state_bytes(experiment: Experiment) -> float:
    """Parameters and optimizer state of one copy: no plan needs less."""
    each: float = DTYPE_BYTES[experiment.precision.parameters]
    each += moment_bytes(experiment.optimizer, experiment.precision)
    return each * flops.parameters(experiment.model)


def divides(request: SearchRequest) -> bool:
    """Whether the devices of a pod may divide sequences, positions and heads; no mesh splits more.

    A batch with a tolerance is left to the search.
    """
    experiment = request.experiment
    batch = experiment.batch
    if batch.tolerance:
        return True
    parts = batch.sequences // request.pods * batch.length * experiment.model.heads
    return batch.sequences % request.pods == 0 and parts % request.torus.devices == 0


def memory_that_shares(request: SearchRequest) -> float:
    """What programs may use of all devices that share one copy of the weights."""
    devices = request.torus.devices * prod(sharing(request.mesh).values())
    return devices * request.chip.hbm_usable_bytes.value

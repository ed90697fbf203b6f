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
from orchestrator.planning.search import SearchRequest, layout_of_choice, search, search_request
from orchestrator.values.plan import Suggestion
from orchestrator.values.spec import Experiment, MeshRequest, Pods, Spec

Change = Mapping[str, int | float | str]  # dotted key → value

CHIP, TOPOLOGY, PODS = "resources.chip", "resources.topology", "resources.pods"
PRICE = "resources.dollars_per_chip_hour"
MESH, REMAT, SEQUENCES = "resources.mesh", "experiment.remat", "experiment.batch.sequences"
MICROBATCHES = "experiment.batch.microbatches"
MOMENTS, PARAMETERS = "experiment.precision.optimizer", "experiment.precision.parameters"
_MOST_PODS, _MOST_SEQUENCES = 10_000, 10_000_000  # what a spec may ask for


def overrides(change: Change) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in change.items())


def changed(spec: Spec, change: Change) -> Spec:
    def with_value(part: Any, keys: list[str], value: Any) -> Any:
        first, *rest = keys
        inner = with_value(getattr(part, first), rest, value) if rest else value
        return replace(part, **{first: inner})

    for key, typed in change.items():
        value: Any = typed
        if key == PODS:
            value = Pods(min=value, max=value)
        elif key == MESH:
            value = MeshRequest()
        elif value == AUTO and (key == MICROBATCHES or key.startswith(f"{MESH}.")):
            value = None
        spec = with_value(spec, key.split("."), value)
    if CHIP in change:
        return replace(spec, resources=replace(spec.resources, chip_definition=None))
    return spec


@dataclass
class Budget:
    """How many candidates may still be priced, so that nobody waits long for a refusal."""

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
        return changed(self.spec, self.base)

    def attempt(self, change: Change) -> tuple[Suggestion | None, float, bool]:
        """Plan a further change: return its plan, or None and how many times the memory it needs,
        at least, and whether that took a search.
        """
        if self.budget.left <= 0:
            return None, 0.0, False
        change = {**self.base, **change}
        other = changed(self.spec, change)
        batch = other.experiment.batch
        # Whether a file may say so: its tokens fill a batch, its numbers are in range.
        if (
            not 1 <= batch.sequences <= _MOST_SEQUENCES
            or batch.sequences * batch.length > other.experiment.tokens
            or other.resources.pods.max > _MOST_PODS
        ):
            return None, 0.0, False
        request = search_request(other)
        # What follows saves the search of what it would refuse too.
        times = state_bytes(other.experiment) / memory_that_shares(request)
        if times > 1 or not divides(request):
            return None, times, False
        result = search(request)
        choices = best_choices(request, result.candidates, 1)
        if not choices:
            usable = request.chip.hbm_usable_bytes.value
            times = result.smallest_bytes / usable if result.realizable else 0.0
            self.budget.left -= result.realizable
            return None, times, True
        choice = choices[0]
        predicted = forecast(layout_of_choice(request, choice), other)
        suggestion = Suggestion(
            overrides=overrides(change),
            chip=request.chip.name,
            topology=str(request.topology),
            pods=request.pods,
            chips=request.topology.chips * request.pods,
            mesh=choice.mesh,
            sequences=choice.sequences,
            batch_change=choice.sequences / self.spec.experiment.batch.sequences - 1,
            remat=choice.remat,
            memory_bytes_per_device=predicted.memory_bytes_per_device,
            hbm_bytes_per_device=predicted.hbm_bytes_per_device,
            step_s=predicted.step_s,
            mfu=predicted.mfu,
            days=predicted.days,
            dollars=predicted.dollars,
        )
        self.budget.left -= len(result.candidates)
        return suggestion, 0.0, True

    def planned(self, changes: Iterable[Change], most: int = 1) -> Iterator[Suggestion]:
        found = (self.attempt(change)[0] for change in changes)
        return islice(filter(None, found), most)


def state_bytes(experiment: Experiment) -> float:
    """Return the bytes of parameters and optimizer state of one replica: no plan needs less."""
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
    """Return what programs may use of all devices that share one replica of the weights."""
    devices = request.torus.devices * prod(sharing(request.mesh).values())
    return devices * request.chip.hbm_usable_bytes.value

"""The plans among which the compiler decides: the forecast cannot tell them apart."""

from dataclasses import replace

import numpy as np

from orchestrator import catalog
from orchestrator.network.rematerialization import AUTO, text_of
from orchestrator.planning.feasibility import ASKED_AXES, pinned_sizes
from orchestrator.planning.nearest_specs import (
    MESH,
    MICROBATCHES,
    REMAT,
    Change,
    changed,
    overrides,
)
from orchestrator.planning.planner import make_plan
from orchestrator.planning.ranking import contenders, expected_s_of, kinds_of, pick
from orchestrator.planning.search import (
    Candidates,
    Choice,
    SearchRequest,
    layout_of_rows,
    search,
    search_request,
)
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan, program_digest
from orchestrator.values.spec import MeshRequest, Spec

_OPTIONS = "experiment.compiler_options"


class Contender(Value):
    """A plan, and the overrides that pin it: its mesh, its policy and its microbatches."""

    overrides: tuple[str, ...]
    spec: Spec
    plan: Plan


def make_contenders(spec: Spec, most: int, room_bytes: float = 0.0) -> list[Contender]:
    """Return at most so many plans whose expected time lies inside the interval of the spec's own
    plan, each of another mesh, policy or number of microbatches; the spec's own first. With
    `room_bytes` only those that leave so much more of the memory.
    """
    if spec.choice:  # what an earlier search pinned is chosen again
        switched, mesh = catalog.chip_of(spec.resources).switched, spec.resources.mesh
        asked = () if switched else ASKED_AXES
        again = MeshRequest(**{axis: getattr(mesh, axis) for axis in asked})
        spec = changed(spec, {REMAT: AUTO, MICROBATCHES: AUTO})
        spec = replace(spec, choice=None, resources=replace(spec.resources, mesh=again))
    first = make_plan(spec)
    request = search_request(spec)
    chip = request.chip
    if room_bytes:
        usable = replace(chip.hbm_usable_bytes, value=chip.hbm_usable_bytes.value - room_bytes)
        request = replace(request, chip=replace(chip, hbm_usable_bytes=usable))
    step_s = first.forecast.step_s
    uncertain = (step_s.high or step_s.likeliest) / step_s.likeliest
    found = {program_digest(first): _pinned(spec, first)}
    for choice in _choices(request, search(request).candidates, most, uncertain):
        contender = _pinned(spec, choice)
        found.setdefault(program_digest(contender.plan), contender)
    listed = list(found.values())
    return listed[1:] if room_bytes else listed[:most]


def with_options(contender: Contender, options: dict[str, bool | int | float | str]) -> Contender:
    spec = contender.spec
    chosen = spec.experiment.compiler_options | options
    spec = replace(spec, experiment=replace(spec.experiment, compiler_options=chosen))
    more = tuple(f"{_OPTIONS}.{name}={_text(value)}" for name, value in options.items())
    return Contender(overrides=contender.overrides + more, spec=spec, plan=make_plan(spec))


def _text(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pinned(spec: Spec, made: Plan | Choice) -> Contender:
    """Pin a plan's mesh, policy and microbatches in its spec, and plan that."""
    count = made.batch.microbatches if isinstance(made, Plan) else made.microbatches
    if isinstance(made, Plan):
        chunks = made.pipeline.chunks if made.pipeline else 1
    else:
        chunks = made.chunks
    switched = catalog.chip_of(spec.resources).switched
    sizes = pinned_sizes(spec.experiment.model, made.mesh, chunks, switched=switched)
    mesh = replace(spec.resources.mesh, **sizes)
    experiment = replace(
        spec.experiment,
        remat=made.remat,
        batch=replace(spec.experiment.batch, microbatches=count),
    )
    pinned = replace(spec, experiment=experiment, resources=replace(spec.resources, mesh=mesh))
    listed = ", ".join(f"{axis}: {size}" for axis, size in sizes.items())
    pins: Change = {MESH: f"{{{listed}}}", REMAT: text_of(made.remat), MICROBATCHES: count}
    return Contender(overrides=overrides(pins), spec=pinned, plan=make_plan(pinned))


def _choices(
    request: SearchRequest, candidates: Candidates, most: int, uncertain: float
) -> list[Choice]:
    """Return the best candidate of each kind, then the next best mesh of each, and so on."""
    if not len(candidates):
        return []
    cost, kinds = candidates.cost_s_per_token, kinds_of(candidates)
    remaining = cost <= cost.min() * uncertain
    near = np.flatnonzero(remaining)
    expected = np.full(len(candidates), np.inf)
    expected[near] = expected_s_of(layout_of_rows(request, candidates, near))
    remaining &= expected <= expected.min() * uncertain
    programs = np.column_stack([candidates.meshes, candidates.chunks, kinds])
    rows: list[int] = []
    while len(rows) < most and remaining.any():
        of_round = remaining.copy()
        while len(rows) < most and of_round.any():
            among = contenders(candidates, of_round)
            row = pick(request, candidates, among, expected[among])
            rows.append(row)
            of_round &= (kinds != kinds[row]).any(axis=1)
            remaining &= (programs != programs[row]).any(axis=1)
    return [candidates.choice(row) for row in rows]

"""The small copy of a plan that this machine can run.

It has pods, the same mesh axes as far as there are devices, and a model of the same proportions. It
lists whatever differs in kind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm, prod

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import ICI_AXES, SHARED_OVER_DCN, ways
from orchestrator.network.mlp import expert_d_ff
from orchestrator.planning.planner import make_plan
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model
from orchestrator.values.plan import Plan
from orchestrator.values.run_options import EvaluationOptions
from orchestrator.values.spec import (
    Batch,
    DataSource,
    Experiment,
    MeshRequest,
    Pods,
    Resources,
    Spec,
    TrainingStage,
)

MOST_PODS = 8
SMALLER, LONGEST_NAME = "-rehearsal", 52  # a name of a model has at most 63 letters
FEWEST_DEVICES = 4
STEPS = 20
LENGTH = 128
SEQUENCES_PER_REPLICA = 2
LAYERS, MOST_PATTERN = 4, 8  # and whole patterns of as many layers as that
D_MODEL = 128
HEAD_DIM = 16
FEWEST_EXPERTS = 8
SAVES = 2  # checkpoints within a rehearsal, so that saving is rehearsed too
# The axes that get more than one device first, if there are too few for all.
PRIORITY = ("fsdp", "tensor", "sequence", "data")


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A small copy of a plan, and what differs in kind, one line each."""

    spec: Spec
    plan: Plan
    steps: int
    changes: tuple[str, ...]


def rehearse(
    spec: Spec, plan: Plan, *, steps: int = STEPS, devices: int | None = None
) -> Rehearsal:
    """The rehearsal of a plan: up to eight pods of that many devices each, or of the smallest slice
    with four or more.
    """
    chip = catalog.chip_of(plan)
    shared = {axis: plan.mesh[axis] for axis in SHARED_OVER_DCN}
    pods, topology = _pods(plan, prod(shared.values())), _topology(chip, plan, devices)
    meshes = [_mesh(one, topology.chips * chip.devices) for one in plan.each_stage]
    mesh = {axis: lcm(*(one[axis] for one in meshes)) for axis in ICI_AXES}
    model = _model(plan, mesh | shared)
    experiment = _experiment(spec.experiment, plan, model, _batch(plan, pods, meshes[0]), steps)
    if plan.stages:
        asked = MeshRequest(**shared)
        experiment = _with_stages(experiment, plan, pods, [replace(asked, **m) for m in meshes])
        steps = max(steps, len(plan.stages))  # each has one
    small = replace(
        spec,
        experiment=experiment,
        resources=Resources(
            chip=plan.chip,
            chip_definition=plan.chip_definition,
            topology=str(topology),
            pods=Pods(min=min(spec.resources.pods.min, pods), max=pods),
            mesh=MeshRequest(**meshes[0], **shared),
            goodput=spec.resources.goodput,
            failures=spec.resources.failures,
        ),
        run=replace(
            spec.run,
            steps=steps,
            checkpoint=replace(spec.run.checkpoint, every=max(steps // SAVES, 1)),
            evaluation=_evaluation(spec.run.evaluation, experiment, steps),
        ),
    )
    copy = make_plan(small)
    pairs = zip(plan.each_stage, copy.each_stage, strict=True)
    changes = dict.fromkeys(change for pair in pairs for change in _changes(*pair))
    return Rehearsal(spec=small, plan=copy, steps=steps, changes=tuple(changes))


def _with_stages(
    small: Experiment, plan: Plan, pods: int, meshes: Sequence[MeshRequest]
) -> Experiment:
    """The experiment with every stage, on the axes that it has; steps are dealt out to them."""
    steps, count = small.tokens // small.batch.sequences // small.batch.length, len(plan.stages)
    stages = []
    for number, (stage, mesh) in enumerate(zip(plan.stages, meshes, strict=True)):
        inside = {axis: getattr(mesh, axis) for axis in ICI_AXES}
        batch = _batch(stage, pods, inside)
        own = max(steps // count + (number < steps % count), 1)
        warmup = min(stage.optimizer.warmup_steps, ceil(own / 4))
        stages.append(
            TrainingStage(
                tokens=own * batch.sequences * batch.length,
                batch=batch,
                optimizer=replace(stage.optimizer, warmup_steps=warmup),
                data=stage.data if small.data.kind == plan.data.kind else small.data,
                restarts_schedule=stage.schedule_span[0] == stage.first_step > 0,
                mesh=mesh,
                remat=stage.remat,
            )
        )
    tokens, first = sum(one.tokens for one in stages), stages[0]
    return replace(small, tokens=tokens, batch=first.batch, stages=tuple(stages))


def _pods(plan: Plan, sharing: int) -> int:
    """As many pods as eight, in whole groups that share weights."""
    return min(plan.pods, max(MOST_PODS // sharing, 1) * sharing)


def _topology(chip: Chip, plan: Plan, devices: int | None) -> Topology:
    """The plan's own slice if it is that small, otherwise the smallest with the devices."""
    if chip.switched:
        raise SpecError(f"{chip.name}: a rehearsal emulates TPU slices; this is not a TPU")
    least = devices or FEWEST_DEVICES
    own = catalog.topology(chip, plan.topology)
    if own.chips * chip.devices <= least:
        return own
    known = (catalog.topology(chip, text) for text in catalog.topologies(chip))
    topology = next(slice_ for slice_ in known if slice_.chips * chip.devices >= least)
    smallest = topology.chips * chip.devices
    if devices and smallest != devices:
        raise SpecError(f"{chip.name}: no slice has {devices} devices; the next has {smallest}")
    return topology


def _mesh(plan: Plan, devices: int) -> dict[str, int]:
    """Sizes of the axes inside a pod: factors of two go round the axes that the plan uses."""
    if prod(plan.mesh[axis] for axis in ICI_AXES) == devices:
        return {axis: plan.mesh[axis] for axis in ICI_AXES}
    order = dict.fromkeys((*PRIORITY, *ICI_AXES))
    present = [axis for axis in order if plan.mesh[axis] > 1]
    mesh, left, turn = dict.fromkeys(ICI_AXES, 1), devices, 0
    while left > 1:
        mesh[present[turn % len(present)]] *= 2
        left, turn = left // 2, turn + 1
    return mesh


def _model(plan: Plan, mesh: dict[str, int]) -> Model:
    """The model in its own proportions at a width of about 128, or itself if it is no wider."""
    full = plan.model
    same = {name: getattr(full, name) for name in Model.__dataclass_fields__}
    if _is_small(plan):
        return Model(**same)
    group, tensor = full.heads // full.kv_heads, ways(mesh, "heads")
    kv_heads = max(1, round(D_MODEL * full.kv_heads / full.heads / HEAD_DIM))
    while (kv_heads * group) % tensor or (kv_heads % tensor and tensor % kv_heads):
        kv_heads += 1
    heads = kv_heads * group
    width = full.d_model / (full.heads * full.head_dim)
    d_model = _multiple(heads * HEAD_DIM * width, lcm(ways(mesh, "embed"), 16))
    scale = d_model / full.d_model
    shrunk = {
        "layers": min(full.layers, max(LAYERS, _pattern_layers(full))),
        "window": full.window and _window(plan, full.window),
        "d_model": d_model,
        "d_ff": _multiple(full.d_ff * scale, lcm(ways(mesh, "ff"), 16)),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "vocab": _multiple(full.vocab * scale, lcm(ways(mesh, "vocab"), 64)),
        "name": f"{full.name[:LONGEST_NAME]}{SMALLER}",
        "latent": full.latent and _latent(full, full.latent, d_model, mesh),
        "moe": full.moe and _moe(full, full.moe, mesh),
    }
    return Model(**(same | shrunk))


def _pattern_layers(full: Model) -> int:
    """Layers that have every kind of window, in the model's pattern."""
    if full.window is None or len(full.window_pattern) > MOST_PATTERN:
        return 1
    return len(full.window_pattern)


def _window(plan: Plan, window: int) -> int:
    """The window as the same share of a sequence."""
    return max(window * min(plan.batch.length, LENGTH) // plan.batch.length, 1)


def _latent(
    full: Model, latent: LatentDimensions, d_model: int, mesh: dict[str, int]
) -> LatentDimensions:
    """Latents that are as narrow beside the stream, of heads in two equal parts."""

    def rank(whole: int) -> int:
        return _multiple(whole * d_model / full.d_model, lcm(ways(mesh, "kv_rank"), 8))

    return LatentDimensions(
        query_rank=latent.query_rank and rank(latent.query_rank),
        kv_rank=rank(latent.kv_rank),
        nope_dim=HEAD_DIM // 2,
        rope_dim=HEAD_DIM // 2,
        value_dim=HEAD_DIM,
    )


def _moe(full: Model, moe: MixtureOfExperts, mesh: dict[str, int]) -> MixtureOfExperts:
    """The mixture with fewer and smaller experts, of which a token goes to as many."""
    least = max(FEWEST_EXPERTS, 2 * moe.top_k, ceil(moe.top_k / moe.top_groups) * moe.groups)
    experts = min(moe.experts, ceil(least / moe.groups) * moe.groups)
    width = expert_d_ff(full, moe) * D_MODEL / full.d_model
    dense = min(moe.dense_layers, 1)
    return replace(
        moe,
        experts=experts,
        d_ff=_multiple(width, lcm(ways(mesh, "expert_ff"), 16)),
        dense_layers=dense,
        every=min(moe.every, LAYERS - dense),
    )


def _is_small(plan: Plan) -> bool:
    """Whether the model and its batch are small enough to stay as they are."""
    return plan.model.d_model <= D_MODEL


def _multiple(value: float, of: int) -> int:
    """The nearest multiple, at least one."""
    return max(1, round(value / of)) * of


def _batch(plan: Plan, pods: int, mesh: dict[str, int]) -> Batch:
    replicas = pods * ways(mesh, "batch")
    if _is_small(plan):
        each = plan.batch.sequences_per_replica
        return Batch(sequences=replicas * each, length=plan.batch.length)
    each = min(plan.batch.sequences_per_replica, SEQUENCES_PER_REPLICA)
    zigzag = ways(mesh, "residual_length") * 2
    length = min(plan.batch.length, LENGTH)
    length = max(length - length % zigzag, zigzag)
    return Batch(sequences=replicas * each, length=length)


def _experiment(full: Experiment, plan: Plan, model: Model, batch: Batch, steps: int) -> Experiment:
    same_vocab = model.vocab == full.model.vocab
    warmup = min(full.optimizer.warmup_steps, ceil(steps / 4))
    return replace(
        full,
        model=model,
        tokens=steps * batch.sequences * batch.length,
        batch=batch,
        optimizer=replace(full.optimizer, warmup_steps=warmup),
        remat=plan.remat,
        compiler_options={},
        data=full.data if same_vocab else DataSource(separator=_separator(full.data, model)),
        start=full.start if _is_small(plan) else None,
    )


def _evaluation(
    full: EvaluationOptions | None, experiment: Experiment, steps: int
) -> EvaluationOptions | None:
    """Evaluations of a batch, as often as saves; of synthetic text where that is trained on."""
    sources = (experiment.data, *(stage.data for stage in experiment.stages))
    return full and replace(
        full,
        path=full.path if any(one.kind == "tokens" for one in sources) else None,
        every=min(full.every, max(steps // SAVES, 1)),
        sequences=min(full.sequences, experiment.batch.sequences),
    )


def _separator(data: DataSource, model: Model) -> int | None:
    """A token of the smaller vocabulary, so that documents are rehearsed too."""
    return None if data.separator is None else data.separator % model.vocab


def _changes(plan: Plan, copy: Plan) -> Iterator[str]:
    """What the rehearsal does not rehearse."""
    if copy.pods < plan.pods:
        yield f"{plan.pods} pods became {copy.pods}"
    gone = [axis for axis in ICI_AXES if plan.mesh[axis] > 1 == copy.mesh[axis]]
    if gone:
        was = ", ".join(f"{axis} {plan.mesh[axis]}" for axis in gone)
        yield f"{was} became 1: too few devices for all axes"
    if plan.batch.microbatches > copy.batch.microbatches:
        yield f"{plan.batch.microbatches} microbatches became {copy.batch.microbatches}"
    if plan.compiler_options:
        yield "compiler_options are left out: the CPU compiler has none of them"
    if plan.data != copy.data:
        yield f"data: {plan.data.kind} became {copy.data.kind}: the vocabulary shrank too"
    if plan.start and not copy.start:
        yield f"{plan.start.huggingface} is not read: the model shrank"

"""The small copy of a plan that this machine can run, with a list of what differs in kind. It keeps
pods, mesh axes as devices allow, and the model's proportions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from math import ceil, lcm, prod

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import ICI_AXES, MODEL_OVER_DCN, sizes, ways
from orchestrator.network.mlp import expert_d_ff
from orchestrator.planning.planner import make_plan
from orchestrator.values import spec as values
from orchestrator.values.codec import Value
from orchestrator.values.model import LatentDimensions, Model
from orchestrator.values.plan import Plan
from orchestrator.values.spec import RunOptions

MOST_PODS = 8
_SMALLER, _LONGEST_NAME = "-rehearsal", 52  # a name of a model has at most 63 letters
_FEWEST_DEVICES = 4
REHEARSED_STEPS = 20
_LENGTH = 128
_SEQUENCES_PER_REPLICA = 2
_LAYERS, _MOST_PATTERN = 4, 8  # and whole patterns of at most _MOST_PATTERN layers
_D_MODEL = 128
_HEAD_DIM = 16
_FEWEST_EXPERTS = 8
_FEWEST_SAVES, _MOST_SAVES = 2, 10  # within a rehearsal: saving is rehearsed, but not all the time
# The axes that get more than one device first, if there are too few for all.
_PRIORITY = ("fsdp", "tensor", "sequence", "data")


class _Rehearsal(Value):
    spec: values.Spec
    plan: Plan
    steps: int
    changes: tuple[str, ...]


def rehearse(
    spec: values.Spec, plan: Plan, *, steps: int = REHEARSED_STEPS, devices: int | None = None
) -> _Rehearsal:
    """Return the rehearsal of a plan: up to eight pods with `devices` devices each, or with those
    of the smallest slice that has at least four.
    """
    chip = catalog.chip_of(plan)
    # At most eight pods, in whole groups that hold one copy of the model.
    shared = _between(plan)
    group = prod(shared.values())
    pods = min(plan.pods, max(MOST_PODS // group, 1) * group)
    topology = _topology(chip, plan, devices)
    meshes = [_mesh(stage, topology.chips * chip.devices) for stage in plan.each_stage]
    mesh = {axis: lcm(*(sizes[axis] for sizes in meshes)) for axis in ICI_AXES}
    model = _model(plan, mesh | shared)
    batch, full = _batch(plan, pods, meshes[0] | shared), spec.experiment
    data, warmup = full.data, min(full.optimizer.warmup_steps, ceil(steps / 4))
    if model.vocab != full.model.vocab:
        # A token of the smaller vocabulary, so that documents are rehearsed too.
        separator = data.separator
        data = values.DataSource(separator=None if separator is None else separator % model.vocab)
    experiment = replace(
        full,
        model=model,
        tokens=steps * batch.sequences * batch.length,
        batch=batch,
        optimizer=replace(full.optimizer, warmup_steps=warmup),
        remat=plan.remat,
        compiler_options={},
        data=data,
        start=full.start if _is_small(plan) else None,
    )
    if plan.stages:
        requests = [values.MeshRequest(**shared, **sizes) for sizes in meshes]
        experiment = _with_stages(experiment, plan, pods, requests)
        steps = max(steps, len(plan.stages))  # each has one
    # As often as the run saves, in proportion to the steps.
    every, run_steps = plan.forecast.goodput.every_steps, spec.run.steps or plan.total_steps
    least, most = ceil(steps / _MOST_SAVES), max(steps // _FEWEST_SAVES, 1)
    save_every = min(max(round(every / run_steps * steps), least), most)
    small = replace(
        spec,
        experiment=experiment,
        resources=values.Resources(
            chip=plan.chip,
            chip_definition=plan.chip_definition,
            topology=str(topology),
            pods=values.Pods(min=min(spec.resources.pods.min, pods), max=pods),
            mesh=values.MeshRequest(
                **meshes[0], **shared, pipeline_chunks=_chunks(plan) if plan.pipeline else None
            ),
            goodput=spec.resources.goodput,
            failures=spec.resources.failures,
        ),
        run=_run(spec, experiment, steps, save_every),
    )
    copy = make_plan(small)
    pairs = zip(plan.each_stage, copy.each_stage, strict=True)
    changes = dict.fromkeys(change for pair in pairs for change in _changes(*pair))
    if save_every in (least, most) and abs(save_every / steps - every / run_steps) * steps >= 1:
        saves = f"a save every {every:,} of {run_steps:,} steps"
        changes[f"{saves} became one every {save_every:,} of {steps:,}"] = None
    return _Rehearsal(spec=small, plan=copy, steps=steps, changes=tuple(changes))


def _run(
    spec: values.Spec, experiment: values.Experiment, steps: int, save_every: int
) -> RunOptions:
    """Return the run with saves and evaluations within its few steps."""
    sources = (experiment.data, *(stage.data for stage in experiment.stages))
    evaluation = spec.run.evaluation
    if evaluation:
        # As often as saves, of a batch; of synthetic text where that is trained on.
        evaluation = replace(
            evaluation,
            path=evaluation.path if any(data.kind == "tokens" for data in sources) else None,
            every=min(evaluation.every, save_every),
            sequences=min(evaluation.sequences, experiment.batch.sequences),
        )
    checkpoint = replace(spec.run.checkpoint, every=save_every)
    return replace(spec.run, steps=steps, checkpoint=checkpoint, evaluation=evaluation)


def _with_stages(
    small: values.Experiment, plan: Plan, pods: int, meshes: Sequence[values.MeshRequest]
) -> values.Experiment:
    """Return the experiment with every stage on its own axes; stages share the steps."""
    steps, count = small.tokens // small.batch.sequences // small.batch.length, len(plan.stages)
    stages = []
    for number, (stage, mesh) in enumerate(zip(plan.stages, meshes, strict=True)):
        named = {axis: getattr(mesh, axis) or 1 for axis in (*ICI_AXES, *MODEL_OVER_DCN)}
        batch = _batch(stage, pods, named)
        own = max(steps // count + (number < steps % count), 1)
        warmup = min(stage.optimizer.warmup_steps, ceil(own / 4))
        stages.append(
            values.TrainingStage(
                tokens=own * batch.sequences * batch.length,
                batch=batch,
                optimizer=replace(stage.optimizer, warmup_steps=warmup),
                data=stage.data if small.data.kind == plan.data.kind else small.data,
                restarts_schedule=stage.schedule_span[0] == stage.first_step > 0,
                mesh=mesh,
                remat=stage.remat,
            )
        )
    tokens = sum(stage.tokens for stage in stages)
    return replace(small, tokens=tokens, batch=stages[0].batch, stages=tuple(stages))


def _topology(chip: Chip, plan: Plan, devices: int | None) -> Topology:
    """Return the plan's own slice if it is that small, otherwise the smallest with the devices."""
    least = devices or _FEWEST_DEVICES
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
    """Return sizes of the axes inside a pod: factors of two, dealt to the axes in use in turn."""
    planned = sizes(plan.mesh, ICI_AXES)
    if prod(planned.values()) == devices:
        return planned
    order = dict.fromkeys((*_PRIORITY, *ICI_AXES))
    present = cycle([axis for axis in order if planned[axis] > 1])
    mesh, left = dict.fromkeys(ICI_AXES, 1), devices
    while left > 1:
        mesh[next(present)] *= 2
        left //= 2
    return mesh


def _between(plan: Plan) -> dict[str, int]:
    """Return sizes of the axes between pods; factors of two as above, where there are too many."""
    planned = sizes(plan.mesh, MODEL_OVER_DCN)
    if prod(planned.values()) <= MOST_PODS:
        return planned
    present, mesh = cycle([axis for axis, size in planned.items() if size > 1]), dict(planned)
    mesh.update(dict.fromkeys(planned, 1))
    while prod(mesh.values()) < min(MOST_PODS, plan.pods):
        mesh[next(present)] *= 2
    return mesh


def _chunks(plan: Plan) -> int:
    return min(plan.pipeline.chunks, 2) if plan.pipeline else 1


def _model(plan: Plan, mesh: dict[str, int]) -> Model:
    """Return the model in its own proportions at a width of about 128, or itself if no wider."""
    full = plan.model
    same = {name: getattr(full, name) for name in Model.__dataclass_fields__}
    if _is_small(plan):
        return Model(**same)
    # The fewest KV heads, in the model's groups of heads, that `tensor` divides or replicates.
    group, tensor = full.heads // full.kv_heads, ways(mesh, "heads")
    kv_heads = max(1, round(_D_MODEL * full.kv_heads / full.heads / _HEAD_DIM))
    while (kv_heads * group) % tensor or (kv_heads % tensor and tensor % kv_heads):
        kv_heads += 1
    heads = kv_heads * group
    width = full.d_model / (full.heads * full.head_dim)
    d_model = _multiple(heads * _HEAD_DIM * width, lcm(ways(mesh, "embed"), 16))
    scale = d_model / full.d_model
    # Layers with every kind of window, in the model's pattern; the same share of a sequence.
    patterned = full.window is not None and len(full.window_pattern) <= _MOST_PATTERN
    pattern = len(full.window_pattern) if patterned else 1
    length = plan.batch.length
    shrunk = {
        "layers": min(full.layers, max(_LAYERS, pattern * ways(mesh, "layers") * _chunks(plan))),
        "window": full.window and max(full.window * min(length, _LENGTH) // length, 1),
        "d_model": d_model,
        "d_ff": _multiple(full.d_ff * scale, lcm(ways(mesh, "ff"), 16)),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": _HEAD_DIM,
        "global_head_dim": full.global_head_dim and 2 * _HEAD_DIM,
        "global_kv_heads": full.global_kv_heads
        and next(count for count in (kv_heads, heads) if count % tensor == 0),
        "vocab": _multiple(full.vocab * scale, lcm(ways(mesh, "vocab"), 64)),
        "name": f"{full.name[:_LONGEST_NAME]}{_SMALLER}",
        "latent": full.latent and _latent(full, full.latent, d_model, mesh),
    }
    if moe := full.moe:
        # Fewer and smaller experts; a token goes to as many as before.
        least = max(_FEWEST_EXPERTS, 2 * moe.top_k, ceil(moe.top_k / moe.top_groups) * moe.groups)
        dense = min(moe.dense_layers, 1)
        shrunk["moe"] = replace(
            moe,
            experts=min(moe.experts, ceil(least / moe.groups) * moe.groups),
            d_ff=_multiple(
                expert_d_ff(full, moe) * _D_MODEL / full.d_model, lcm(ways(mesh, "expert_ff"), 16)
            ),
            dense_layers=dense,
            every=min(moe.every, _LAYERS - dense),
        )
    return Model(**(same | shrunk))


def _latent(
    full: Model, latent: LatentDimensions, d_model: int, mesh: dict[str, int]
) -> LatentDimensions:
    """Return latents in the same proportion to the stream, of heads in two equal parts."""

    def rank(whole: int) -> int:
        return _multiple(whole * d_model / full.d_model, lcm(ways(mesh, "kv_rank"), 8))

    return LatentDimensions(
        query_rank=latent.query_rank and rank(latent.query_rank),
        kv_rank=rank(latent.kv_rank),
        nope_dim=_HEAD_DIM // 2,
        rope_dim=_HEAD_DIM // 2,
        value_dim=_HEAD_DIM,
    )


def _is_small(plan: Plan) -> bool:
    return plan.model.d_model <= _D_MODEL


def _multiple(value: float, factor: int) -> int:
    return max(1, round(value / factor)) * factor


def _batch(plan: Plan, pods: int, mesh: dict[str, int]) -> values.Batch:
    copies = pods // prod(sizes(mesh, MODEL_OVER_DCN).values())
    replicas, each = copies * ways(mesh, "batch"), plan.batch.sequences_per_replica
    if _is_small(plan):
        return values.Batch(sequences=replicas * each, length=plan.batch.length)
    zigzag = ways(mesh, "residual_length") * 2
    length = min(plan.batch.length, _LENGTH)
    length = max(length - length % zigzag, zigzag)
    # Stages of a pipeline each have one to work on.
    fewest = max(_SEQUENCES_PER_REPLICA, ways(mesh, "layers"))
    return values.Batch(sequences=replicas * min(each, fewest), length=length)


def _changes(plan: Plan, copy: Plan) -> Iterator[str]:
    if copy.pods < plan.pods:
        yield f"{plan.pods} pods became {copy.pods}"
    before, after = sizes(plan.mesh), sizes(copy.mesh)
    fewer = {
        axis: size for axis, size in after.items() if axis in MODEL_OVER_DCN if size < before[axis]
    }
    for axis, size in fewer.items():
        yield f"{axis} {before[axis]} became {size}"
    gone = [axis for axis in ICI_AXES if before[axis] > 1 == after[axis]]
    if gone:
        was = ", ".join(f"{axis} {plan.mesh[axis]}" for axis in gone)
        yield f"{was} became 1: too few devices for all axes"
    if plan.batch.microbatches > copy.batch.microbatches:
        yield f"{plan.batch.microbatches} microbatches became {copy.batch.microbatches}"
    if plan.compiler_options:
        yield "compiler_options are left out: the CPU compiler lacks them"
    if plan.data != copy.data:
        yield f"data: {plan.data.kind} became {copy.data.kind}: the vocabulary shrank too"
    if plan.start and not copy.start:
        yield f"{plan.start.huggingface} is not read: the model shrank"

"""The verdict on a Plan: from the cache, or from the compiler in a process of its own."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.errors import ProofUnavailable, SpecError, UnknownName
from orchestrator.formatting import in_memory
from orchestrator.network.mesh_axes import ICI_AXES, MODEL_OVER_DCN, sizes
from orchestrator.network.rematerialization import POLICIES, text_of
from orchestrator.planning.feasibility import pinned_sizes
from orchestrator.planning.planner import make_plan
from orchestrator.planning.ranking import best_choice
from orchestrator.planning.search import search, search_request
from orchestrator.plugins import trainer_entry_point
from orchestrator.processes import write_whole
from orchestrator.proving import compiler, proofs_folder
from orchestrator.proving.compare import proof_of
from orchestrator.proving.compiled import CacheEntry, version
from orchestrator.proving.platforms import platform_of
from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.plan import LineKind, Plan, program_digest
from orchestrator.values.program import AnyPlan, ServedProgram
from orchestrator.values.proof import CompilerRefusal, PlanChange, Proof
from orchestrator.values.spec import MeshRequest, Remat, Spec

# Suggest plans near a compiled one, by the Forecast corrected for its error in that one.

_RECOMPUTE: tuple[LineKind, ...] = ("matmul_recompute", "attention_recompute")


def _plans_that_fit(spec: Spec, plan: Plan, missed_bytes: float) -> tuple[PlanChange, ...]:
    """Changes of the spec that fit, nearest first. `missed_bytes`: what the Forecast missed."""
    limit = plan.forecast.hbm_bytes_per_device - missed_bytes
    same_mesh = replace(spec.resources, mesh=_with_sizes(spec, plan.mesh))
    shared = {axis: getattr(spec.resources.mesh, axis) for axis in MODEL_OVER_DCN}
    any_mesh = replace(spec.resources, mesh=MeshRequest(**shared))
    any_remat = replace(spec.experiment, remat="auto")
    same_remat = replace(spec.experiment, remat=plan.remat)
    near = (any_remat, same_mesh), (same_remat, any_mesh), (any_remat, any_mesh)
    changes: dict[PlanChange, None] = {}
    for experiment, resources in near:
        changed = replace(spec, experiment=experiment, resources=resources)
        # The plan of the best choice if the chip had less memory.
        request = search_request(changed)
        usable = replace(request.chip.hbm_usable_bytes, value=limit)
        request = replace(request, chip=replace(request.chip, hbm_usable_bytes=usable))
        if choice := best_choice(request, search(request).candidates):
            other = _plan_with(changed, choice.remat, choice.mesh)
            # Given only the mesh and the remat, the search may choose fewer microbatches.
            if other and other.forecast.memory_bytes_per_device <= limit:
                changes[_change_to(spec, other, missed_bytes)] = None
    return tuple(changes)


def _plan_with(spec: Spec, remat: Remat, mesh: dict[str, int] | None = None) -> Plan | None:
    experiment, resources = replace(spec.experiment, remat=remat), spec.resources
    if mesh:
        resources = replace(resources, mesh=_with_sizes(spec, mesh))
    try:
        return make_plan(replace(spec, experiment=experiment, resources=resources))
    except SpecError:
        return None


def _change_to(spec: Spec, other: Plan, missed_bytes: float) -> PlanChange:
    """The overrides that lead from a spec to a plan: the remat, and if need be the mesh."""
    overrides = [f"experiment.remat={text_of(other.remat)}"]
    reached = _plan_with(spec, other.remat)
    if reached is None or reached.digest != other.digest:
        chunks = other.pipeline.chunks if other.pipeline else 1
        switched = catalog.chip_of(other).switched
        pins = pinned_sizes(spec.experiment.model, other.mesh, chunks, switched=switched)
        overrides += [f"resources.mesh.{axis}={size}" for axis, size in pins.items()]
    return PlanChange(
        overrides=tuple(overrides),
        peak_hbm_bytes_per_device=other.forecast.memory_bytes_per_device + missed_bytes,
        step_s=other.forecast.step_s,
    )


def _with_sizes(spec: Spec, mesh: dict[str, int]) -> MeshRequest:
    return replace(spec.resources.mesh, **sizes(mesh, (*ICI_AXES, *MODEL_OVER_DCN)))


def _less_recompute(spec: Spec, plan: Plan) -> list[Plan]:
    """Plans on the same mesh that compute less twice, by the Forecast; the least first."""
    names = [name for name, policy in POLICIES.items() if not policy.needs_host]
    candidates = [_plan_with(spec, name, plan.mesh) for name in names]
    most = _recompute_flops(plan)
    better = [other for other in candidates if other and _recompute_flops(other) < most]
    return sorted(better, key=_recompute_flops)


def _recompute_flops(plan: Plan) -> float:
    return sum(line.inputs["flops"] for line in plan.forecast.time if line.kind in _RECOMPUTE)


class ProofResult(Value):
    """A proof of a plan, and the seconds since it was compiled; None if that is just now."""

    plan: Any  # a Plan, or a ServedProgram
    proof: Proof
    age_s: float | None


def prove(
    spec: Spec, plan: Plan, on_stage: compiler.OnStage = lambda _: None, hlo: Path | None = None
) -> ProofResult:
    """The compiler's verdict on a plan, from the cache unless `hlo`, a folder for the program's
    text, is given, with suggestions. `on_stage` receives the stages of the compilation.
    """
    result = prove_program(plan, on_stage, hlo)
    proof, predicted = result.proof, plan.forecast.memory_bytes_per_device
    missed = proof.peak_hbm_bytes_per_device - predicted
    if not plan.ledger_describes_trainer:
        return result
    # What to set so that it fits, or so that it uses the memory that is left.
    if proof.refusal:
        nearest = _plans_that_fit(spec, plan, missed)
        return replace(
            result, proof=replace(proof, refusal=replace(proof.refusal, nearest=nearest))
        )
    limit = proof.hbm_bytes_per_device - missed
    for other in _less_recompute(spec, plan):
        if other.forecast.memory_bytes_per_device <= limit:
            hints = (_change_to(spec, other, missed),)
            return replace(result, proof=replace(proof, hints=hints))
    return result


def prove_program(
    plan: AnyPlan, on_stage: compiler.OnStage = lambda _: None, hlo: Path | None = None
) -> ProofResult:
    """The compiler's verdict on a program, without suggestions."""
    found = None if hlo else cached(plan)
    return found or ProofResult(plan=plan, proof=_compile(plan, on_stage, hlo), age_s=None)


def cached(plan: AnyPlan) -> ProofResult | None:
    """The verdict, without suggestions; None if this program was not compiled, or unreadable."""
    try:
        key = _key(plan)
    except (ProofUnavailable, UnknownName):  # neither compiler nor trainer, and so no proof
        return None
    for path in proofs_folder().glob(f"{key}.*.json"):
        try:
            entry = codec.from_json(path.read_bytes(), CacheEntry)
            age_s = max(0.0, time.time() - path.stat().st_mtime)
        except (FileNotFoundError, msgspec.DecodeError):
            continue
        if entry.compiled.code.is_current():
            return ProofResult(plan=plan, proof=_verdict(plan, entry), age_s=age_s)
    return None


def least_recompute(
    spec: Spec, plan: Plan, on_stage: compiler.OnStage = lambda _: None
) -> list[ProofResult]:
    """Plans that compute less twice, each compiled, up to the first that fits; it is the last."""
    results = []
    for other in _less_recompute(spec, plan):
        on_stage(f"remat {text_of(other.remat)}")
        results.append(prove(spec, other, on_stage))
        if results[-1].proof.passes:
            break
    return results


def _compile(plan: AnyPlan, on_stage: compiler.OnStage, hlo: Path | None) -> Proof:
    platform = platform_of(plan)  # raises for a chip that no compiler knows
    platform.require()
    text_path = str(hlo / f"{plan.name}-{codec.short(plan.digest)}.txt") if hlo else None
    request = compiler.compile_request(plan, text_path)
    result, refusal = compiler.compile_plan(request, on_stage), None
    if result.failure and result.failure.message.startswith(compiler.OUT_OF_MEMORY):
        # A program that memory cannot hold is compiled again, to see its needs.
        refusal = result.failure.message.splitlines()[0].partition(": ")[2]
        on_stage("out of memory: once more, to see what it needs")
        request = replace(request, options={**request.options, **platform.beyond_hbm})
        result = compiler.compile_plan(request, on_stage)
    if result.failure:
        raise compiler.error_of(plan, result.failure)
    assert result.compiled is not None
    limit, used = plan.forecast.hbm_bytes_per_device, result.compiled.memory.peak
    if not platform.beyond_hbm and used > limit:
        # This compiler recomputes what it can, and then takes a program whatever it needs.
        refusal = f"its program needs {in_memory(used)} of {in_memory(limit)} of a device"
    entry = CacheEntry(compiled=result.compiled, refusal=refusal)
    save_program(plan, entry)
    return _verdict(plan, entry)


def _verdict(plan: AnyPlan, entry: CacheEntry) -> Proof:
    proof = proof_of(plan, entry.compiled)
    if entry.refusal is None:
        return proof
    needed = proof.peak_hbm_bytes_per_device
    refusal = CompilerRefusal(message=entry.refusal, needed_bytes=needed, nearest=())
    return replace(proof, fits=False, refusal=refusal)


# Compiled programs on disk, so that the same question is answered at once. A file's name begins
# with the program's digest. What follows is a digest of the compiler's other input: the trainer,
# the topology as the compiler names it, the rates that price its schedule, and the versions of the
# compiler. An entry is valid while the code that the compile process loaded is the same. The
# Forecast is not cached: a program is compared with the current one.


def save_program(plan: AnyPlan, entry: CacheEntry) -> None:
    """Write the entry whole or not at all, whoever else writes the same."""
    code = codec.short(codec.digest(entry.compiled.code))
    path = proofs_folder() / f"{_key(plan)}.{code}.json"
    try:
        write_whole(path, codec.to_json(entry))
    except OSError as error:
        raise ProofUnavailable(
            f"{path.parent}: no proof can be saved there: {error.strerror}"
        ) from error


def _key(plan: AnyPlan) -> str:
    trainer = trainer_entry_point(plan.trainer).value
    platform = platform_of(plan)
    rates = codec.to_json(platform.rates(plan)).decode()
    versions = {package: version(package) for package in platform.packages}
    compiled_by = codec.digest([trainer, platform.target(plan), rates, versions])
    digest = plan.digest if isinstance(plan, ServedProgram) else program_digest(plan)
    return f"{digest}.{codec.short(compiled_by)}"

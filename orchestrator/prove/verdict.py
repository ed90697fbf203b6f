"""The verdict on a Plan: from the cache, or from the compiler in a process of its own."""

import platform
import sys
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path

from orchestrator.extras import require
from orchestrator.network.rematerialization import text_of
from orchestrator.prove import proof_cache, suggestions
from orchestrator.prove.compare import proof_of
from orchestrator.prove.compile_client import OnStage, compile_plan, compile_request
from orchestrator.prove.compile_errors import error_of, is_out_of_memory, message_of, no_compiler
from orchestrator.prove.compiled import CacheEntry
from orchestrator.prove.targets import target
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.proof import CompilerRefusal, Proof
from orchestrator.types.spec import Spec


@dataclass(frozen=True, kw_only=True)
class ProofResult:
    """A proof of a plan, and the seconds since it was compiled; None if that is just now."""

    plan: Plan
    proof: Proof
    age_s: float | None


def prove(
    spec: Spec, plan: Plan, on_stage: OnStage = lambda _: None, hlo: Path | None = None
) -> ProofResult:
    """The compiler's verdict on a plan of the spec, with suggestions.

    It comes from the cache if it is there, unless `hlo` is given: the folder for the program's
    text. `on_stage` receives the stages of the compilation.
    """
    result = None if hlo else cached(plan)
    if result is None:
        result = ProofResult(plan=plan, proof=_compile(plan, on_stage, hlo), age_s=None)
    return replace(result, proof=_with_suggestions(spec, plan, result.proof))


def cached(plan: Plan) -> ProofResult | None:
    """The verdict if this very program was compiled before, without suggestions."""
    program = proof_cache.find(plan)
    if program is None:
        return None
    return ProofResult(plan=plan, proof=_verdict(plan, program.entry), age_s=program.age_s)


def least_recompute(
    spec: Spec, plan: Plan, on_stage: OnStage = lambda _: None
) -> list[ProofResult]:
    """Plans that compute less twice, each compiled, up to the first that fits; it is the last."""
    results = []
    for other in suggestions.less_recompute(spec, plan):
        on_stage(f"remat {text_of(other.remat)}")
        results.append(prove(spec, other, on_stage))
        if results[-1].proof.passes:
            break
    return results


def _compile(plan: Plan, on_stage: OnStage, hlo: Path | None) -> Proof:
    target(plan)  # raises for a chip that the compiler lacks, before anything starts
    require("prove")
    if util.find_spec("libtpu") is None:
        raise no_compiler(sys.platform, platform.machine())
    entry = _compiled(plan, on_stage, hlo)
    proof_cache.save(plan, entry)
    return _verdict(plan, entry)


def _compiled(plan: Plan, on_stage: OnStage, hlo: Path | None) -> CacheEntry:
    """The program in numbers. One that memory cannot hold is compiled again, to see its needs."""
    text_path = str(hlo / f"{plan.name}-{codec.short(plan.digest)}.txt") if hlo else None
    request = compile_request(plan, text_path)
    result, refusal = compile_plan(request, on_stage), None
    if result.failure and is_out_of_memory(result.failure):
        refusal = message_of(result.failure)
        on_stage("out of memory: once more, to see what it needs")
        result = compile_plan(replace(request, beyond_hbm=True), on_stage)
    if result.failure:
        raise error_of(plan, result.failure)
    assert result.compiled is not None
    return CacheEntry(compiled=result.compiled, refusal=refusal)


def _verdict(plan: Plan, entry: CacheEntry) -> Proof:
    proof = proof_of(plan, entry.compiled)
    if entry.refusal is None:
        return proof
    needed = proof.peak_hbm_bytes_per_device
    refusal = CompilerRefusal(message=entry.refusal, needed_bytes=needed, nearest=())
    return replace(proof, fits=False, refusal=refusal)


def _with_suggestions(spec: Spec, plan: Plan, proof: Proof) -> Proof:
    """The proof with what to set so that it fits, or so that it uses the memory that is left."""
    if not plan.ledger_describes_trainer:
        return proof
    missed = proof.peak_hbm_bytes_per_device - plan.forecast.memory_bytes_per_device
    if proof.refusal:
        nearest = suggestions.plans_that_fit(spec, plan, missed)
        return replace(proof, refusal=replace(proof.refusal, nearest=nearest))
    limit = proof.hbm_bytes_per_device - missed
    for other in suggestions.less_recompute(spec, plan):
        if other.forecast.memory_bytes_per_device <= limit:
            return replace(proof, hints=(suggestions.change_to(spec, other, missed),))
    return proof

"""Prove room: Plan to Proof, in a child process, through the trainer's own step."""

import platform
import sys
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path

from orchestrator.extras import require
from orchestrator.prove import proof_cache, suggestions
from orchestrator.prove.compare import proof_of
from orchestrator.prove.compiled import CacheEntry, CompileRequest
from orchestrator.prove.compiler import Stage, ask
from orchestrator.prove.failures import failure, is_out_of_memory, no_compiler, sentence
from orchestrator.prove.targets import target
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.proof import CompilerRefusal, Proof
from orchestrator.types.spec import Spec

__all__ = ["ProofResult", "known", "least_recompute", "prove"]


@dataclass(frozen=True, kw_only=True)
class ProofResult:
    """A proof of a plan, and the seconds since it was compiled; None where that was just now."""

    plan: Plan
    proof: Proof
    age_s: float | None


def prove(
    spec: Spec, plan: Plan, stage: Stage = lambda _: None, hlo: Path | None = None
) -> ProofResult:
    """The compiler's verdict on a plan of the spec; from the cache unless the text is wanted.

    `hlo` is a folder that keeps the program's text. `stage` hears how far the compilation got.
    """
    found = None if hlo else known(spec, plan)
    if found is None:
        found = ProofResult(plan=plan, proof=_compile(spec, plan, stage, hlo), age_s=None)
    return replace(found, proof=_advised(spec, plan, found.proof))


def known(spec: Spec, plan: Plan) -> ProofResult | None:
    """The verdict if this very program was compiled before, without advice."""
    kept = proof_cache.find(plan, spec.run.trainer)
    if kept is None:
        return None
    return ProofResult(plan=plan, proof=_verdict(spec, plan, kept.recorded), age_s=kept.age_s)


def least_recompute(spec: Spec, plan: Plan, stage: Stage = lambda _: None) -> list[ProofResult]:
    """Plans that compute less twice, each compiled, up to the first that fits; it is the last."""
    tried = []
    for other in suggestions.less_recompute(spec, plan):
        stage(f"remat {other.remat}")
        tried.append(prove(spec, other, stage))
        if tried[-1].proof.passes:
            break
    return tried


def _compile(spec: Spec, plan: Plan, stage: Stage, hlo: Path | None) -> Proof:
    target(plan)
    require("prove")
    if util.find_spec("libtpu") is None:
        raise no_compiler(sys.platform, platform.machine())
    recorded = _recorded(plan, spec.run.trainer, stage, hlo)
    proof_cache.keep(plan, spec.run.trainer, recorded)
    return _verdict(spec, plan, recorded)


def _recorded(plan: Plan, trainer: str, stage: Stage, hlo: Path | None) -> CacheEntry:
    """The program in numbers. One that memory cannot hold is compiled again, to see its needs."""
    text_path = str(hlo / f"{plan.name}-{codec.short(plan.digest)}.txt") if hlo else None
    asked = CompileRequest(plan=codec.to_json(plan).decode(), trainer=trainer, text_path=text_path)
    answer, refusal = ask(asked, stage), None
    if answer.failed and is_out_of_memory(answer.failed):
        refusal = sentence(answer.failed)
        stage("out of memory: once more, to see what it needs")
        answer = ask(replace(asked, beyond_hbm=True), stage)
    if answer.failed:
        raise failure(plan, answer.failed)
    assert answer.compiled is not None
    return CacheEntry(compiled=answer.compiled, refusal=refusal)


def _verdict(spec: Spec, plan: Plan, recorded: CacheEntry) -> Proof:
    proof = proof_of(plan, spec.run.trainer, recorded.compiled)
    if recorded.refusal is None:
        return proof
    needed = proof.peak_hbm_bytes_per_device
    refusal = CompilerRefusal(said=recorded.refusal, needed_bytes=needed, nearest=())
    return replace(proof, fits=False, refusal=refusal)


def _advised(spec: Spec, plan: Plan, proof: Proof) -> Proof:
    """The proof with what to set instead where it does not fit, or to use what is left."""
    missed = proof.peak_hbm_bytes_per_device - plan.forecast.memory_bytes_per_device
    if proof.refusal:
        instead = suggestions.fitting(spec, plan, missed)
        return replace(proof, refusal=replace(proof.refusal, nearest=instead))
    limit = proof.hbm_bytes_per_device - missed
    others = suggestions.less_recompute(spec, plan)
    hints = [suggestions.overrides(spec, other) for other in others if _peak(other) <= limit][:1]
    return replace(proof, hints=tuple(hints))


def _peak(plan: Plan) -> float:
    return plan.forecast.memory_bytes_per_device

"""Let the compiler decide between plans that the forecast cannot tell apart: compile each, and take
the one that it schedules fastest.
"""

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from math import ceil, inf
from typing import Any

import psutil
from msgspec import field

from orchestrator.errors import OrchError
from orchestrator.formatting import seconds
from orchestrator.planning.contenders import Contender, make_contenders, with_options
from orchestrator.planning.search import MEMORY_MARGIN
from orchestrator.proving import compiler
from orchestrator.proving.compiled import REPEATED
from orchestrator.proving.platforms import other_options, platform_of
from orchestrator.proving.verdict import ProofResult, prove
from orchestrator.values.codec import Shown, Value, short
from orchestrator.values.plan import Plan, program_digest
from orchestrator.values.proof import KINDS, Proof
from orchestrator.values.spec import CompilersChoice, Spec

_COMPILER_BYTES = 4e9  # of memory, at most: docs/proof.md
_SPARE = 4  # one in so many compilations is for what the first ones show
_LOOK_S = 0.1
_REPEATS = 0.01  # of the FLOPs: a program that repeats more was short of memory


_OnProgress = Callable[[str, str], None]  # how far it is, and what changes often


class ComparedProgram(Value):
    """A plan that was compiled, or why not. `overrides` pin it. Seconds of one step: `expected_s`
    by published runs, `scheduled_s` by the compiler, with its `kinds`. `repeated_share` of the
    FLOPs are computed twice by the compiler's own choice, to save memory. `failure`: why it has no
    schedule; a plan whose bound is above the best schedule is not compiled.
    """

    overrides: tuple[str, ...]
    plan: Plan
    program: str
    expected_s: float
    scheduled_s: float | None = None
    kinds: dict[str, float] = field(default_factory=dict)
    peak_hbm_bytes_per_device: float | None = None
    repeated_share: float | None = None
    fits: bool | None = None
    compiler: str = ""
    failure: str = ""

    @property
    def s_per_token(self) -> float:
        """What ranks programs: their batches may differ."""
        is_possible = self.scheduled_s is not None and self.fits
        return (self.scheduled_s or 0.0) / self.plan.batch.tokens if is_possible else inf


class ProgramSearch(Shown, Value):
    """The programs that were compared, the best first; `first` is the digest of the spec's plan."""

    schema: int = 1
    name: str
    first: str
    compared: tuple[ComparedProgram, ...]

    @property
    def best(self) -> ComparedProgram:
        return self.compared[0]

    @property
    def choice(self) -> CompilersChoice:
        assert self.best.scheduled_s is not None
        return CompilersChoice(
            program=short(self.best.program),
            scheduled_s=float(f"{self.best.scheduled_s:.4g}"),
            compared=sum(each.scheduled_s is not None for each in self.compared),
            compiler=self.best.compiler,
        )

    def _line(self) -> str:
        took = seconds(self.best.scheduled_s or 0.0)
        pins = " ".join(self.best.overrides)
        return f"{self.name}: of {len(self.compared)} plans the best is scheduled {took}, {pins}"

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"plan": " ".join(each.overrides)}
            | {"expected_s": each.expected_s, "scheduled_s": each.scheduled_s}
            | {name: each.kinds.get(name) for _, name in KINDS}
            | {"failure": each.failure}
            for each in self.compared
        ]


def search_programs(
    spec: Spec,
    most: int,
    on_progress: _OnProgress = lambda *_: None,
    compile_plan: Callable[[Spec, Plan], ProofResult] = prove,
) -> ProgramSearch:
    """Compile at most so many plans of a spec, as many at once as cores and memory allow, each from
    the cache if it is there; raise what the compiler says if none has a schedule.
    """
    spare = most // _SPARE
    first = make_contenders(spec, most - spare)
    search = _Search(most, on_progress, compile_plan)
    search.run(first)
    # What the first ones show: a program that repeats work wants more room, and the best one may
    # like other settings of the options in the chip's file.
    best, known = search.best(), {program_digest(each.plan) for each in first}
    after: list[Contender] = []
    if best and (best.repeated_share or 0.0) > _REPEATS:
        room = MEMORY_MARGIN * best.plan.forecast.hbm_bytes_per_device
        after += make_contenders(spec, spare, room)
    if best:
        winner = next(each for each in first if program_digest(each.plan) == best.program)
        after += [with_options(winner, options) for options in other_options(best.plan)]
    search.run([each for each in after if program_digest(each.plan) not in known][:spare])
    # If schedules agree in three digits, the plan that changes least comes first.
    compared = sorted(
        search.compared,
        key=lambda each: (
            float(f"{each.s_per_token:.3g}"), len(each.overrides), each.s_per_token, each.expected_s
        ),
    )  # fmt: skip
    if compared[0].s_per_token == inf:
        raise next(iter(search.errors), OrchError("no plan of these has a schedule"))
    return ProgramSearch(name=spec.name, first=first[0].plan.digest, compared=tuple(compared))


class _Search:
    """Compilations that run, and what they have found."""

    def __init__(
        self, most: int, on_progress: _OnProgress, compile_plan: Callable[[Spec, Plan], ProofResult]
    ) -> None:
        self.most, self.on_progress, self.compile_plan = most, on_progress, compile_plan
        self.compared: list[ComparedProgram] = []
        self.errors: list[OrchError] = []
        self.took_s: list[float] = []
        self.stopped = False

    def best(self) -> ComparedProgram | None:
        found = min(self.compared, key=lambda each: each.s_per_token, default=None)
        return found if found and found.s_per_token < inf else None

    def run(self, contenders: Iterable[Contender]) -> None:
        waiting, self.stopped = list(contenders), False
        jobs = max(1, min(_parallel_jobs(), len(waiting)))
        total = len(self.compared) + len(waiting)  # before the first can be done
        pool = ThreadPoolExecutor(jobs)
        started = [pool.submit(self._add, contender) for contender in waiting]
        try:
            self._report(total, jobs)
            for done in as_completed(started):
                done.result()
                self._report(total, jobs)
        finally:  # an interrupt leaves no compiler behind
            self.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread may only just have started its own. What was cancelled counts as done here;
            # for futures.wait() it never is.
            while not all(each.done() for each in started):
                compiler.end_all()
                time.sleep(_LOOK_S)

    def _add(self, contender: Contender) -> None:
        self.compared.append(self._compiled(contender))

    def _compiled(self, contender: Contender) -> ComparedProgram:
        """Compile a plan, unless not even its bound beats the best schedule."""
        plan, best = contender.plan, self.best()
        row = ComparedProgram(
            overrides=contender.overrides,
            plan=plan,
            program=program_digest(plan),
            expected_s=plan.forecast.step_s.likeliest,
        )
        bound_s = plan.forecast.step_s.lower
        if best and bound_s / plan.batch.tokens >= best.s_per_token:
            why = f"its bound of {seconds(bound_s)} is above the best schedule"
            return replace(row, failure=f"not compiled: {why}")
        if self.stopped:
            return replace(row, failure="not compiled: the search was interrupted")
        began = time.monotonic()
        try:
            proof = self.compile_plan(contender.spec, plan).proof
        except OrchError as error:
            self.errors.append(error)
            return replace(row, failure=str(error).splitlines()[0])
        self.took_s.append(time.monotonic() - began)
        return _with_proof(row, proof)

    def _report(self, total: int, jobs: int) -> None:
        best, left = self.best(), total - len(self.compared)
        state = f"best {seconds(best.scheduled_s or 0.0)}" if best else ""
        if self.took_s and left:
            wait_s = ceil(left / jobs) * sum(self.took_s) / len(self.took_s)
            state = ", ".join(filter(None, (state, f"about {seconds(wait_s)} left")))
        self.on_progress(f"{total - left} of {total} plans, {jobs} at once", state)


def _with_proof(row: ComparedProgram, proof: Proof) -> ComparedProgram:
    schedule, package = proof.schedule, platform_of(row.plan).packages[-1]
    repeated = next((line.compiled for line in proof.flops if line.name == REPEATED), 0.0)
    row = replace(
        row,
        peak_hbm_bytes_per_device=proof.peak_hbm_bytes_per_device,
        repeated_share=repeated / proof.flops_per_device if proof.flops_per_device else 0.0,
        fits=proof.passes,
        compiler=f"{package} {proof.versions.get(package, '')}".strip(),
    )
    if schedule is None:
        return replace(row, failure="no schedule: the catalog has no clock for this chip")
    return replace(
        row,
        scheduled_s=schedule.total_s,
        kinds={name: getattr(schedule, name) for _, name in KINDS},
        failure="" if row.fits else "it does not pass its proof",
    )


def _parallel_jobs() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, int(psutil.virtual_memory().available / _COMPILER_BYTES)))

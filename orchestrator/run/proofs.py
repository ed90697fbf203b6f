"""Check plans and figures: by the compiler, by derivation, against published and own runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from orchestrator import journal
from orchestrator.errors import OrchError, SpecError, UnknownName
from orchestrator.evidence.explain.assemble import explain as derive
from orchestrator.evidence.explain.formula import Explanation
from orchestrator.evidence.report import make_report
from orchestrator.evidence.score import evaluate, gpu, gpu_runs
from orchestrator.evidence.score.samples import Score
from orchestrator.evidence.studies import report_of_study
from orchestrator.journal.listing import StudyJournal, find_run_or_study
from orchestrator.planning.planner import explained_stage, stage_specs
from orchestrator.proving.choose import ProgramSearch, search_programs
from orchestrator.proving.compare import ProofDiff, diff_proofs
from orchestrator.proving.verdict import ProofResult, least_recompute, prove_program
from orchestrator.proving.verdict import prove as prove_plan
from orchestrator.reading.examples import create
from orchestrator.run.profile import measure_traces
from orchestrator.run.progress import RUNS, Notice, Progress, Stage, silent, task
from orchestrator.run.specs import SpecSource, loaded, planned
from orchestrator.storage.addresses import folder
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Report
from orchestrator.values.spec import Spec
from orchestrator.values.study import ScalingReport, SweepReport

if TYPE_CHECKING:
    from orchestrator.run.serving import ServingSource

_HeldOut: TypeAlias = Literal["document", "group", "software"]


class ProofFailed(OrchError):
    """The compiler refuses a plan: nothing is submitted."""

    exit_code = 3


def prove(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    hlo: str | Path | None = None,
    progress: Progress | None = None,
    stage: int | None = None,
) -> ProofResult:
    """Return the compiler's verdict on the plan of a spec or of one stage, from the cache if it is
    there. `hlo` is a folder for the compiled program's text; the plan is then compiled anew.
    """
    return _prove_plan(*_program(spec, overrides, stage), progress, hlo)


def prove_stages(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    hlo: str | Path | None = None,
    progress: Progress | None = None,
) -> list[ProofResult]:
    """Return the compiler's verdict on every stage of a spec, in order; one without stages."""
    return _prove_each_stage(*planned(loaded(spec, overrides), None), progress, hlo)


def prove_serving(
    spec: "ServingSource",
    overrides: Sequence[str] = (),
    *,
    hlo: str | Path | None = None,
    progress: Progress | None = None,
) -> list[ProofResult]:
    """Return the compiler's verdict on the prefill and on the decoding of a serving spec."""
    # Few proofs are of serving.
    from orchestrator.run.serving import plan_serving  # noqa: PLC0415
    from orchestrator.serving.programs import served_programs  # noqa: PLC0415

    folder, found = _hlo_folder(hlo), []
    for program in served_programs(plan_serving(spec, overrides)):
        with task(progress or silent, f"proving {program.phase}") as reached:
            found.append(prove_program(program, reached, folder))
    return found


def prove_diff(
    first: SpecSource,
    second: SpecSource,
    *,
    progress: Progress | None = None,
    stage: int | None = None,
) -> ProofDiff:
    """Compare the compiled programs of two specs, or of one stage of each, also by source line."""
    programs = [_program(spec, (), stage) for spec in (first, second)]
    before, after = (_prove_plan(spec, made, progress).proof for spec, made in programs)
    return diff_proofs(before, after)


def prove_less_recompute(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    progress: Progress | None = None,
    stage: int | None = None,
) -> list[ProofResult]:
    """Prove plans that recompute less than that of a spec or stage, up to the first that fits."""
    program = _program(spec, overrides, stage)
    with task(progress or silent, "proving") as reached:
        return least_recompute(*program, reached)


def prove_search(
    spec: SpecSource,
    count: int = 6,
    overrides: Sequence[str] = (),
    *,
    progress: Progress | None = None,
) -> ProgramSearch:
    """Compile at most `count` plans of a spec that the forecast cannot tell apart, as many at once
    as cores and memory allow, and compare how the compiler schedules them, the fastest first.
    """
    if count < 1:
        raise SpecError(f"count is {count}: at least 1 plan can be compiled")
    found, tell = loaded(spec, overrides), progress or silent
    if found.experiment.stages:
        raise SpecError(
            f"{found.name} has {len(found.experiment.stages)} stages, each with a program of its"
            " own: search each as a spec without stages, and pin its mesh in the stage"
        )
    doing = "searching programs"
    with task(tell, doing):
        return search_programs(
            found, count, lambda stage, state: tell(Stage(task=doing, stage=stage, state=state))
        )


def write_choice(
    search: ProgramSearch, spec: str | Path, path: str | Path, overrides: Sequence[str] = ()
) -> Path:
    """Write a spec that pins the best program of a search of `spec`, and notes the choice."""
    choice = search.choice
    noted = (
        f'choice={{program: "{choice.program}", scheduled_s: {choice.scheduled_s},'
        f" compared: {choice.compared}, compiler: {choice.compiler}}}"
    )
    return create(Path(path), str(spec), (*overrides, *search.best.overrides, noted))


def _prove_each_stage(
    spec: Spec, made: Plan, progress: Progress | None = None, hlo: str | Path | None = None
) -> list[ProofResult]:
    pairs = zip(stage_specs(spec) if made.stages else [spec], made.each_stage, strict=True)
    return [_prove_plan(stage_spec, stage, progress, hlo) for stage_spec, stage in pairs]


def prove_before_run(spec: Spec, made: Plan, progress: Progress) -> list[Proof]:
    """Return the proof of a plan, or of each of its stages; refuse one that does not pass."""
    results = _prove_each_stage(spec, made, progress)
    for result in results:
        progress(Notice("proved", plan=result.plan, proof=result.proof, age_s=result.age_s))
    if not all(result.proof.passes for result in results):
        raise ProofFailed(f"{made.name}: the plan does not pass its proof; nothing was submitted")
    return [result.proof for result in results]


def _prove_plan(
    spec: Spec, made: Plan, progress: Progress | None = None, hlo: str | Path | None = None
) -> ProofResult:
    folder = _hlo_folder(hlo)
    stage = f" stage {made.stage.number} of {made.stage.of}" if made.stage else ""
    with task(progress or silent, "proving" + stage) as reached:
        return prove_plan(spec, made, reached, folder)


def _hlo_folder(hlo: str | Path | None) -> Path | None:
    if folder := Path(hlo) if hlo else None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OrchError(f"--hlo: {folder}: cannot be made: {error.strerror}") from error
    return folder


def _program(spec: SpecSource, overrides: Sequence[str], stage: int | None) -> tuple[Spec, Plan]:
    """Return a spec and its plan, or one stage as a spec and its plan; they have one program."""
    found = loaded(spec, overrides)
    if found.experiment.stages and stage is None:
        raise SpecError(
            f"{found.name} has {len(found.experiment.stages)} stages, each with a program of its"
            " own: choose one with --stage N"
        )
    return planned(found, stage)


def explain(
    spec: SpecSource, overrides: Sequence[str] = (), *, mfu: float = 0.4, stage: int | None = None
) -> Explanation:
    """Derive a spec's figures, formula by formula, next to published figures; with stages those of
    one, by default the one with most tokens. `mfu` is assumed for the training time.
    """
    if not 0 < mfu <= 1:
        raise SpecError(f"mfu is {mfu}, must be a share above 0 and at most 1")
    return derive(explained_stage(loaded(spec, overrides), stage), mfu=mfu)


def score(runs: str | Path | None = None, *, without: _HeldOut | None = None) -> Score:
    """Compare forecasts of published runs with what they reached. `runs` is a CSV file, by default
    the project's own. `without` learns the constants anew without each document, group or software,
    and scores what it left out.
    """
    path = Path(runs) if runs else None
    _refuse_unknown(without)
    known = evaluate.with_catalog_constants
    made = evaluate.cross_validated(without, path) if without else known(path)
    if path:
        return made
    goodput, recoveries = evaluate.goodput_scores(), evaluate.recovery_scores()
    return replace(made, goodput=goodput, recoveries=recoveries)


def _refuse_unknown(without: str | None) -> None:
    if without not in (None, *get_args(_HeldOut)):
        raise UnknownName("part to leave out", without, [*get_args(_HeldOut)])


def is_gpu(runs: str | Path) -> bool:
    """Return whether a file has the columns of published training runs on GPUs."""
    return gpu_runs.is_gpu(Path(runs))


def score_gpus(runs: str | Path | None = None, *, without: _HeldOut | None = None) -> gpu.GpuScore:
    """Compare forecasts of published runs on GPUs with what they reached, as `score` does."""
    path = Path(runs) if runs else None
    _refuse_unknown(without)
    return gpu.cross_validated(without, path) if without else gpu.with_catalog_constants(path)


def report(run: str, storage: str | Path = RUNS) -> Report | ScalingReport | SweepReport:
    """Return a run, or a study, measured against predicted."""
    record = find_run_or_study(folder(storage), run)
    if isinstance(record, StudyJournal):
        return report_of_study(record)
    measure_traces(record)
    return make_report(record)


def compare(runs: Sequence[str], storage: str | Path = RUNS) -> list[Report]:
    """Return the reports of several runs, or of those of a study, each once."""
    found = [record for run in runs for record in journal.find_runs(folder(storage), run)]
    return [make_report(record) for record in {record.key: record for record in found}.values()]

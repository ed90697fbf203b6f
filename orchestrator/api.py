"""The Python API: what the command line calls, and what a notebook calls.

Every function takes plain arguments and returns a plain value. It raises `OrchError`, whose
`exit_code` is what the command would exit with. It prints nothing: whoever wants to see progress
passes a function that takes events (`orchestrator.types.progress_events`).

Imports stand inside the functions, so that `import orchestrator` stays light.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from orchestrator import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.calibrate import StoredProfile
    from orchestrator.journal.run_logs import LogLine
    from orchestrator.lifecycle.cancel import CancelResult
    from orchestrator.lifecycle.logs import RunLogs
    from orchestrator.lifecycle.pages import Page
    from orchestrator.lifecycle.progress import Progress
    from orchestrator.lifecycle.requests import Confirm
    from orchestrator.lifecycle.studies import StudyResult
    from orchestrator.prove.verdict import ProofResult
    from orchestrator.types.explanation import Explanation
    from orchestrator.types.health import HealthReport
    from orchestrator.types.plan import Plan
    from orchestrator.types.plan_diff import PlanDiff
    from orchestrator.types.report import Report
    from orchestrator.types.run import Run, Status
    from orchestrator.types.score import Score
    from orchestrator.types.spec import Spec
    from orchestrator.types.study import StudyForecast, StudyReport, StudyStatus
    from orchestrator.types.tracking import SyncResult

OrchError = errors.OrchError
SpecSource: TypeAlias = "str | Path | Spec"  # the path of a spec, or a spec that was loaded
RUNS = Path("runs")  # where runs are stored when nothing else is said


# --- plan, prove, score


def load(path: str | Path, overrides: Sequence[str] = ()) -> "Spec":
    """The spec in a YAML file. `overrides` are `key=value`, as after `--set`."""
    from orchestrator.spec import load as load_spec

    return load_spec(Path(path), tuple(overrides))


def is_study(path: str | Path) -> bool:
    """Whether a YAML file describes a study rather than one spec."""
    from orchestrator.spec import is_study as describes_study

    return describes_study(Path(path))


def plan(spec: SpecSource, overrides: Sequence[str] = (), *, profile: str | None = None) -> "Plan":
    """The fastest realizable plan of a spec; `SpecError` says why there is none.

    `profile` names a chip profile that `calibrate` measured: the forecast then stands on it.
    """
    return plans(spec, 1, overrides, profile=profile)[0]


def plans(
    spec: SpecSource,
    count: int = 6,
    overrides: Sequence[str] = (),
    *,
    profile: str | None = None,
) -> "list[Plan]":
    """The plan of a spec and its runners-up, at most `count`, fastest first."""
    from orchestrator.plan.planner import make_plans

    made = make_plans(_loaded(spec, overrides), count)
    if profile is None:
        return made
    from orchestrator.calibrate import find
    from orchestrator.plan.calibrated import with_own_profile

    measured = find(profile).profile
    return [with_own_profile(one, measured) for one in made]


def diff(first: SpecSource, second: SpecSource) -> "PlanDiff":
    """The difference between the plans of two specs, decision by decision and line by line."""
    from orchestrator.plan.plan_diff import diff_plans

    specs = _loaded(first), _loaded(second)
    return diff_plans(specs, (plan(specs[0]), plan(specs[1])))


def explain(spec: SpecSource, overrides: Sequence[str] = (), *, mfu: float = 0.4) -> "Explanation":
    """The derivation of a spec's figures, formula by formula, beside published figures.

    `mfu` is the model FLOPs utilization that the training time assumes.
    """
    from orchestrator.explain import explain

    return explain(_loaded(spec, overrides), mfu=mfu)


def prove(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    hlo: str | Path | None = None,
    progress: "Progress | None" = None,
) -> "ProofResult":
    """The compiler's verdict on the plan of a spec, from the cache where it was asked before.

    `hlo` is a folder that keeps the compiled program's text; the plan is then compiled anew.
    """
    from orchestrator.lifecycle.proving import prove_plan

    loaded = _loaded(spec, overrides)
    return prove_plan(loaded, plan(loaded), progress, Path(hlo) if hlo else None)


def prove_less_recompute(
    spec: SpecSource, overrides: Sequence[str] = (), *, progress: "Progress | None" = None
) -> "list[ProofResult]":
    """Verdicts on plans that recompute less than the plan of a spec, up to the first that fits."""
    from orchestrator.lifecycle.proving import prove_less_recompute as prove_plans

    loaded = _loaded(spec, overrides)
    return prove_plans(loaded, plan(loaded), progress)


def known_proof(plan: "Plan") -> "ProofResult | None":
    """The proof of a plan, if the cache has it; nothing is compiled."""
    from orchestrator.prove import proof_cache

    if not proof_cache.has_plan(plan):
        return None
    from orchestrator.prove.verdict import cached

    return cached(plan)


def score(
    runs: str | Path | None = None,
    *,
    without: Literal["document", "group", "software"] | None = None,
) -> "Score":
    """Forecasts of published runs against what the runs reached.

    `runs` is a CSV file with the columns of the project's own, which is the default. `without`
    learns the constants anew without each document, group or software, and scores what it left out.
    """
    from orchestrator.score import cross_validated, with_catalog_constants

    path = Path(runs) if runs else None
    return cross_validated(without, path) if without else with_catalog_constants(path)


def calibrate(*, progress: "Progress | None" = None) -> "StoredProfile":
    """A new chip profile: what the devices of this machine reach. It takes a minute or two."""
    from orchestrator.lifecycle.calibrating import measure_machine

    return measure_machine(progress)


def study(
    path: str | Path, overrides: Sequence[str] = (), *, progress: "Progress | None" = None
) -> "StudyForecast":
    """The predicted scaling of a study: every trial planned, or the reason why it has no plan."""
    from orchestrator.lifecycle.studies import plan_study
    from orchestrator.spec.study import load_study

    return plan_study(load_study(Path(path), tuple(overrides)), progress)


# --- runs: submit, resume, cancel, remove


def submit(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    prove: bool = True,
    calibrate: bool = True,
    steps: int | None = None,
    devices_per_pod: int | None = None,
    key: str | None = None,
    profile: tuple[int, int] | None = None,
    code: Literal["sent", "installed"] = "sent",
    detach: bool = False,
    confirm: "Confirm | None" = None,
    progress: "Progress | None" = None,
) -> "Run":
    """Plan and prove a spec, and run it to its end; the run as it stands then.

    It runs on the cluster at `address` (or RAY_ADDRESS, or cluster.address of the spec); where none
    is named, this machine rehearses it. `confirm` is called with a `Proposal` before anything
    starts, and says whether to go on: without it nothing is run that takes chips. `detach` returns
    once the cluster has the run. The same `key` twice is one run.
    """
    from orchestrator.extras import require

    require("run")
    from orchestrator.lifecycle.progress import silent
    from orchestrator.lifecycle.requests import SubmitOptions
    from orchestrator.lifecycle.submit import submit as submit_spec

    options = SubmitOptions(
        address=address, prove=prove, calibrate=calibrate, steps=steps,
        devices_per_pod=devices_per_pod, key=key, profile=profile, code=code, detach=detach,
        confirm=confirm, progress=progress or silent,
    )  # fmt: skip
    return submit_spec(Path(path), overrides, options)


def submit_study(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    prove: bool = True,
    calibrate: bool = True,
    steps: int | None = None,
    devices_per_pod: int | None = None,
    profile: tuple[int, int] | None = None,
    code: Literal["sent", "installed"] = "sent",
    confirm: "Confirm | None" = None,
    progress: "Progress | None" = None,
) -> "StudyResult":
    """Carry out every trial of a study that is not done, one after another, as `submit` does."""
    from orchestrator.extras import require

    require("run")
    from orchestrator.lifecycle.progress import silent
    from orchestrator.lifecycle.requests import SubmitOptions
    from orchestrator.lifecycle.studies import submit_study as submit_trials

    options = SubmitOptions(
        address=address, prove=prove, calibrate=calibrate, steps=steps,
        devices_per_pod=devices_per_pod, profile=profile, code=code, confirm=confirm,
        progress=progress or silent,
    )  # fmt: skip
    return submit_trials(Path(path), overrides, options)


def resume(
    run: str,
    storage: str | Path = RUNS,
    *,
    pods: int | None = None,
    address: str | None = None,
    detach: bool = False,
    confirm: "Confirm | None" = None,
    progress: "Progress | None" = None,
) -> "Run":
    """Resume a run that nothing drives any more, from its last checkpoint, on `pods` pods."""
    from orchestrator.extras import require

    require("run")
    from orchestrator import journal
    from orchestrator.lifecycle.progress import silent
    from orchestrator.lifecycle.requests import SubmitOptions
    from orchestrator.lifecycle.resume import resume as resume_run

    options = SubmitOptions(
        address=address, detach=detach, confirm=confirm, progress=progress or silent
    )
    return resume_run(journal.find_run(Path(storage), run), Path(storage), pods, options)


def cancel(run: str, storage: str | Path = RUNS, *, at_once: bool = False) -> "list[CancelResult]":
    """Ask a run, or the run of a study that goes on, to stop after a last checkpoint.

    There is one result for each run, and none for a study that has no live run.
    """
    from orchestrator import journal
    from orchestrator.lifecycle.cancel import cancel_run, cancel_study

    record = journal.find_run_or_study(Path(storage), run)
    if isinstance(record, journal.StudyJournal):
        return cancel_study(record, at_once=at_once)
    return [cancel_run(record, at_once=at_once)]


def remove(
    run: str,
    storage: str | Path = RUNS,
    *,
    confirm: "Callable[[Run | StudyStatus], bool] | None" = None,
) -> "Run | StudyStatus":
    """Remove a run, or a study with all its runs: journals, logs and checkpoints.

    `confirm` is called with it first, and says whether to go on.
    """
    from orchestrator import journal
    from orchestrator.lifecycle.cancel import removable_run, removable_study
    from orchestrator.lifecycle.requests import NotConfirmed

    record = journal.find_run_or_study(Path(storage), run)
    target: Run | StudyStatus
    if isinstance(record, journal.StudyJournal):
        target = removable_study(record, Path(storage))
    else:
        target = removable_run(record, Path(storage))
    if confirm and not confirm(target):
        raise NotConfirmed(f"{record.key}: not confirmed, nothing was removed")
    if isinstance(record, journal.StudyJournal):
        journal.remove_study(record)
    else:
        journal.remove_run(record)
    return target


# --- runs: look


def runs(storage: str | Path = RUNS, *, progress: "Progress | None" = None) -> "list[Run]":
    """All runs in a storage directory, newest first."""
    from orchestrator import journal
    from orchestrator.lifecycle.progress import silent
    from orchestrator.lifecycle.recording import catch_up
    from orchestrator.types.progress_events import NonFatalProblem

    listed, problems = journal.list_runs(Path(storage))
    for problem in problems:
        (progress or silent)(NonFatalProblem(message=problem))
    catch_up(Path(storage), listed)
    return listed


def studies(storage: str | Path = RUNS) -> "list[StudyStatus]":
    """All studies in a storage directory, by name, each with its runs."""
    from orchestrator import journal

    return [one.status() for one in journal.list_studies(Path(storage))]


def status(run: str, storage: str | Path = RUNS) -> "Status | StudyStatus":
    """How a run stands, beside its forecast; or how a study stands, with all its runs."""
    from orchestrator import journal
    from orchestrator.lifecycle.recording import catch_up

    record = journal.find_run_or_study(Path(storage), run)
    if isinstance(record, journal.StudyJournal):
        return record.status()
    status = record.status()
    catch_up(record.path.parent, [status])
    return status


def logs(
    run: str,
    storage: str | Path = RUNS,
    *,
    rank: int | None = None,
    attempt: int | None = None,
) -> "RunLogs":
    """The logs of a run's newest attempt: the last lines of the first ranks, or all of one rank."""
    from orchestrator import journal
    from orchestrator.lifecycle.logs import LogSelection, read_logs

    return read_logs(journal.find_run(Path(storage), run), LogSelection(rank=rank, attempt=attempt))


def follow_logs(
    run: str,
    storage: str | Path = RUNS,
    *,
    rank: int | None = None,
    attempt: int | None = None,
    progress: "Progress | None" = None,
) -> "Iterator[LogLine]":
    """The lines of a run's logs as they are written, until the run has ended."""
    from orchestrator import journal
    from orchestrator.lifecycle.logs import LogSelection
    from orchestrator.lifecycle.logs import follow_logs as follow
    from orchestrator.lifecycle.progress import silent

    selection = LogSelection(rank=rank, attempt=attempt)
    return follow(journal.find_run(Path(storage), run), selection, progress or silent)


def report(run: str, storage: str | Path = RUNS) -> "Report | StudyReport":
    """A run, or a study, measured against predicted."""
    from orchestrator import journal
    from orchestrator.lifecycle.pages import report_of_study
    from orchestrator.report import make_report

    record = journal.find_run_or_study(Path(storage), run)
    if isinstance(record, journal.StudyJournal):
        return report_of_study(record)
    return make_report(record)


def write_report(run: str, storage: str | Path = RUNS, *, out: str | Path | None = None) -> "Page":
    """Write the report of a run or a study as one HTML page, `report.html` in its directory."""
    from orchestrator import journal
    from orchestrator.lifecycle.pages import write_run_page, write_study_page

    record, path = journal.find_run_or_study(Path(storage), run), Path(out) if out else None
    if isinstance(record, journal.StudyJournal):
        return write_study_page(record, path)
    return write_run_page(record, path)


def compare(runs: Sequence[str], storage: str | Path = RUNS) -> "list[Report]":
    """The reports of several runs."""
    from orchestrator import journal
    from orchestrator.report import make_report

    return [make_report(journal.find_run(Path(storage), run)) for run in runs]


def sync(
    runs: Sequence[str] = (),
    storage: str | Path = RUNS,
    *,
    progress: "Progress | None" = None,
) -> "list[SyncResult]":
    """Bring MLflow up to the journals of runs, or of all runs where none is named."""
    from orchestrator import journal
    from orchestrator.lifecycle.progress import silent
    from orchestrator.lifecycle.recording import sync as sync_runs

    records = [journal.find_run(Path(storage), run) for run in runs] or journal.list_journals(
        Path(storage)
    )
    return sync_runs(records, progress or silent)


def ui(
    storage: str | Path = RUNS, *, port: int | None = None, progress: "Progress | None" = None
) -> None:
    """Serve the MLflow UI of recorded runs until Ctrl-C; a `UiReady` event says where."""
    from orchestrator.lifecycle.mlflow_ui import show_ui
    from orchestrator.lifecycle.progress import silent

    show_ui(Path(storage), port, progress or silent)


def doctor(storage: str | Path = RUNS, *, address: str | None = None) -> "HealthReport":
    """What this machine can do, and what to do about what it cannot."""
    from orchestrator.lifecycle.health import health

    return health(Path(storage), address)


def _loaded(spec: SpecSource, overrides: Sequence[str] = ()) -> "Spec":
    if isinstance(spec, (str, Path)):
        return load(spec, overrides)
    if overrides:
        raise TypeError("overrides change the file of a spec: pass its path")
    return spec

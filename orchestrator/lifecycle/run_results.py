"""What commands show of a run or a study that was carried out, and how they exit."""

from orchestrator.lifecycle import exit_codes
from orchestrator.lifecycle.studies import StudyResult
from orchestrator.render.next_commands import as_typed, run_command
from orchestrator.render.study_screens import study_report_screen
from orchestrator.render.terminal import CommandResult
from orchestrator.study import report_of_study
from orchestrator.types.run import Run


def run_result(run: Run, *, left: bool, detached: bool = False) -> CommandResult:
    """A run that was submitted or resumed. People saw its screens while it was followed."""
    return CommandResult(run, exit_code=exit_codes.of_run(run, left=left, detached=detached))


def study_result(result: StudyResult) -> CommandResult:
    """A study that was carried out: its scaling, as far as it is measured."""
    code, study = exit_codes.OF_STUDY[result.outcome], result.study
    if study is None:
        return CommandResult(result.outcome, exit_code=code)
    report = report_of_study(study)
    following = as_typed() if code else run_command("report", study.key, study.storage)
    return CommandResult(report, lambda: study_report_screen(report, following), code)

"""Say how a command failed: the message, and with --json the error as a value on stdout."""

import sys
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import Interrupted, NoSuchSlice, OrchError, SpecError, UnknownName
from orchestrator.evidence.score.published_runs import Unscorable
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.odds import Offers
from orchestrator.reading.offer_options import WrongOption
from orchestrator.reading.problems import Problem, SpecProblems
from orchestrator.run.next_commands import as_typed
from orchestrator.run.progress import OperationInterrupted
from orchestrator.run.studies import Outcome
from orchestrator.run.submit import ProofFailed
from orchestrator.show.parts import fit
from orchestrator.show.terminal import ERROR, columns, echo, is_live, say_error, show
from orchestrator.values.proof import Proof
from orchestrator.values.refusal import ErrorDetail, ErrorReport, Hint, Suggestion
from orchestrator.values.run import LIVE, Run
from orchestrator.values.study import ScalingForecast, SweepForecast


def report(error: OrchError) -> None:
    """Print the message and the next command; with --json also the error as a value, on stdout."""
    if isinstance(error, OperationInterrupted):
        over_mark = "\r\033[K" if is_live(sys.stderr) else ""  # a terminal shows ^C there
        print(over_mark, end="", file=sys.stderr, flush=True)
        error.next_command = error.next_command or as_typed()
    from orchestrator.show.endings import next_after

    error.next_command = error.next_command or next_after(error)
    report_json(error)
    refused = not isinstance(error, Interrupted)
    said = error.full_text() if isinstance(error, Infeasible) else str(error)
    text = f"{ERROR} {said}" if refused else said
    if error.is_prose or is_live(sys.stderr):  # a terminal itself would cut words
        text = fit(text, columns(sys.stderr), whole=error.quoted)
    say_error(text) if refused else echo(text, err=True)


def report_abort(*, interrupted: bool) -> int:
    """Report Ctrl-C, or an answer of no, which click has shown; the exit code."""
    if interrupted:
        echo("interrupted", err=True)
    report_json(Interrupted("interrupted" if interrupted else "not confirmed"))
    return Interrupted.exit_code


def report_json(error: OrchError) -> None:
    if "--json" in sys.argv:
        show(error_report(error), as_json=True)


# Errors as values, for programs that read the output of commands.


def error_report(error: OrchError) -> ErrorReport:
    """The value of an error."""
    if isinstance(error, SpecProblems):
        problems = tuple(map(problem_detail, error.problems))
        return ErrorReport(**vars(problems[0]), exit_code=error.exit_code, problems=problems)
    report = ErrorReport(code=error.code, message=error.message, exit_code=error.exit_code)
    if isinstance(error, Unscorable):
        return replace(report, file=error.file, line=error.line, key=error.column)
    if isinstance(error, WrongOption):
        return replace(report, key=error.key)
    if isinstance(error, Infeasible):
        nearest = tuple(map(nearest_hint, error.suggestions()))
        return replace(report, suggestions=nearest, reasons=error.all_reasons())
    return replace(report, suggestions=hints(error))


def problem_detail(problem: Problem) -> ErrorDetail:
    """One problem of a file. Line 0 is the file as a whole."""
    return ErrorDetail(
        code=problem.code.replace("-", "_"),
        message=": ".join(filter(None, (problem.key, problem.message))),
        key=problem.key or None,
        file=problem.file,
        line=problem.line or None,
        column=problem.col or None,
        suggestions=tuple(problem_hints(problem)),
    )


def problem_hints(problem: Problem) -> Iterator[Hint]:
    """What to write instead: a hint for each value that may be meant."""
    if correction := problem.suggestion:
        for value in correction.values:
            text = str(replace(correction, value=value, others=()))
            yield Hint(kind=correction.kind, value=value, text=text)
    elif problem.hint:
        yield Hint(kind="hint", value="", text=problem.hint)


def nearest_hint(nearest: Suggestion) -> Hint:
    """The options that lead to a plan, and that plan."""
    words = " ".join(f"--set {one}" for one in nearest.overrides)
    return Hint(
        kind="overrides", value=words, text=words, overrides=nearest.overrides, leads_to=nearest
    )


def hints(error: OrchError) -> tuple[Hint, ...]:
    """The names that are known, and the command to type next."""
    names: list[str] = []
    if isinstance(error, UnknownName):
        names = error.known
    if isinstance(error, NoSuchSlice):
        names = error.legal
    found = [Hint(kind="known", value=name, text=name) for name in names]
    if error.next_command:
        text = f"Next: {error.next_command}"
        found.append(Hint(kind="command", value=error.next_command, text=text))
    return tuple(found)


# The exit codes of commands: how runs, studies and proofs stand.


OF_STUDY: dict[Outcome, int] = {
    "succeeded": 0,
    "failed": 1,
    "infeasible": SpecError.exit_code,
    "stopped": Interrupted.exit_code,
}


def of_run(run: Run, *, left: bool, detached: bool = False) -> int:
    """A live run is a success, unless an interrupt ended the following. One that was only submitted
    has no driver yet.
    """
    if detached:
        return 0
    if left or run.state == "cancelled":
        return Interrupted.exit_code
    return 0 if run.state in LIVE or run.state == "succeeded" else 1


def of_proofs(*proofs: Proof) -> int:
    return 0 if all(proof.passes for proof in proofs) else ProofFailed.exit_code


def of_forecast(study: ScalingForecast | SweepForecast) -> int:
    """Whether every trial has a plan."""
    return SpecError.exit_code if any(one.infeasible for one in study.trials) else 0


def of_offers(offers: Offers) -> int:
    """Whether any offer has a plan."""
    return 0 if any(one.days for one in offers.offers) else SpecError.exit_code

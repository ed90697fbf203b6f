"""Errors as values, for programs that read the output of commands."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import NoSuchSlice, OrchError, UnknownName
from orchestrator.plan.infeasible import Infeasible
from orchestrator.score.cells import Unscorable
from orchestrator.spec.offer_options import WrongOption
from orchestrator.spec.problem import Problem, SpecProblems
from orchestrator.types.error_report import ErrorDetail, ErrorReport, Hint
from orchestrator.types.refusal import Suggestion


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
        refusal = error.refusal
        nearest = tuple(map(nearest_hint, refusal.suggestions))
        return replace(report, suggestions=nearest, reasons=refusal.reasons)
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

"""Say how a command failed: the message with what to type next, and with --json the error as a
value on stdout.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

from orchestrator import errors
from orchestrator.cli import typed_command
from orchestrator.evidence.score.published_runs import Unscorable
from orchestrator.journal.files import RunPaths
from orchestrator.journal.listing import is_run
from orchestrator.planning.infeasible import Infeasible
from orchestrator.reading.expectations import nearest_key
from orchestrator.reading.load import is_serving, model_command
from orchestrator.reading.nodes import FLAG
from orchestrator.reading.offer_options import WrongOption
from orchestrator.reading.problems import Problem, SpecProblems
from orchestrator.run.progress import RUNS, OperationInterrupted, spec_command
from orchestrator.show.parts import fit
from orchestrator.show.terminal import ERROR, columns, echo, is_live, say_error, show
from orchestrator.values.plan import ErrorDetail, ErrorReport, Hint


def report(error: errors.OrchError) -> None:
    """Print the message and the next command; with --json also the error as a value, on stdout."""
    if isinstance(error, OperationInterrupted):
        over_mark = "\r\033[K" if is_live(sys.stderr) else ""  # a terminal shows ^C there
        print(over_mark, end="", file=sys.stderr, flush=True)
        error.next_command = error.next_command or as_typed()
    error.next_command = error.next_command or next_after(error)
    report_json(error)
    refused = not isinstance(error, errors.Interrupted)
    said = error.full_text() if isinstance(error, Infeasible) else str(error)
    text = f"{ERROR} {said}" if refused else said
    if error.is_prose or is_live(sys.stderr):  # a terminal itself would cut words
        text = fit(text, columns(sys.stderr), whole=error.quoted)
    say_error(text) if refused else echo(text, err=True)


def report_json(error: errors.OrchError) -> None:
    if "--json" in sys.argv:
        show(_error_report(error), as_json=True)


def _error_report(error: errors.OrchError) -> ErrorReport:
    if isinstance(error, SpecProblems):
        problems = tuple(map(_problem_detail, error.problems))
        return ErrorReport(**asdict(problems[0]), exit_code=error.exit_code, problems=problems)
    found = ErrorReport(code=error.code, message=error.message, exit_code=error.exit_code)
    if isinstance(error, Unscorable):
        return replace(found, file=error.file, line=error.line, key=error.column)
    if isinstance(error, WrongOption):
        return replace(found, key=error.key)
    hints = []
    if isinstance(error, Infeasible):
        for suggestion in error.suggestions():  # options that lead to a plan, and that plan
            words = " ".join(f"--set {override}" for override in suggestion.overrides)
            hint = Hint(kind="overrides", value=words, text=words, overrides=suggestion.overrides)
            hints.append(replace(hint, leads_to=suggestion))
        return replace(found, suggestions=tuple(hints), reasons=error.all_reasons())
    # The names that are known, and the command to type next.
    names = error.known if isinstance(error, errors.UnknownName) else []
    names = error.legal if isinstance(error, errors.NoSuchSlice) else names
    hints += [Hint(kind="known", value=name, text=name) for name in names]
    if command := error.next_command:
        hints.append(Hint(kind="command", value=command, text=f"Next: {command}"))
    return replace(found, suggestions=tuple(hints))


def _problem_detail(problem: Problem) -> ErrorDetail:
    """Return one problem of a file, and a hint for each value that may be meant."""
    hints = []
    if correction := problem.suggestion:
        for value in correction.values:
            text = str(replace(correction, value=value, others=()))
            hints.append(Hint(kind=correction.kind, value=value, text=text))
    elif problem.hint:
        hints.append(Hint(kind="hint", value="", text=problem.hint))
    return ErrorDetail(
        code=problem.code.replace("-", "_"),
        message=": ".join(filter(None, (problem.key, problem.message))),
        key=problem.key or None,
        file=problem.file,
        line=problem.line or None,  # line 0 is the file as a whole
        column=problem.col or None,
        suggestions=tuple(hints),
    )


def as_typed(
    *without: str, more: Sequence[str] = (), changed: Mapping[str, str] | None = None
) -> str:
    """Return the command that was typed, without some words, with more, and with some changed."""
    words = [word for word in sys.argv[1:] if word not in without]
    for old, new in (changed or {}).items():
        corrected = {old: new, f"--set={old}": f"--set={new}"}
        words = [corrected.get(word, word) for word in words]
    return shlex.join(["orch", *words, *more])


def next_after(error: errors.OrchError) -> str:
    """Return what helps: the same command with a change, a list of what exists, help or a check."""
    given = {option: f" {option} {value}" for option, value in pairwise(sys.argv[1:])}
    files = [word for word in sys.argv[2:] if word.endswith((".yaml", ".yml"))]
    match error:
        case Infeasible():  # the nearest spec; without one, the slices that would serve
            if nearest := error.suggestions():
                pairs = (("--set", override) for override in nearest[0].overrides)
                return as_typed("--json", more=[word for pair in pairs for word in pair])
            return f"orch plan {files[0]} --prices on-demand" if files else "orch plan --help"
        case SpecProblems():
            return _after_problems(error)
        case errors.UnknownRun():
            return f"orch runs{given.get('--storage', '')}"
        case errors.OtherVersion():  # the spec of a run is kept as it was submitted
            path = Path(str(error.path))
            specs = (RunPaths(at).submitted_spec for at in (path, *path.parents[:2]))
            spec = next((spec for spec in specs if spec.is_file()), None)
            return spec_command("plan", spec, ()) if spec else "orch plan SPEC"
        case errors.NoTopology():
            return f"orch plan {files[0] if files else 'SPEC'}"
        case errors.DataUnusable() | errors.NoTrace() | errors.TraceUnreadable():
            is_data = isinstance(error, errors.DataUnusable)
            return "orch data pack --help" if is_data else "orch profile --help"
        case errors.NotAnswered():
            return as_typed(more=("--yes",))
        case errors.SpecError():  # the help of the command that was typed
            return " ".join([*typed_command(), "--help"])
        case _:
            return f"orch doctor{given.get('--address', '')}"


def _after_problems(error: SpecProblems) -> str:
    first = error.problems[0]
    if first.code == "no-token-set":
        text = str(first.fields["found"])
        return shlex.join(["orch", "data", "pack", "tokens", text, "--tokenizer", "tokenizer.json"])
    if first.code == "text-as-data":
        return "orch data pack --help"
    if first.code == "is-a-model":
        return model_command(first.file)
    if first.code == "unreadable":
        if is_run(RUNS / first.file):
            return f"orch status {first.file}"
        if sys.argv[1:3] in (["plan", first.file], ["submit", first.file]):
            return f"orch init {first.file}{'' if Path(first.file).suffix else '.yaml'}"
        return " ".join([*typed_command(), "--help"])
    if len(error.problems) == 1 and (corrected := _corrected_override(first)):
        return as_typed(changed=corrected)
    meant = first.suggestion.value if first.suggestion and first.code == "unknown-key" else ""
    key = meant if "." in meant else first.key
    # What tells of the key, or of the nearest section above it that exists.
    if known := nearest_key(key):
        return f"orch schema --key {known}"
    files = [Path(word) for word in sys.argv[1:] if word.endswith((".yaml", ".yml"))]
    return f"orch schema --key {'serve' if any(map(is_serving, files)) else 'experiment'}"


def _corrected_override(problem: Problem) -> dict[str, str]:
    """Return the `--set` with a problem and what was meant instead, where only one thing was."""
    correction, source = problem.suggestion, problem.place.source
    if source.name != FLAG or source.hidden or not correction or correction.kind != "meant":
        return {}
    override, meant = source.lines[problem.line - 1], correction.value
    key, _, value = override.partition("=")
    if correction.others or key != problem.key:
        return {}
    if problem.code == "illegal-value":
        return {override: f"{key}={meant}"}
    section = "" if "." in meant else key.rpartition(".")[0]
    return {override: f"{'.'.join(filter(None, (section, meant)))}={value}"}

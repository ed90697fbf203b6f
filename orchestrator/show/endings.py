"""Say what a request to stop a run does, and what is removed."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import (
    DataUnusable,
    NotAnswered,
    NoTopology,
    OrchError,
    OtherVersion,
    SpecError,
    UnknownRun,
)
from orchestrator.formatting import count, counted, elapsed
from orchestrator.journal.run_paths import RunPaths
from orchestrator.planning.infeasible import Infeasible
from orchestrator.reading.expectations import keys_of_specs
from orchestrator.reading.load import FLAG
from orchestrator.reading.problems import Problem, SpecProblems
from orchestrator.run.next_commands import as_typed, spec_command
from orchestrator.show.parts import fit
from orchestrator.values.run import LIVE, Run
from orchestrator.values.run_options import Proposal
from orchestrator.values.study import StudyStatus


def cancelled_text(run: str, changes: list[tuple[Run, Run]], *, at_once: bool) -> str:
    """Return what a request to cancel does, for each run before and after it."""
    texts = [fit(_cancel_text(before, after, at_once=at_once)) for before, after in changes]
    return "\n".join(texts or [f"{run}: no run is active. Nothing to cancel."]) + "\n"


def _cancel_text(before: Run, after: Run, *, at_once: bool) -> str:
    if before.ended_at_s is not None:
        return f"{before.run}: already {before.state}. Nothing was requested."
    text = f"{before.run}: stop requested" + (", at once." if at_once else ".")
    if before.cancel_requested_at_s is not None:
        ago = elapsed(before.read_at_s - before.cancel_requested_at_s)
        text += f" A stop was requested {ago} ago already."
    if after.state not in LIVE:
        return f"{text}\nNo driver runs it any more: {after.detail}. It counts as cancelled."
    if after.driver is None:
        return f"{text}\nIts driver has not started yet; it will stop before it takes a chip."
    effect = "finishes the current step, saves a checkpoint and stops."
    if at_once:
        effect = "stops it; steps since the last checkpoint are lost."
    return f"{text}\nIts driver (process {after.driver.pid} on {after.driver.host}) {effect}"


def submission_question(proposal: Proposal) -> str:
    what = proposal.name if proposal.runs == 1 else "all of it"
    return f"Run {what} on {proposal.address}?"


def removal_question(doomed: Run | StudyStatus) -> str:
    if isinstance(doomed, StudyStatus):
        what = f"{doomed.study} ({doomed.state}, {doomed.done} of {doomed.total} done)"
        runs, folder = counted(len(doomed.runs), "run"), doomed.journal.rpartition("/")[0]
        return f"Remove {what}, with the journals, logs and checkpoints of its {runs} in {folder}?"
    what = f"{doomed.run} ({doomed.state}, {count(doomed.steps_done)} steps)"
    return f"Remove {what}, its journal, logs and checkpoints in {doomed.journal}?"


def removed_text(removed: Run | StudyStatus) -> str:
    if isinstance(removed, StudyStatus):
        return f"removed {removed.study} and its {counted(len(removed.runs), 'run')}\n"
    return f"removed {removed.run}\n"


def removed_fields(removed: Run | StudyStatus) -> dict[str, object]:
    if isinstance(removed, StudyStatus):
        runs = [run.run for run in removed.runs]
        return {"study": removed.study, "runs": runs, "removed": True}
    return {"run": removed.run, "journal": removed.journal, "removed": True}


# The command to type after an error that names none.


def next_after(error: OrchError) -> str:
    """Return what helps: the same command with a change, a list of what exists, help or a check."""
    typed = sys.argv[1:]
    match error:
        case Infeasible():
            return after_infeasible(error, typed)
        case SpecProblems():
            return after_problems(error)
        case UnknownRun():
            return with_storage("orch runs", typed)
        case OtherVersion():
            return plan_again(error)
        case NoTopology():
            return "orch plan SPEC"
        case DataUnusable():
            return "orch data pack --help"
        case NotAnswered():
            return as_typed(more=("--yes",))
        case SpecError():
            return command_help(typed)
        case _:
            return "orch doctor"


def after_infeasible(error: Infeasible, typed: Sequence[str]) -> str:
    """Return the same command for the nearest spec; without one, the slices that would serve."""
    if nearest := error.suggestions():
        overrides = nearest[0].overrides
        settings = (word for override in overrides for word in ("--set", override))
        return as_typed("--json", more=tuple(settings))
    specs = [word for word in typed[1:] if word.endswith((".yaml", ".yml"))]
    return f"orch plan {specs[0]} --prices on-demand" if specs else "orch plan --help"


def after_problems(error: SpecProblems) -> str:
    first = error.problems[0]
    if first.code == "no-token-set":
        tokenizer = ("--tokenizer", "tokenizer.json")
        return shlex.join(
            ["orch", "data", "pack", "tokens", str(first.fields["found"]), *tokenizer]
        )
    if first.code == "text-as-data":
        return "orch data pack --help"
    if first.code == "unreadable":
        return f"orch init {first.file}"
    if len(error.problems) == 1 and (corrected := corrected_override(first)):
        return as_typed(changed=corrected)
    meant = first.suggestion.value if first.suggestion and first.code == "unknown-key" else ""
    return key_command(meant if "." in meant else first.key)


def corrected_override(problem: Problem) -> dict[str, str]:
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


def key_command(key: str) -> str:
    """Return what tells of a key, or of the nearest section above it that exists."""
    known = [one.key for one in keys_of_specs()]
    while key:
        if any(one == key or one.startswith(f"{key}.") for one in known):
            return f"orch schema --key {key}"
        key = key.rpartition(".")[0]
    return "orch init --list"


def plan_again(error: OtherVersion) -> str:
    """Return what plans the spec of a run anew, which is kept as it was submitted."""
    path = Path(str(error.path))
    for folder in (path, *path.parents[:2]):
        if (spec := RunPaths(folder).submitted_spec).is_file():
            return spec_command("plan", spec, ())
    return "orch plan SPEC"


def with_storage(command: str, typed: Sequence[str]) -> str:
    """Return a command about the storage that was named."""
    if "--storage" in typed[:-1]:
        return f"{command} --storage {typed[typed.index('--storage') + 1]}"
    return command


def command_help(typed: Sequence[str]) -> str:
    """Return the help of the command that was typed."""
    names = [word for word in typed[:2] if word.isalpha()]
    known = names[:1] if names and names[0] not in ("export", "import", "data") else names
    return " ".join(["orch", *known, "--help"])

"""The command to type after an error that names none."""

import shlex
import sys
from collections.abc import Sequence

from orchestrator.errors import DataUnusable, NoTopology, OrchError, SpecError, UnknownRun
from orchestrator.plan.infeasible import Infeasible
from orchestrator.render.next_commands import as_typed
from orchestrator.spec.problem import SpecProblems


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
        case NoTopology():
            return "orch plan SPEC"
        case DataUnusable():
            return "orch data pack --help"
        case SpecError():
            return command_help(typed)
        case _:
            return "orch doctor"


def after_infeasible(error: Infeasible, typed: Sequence[str]) -> str:
    """Return the same command for the nearest spec; without one, the slices that would serve."""
    if error.refusal.suggestions:
        overrides = error.refusal.suggestions[0].overrides
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
    return f"orch init {first.file}" if first.code == "unreadable" else "orch schema"


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

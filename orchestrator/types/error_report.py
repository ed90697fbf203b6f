"""What `--json` prints instead of a result when a command fails."""

from dataclasses import dataclass

from orchestrator.types.refusal import Reason, Suggestion


@dataclass(frozen=True, kw_only=True)
class Hint:
    """What to write or to type instead. `kind` says what `value` is: a value, a name, a command.

    For a spec without a plan `overrides` are those of a spec near it, and `leads_to` has its plan.
    """

    kind: str
    value: str
    text: str
    overrides: tuple[str, ...] = ()
    leads_to: Suggestion | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorDetail:
    """One thing that is wrong, and where: the key, and a line and a column that count from 1."""

    code: str
    message: str
    key: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    suggestions: tuple[Hint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ErrorReport(ErrorDetail):
    """An error, with the fields of its first problem.

    `problems` are all that is wrong with a file, `reasons` why a spec has no plan.
    """

    exit_code: int
    problems: tuple[ErrorDetail, ...] = ()
    reasons: tuple[Reason, ...] = ()

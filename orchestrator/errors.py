"""Every error that orch raises on purpose, in one tree. Imports nothing.

`cli` prints the text and exits with `exit_code`; anything else that escapes is a bug.
"""


class OrchError(Exception):
    """A failure with one clear message for the person at the terminal."""

    exit_code = 1
    is_prose = False  # whether its lines may be wrapped: one that quotes a file may not


class SpecError(OrchError):
    """The spec cannot be served as it stands: it is wrong, or no plan can meet it."""

    exit_code = 2


class Interrupted(OrchError):
    """Ctrl-C, while something took long; the text says what, and what is left of it."""

    exit_code = 130


class UnknownName(SpecError):
    """A chip, model, topology or key that nobody knows; the text lists what is known."""

    def __init__(self, kind: str, name: object, known: list[str]) -> None:
        self.kind, self.name, self.known = kind, name, known
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(known)}")


class NoSuchSlice(SpecError):
    """A topology that a chip does not have: why, and what it has (`legal`) instead."""

    def __init__(self, reason: str, legal: list[str], legal_are: str) -> None:
        self.reason, self.legal = reason, legal
        self.help = f"{legal_are}: {', '.join(legal)}"
        super().__init__(f"{reason}; {self.help}")


class UnknownRun(UnknownName):
    """No run of a folder begins so; the text says which folder, and what is in it."""

    def __init__(self, kind: str, name: object, known: list[str], folder: object) -> None:
        super().__init__(kind, name, known)
        held = f"known: {', '.join(known)}" if known else "it holds none\nNext: orch submit SPEC"
        self.args = (f"no {kind} in {folder} begins with {name!r}; {held}",)


class MissingExtra(OrchError):
    """An optional dependency is not installed; `extra` brings it."""

    def __init__(self, extra: str, packages: list[str]) -> None:
        self.extra, self.packages = extra, packages
        lacking = f"not installed here: {', '.join(packages)}"
        super().__init__(f"{lacking}\nNext: pip install 'orch[{extra}]'")


class ProofUnavailable(OrchError):
    """There is no verdict on a plan: no compiler is here for it, or the compiler failed."""


class MeasurementFailed(OrchError):
    """The devices at hand cannot be measured, or what was measured cannot be kept."""


class DataUnusable(SpecError):
    """A token set is missing, damaged, too small, or made for another vocabulary."""


class CheckpointFailed(OrchError):
    """A checkpoint could not be written, or none that is there can be read."""


class LossNotFinite(OrchError):
    """The loss or its gradient became infinite or no number at all."""


class JournalUnwritable(OrchError):
    """The journal of a run cannot be written: a full disk, no permission, no hard links."""


class JournalUnreadable(OrchError):
    """A directory holds no journal that can be read, or that of a newer orch."""


class RunExists(OrchError):
    """The run key is taken; one key is one run."""

    def __init__(self, key: str, path: object) -> None:
        self.key, self.path = key, path
        super().__init__(f"run {key} exists already, in {path}")


class RunIsLive(OrchError):
    """What was asked needs a run that nothing drives any more."""


class RunHasEnded(OrchError):
    """What was asked needs a run that has not ended."""


class Superseded(OrchError):
    """Another driver has taken over the run; this one must stop and write nothing more."""

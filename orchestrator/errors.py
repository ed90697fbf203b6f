"""All errors that orch raises on purpose, without imports of orch. Any other exception is a bug."""

from collections.abc import Mapping


class OrchError(Exception):
    """A failure with a message, and a command to type next. `code`: its class in lower case."""

    exit_code = 1
    code = "orch_error"
    is_prose = False  # whether long lines may be wrapped
    quoted: tuple[str, ...] = ()  # how lines begin that are quoted from a file, and stay whole

    def __init_subclass__(cls) -> None:
        if "code" in cls.__dict__:
            return
        words = ("_" + letter.lower() if letter.isupper() else letter for letter in cls.__name__)
        cls.code = "".join(words).lstrip("_")

    def __init__(self, *args: object, next_command: str = "") -> None:
        super().__init__(*args)
        self.next_command = next_command

    @property
    def message(self) -> str:
        """The text without the command to type next."""
        return super().__str__()

    def __str__(self) -> str:
        return self.message + (f"\nNext: {self.next_command}" if self.next_command else "")


class SpecError(OrchError):
    """The spec is wrong, or no plan satisfies it."""

    exit_code = 2


class NotAnswered(SpecError):
    """There is a question, and nobody can be asked: `--yes` answers it."""


class Usage(SpecError):
    """The words of a command make no sense."""


def refuse_options(options: Mapping[str, object], goes_with: str) -> None:
    for name, value in options.items():
        if value:
            raise Usage(f"{name} goes with {goes_with}")


class Interrupted(OrchError):
    """Ctrl-C during a long operation. The text says which one, and what it leaves behind."""

    exit_code = 130


class UnknownName(SpecError):
    """A chip, model, topology or key is unknown. The text lists the known ones."""

    def __init__(self, kind: str, name: object, known: list[str]) -> None:
        self.kind, self.name, self.known = kind, name, known
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(known)}")


class NoTopology(SpecError):
    """A spec leaves its topology open, and something needs a plan."""

    is_prose = True

    def __init__(self) -> None:
        super().__init__(
            "resources.topology is auto: choose slices first; `orch plan SPEC` lists them with what"
            " to paste"
        )


class NoSuchSlice(SpecError):
    """A chip lacks this topology. `is_cluster`: of GPUs, whose slice is one NVLink domain."""

    def __init__(
        self, reason: str, legal: list[str], legal_are: str, *, is_cluster: bool = False
    ) -> None:
        self.reason, self.legal, self.is_cluster = reason, legal, is_cluster
        self.help = f"{legal_are}: {', '.join(legal)}"
        super().__init__(f"{reason}; {self.help}")


class UnknownRun(UnknownName):
    """No run in a folder has a key that begins like this. The text lists the runs there."""

    def __init__(self, kind: str, name: object, known: list[str], folder: object) -> None:
        super().__init__(kind, name, known)
        runs = f"known: {', '.join(known)}" if known else "there are no runs yet"
        begins = f" begins with {name!r}" if name else ""
        self.args = (f"no {kind} in {folder}{begins}; {runs}",)
        self.next_command = "" if known else "orch submit SPEC"


class MissingExtra(OrchError):
    """Optional packages are missing. The next command installs the extra that has them."""


class ProofUnavailable(OrchError):
    """A plan cannot be proved: this machine has no compiler for it, or the compiler failed."""


class MeasurementFailed(OrchError):
    """The devices cannot be measured, or the measurement cannot be stored."""


class NoTrace(OrchError):
    """A run has no trace that can be read."""


class TraceUnreadable(OrchError):
    """A trace is damaged, is of another program, or has no step."""


class DataUnusable(SpecError):
    """A token set is missing, damaged, too small, or has another vocabulary."""


class ProgramFailed(OrchError):
    """A trainer cannot make its program of a plan. Every attempt would end so."""


class CheckpointFailed(OrchError):
    """A checkpoint cannot be written, or no existing one can be read."""


class LossNotFinite(OrchError):
    """The loss or its gradient is infinite or NaN."""


class JournalUnwritable(OrchError):
    """A run's journal cannot be written: a full disk, no permission, no hard links."""


class JournalUnreadable(OrchError):
    """A folder has no readable journal, or that of a newer orch."""

    def __init__(self, place: object, why: str, *, next_command: str = "") -> None:
        super().__init__(place, why, next_command=next_command)
        self.why = why

    @property
    def message(self) -> str:
        return ": ".join(map(str, self.args))


class OtherVersion(JournalUnreadable):
    """A file of a run has schema `written`, None without a number; this version reads `read`."""

    def __init__(self, path: object, what: str, *, written: int | None, read: int | None) -> None:
        self.path, self.what, self.written, self.read = path, what, written, read
        if written is None or read is None:
            numbers = f"the keys of its {what} are not those that this version reads"
        elif written == read:
            numbers = f"its {what} has schema {written} with other keys than this version reads"
        else:
            numbers = f"its {what} has schema {written}, and this version reads schema {read}"
        do = "read it with that version, or submit its spec again"
        super().__init__(path, f"was written by another version of orch: {numbers}; {do}")


class JournalDamaged(JournalUnreadable):
    """A file of a run is missing, or is not what was written."""


class ForeignRun(OrchError):
    """A run of another user: nothing is sent for it, no credential used, and nothing removed."""


class RunExists(OrchError):
    """Another run has this key already."""

    def __init__(self, key: str, path: object) -> None:
        self.key, self.path = key, path
        super().__init__(f"run {key} exists already, in {path}")


class RunIsLive(OrchError):
    """The operation needs a run without a driver, but this run has one."""


class RunHasEnded(OrchError):
    """The operation needs a live run, but this run has ended."""


class Superseded(OrchError):
    """Another driver has taken over the run. This one stops and writes nothing more."""

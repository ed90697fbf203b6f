"""What is wrong with a file of a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FileFault:
    """What is wrong with a file, which has its name in the run's folder."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"

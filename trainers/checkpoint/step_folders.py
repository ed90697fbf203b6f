"""The saved steps in a folder. Each appears and disappears as a whole."""

import shutil
from dataclasses import dataclass
from pathlib import Path

DELETED, DAMAGED = "deleted", "damaged"
UNFINISHED = "*.orbax-checkpoint-tmp*"


@dataclass(frozen=True)
class StepFolders:
    """A folder with one directory per step, named by its number."""

    folder: Path

    def steps(self) -> list[int]:
        """The saved steps, oldest first."""
        names = [path.name for path in self.folder.iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def path(self, step: int) -> Path:
        return self.folder / str(step)

    def delete(self, step: int) -> None:
        """Remove a step: one rename takes it out of the folder, then its files are deleted."""
        shutil.rmtree(self._move(step, DELETED))

    def set_aside(self, step: int) -> None:
        """Move a damaged step where it can be inspected, out of the way of the next save."""
        self._move(step, DAMAGED)

    def sweep(self) -> None:
        """Remove the half-written and half-deleted steps of a killed process."""
        for path in [*self.folder.glob(UNFINISHED), self.folder / DELETED]:
            if path.exists():
                shutil.rmtree(path)

    def _move(self, step: int, where: str) -> Path:
        target = self.folder / where / str(step)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        return self.path(step).rename(target)

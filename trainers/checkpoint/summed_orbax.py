"""Orbax, with checksums that are written into a step before the step becomes visible."""

import logging
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import options

from trainers.checkpoint import checksums

TIMEOUT_S = 600
# Orbax logs its own steps there; they would hide those of the run.
logging.getLogger("absl").setLevel(logging.WARNING)


class Summed(ocp.StandardCheckpointHandler):  # type: ignore[misc]
    """Orbax's handler of a tree of arrays. The primary finalizes once all have written."""

    def finalize(self, directory: Any) -> None:
        """Complete the hidden directory of a step; Orbax renames it afterwards."""
        super().finalize(directory)
        checksums.write(Path(directory))


@ocp.args.register_with_handler(Summed, for_save=True)
class Save(ocp.args.StandardSave):  # type: ignore[misc]
    """A state to save."""


@ocp.args.register_with_handler(Summed, for_restore=True)
class Restore(ocp.args.StandardRestore):  # type: ignore[misc]
    """Shapes and shardings to restore into."""


def checkpointer() -> Any:
    """An asynchronous checkpointer whose processes meet at the coordination service.

    Naming the processes keeps Orbax's threads from meeting in collectives on the devices, which
    would fall between those of the step.
    """
    everyone = options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
    return ocp.AsyncCheckpointer(
        Summed(multiprocessing_options=everyone),
        timeout_secs=TIMEOUT_S,
        multiprocessing_options=everyone,
    )

"""Compile a plan's step with the real TPU compiler, and compare it with the Forecast.

`verdict` has the functions to call. Only `compile_process`, which runs in a process of its own,
imports JAX and the trainers. `hlo` reads the text of the compiled program. This file is light to
import: `orch plan` looks into the folder of compiled programs each time.
"""

from pathlib import Path

import platformdirs


def proofs_folder() -> Path:
    return platformdirs.user_cache_path("orch") / "proofs"

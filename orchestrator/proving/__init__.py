"""Compile a plan's step with the real compiler of its chip, and compare it with the Forecast. Call
`verdict`. Only `compile_process`, a process of its own, imports JAX and the trainers. `orch plan`
looks into the folder of compiled programs each time: this file is light to import.
"""

from pathlib import Path

import platformdirs


def proofs_folder() -> Path:
    return platformdirs.user_cache_path("orch") / "proofs"

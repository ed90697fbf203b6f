"""The toy with trouble. Files in the folder `TROUBLE` say of which kind: their names are the kind
and maybe a rank, as in `input-1`, and they contain the seconds that it takes each time.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from orchestrator.values.plan import Plan
from tests import toy
from trainers.checkpoint.checkpoints import Checkpoints
from trainers.contract import Program

VARIABLE = "TROUBLE"


def _trouble_s(kind: str) -> float:
    folder = Path(os.environ[VARIABLE])
    for name in (kind, f"{kind}-{jax.process_index()}"):
        if (folder / name).exists():
            return float((folder / name).read_text())
    return 0.0


def program(plan: Plan, mesh: Mesh | AbstractMesh) -> Program:
    made = toy.program(plan, mesh)

    def arrange(tokens: np.ndarray) -> dict[str, np.ndarray]:
        time.sleep(_trouble_s("input"))
        if repeats := round(100 * _trouble_s("compilation")):
            # Another program at each step, as where a shape changes.
            new = time.perf_counter()

            def long_chain(x: jax.Array) -> jax.Array:
                for number in range(repeats):
                    x = jnp.sort(jnp.sin(x * (new + number)))
                return x

            jax.jit(long_chain)(jnp.ones(128)).block_until_ready()
        return made.arrange(tokens)

    def slow(save: Callable[..., None]) -> Callable[..., None]:
        def save_slowly(*given: Any) -> None:
            time.sleep(_trouble_s("saving"))
            save(*given)

        return save_slowly

    if not hasattr(Checkpoints.save, "__wrapped__"):
        slow_save = slow(Checkpoints.save)
        slow_save.__wrapped__ = Checkpoints.save  # type: ignore[attr-defined]
        Checkpoints.save = slow_save  # type: ignore[method-assign]
    return replace(made, arrange=arrange)

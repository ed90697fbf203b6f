"""Emulated devices: one process compiles a program, the others load it, and so do later runs."""

import os
import platform
from pathlib import Path
from typing import Any

import jax
from jax._src import cache_key

from orchestrator.device_settings import COMPILED

MOST_BYTES = 1 << 30  # the programs that were used last stay


def share_compiled_programs() -> None:
    """Compile each program once where processes emulate devices on the cores of one machine.

    Call this before the first program. JAX keys a program of CPUs by its process, so that processes
    share none; here the machine stands for it.
    """
    folder = os.environ.get(COMPILED)
    if not folder or not hasattr(cache_key, "_hash_accelerator_config"):
        return
    # JAX has no public way to say it.
    cache_key._hash_accelerator_config = _hash_machine  # type: ignore[assignment]
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_share_binary_between_hosts", True)


def _hash_machine(hashed: Any, _: Any) -> None:
    """A program holds instructions that another processor may lack."""
    hashed.update(processor().encode())


def processor() -> str:
    """What this machine's processor is and can do."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    known = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "\n".join((platform.machine(), platform.processor(), *sorted(known)))

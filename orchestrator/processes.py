"""Processes on this machine: their end, ports and environment, files written whole, and those that
orch ships.
"""

import os
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

import platformdirs

_POLL_S = 0.5
# Starts a module of ours: -P keeps files of the user's folder, such as random.py, from being it.
MODULE = (sys.executable, "-P", "-m")


def end_with_parent(end: Callable[[], object]) -> None:
    """Call `end` from a thread once the parent of this process is gone."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        end()

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


LOOPBACK = "127.0.0.1"
NODE_ADDRESS = "ORCH_NODE_ADDRESS"  # where a process of an attempt listens; unset outside a cluster
# Ray's workers use ports below these, and outgoing connections those from 32768 on. Either could
# take a port before the process that was told of it listens there.
_SINGLE, _BLOCKS, _BLOCK = range(30_000, 32_000), range(20_000, 30_000), 125


def free_port(preferred: int | None = None) -> int:
    """Return a port that nothing listens on now: the preferred one, or else any."""
    port = preferred
    while port is None or not _is_free(port):
        port = random.choice(_SINGLE)
    return port


@contextmanager
def claimed() -> Iterator[Iterator[int]]:
    """Yield free ports that no other caller of this gets for as long as a `with` lasts."""
    # The first port of a block is the lock on it: it stays bound, and ends with the process.
    starts = list(range(_BLOCKS.start, _BLOCKS.stop, _BLOCK))
    random.shuffle(starts)
    for start in starts:
        with socket.socket() as claim:
            with suppress(OSError):
                claim.bind((LOOPBACK, start))
            if claim.getsockname()[1] == start:
                yield (port for port in range(start + 1, start + _BLOCK) if _is_free(port))
                return
    raise OSError(f"every port from {_BLOCKS.start} to {_BLOCKS.stop} is taken")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Its last user may just be gone.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


# --- environment variables: those that set up real devices, and those that emulate some


_PREFIXES = ("CUDA_VISIBLE_", "JAX_", "LIBTPU_", "MEGASCALE_", "RAY_", "TPU_", "XLA_")
_LIBTPU_ARGUMENTS = "LIBTPU_INIT_ARGS"
# libtpu compiles on stacks of 64 KiB. Its cost model of fusions overflows them with mixtures of
# experts on tpu7x, and the process ends by SIGSEGV. The program that it compiles stays the same.
_STACK_FLAG, _STACK_BYTES = "--fibers_default_thread_stack_size", 2**22
COMPILED = "ORCH_COMPILED"  # the folder in which processes share the programs that they compile
# Without these glibc returns memory to the system after each step, and the system clears it again
# page by page: a sixth of a small step, which no chip takes.
_MEMORY_SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}


def without_device_settings(
    environment: Mapping[str, str], *, keep: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment without settings of devices, except for the prefixes to keep."""
    dropped = tuple(prefix for prefix in _PREFIXES if prefix not in keep)
    return {name: text for name, text in environment.items() if not name.startswith(dropped)}


def emulated_devices(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """Return the environment of a process that emulates `count` devices."""
    return without_device_settings(environment) | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
        COMPILED: str(platformdirs.user_cache_path("orch") / "compiled"),
        **_MEMORY_SETTINGS,
    }


def deepen_compiler_stacks(environment: MutableMapping[str, str]) -> None:
    """Let libtpu compile on larger stacks. Call this before JAX makes its devices."""
    arguments = environment.get(_LIBTPU_ARGUMENTS, "")
    if _STACK_FLAG not in arguments:
        environment[_LIBTPU_ARGUMENTS] = f"{arguments} {_STACK_FLAG}={_STACK_BYTES}".lstrip()


def write_whole(path: Path, content: bytes, at_s: float | None = None) -> None:
    """Write a file with its folder, whole or not at all, whoever else writes it."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.write_bytes(content)
        if at_s is not None:
            os.utime(partial, (at_s, at_s))
        partial.replace(path)
    finally:  # a full disk keeps no part of it
        partial.unlink(missing_ok=True)


def resource(*parts: str) -> Path:
    return Path(str(files("orchestrator"))).joinpath(*parts)

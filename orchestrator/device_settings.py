"""Environment variables of processes: those that set up real devices, and those that emulate some.

A process that emulates devices, or compiles for others, must not inherit what a person's shell or a
pod says of real ones.
"""

from collections.abc import Collection, Mapping, MutableMapping

import platformdirs

PREFIXES = ("JAX_", "LIBTPU_", "MEGASCALE_", "RAY_", "TPU_", "XLA_")
LIBTPU_ARGUMENTS = "LIBTPU_INIT_ARGS"
# libtpu compiles on stacks of 64 KiB. Its cost model of fusions overflows them with mixtures of
# experts on tpu7x, and the process ends by SIGSEGV. The program that it compiles stays the same.
STACK_FLAG, STACK_BYTES = "--fibers_default_thread_stack_size", 2**22
COMPILED = "ORCH_COMPILED"  # the folder in which processes share the programs that they compile
# Without these glibc returns memory to the system after each step, and the system clears it again
# page by page: a sixth of a small step, which no chip takes.
MEMORY_SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}


def without_device_settings(
    environment: Mapping[str, str], *, keep: Collection[str] = ()
) -> dict[str, str]:
    """The environment without them, except for the prefixes to keep."""
    dropped = tuple(prefix for prefix in PREFIXES if prefix not in keep)
    return {name: text for name, text in environment.items() if not name.startswith(dropped)}


def emulated_devices(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """The environment of a process that emulates that many devices."""
    return without_device_settings(environment) | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
        COMPILED: str(platformdirs.user_cache_path("orch") / "compiled"),
        **MEMORY_SETTINGS,
    }


def deepen_compiler_stacks(environment: MutableMapping[str, str]) -> None:
    """Let libtpu compile on larger stacks, unless somebody chose their size. It reads this once,
    before JAX makes its devices.
    """
    arguments = environment.get(LIBTPU_ARGUMENTS, "")
    if STACK_FLAG not in arguments:
        environment[LIBTPU_ARGUMENTS] = f"{arguments} {STACK_FLAG}={STACK_BYTES}".lstrip()

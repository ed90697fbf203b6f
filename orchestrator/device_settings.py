"""Environment variables that set up real devices, in a person's shell or in a pod.

A process that emulates devices, or compiles for others, must not inherit them.
"""

from collections.abc import Collection, Mapping

PREFIXES = ("JAX_", "LIBTPU_", "MEGASCALE_", "RAY_", "TPU_", "XLA_")


def without_device_settings(
    environment: Mapping[str, str], *, keep: Collection[str] = ()
) -> dict[str, str]:
    """The environment without them, except for the prefixes to keep."""
    dropped = tuple(prefix for prefix in PREFIXES if prefix not in keep)
    return {name: text for name, text in environment.items() if not name.startswith(dropped)}

"""Calibrate room: one of the processes that measure. It alone knows JAX and the trainers.

    python -m orchestrator.calibrate.child < asked.json

What it finds goes out as lines of JSON (`Told`), on a descriptor of its own: libraries write to the
standard streams as they like.
"""

import os
import sys
import threading
from collections.abc import Callable
from importlib import metadata

import jax

from orchestrator.calibrate.words import Asked, Devices, Told
from orchestrator.types import codec
from trainers.microbenchmarks import collectives, kernels
from trainers.multihost import barrier

PACKAGES = ("jax", "jaxlib")


def main() -> None:
    """Read what is asked, tell what is found."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(one: Told) -> None:
        told.write(codec.to_json(one) + b"\n")

    status = 1
    try:
        asked = codec.from_json(sys.stdin.buffer.readline(), Asked)
        threading.Thread(target=_die_with_the_parent, daemon=True).start()
        measure(asked, tell if asked.process == 0 else lambda _: None)
        status = 0
    except Exception as error:  # noqa: BLE001  whatever it was, the parent must hear of it
        tell(Told(error=f"{type(error).__name__}: {error}"))
    finally:
        _leave(status)


def measure(asked: Asked, tell: Callable[[Told], None]) -> None:
    """Every wish, one after another; all processes in step."""
    if asked.processes > 1:
        jax.distributed.initialize(
            asked.address,
            asked.processes,
            asked.process,
            coordinator_bind_address=asked.address,
        )
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    versions = {package: metadata.version(package) for package in PACKAGES}
    first = devices[0]
    tell(
        Told(
            devices=Devices(
                platform=first.platform,
                kind=first.device_kind,
                count=len(devices),
                versions=versions,
            )
        )
    )
    for time in kernels.times(asked.wishes.kernels, devices, lambda: tell(Told(ready=True))):
        tell(Told(kernel=time))
    for sent in collectives.times(asked.wishes.exchanges, devices, lambda: tell(Told(ready=True))):
        tell(Told(exchange=sent))
    if asked.processes > 1:
        barrier("all is measured")


def _die_with_the_parent() -> None:
    """The parent holds our standard input open; when that ends, nobody waits for us."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    _leave(1)


def _leave(status: int) -> None:
    """End here and now: no thread of JAX has anything to finish."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()

"""Ports of this machine's own address. The standard library alone."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LOOPBACK = "127.0.0.1"
# Ray's workers take ports below these, and connections that go out get those from 32768 on: one of
# either may be gone before whoever was told of it listens.
SINGLE, BLOCKS, BLOCK = range(30_000, 32_000), range(20_000, 30_000), 125


def free_port(wanted: int | None = None) -> int:
    """A port that nothing listens on now: the one that is wanted, or else any."""
    while wanted is None or not _is_free(wanted):
        wanted = random.choice(SINGLE)
    return wanted


@contextmanager
def claimed() -> Iterator[Iterator[int]]:
    """Ports that nothing listens on, and that nobody else who asks gets for as long as it lasts."""
    starts = list(range(BLOCKS.start, BLOCKS.stop, BLOCK))
    random.shuffle(starts)
    for start in starts:
        with socket.socket() as claim:
            with suppress(OSError):
                claim.bind((LOOPBACK, start))
            if claim.getsockname()[1] == start:
                yield (port for port in range(start + 1, start + BLOCK) if _is_free(port))
                return
    raise OSError(f"every port from {BLOCKS.start} to {BLOCKS.stop} is taken")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Its last user may just be gone.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True

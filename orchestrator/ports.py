"""Where processes listen, and free ports on this machine's loopback address."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LOOPBACK = "127.0.0.1"
NODE_ADDRESS = "ORCH_NODE_ADDRESS"  # where a process of an attempt listens; unset outside a cluster
# Ray's workers use ports below these, and outgoing connections those from 32768 on. Either could
# take a port before the process that was told of it listens there.
SINGLE, BLOCKS, BLOCK = range(30_000, 32_000), range(20_000, 30_000), 125


def free_port(preferred: int | None = None) -> int:
    """A port that nothing listens on now: the preferred one, or else any."""
    port = preferred
    while port is None or not _is_free(port):
        port = random.choice(SINGLE)
    return port


@contextmanager
def claimed() -> Iterator[Iterator[int]]:
    """Free ports that no other caller of this gets for as long as a `with` lasts.

    The first port of a block is the lock on it: it stays bound, and ends with the process.
    """
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

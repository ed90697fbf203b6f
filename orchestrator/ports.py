"""Ports of this machine's own address. The standard library alone."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Ray's workers take ports below these, and connections that go out get those from 32768 on: a port
# of that range may be gone before whoever was told of it listens.
QUIET = range(20_000, 32_000)


def free_port(wanted: int | None = None) -> int:
    """A port that nothing listens on now: the one that is wanted, or else any quiet one."""
    while wanted is None or not _is_free(wanted):
        wanted = random.choice(QUIET)
    return wanted


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Its last user may just be gone.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True

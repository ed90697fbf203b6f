"""The times by which a driver and its ranks decide about a loss, each in one place.

The forecast of goodput counts with them too.
"""

# Ranks share a file system: together they write at most this many heartbeats per second.
MAX_HEARTBEATS_PER_S = 400
MIN_INTERVAL_S = 0.25
# A driver that watches an attempt looks this often, or at every second heartbeat.
POLL_S = 0.25
# A rank proves by this many heartbeats that it outlived another.
SETTLED_BEATS = 4
SETTLED_S = 3.0
# A run that lost a slice waits this long for another before it goes on with fewer.
SPARE_WAIT_S = 60.0


def heartbeat_interval_s(ranks: int, hang_limit_s: float) -> float:
    """The time between two heartbeats of each rank of an attempt."""
    return min(max(MIN_INTERVAL_S, ranks / MAX_HEARTBEATS_PER_S), hang_limit_s / 4)


def poll_interval_s(heartbeat_s: float) -> float:
    """The time between two looks at the heartbeats: there is no news more often."""
    return max(POLL_S, heartbeat_s / 2)


def settling_s(heartbeat_s: float) -> float:
    """How long a failed attempt is watched, until it is clear which rank died first."""
    return max(SETTLED_S, SETTLED_BEATS * heartbeat_s)

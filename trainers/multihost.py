"""What the processes of a run do in step with one another. Knows JAX and Orbax's barrier."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import multihost

MEETING_S = 600
TEXT_BYTES = 256


def barrier(place: str, *, timeout_s: float = MEETING_S) -> None:
    """Wait until every process has come here.

    The devices take no part: collectives on CPU give up after 30 s, and a peer may still compile.
    """
    multihost.get_barrier_sync_fn()(key=place, timeout_ms=int(timeout_s * 1000))


def first_message(text: str | None) -> str | None:
    """The text of the first process that has one, told to all; long ones are cut."""
    if jax.process_count() == 1:
        return text
    barrier("texts are ready")
    mine = np.zeros(TEXT_BYTES, np.uint8)
    encoded = np.frombuffer((text or "").encode()[:TEXT_BYTES], np.uint8)
    mine[: len(encoded)] = encoded
    rows = multihost_utils.process_allgather(mine)
    texts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]
    return next((text for text in texts if text), None)


class StopVote:
    """Whether any process wants to stop, so that all of them do after the same step.

    Each asks before each step. Among several processes the wish travels as one number, summed on
    the devices between two steps, and is read a step later: nobody waits for it.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._alone = jax.process_count() == 1
        if not self._alone:
            everyone = Mesh(np.array(jax.devices()), ("everyone",))
            self._each = NamedSharding(everyone, PartitionSpec("everyone"))
            all_know = NamedSharding(everyone, PartitionSpec())
            self._any = jax.jit(lambda wishes: wishes.any(), out_shardings=all_know)
            self._ballot = self._cast(False)

    def carried(self) -> bool:
        """Cast this process's wish; whether the vote that was cast before carried."""
        if self._alone:
            return self._wanted()
        before, self._ballot = self._ballot, self._cast(self._wanted())
        return bool(before)

    def _cast(self, wish: bool) -> jax.Array:
        count = len(jax.devices())
        wishes = jax.make_array_from_callback(
            (count,), self._each, lambda index: np.full(count, wish)[index]
        )
        result: jax.Array = self._any(wishes)
        return result

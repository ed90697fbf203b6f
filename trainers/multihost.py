"""What the processes of a run do together: meet, tell one another a message, vote to stop."""

import os
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import multihost

from orchestrator.processes import NODE_ADDRESS
from trainers.jax_private_api import listen_on

_MESSAGE_BYTES = 256


def listen_on_node_address() -> None:
    """Let gloo listen on this node's address only. Call this before JAX makes its devices."""
    if address := os.environ.get(NODE_ADDRESS):
        listen_on(address)


def join_processes() -> None:
    """Meet the other processes of the run, where the environment says how many there are."""
    # Ray Train has done so already for its workers.
    count = int(os.environ.get("ORCH_PROCESSES", "1"))
    if count > 1:  # JAX reads the coordinator's address from the environment
        jax.distributed.initialize(num_processes=count, process_id=int(os.environ["ORCH_PROCESS"]))


def barrier(name: str) -> None:
    # The devices take no part: collectives on CPU give up after 30 s, and a peer may still compile.
    multihost.get_barrier_sync_fn()(key=name, timeout_ms=600_000)


def first_message(message: str | None) -> str | None:
    """Return the message of the first process that has one, on every process; long ones are cut."""
    if jax.process_count() == 1:
        return message
    barrier("messages are ready")
    mine = np.zeros(_MESSAGE_BYTES, np.uint8)
    encoded = np.frombuffer((message or "").encode()[:_MESSAGE_BYTES], np.uint8)
    mine[: len(encoded)] = encoded
    rows = multihost_utils.process_allgather(mine)
    messages = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]
    return next(filter(None, messages), None)


class StopVote:
    """Whether any process wants to stop, so that all stop after the same step. They vote before
    each; votes are summed on the devices between steps, and read one step later: nobody waits.
    """

    def __init__(self, wants_stop: Callable[[], bool]) -> None:
        self._wants_stop = wants_stop
        self._is_only_process = jax.process_count() == 1
        self.waited_s = 0.0  # for the others, in the last vote
        if not self._is_only_process:
            devices = Mesh(np.array(jax.devices()), ("devices",))
            each, count = NamedSharding(devices, PartitionSpec("devices")), devices.size
            self._votes = {
                vote: jax.make_array_from_callback((count,), each, np.full(count, vote).__getitem__)
                for vote in (False, True)
            }
            replicated = NamedSharding(devices, PartitionSpec())
            self._any = jax.jit(lambda votes: votes.any(), out_shardings=replicated)
            self._result = self._sum(False)

    def says_stop(self) -> bool:
        """Vote, and return the result of the vote before."""
        if self._is_only_process:
            return self._wants_stop()
        vote, began = self._wants_stop(), time.perf_counter()
        previous, self._result = self._result, self._sum(vote)
        stops = bool(previous)
        self.waited_s = time.perf_counter() - began
        return stops

    def _sum(self, vote: bool) -> jax.Array:
        result: jax.Array = self._any(self._votes[vote])
        return result

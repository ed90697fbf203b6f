"""One host of a slice: it joins a meeting and runs the process that each order gives it.

    python -m orchestrator.launch.hosts.host_process FOLDER --slice NAME --host N ...

Every host of every slice runs this: a process on this machine, the container of a pod, or a shell
on a TPU VM. It ends with its parent, and its process with it.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.errors import JournalUnwritable
from orchestrator.launch import preflight
from orchestrator.launch.hosts.meeting import Answer, HostName, HostState, Meeting, Order
from orchestrator.processes import (
    LOOPBACK,
    NODE_ADDRESS,
    emulated_devices,
    end_with_parent,
    free_port,
)
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.values import codec

# How often a host looks and shows itself: here, over a file system that many hosts share, and on a
# bucket, which is paid by the request.
_EMULATED_S, _SHARED_S, _BUCKET_S = 0.1, 1.0, 5.0
_STOP_LIMIT_S = 5.0
_SLICE_PORT = 8081  # where libtpu joins the slices of a run
_RANK = "orchestrator.launch.hosts.rank"


@dataclass
class _Host:
    """A host, its meeting, and the process that it runs."""

    meeting: Meeting
    state: HostState
    devices: int | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def serve(self) -> None:
        """Obey orders for ever. Where the folder fails, what runs goes on until the next look."""
        while True:
            try:
                self.look()
            except (JournalUnwritable, OSError) as error:
                if _is_removed(self.meeting.folder):
                    raise
                print(error, file=sys.stderr, flush=True)
            time.sleep(self.wait_s)

    @property
    def wait_s(self) -> float:
        """How long to wait between two looks."""
        if self.devices is not None:
            return _EMULATED_S
        return _BUCKET_S if is_copy(self.meeting.folder) else _SHARED_S

    def look(self) -> None:
        """Obey the newest order, notice the end of the process, and show the state."""
        order = self.meeting.order()
        if order and order.number > self.state.order:
            self.obey(order)
        if self.process and (code := self.process.poll()) is not None:
            self.process = None
            self.state = replace(self.state, run=None, code=code, free_port=free_port())
        question = self.meeting.question()
        if question and self.state.answer_to(question) is None:
            host = preflight.describe(str(self.state.host), question.file, question.secrets)
            self.state = replace(self.state, answer=Answer(id=question.id, host=host))
        self.state = replace(self.state, beat=self.state.beat + 1)
        self.meeting.join(self.state)

    def obey(self, order: Order) -> None:
        """Stop what runs, and start what the order gives this host."""
        self.stop()
        running = order.args is not None and self.state.host in order.ranks
        if running:
            self.start(order, order.ranks.index(self.state.host))
        run = order.run if running else None
        self.state = replace(self.state, order=order.number, run=run, code=None)

    def start(self, order: Order, rank: int) -> None:
        """Start the process of a rank."""
        words = (order.worker, codec.to_json(order.args).decode(), str(rank))
        self.process = subprocess.Popen(
            [sys.executable, "-m", _RANK, *words],
            stdin=subprocess.DEVNULL,
            env=self._inherited() | _environment(order, rank) | {NODE_ADDRESS: self.state.address},
            start_new_session=True,
        )

    def stop(self) -> None:
        """End the process and all that it started."""
        if self.process is None:
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_STOP_LIMIT_S)
        self.process = None

    def _inherited(self) -> dict[str, str]:
        """This environment; where devices are emulated, without a shell's settings of real ones."""
        if self.devices is None:
            return dict(os.environ)
        return emulated_devices(os.environ, self.devices)


def _is_removed(where: Path) -> bool:
    """Whether the folder in which hosts meet is known to be gone; a bucket's never is."""
    try:
        where.stat()
    except FileNotFoundError:
        return not is_copy(where)
    except OSError:
        return False
    return False


def _environment(order: Order, rank: int) -> dict[str, str]:
    """What joins a rank with the others, and its slice with the other slices."""
    mine = order.ranks[rank]
    slices = list(dict.fromkeys(host.slice_name for host in order.ranks))
    joined = {
        "ORCH_PROCESSES": str(len(order.ranks)),
        "ORCH_PROCESS": str(rank),
        "JAX_COORDINATOR_ADDRESS": order.coordinator,
        "JAX_COORDINATOR_BIND_ADDRESS": order.coordinator,
        "TPU_NAME": mine.slice_name,
    }
    if len(slices) > 1:
        joined |= {
            "MEGASCALE_COORDINATOR_ADDRESS": f"{order.coordinator_host}:{_SLICE_PORT}",
            "MEGASCALE_NUM_SLICES": str(len(slices)),
            "MEGASCALE_SLICE_ID": str(slices.index(mine.slice_name)),
            "MEGASCALE_PORT": str(_SLICE_PORT),
        }
    return joined


def main(arguments: list[str]) -> None:
    """Be a host until the parent is gone, or somebody ends this process."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.launch.hosts.host_process")
    parser.add_argument("folder", type=folder, help="where the hosts and the driver meet")
    parser.add_argument("--slice", required=True, help="the name of the slice")
    parser.add_argument("--host", type=int, required=True, help="which host of it, from 0")
    parser.add_argument("--hosts", type=int, required=True, help="how many hosts the slice has")
    parser.add_argument("--kind", required=True, help="chip and topology, such as 'v5p 4x4x4'")
    parser.add_argument("--emulate", type=int, metavar="DEVICES", help="emulate so many devices")
    options = parser.parse_args(arguments)
    if not is_copy(options.folder):
        options.folder.mkdir(parents=True, exist_ok=True)
    emulated = options.emulate is not None
    state = HostState(
        host=HostName(slice_name=options.slice, index=options.host),
        size=options.hosts,
        kind=options.kind,
        address=LOOPBACK if emulated else socket.gethostbyname(socket.gethostname()),
        free_port=free_port(),
        beat=0,
    )
    host = _Host(Meeting(options.folder), state, options.emulate)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        host.serve()
    finally:
        host.stop()


if __name__ == "__main__":
    main(sys.argv[1:])

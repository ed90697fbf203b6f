"""One host of a slice: it joins a meeting and runs the process that each order gives it.

python -m orchestrator.launch.hosts.host_process FOLDER --slice NAME --host N ...

It starts the same program as `--rank WORKER ARGS RANK`, and a rehearsal as `--driver FOLDER HOSTS
COMMAND...`. Each ends with its parent.
"""

import argparse
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator import processes
from orchestrator.errors import JournalUnwritable
from orchestrator.launch.backend import WorkerArgs, describe_host
from orchestrator.launch.hosts import meeting as meetings
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.values import codec

# How often a host looks and shows itself: here, over a file system that many hosts share, and on a
# bucket, which is paid by the request.
_EMULATED_S, _SHARED_S, _BUCKET_S = 0.1, 1.0, 5.0
_STOP_LIMIT_S = 5.0
_SLICE_PORT = 8081  # where libtpu joins the slices of a run
PROGRAM = "orchestrator.launch.hosts.host_process"


@dataclass
class _Host:
    meeting: meetings.Meeting
    state: meetings.HostState
    devices: int | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def serve(self) -> None:
        """Obey orders for ever. Where the folder fails, what runs goes on until the next look."""
        wait_s = _BUCKET_S if is_copy(self.meeting.folder) else _SHARED_S
        while True:
            try:
                self.look()
            except (JournalUnwritable, OSError) as error:
                if _is_removed(self.meeting.folder):
                    raise
                print(error, file=sys.stderr, flush=True)
            time.sleep(wait_s if self.devices is None else _EMULATED_S)

    def look(self) -> None:
        """Obey the newest order, notice the end of the process, and show the state."""
        order = self.meeting.order()
        if order and order.number > self.state.order:
            self.stop()
            running = order.args is not None and self.state.host in order.ranks
            if running:
                self.start(order, order.ranks.index(self.state.host))
            run = order.run if running else None
            self.state = replace(self.state, order=order.number, run=run, code=None)
        if self.process and (code := self.process.poll()) is not None:
            self.process = None
            self.state = replace(self.state, run=None, code=code, free_port=processes.free_port())
        question = self.meeting.question()
        if question and self.state.answer_to(question) is None:
            host = describe_host(str(self.state.host), question.file, question.secrets)
            self.state = replace(self.state, answer=meetings.Answer(id=question.id, host=host))
        self.state = replace(self.state, beat=self.state.beat + 1)
        self.meeting.join(self.state)

    def start(self, order: meetings.Order, rank: int) -> None:
        inherited = dict(os.environ)
        if self.devices is not None:  # without a shell's settings of real devices
            inherited = processes.emulated_devices(os.environ, self.devices)
        joined = _environment(order, rank) | {processes.NODE_ADDRESS: self.state.address}
        words = ("--rank", order.worker, codec.to_json(order.args).decode(), str(rank))
        self.process = start_program(*words, env=inherited | joined)

    def stop(self) -> None:
        if self.process is None:
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_STOP_LIMIT_S)
        self.process = None


def start_program(*words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    command = [*processes.MODULE, PROGRAM, *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, start_new_session=True)


def _is_removed(where: Path) -> bool:
    """Whether the meeting folder of hosts is known to be gone; that of a bucket never is."""
    try:
        where.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError) and not is_copy(where)
    return False


def _environment(order: meetings.Order, rank: int) -> dict[str, str]:
    """What joins a rank with the others, and its slice with the other slices."""
    mine = order.ranks[rank]
    slices = list(dict.fromkeys(host.slice_name for host in order.ranks))
    where = order.coordinator
    joined = {"ORCH_PROCESSES": str(len(order.ranks)), "ORCH_PROCESS": str(rank)}
    joined |= {"JAX_COORDINATOR_ADDRESS": where, "JAX_COORDINATOR_BIND_ADDRESS": where}
    joined["TPU_NAME"] = mine.slice_name
    if len(slices) > 1:
        joined |= {
            "MEGASCALE_COORDINATOR_ADDRESS": f"{order.coordinator_host}:{_SLICE_PORT}",
            "MEGASCALE_NUM_SLICES": str(len(slices)),
            "MEGASCALE_SLICE_ID": str(slices.index(mine.slice_name)),
            "MEGASCALE_PORT": str(_SLICE_PORT),
        }
    return joined


def _work_or_exit(worker: str, args: WorkerArgs, rank: int) -> None:
    """Do the worker's part. After an error this process ends at once: on its usual way out JAX
    waits for the others for minutes, and nobody looks at the claim any more.
    """
    try:
        pkgutil.resolve_name(worker)(args, rank)
    except BaseException:  # noqa: BLE001  whatever it was, the slice must be free
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


def _be_host(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}")
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
    state = meetings.HostState(
        host=meetings.HostName(slice_name=options.slice, index=options.host),
        size=options.hosts,
        kind=options.kind,
        address=processes.LOOPBACK if emulated else socket.gethostbyname(socket.gethostname()),
        free_port=processes.free_port(),
        beat=0,
    )
    host = _Host(meetings.Meeting(options.folder), state, options.emulate)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    processes.end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        host.serve()
    finally:
        host.stop()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--rank", worker, args, rank]:
            processes.end_with_parent(lambda: os._exit(1))  # nobody else would stop it
            _work_or_exit(worker, codec.from_json(args, WorkerArgs), int(rank))
        case ["--driver", where, hosts, *command]:
            processes.end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
            meeting = meetings.Meeting(Path(where))
            while len(meeting.hosts()) < int(hosts):
                time.sleep(_EMULATED_S)
            child = subprocess.Popen(command, env={**os.environ, meetings.VARIABLE: where})
            signal.signal(signal.SIGTERM, lambda *_: child.kill())
            code = child.wait()
            if code < 0:  # end by the same signal, so that whoever waits can name it
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            sys.exit(code)
        case arguments:
            _be_host(arguments)

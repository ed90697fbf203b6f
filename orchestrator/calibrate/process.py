"""Calibrate room: the processes that measure, which never outlive the call that started them."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

from orchestrator.calibrate.words import Asked, Told
from orchestrator.errors import MeasurementFailed
from orchestrator.plan import rehearsal
from orchestrator.ports import LOOPBACK, free_port
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmarks

CHILD = (sys.executable, "-m", "orchestrator.calibrate.child")
LIMIT_S = 600.0
LAST_LINES = 5
# What a person's shell may hold for real runs; it would change what is measured.
LEFT_OUT = ("JAX_", "LIBTPU_", "MEGASCALE_", "RAY_", "XLA_")
Child = subprocess.Popen[bytes]


def ask(wishes: Benchmarks, *, processes: int, devices: int | None) -> Iterator[Told]:
    """What the first of so many processes tells, as it comes.

    `devices` CPU devices are emulated by all of them together; None takes those of the machine.
    """
    address = f"{LOOPBACK}:{free_port()}" if processes > 1 else ""
    environment = _environment(os.environ, devices and devices // processes)
    with ExitStack() as stack:
        noises = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(processes)]
        children = [stack.enter_context(_child(environment, noise)) for noise in noises]
        stack.enter_context(_deadline(children))
        for number, child in enumerate(children):
            _hand_over(
                child,
                Asked(wishes=wishes, process=number, processes=processes, address=address),
            )
        assert children[0].stdout is not None
        for line in children[0].stdout:
            told = codec.from_json(line, Told)
            if told.error:
                raise MeasurementFailed(f"this machine cannot be measured: {told.error}")
            yield told
        if children[0].wait():
            raise MeasurementFailed(_last_words(children, noises))


@contextmanager
def _child(environment: dict[str, str], noise: IO[bytes]) -> Iterator[Child]:
    """One process, in a session of its own; killed with whatever it started."""
    child = subprocess.Popen(
        CHILD,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=noise,
        env=environment,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        _kill(child)
        child.wait()
        for stream in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                assert stream is not None
                stream.close()


def _kill(child: Child) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


@contextmanager
def _deadline(children: list[Child]) -> Iterator[None]:
    """Processes that wait for one another may wait for ever."""

    def give_up() -> None:
        for child in children:
            _kill(child)

    timer = threading.Timer(LIMIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _hand_over(child: Child, asked: Asked) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it has died, and its end is read next
        child.stdin.write(codec.to_json(asked) + b"\n")
        child.stdin.flush()


def _environment(inherited: Mapping[str, str], emulated: int | None) -> dict[str, str]:
    kept = {name: value for name, value in inherited.items() if not name.startswith(LEFT_OUT)}
    return kept if emulated is None else kept | rehearsal.environment(emulated)


def _last_words(children: list[Child], noises: Sequence[IO[bytes]]) -> str:
    """How the first process ended, and what it said last."""
    noises[0].seek(0)
    lines = noises[0].read().decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
    head = f"the process that measures ended with exit code {children[0].returncode}"
    return "\n".join([head, *lines])

"""What watching and recording add to a step: each process times itself and tells the first, which
looks for slowdowns and writes the step down.

    python -m tests.bench.watch_cost

Two processes do steps without any work, one every 20 ms, as with the cold caches of a real step.
What is told is processor time of the thread that trains, and beside it that of all threads, less
that of a process that does nothing of this. The second table is the look at steps of many hosts.
`RANK PORT` makes it one of the two processes. The exit code is 1 above 0.2 ms a step.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import jax

from orchestrator.goodput.slowdowns import SlowdownWatch
from orchestrator.journal.files import RunPaths
from orchestrator.journal.steps import StepLog
from orchestrator.processes import free_port
from orchestrator.values.slowdowns import HostTimes
from tests.bench.record_cost import describe
from tests.journals import step
from trainers.own_times import EVERY, OwnTimes

STEPS, STEP_S = 300, 0.02
LIMIT_S = 2e-4


def steps(rank: int, port: int) -> None:
    """Print the seconds of all threads per step, and those of the training thread in each."""
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    idle_s = process_s(lambda _: None)
    with tempfile.TemporaryDirectory() as folder, OwnTimes(1.0) as own:
        RunPaths(Path(folder)).attempt(1).mkdir(parents=True)
        watch, taken, told = SlowdownWatch(1, emulated=False), list[float](), 0
        with StepLog(Path(folder), 1) as log:

            def end(index: int) -> None:
                nonlocal told
                new = step(index)
                began = time.thread_time()
                own.begin_work(index, {})
                hosts = own.end_step(index, host_s=1e-3, input_s=1e-3, waited_s=0.01)
                told += hosts is not None
                if rank == 0:
                    new = replace(new, hosts=hosts)
                    watch.add(new)
                    log.append(new)
                taken.append(time.thread_time() - began)

            busy_s = process_s(end)
    assert told > STEPS / EVERY / 2 or rank, f"{told} gathers"
    print((busy_s - idle_s) / STEPS, *taken)


def process_s(end_step: Callable[[int], None]) -> float:
    """Processor seconds of all threads in so many steps."""
    began = time.process_time()
    for index in range(STEPS):
        time.sleep(STEP_S)
        end_step(index)
    return time.process_time() - began


def looks(hosts: int) -> list[float]:
    """Seconds of each look at a step, where every third has the times of all hosts."""
    told = HostTimes(
        devices_s=(1e-3,) * hosts,
        host_s=(1e-3,) * hosts,
        input_s=(1e-3,) * hosts,
        stopped=(0.0,) * hosts,
    )
    watch, taken = SlowdownWatch(1, emulated=False), list[float]()
    for index in range(STEPS):
        new = step(index, hosts=told if index % EVERY == 0 else None)
        began = time.thread_time()
        watch.add(new)
        taken.append(time.thread_time() - began)
    return taken


def main(*given: str) -> int:
    if given:
        steps(*map(int, given))
        return 0
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.watch_cost", str(rank), port],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told, worst_s = [process.communicate()[0] for process in processes], 0.0
    for what, text in zip(("times, watches, writes", "times itself"), told, strict=True):
        threads_s, *taken = [float(word) for word in text.splitlines()[-1].split()]
        worst_s = max(worst_s, fmean(taken))
        print(f"{what:22} {describe(taken)}, mean {fmean(taken) * 1e6:.0f} us,"
              f" all threads {threads_s * 1e6:.0f} us")  # fmt: skip
    for hosts in (64, 4096):
        taken = looks(hosts)
        print(f"a look, {hosts:5} hosts    {describe(taken)}, mean {fmean(taken) * 1e6:.0f} us")
    print(f"recording and watching add {worst_s * 1e6:.0f} us a step")
    return int(worst_s > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

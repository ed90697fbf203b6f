"""What watching adds to a step: each process times itself, and rank 0 looks for slowdowns.

    python -m tests.bench.watch_cost

Two processes do steps without any work. What is told is processor time of the thread that trains;
the second table is the look at steps of many hosts. `RANK PORT` makes it one of the two processes.
The exit code is 1 above 0.2 ms a step.
"""

import subprocess
import sys
import time
from statistics import fmean

import jax

from orchestrator.goodput.slowdowns import SlowdownWatch
from orchestrator.processes import free_port
from orchestrator.values.slowdowns import HostTimes
from tests.bench.record_cost import describe
from tests.journals import step
from trainers.own_times import EVERY, OwnTimes

STEPS, STEP_S = 300, 0.02
LIMIT_S = 2e-4


def own_times(rank: int, port: int) -> None:
    """Print the seconds of each step that go into telling the others of this process."""
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    taken: list[float] = []
    with OwnTimes(1.0) as own:
        for index in range(STEPS):
            time.sleep(STEP_S)
            began = time.thread_time()
            own.begin_work(index, {})
            own.end_step(index, host_s=1e-3, input_s=1e-3, waited_s=0.01)
            taken.append(time.thread_time() - began)
    print(*taken)


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
        own_times(*map(int, given))
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
    told = [process.communicate()[0] for process in processes]
    worst_s = 0.0
    for rank, text in enumerate(told):
        taken = [float(word) for word in text.splitlines()[-1].split()]
        worst_s = max(worst_s, fmean(taken))
        print(f"rank {rank} times itself   {describe(taken)}, mean {fmean(taken) * 1e6:.0f} us")
    for hosts in (2, 64, 4096):
        taken = looks(hosts)
        print(f"a look, {hosts:5} hosts   {describe(taken)}, mean {fmean(taken) * 1e6:.0f} us")
        worst_s += fmean(taken) if hosts == 2 else 0.0
    print(f"watching adds          {worst_s * 1e6:.0f} us a step")
    return int(worst_s > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Runs the processes that measure. They never outlive the call that started them."""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil

from orchestrator.device_settings import emulated_devices, without_device_settings
from orchestrator.errors import MeasurementFailed
from orchestrator.ports import LOOPBACK, free_port
from orchestrator.types import codec
from orchestrator.types.chip_profile import Measurements
from orchestrator.types.plan import Plan

COMMAND: tuple[str, ...] = (sys.executable, "-m", "trainers.microbenchmarks")
PLAN, RESULT, LOG = "plan.json", "result.json", "log"
LIMIT_S = 600.0
LAST_LINES = 5


def run(plan: Plan | None = None) -> Measurements:
    """Time a plan's step on emulated devices, in as many processes as it has hosts; without a plan,
    what one of this machine's own devices does.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [*COMMAND, str(folder / RESULT)]
        if plan:
            (folder / PLAN).write_bytes(codec.to_json(plan))
            command += [str(folder / PLAN), f"{LOOPBACK}:{free_port()}"]
        busy = BusyCores()
        started = [start(command, plan, number, folder) for number in range(hosts(plan))]
        try:
            status = started[0].wait(LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise MeasurementFailed(
                f"this machine was not measured within {LIMIT_S / 60:.0f} minutes"
            ) from error
        finally:
            for process in started:
                process.kill()
                process.wait()
        if status:
            text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
            last = "\n".join(text.strip().splitlines()[-LAST_LINES:])
            raise MeasurementFailed(f"this machine cannot be measured:\n{last}")
        measured = codec.from_json((folder / RESULT).read_bytes(), Measurements)
        return replace(measured, others=busy.share_of_others())


class BusyCores:
    """The cores that this process may use, and what was done on them since it was made."""

    def __init__(self) -> None:
        self.began_s, self.busy_s, self.own_s = time.monotonic(), busy_s(), own_s()

    def share_of_others(self) -> float:
        """The share of the cores' time that went to other programs than this and its children."""
        others_s = (busy_s() - self.busy_s) - (own_s() - self.own_s)
        return max(0.0, others_s / ((time.monotonic() - self.began_s) * len(own_cores())))


def own_cores() -> list[int]:
    return psutil.Process().cpu_affinity() if psutil.LINUX else list(range(os.cpu_count() or 1))


def busy_s() -> float:
    """Seconds in which these cores worked, or were taken away by a hypervisor."""
    cores = psutil.cpu_times(percpu=True)
    return sum(sum(cores[n][:3]) + getattr(cores[n], "steal", 0.0) for n in own_cores())


def own_s() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def hosts(plan: Plan | None) -> int:
    return plan.hosts if plan else 1


def start(
    command: list[str], plan: Plan | None, number: int, folder: Path
) -> subprocess.Popen[bytes]:
    """Start one process; the first one's output goes into the log."""
    if plan:
        command = [*command, str(number)]
        environment = emulated_devices(os.environ, plan.devices_per_host)
        environment["MEGASCALE_SLICE_ID"] = str(number * plan.pods // plan.hosts)
    else:  # the devices of this machine are measured, which TPU_ describes
        environment = without_device_settings(os.environ, keep=("TPU_",))
    with (folder / LOG if number == 0 else Path(os.devnull)).open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            # Ctrl-C is for the caller. In sessions of their own they would take 1.4 times as long:
            # Linux shares cores between sessions first. The processes of a rehearsal are in one.
            process_group=0,
        )

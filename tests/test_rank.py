"""The process of a rank on the backend of plain processes."""

import subprocess
import sys
import time

from orchestrator.processes import free_port
from tests.conftest import ROOT

LIMIT_S = 60.0
RANK = """
import os, sys
import jax
from orchestrator.launch.hosts.host_process import _work_or_exit

def work(args, rank):
    jax.distributed.initialize(sys.argv[1], 2, rank)
    if rank == 1:
        os._exit(7)
    raise OSError("the disk fails")

sys.modules["it"] = sys.modules["__main__"]
_work_or_exit("it:work", None, int(sys.argv[2]))
"""


def test_a_rank_that_fails_waits_for_no_other() -> None:
    """JAX would wait for the one that died, and the slice would be held."""
    address, began_s = f"127.0.0.1:{free_port()}", time.monotonic()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, address, str(rank)], cwd=ROOT, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [rank.returncode for rank in ranks] == [1, 7]
    assert b"OSError: the disk fails" in errors[0]
    assert time.monotonic() - began_s < LIMIT_S

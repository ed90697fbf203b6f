"""JAX's coordinator and collectives listen on the address of a node, and on no other."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import ray.util

from orchestrator.launch.ray import attempt
from orchestrator.processes import NODE_ADDRESS, free_port
from tests.conftest import ROOT


class Group:
    """Two workers that are this process; what each ran is noted."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, str, dict[str, Any]]] = []

    def __len__(self) -> int:
        return 2

    def execute(self, function: Callable[..., Any], *values: Any) -> list[Any]:
        return [function(*values) for _ in range(2)]

    def execute_single(self, rank: int, function: Callable[..., Any], *values: Any) -> Any:
        self.ran.append((rank, function.__name__, {}))
        return function(*values)

    def execute_single_async(self, rank: int, function: Callable[..., Any], **named: Any) -> Any:
        self.ran.append((rank, function.__name__, named))

    def get_resources_per_worker(self) -> dict[str, float]:
        return {"TPU": 1}


def test_the_coordinator_binds_to_the_address_that_the_processes_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first process learns it before any starts JAX."""
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(ray, "get", lambda found: found)
    for name in (attempt._BIND_ADDRESS, NODE_ADDRESS):
        monkeypatch.setenv(name, "nothing yet")
    config, group = attempt._JaxOnNodeAddress(use_tpu=True), Group()
    config.backend_cls().on_start(group, config)
    *_, (first, name, _), (zero, _, given), (one, _, also) = group.ran
    assert (first, name, zero, one) == (0, "_set_address", 0, 1)
    assert os.environ[attempt._BIND_ADDRESS] == given["master_addr_with_port"]
    assert given["master_addr_with_port"] == also["master_addr_with_port"]
    assert os.environ[attempt._BIND_ADDRESS].startswith("127.0.0.1:")
    assert os.environ[NODE_ADDRESS] == "127.0.0.1"


TRAINING = """
import sys, jax, jax.numpy as jnp, psutil
from trainers.multihost import listen_on_node_address
port = int(sys.argv[1])
listen_on_node_address()
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
jax.devices()
print({one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"})
"""


@pytest.mark.parametrize("bound", [True, False])
def test_a_process_listens_where_it_is_told(bound: bool) -> None:
    """Gloo too, on an address that is not that of the host's name; without this, JAX on all."""
    port = free_port()
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    if bound:
        environment |= {
            NODE_ADDRESS: "127.0.0.2",
            attempt._BIND_ADDRESS: f"127.0.0.1:{port}",
        }
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(port)],
        env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()[-1]
    assert ("'::'" in found or "'0.0.0.0'" in found) is not bound
    assert ("'127.0.0.2'" in found) is bound

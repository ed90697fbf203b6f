"""Compile a plan's step and read nothing of it. For the bench.

python -m tests.bench.bare_compile < request.json
"""

import os
import sys
from typing import Any

from jax.experimental import topologies

from orchestrator.proving.compiled import CompileRequest
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from trainers.contract import load, lower


def main() -> None:
    request = codec.from_json(sys.stdin.buffer.read(), CompileRequest)
    plan = codec.from_json(request.plan, Plan)
    topology = topologies.get_topology_desc(
        request.topology, request.platform, **request.topology_options
    )
    lowered, _ = lower(load(plan.trainer), plan, topology.devices)
    settings: dict[str, Any] = dict(plan.compiler_options)
    lowered.compile(compiler_options=settings or None)
    os._exit(0)  # as a proof's process: libtpu's threads have nothing to finish


if __name__ == "__main__":
    main()

"""The plans of the specs in specs/: each is made once for all workers of a session."""

import os
from functools import cache
from pathlib import Path

from filelock import FileLock

from orchestrator.planning.planner import make_plans
from orchestrator.reading.load import load
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from tests.conftest import SHIPPED_PLANS


@cache
def shipped_plans(path: Path) -> list[Plan]:
    """The plan of a spec, and up to three runners-up."""
    place = Path(os.environ[SHIPPED_PLANS]) / f"{path.stem}.json"
    with FileLock(f"{place}.lock"):
        if not place.exists():
            place.write_bytes(codec.to_json(make_plans(load(path), 4)))
    return codec.from_json(place.read_bytes(), list[Plan])


def shipped_plan(path: Path) -> Plan:
    return shipped_plans(path)[0]

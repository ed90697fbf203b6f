"""A rank of a run on plain processes: it joins the others in JAX, and has points for faults."""

import os

from orchestrator.launch.backend import WorkerArgs
from tests.chaos.points import Points, before_and_after, nothing, points_of_process, pretend_machine

WORKER = f"{__name__}:work"


def work(args: WorkerArgs, rank: int) -> None:
    """Train as any rank does."""
    pretend_machine()
    points = points_of_process()
    if points:
        points.come_to("start", f"rank-{rank}")
    if "COORDINATOR" in os.environ:  # the worker joins the others, after its first heartbeat
        os.environ["JAX_COORDINATOR_ADDRESS"] = os.environ["COORDINATOR"]
        os.environ |= {"ORCH_PROCESSES": os.environ["PROCESSES"], "ORCH_PROCESS": str(rank)}
    if points:
        add_points(points, f"rank-{rank}")
    from orchestrator.drive import worker  # noqa: PLC0415

    worker.work(args, rank)


def add_points(points: Points, who: str) -> None:
    """Stop where a checkpoint is written, where the step is compiled, and after each step."""
    from orchestrator.journal import heartbeat  # noqa: PLC0415
    from trainers import loop  # noqa: PLC0415
    from trainers.checkpoint import objects, step_folders  # noqa: PLC0415

    before_and_after(loop, "_compiled", lambda _: points.come_to("compile", who), nothing)
    for owner, name in (
        (step_folders._Summed, "finalize"),
        (objects.StepObjects, "write_manifest"),
    ):
        before_and_after(
            owner,
            name,
            lambda *_: points.come_to("save", who),
            lambda *_: points.come_to("commit", who),
        )
    before_and_after(heartbeat.HeartbeatWriter, "count_step", nothing, lambda _: points.slow_down())

"""Launch room: one attempt at a run, as a Ray Train job on slices, real or emulated alike."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.launch.slices import accelerator_type
from orchestrator.stations.plan import Plan


class AttemptFailed(OrchError):
    """The workers of an attempt did not end well; the text begins with what tells errors apart."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one process of an attempt is told: which run, which attempt, which plan of it."""

    run: str
    attempt: int
    plan_digest: str


def join_cluster(address: str) -> None:
    """Connect to the cluster that runs this job. One on loopback is joined from loopback."""
    import ray  # noqa: PLC0415  a job imports it once, and only here

    host = address.rpartition(":")[0]
    pinned: dict[str, Any] = {"_node_ip_address": host} if host == "127.0.0.1" else {}
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **pinned)


def carry_out(plan: Plan, share: Share, work: Callable[[Share, int], None], storage: Path) -> None:
    """Run `work(share, rank)` on every host of the plan's slices, and wait for all of them.

    Each process finds JAX joined with the others, and MEGASCALE_SLICE_ID tells its slice.
    """
    from ray.train.v2.api.config import (  # noqa: PLC0415
        FailureConfig,
        RunConfig,
        ScalingConfig,
    )
    from ray.train.v2.jax import JaxTrainer  # noqa: PLC0415

    trainer = JaxTrainer(
        train_loop_per_worker=_on_worker,
        train_loop_config={"work": work, "share": share},
        scaling_config=ScalingConfig(
            use_tpu=True,
            topology=plan.topology,
            accelerator_type=accelerator_type(plan),
            num_workers=plan.hosts,
            resources_per_worker={"TPU": plan.chips // plan.hosts},
        ),
        run_config=RunConfig(
            name=f"attempt-{share.attempt}",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # Ray wraps whatever happened in classes of its own
        raise AttemptFailed(_cause(error)) from error


def _on_worker(config: dict[str, Any]) -> None:
    from ray import train  # noqa: PLC0415

    config["work"](config["share"], train.get_context().get_world_rank())


def _cause(error: BaseException) -> str:
    """The innermost words of a failure, one line of them first."""
    failures = getattr(error, "worker_failures", None)
    inner = next(iter(failures.values())) if failures else error
    lines = str(inner).strip().splitlines() or [type(inner).__name__]
    return "\n".join([lines[-1], *lines[:-1]])

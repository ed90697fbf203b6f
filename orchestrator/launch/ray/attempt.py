"""Launch room: one attempt at a run, as a Ray Train job on slices, real or emulated alike.

It has a process of its own, the crew: when that ends, in whatever way, Ray ends all that it
started. The driver tells it what to do and hears what it sees, a line of JSON each.
"""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.errors import OrchError
from orchestrator.journal import heartbeat
from orchestrator.launch.ray import slice_discovery
from orchestrator.launch.ray.protocol import AttemptCommand, AttemptEvent, Slice, WorkerArgs
from orchestrator.launch.ray.slice_queue_server import Lease
from orchestrator.launch.ray.slices import accelerator_type, hosts_per_slice, pod_type
from orchestrator.types import codec
from orchestrator.types.plan import Plan

Work = Callable[[WorkerArgs, int], None]
LOOK_EVERY_S = 1.0
FENCE_LIMIT_S = 10.0


def join_cluster(address: str) -> None:
    """Connect to the cluster that runs this job. One on loopback is joined from loopback."""
    import ray  # noqa: PLC0415  a job imports it once, and only here

    host = address.rpartition(":")[0]
    pinned: dict[str, Any] = {"_node_ip_address": host} if host == "127.0.0.1" else {}
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **pinned)


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """What a crew is for: which run, slices of which kind, and where its plans are. `shared` says
    that other runs may want slices of the same cluster.
    """

    run: str
    kind: Plan
    plan_of: Callable[[str], Plan]
    shared: bool


def serve(address: str, errand: AttemptSpec, work: Work) -> None:
    """Be the crew: look for slices of the kind of a plan, go when told, say how it ended.

    Ends with its input: then the driver wants no more of it, or is gone.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Ray's own words go to the log
    orders = _orders(sys.stdin.buffer)

    def say(said: AttemptEvent) -> None:
        with suppress(BrokenPipeError):  # the driver is gone: the end of its orders ends us
            print(codec.to_json(said).decode(), file=out, flush=True)

    try:
        join_cluster(address)
        turn = turn_of(errand)
        share, chosen = _ordered(errand.kind, orders, say, turn)
        plan = errand.plan_of(share.plan_digest)
        fences = fence(plan, chosen)

        def carry_out() -> None:
            _carry_out(plan, share, work, lambda said: say(_left(said, turn)))

        threading.Thread(target=carry_out, daemon=True).start()
        _attend(plan, share, orders, say, _Placing(turn, chosen, fences))
    except Exception as error:  # noqa: BLE001  whatever it was, the driver must hear of it
        say(AttemptEvent(over=True, error=f"{type(error).__name__}: {error}"))
    threading.Event().wait()


def _orders(source: BinaryIO) -> "queue.SimpleQueue[AttemptCommand]":
    """What the driver says, as it comes; this process ends when it says no more."""
    orders: queue.SimpleQueue[AttemptCommand] = queue.SimpleQueue()

    def listen() -> None:
        for line in source:
            orders.put(codec.from_json(line, AttemptCommand))
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return orders


def turn_of(errand: AttemptSpec) -> Lease | None:
    """The run's turn among the runs of a cluster; None where it is alone."""
    return Lease(errand.run, pod_type(errand.kind)) if errand.shared else None


def _ordered(
    kind: Plan,
    orders: "queue.SimpleQueue[AttemptCommand]",
    say: Callable[[AttemptEvent], None],
    turn: Lease | None,
) -> tuple[WorkerArgs, tuple[str, ...]]:
    """Show the slices as they change, and whose turn it is, until told to go."""
    shown: AttemptEvent | None = None
    while True:
        seen = _in_turn(seen_slices(kind), turn)
        if seen != shown:
            say(seen)
            shown = seen
        with suppress(queue.Empty):
            order = orders.get(timeout=LOOK_EVERY_S)
            if order.share:
                _check_turn(turn)
                return order.share, order.slices


def _in_turn(seen: tuple[Slice, ...], turn: Lease | None) -> AttemptEvent:
    """The slices, of which those that another run holds are not free. The turn is asked for after
    the look: a run that has just failed may have freed its slices, and they are its own.
    """
    if turn is None:
        return AttemptEvent(slices=seen)
    answer = turn.ask()
    slices = tuple(replace(one, free=one.free and one.name not in answer.held) for one in seen)
    return AttemptEvent(slices=slices, before=answer.before)


def _check_turn(turn: Lease | None) -> None:
    """The driver chose by an answer that may be a second old: somebody may have come back since."""
    if turn and (before := turn.ask().before):
        raise OrchError(f"the turn to take slices went back to {', '.join(before)}")


def _left(said: AttemptEvent, turn: Lease | None) -> AttemptEvent:
    """A run that has done its work gives its place up; one that failed will be back."""
    if turn and said.over and said.error is None:
        turn.leave()
    return said


@dataclass
class _Placing:
    """Slices that are being taken: until all processes are up, others are fenced, and no other run
    has the turn.
    """

    turn: Lease | None
    chosen: tuple[str, ...]
    fences: list[Any]
    done: bool = False

    def end(self, plan: Plan) -> None:
        """Let others at what is whole; what is broken stays fenced."""
        from ray.util.placement_group import remove_placement_group  # noqa: PLC0415

        whole = {one.name for one in seen_slices(plan) if one.whole} if self.fences else set()
        for name, group in self.fences:
            if name in whole:
                remove_placement_group(group)
        if self.turn:
            self.turn.served(self.chosen)
        self.done = True


def _attend(
    plan: Plan,
    share: WorkerArgs,
    orders: "queue.SimpleQueue[AttemptCommand]",
    say: Callable[[AttemptEvent], None],
    placing: _Placing,
) -> None:
    """While the attempt goes on, look when told, and see when its processes are all up."""
    while True:
        with suppress(queue.Empty):
            orders.get(timeout=LOOK_EVERY_S)
            say(AttemptEvent(slices=seen_slices(plan)))
        all_up = (
            placing.done
            or len(heartbeat.read_heartbeats(Path(share.run), share.attempt)) == plan.hosts
        )
        if all_up and not placing.done:
            placing.end(plan)


def seen_slices(plan: Plan) -> tuple[Slice, ...]:
    """The slices of the plan's kind, as they are now."""
    import ray  # noqa: PLC0415
    from ray._private.state import available_resources_per_node  # noqa: PLC0415

    free = available_resources_per_node()
    return slice_discovery.slices_of(ray.nodes(), free, plan, slice_discovery.answers)


def fence(plan: Plan, chosen: tuple[str, ...]) -> list[Any]:
    """Reserve the first host of every slice that is not chosen, so that Ray takes those that are.

    Ray would otherwise reserve a slice that has lost a host again and again, through its first one.
    """
    import ray  # noqa: PLC0415
    from ray.util.placement_group import placement_group  # noqa: PLC0415

    alone = hosts_per_slice(plan) == 1
    bundle = {"TPU": plan.chips / plan.hosts} if alone else {f"TPU-{pod_type(plan)}-head": 1.0}
    fences = [
        (
            slice_discovery.name_of(node),
            placement_group([bundle], bundle_label_selector=[{"ray.io/node-id": node["NodeID"]}]),
        )
        for node in slice_discovery.heads_of_others(ray.nodes(), plan, chosen)
    ]
    for _, group in fences:
        group.wait(FENCE_LIMIT_S)  # one that another run holds needs no fence
    return fences


def _carry_out(
    plan: Plan, share: WorkerArgs, work: Work, say: Callable[[AttemptEvent], None]
) -> None:
    """Run `work(share, rank)` on every host of the plan's slices, and wait for all of them.

    Each process finds JAX joined with the others, and MEGASCALE_SLICE_ID tells its slice.
    """
    from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415
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
            storage_path=str(Path(share.run) / "ray"),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001  Ray wraps whatever happened in classes of its own
        say(AttemptEvent(over=True, error=_cause(error)))
    else:
        say(AttemptEvent(over=True))


def _on_worker(config: dict[str, Any]) -> None:
    from ray import train  # noqa: PLC0415

    config["work"](config["share"], train.get_context().get_world_rank())


def _cause(error: BaseException) -> str:
    """The innermost words of a failure, one line of them first."""
    failures = getattr(error, "worker_failures", None)
    inner = next(iter(failures.values())) if failures else error
    lines = str(inner).strip().splitlines() or [type(inner).__name__]
    return "\n".join([lines[-1], *lines[:-1]])

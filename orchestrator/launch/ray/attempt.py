"""One attempt at a run, as a Ray Train job on slices that are real or emulated. The driver starts
it with an `AttemptSpec` as JSON, sends commands and gets events, a line of JSON each.
"""

import logging
import os
import pkgutil
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray.util
from ray.train import get_context
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.jax.config import JaxConfig
from ray.util.placement_group import placement_group, remove_placement_group

from orchestrator.errors import OrchError, SpecError
from orchestrator.journal import heartbeat
from orchestrator.journal.heartbeat import ClaimWatch
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.backend import AttemptEvent, AttemptSpec, DeadRank, Slice, WorkerArgs
from orchestrator.launch.ray import metrics, private_api, slices
from orchestrator.launch.ray.attempt_process import SIGN_OF_LIFE_S, AttemptCommand
from orchestrator.launch.ray.slice_queue import Lease
from orchestrator.planning.planner import ON_GPUS
from orchestrator.processes import NODE_ADDRESS
from orchestrator.storage.addresses import folder, is_address
from orchestrator.values import codec
from orchestrator.values.plan import Plan

_HOW = "died; Ray does not tell by which signal"
_LOOK_EVERY_S = 1.0
_FENCE_LIMIT_S = 10.0
_Send = Callable[[AttemptEvent], None]
_Commands = queue.SimpleQueue[AttemptCommand]
_Places = Mapping[str, tuple[str, ...]]  # the ids of the nodes of each chosen slice
_NODE_ID = "ray.io/node-id"


def join_cluster(address: str) -> None:
    """Connect to the cluster that runs this job, over loopback when it listens there."""
    host = address.rpartition(":")[0]
    pinned: dict[str, Any] = {"_node_ip_address": host} if host == "127.0.0.1" else {}
    with chdir("/"):  # Ray puts the working directory first in the module path of all workers
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **pinned)


def main(address: str, spec: AttemptSpec) -> None:
    """Show slices until the driver chooses, then run the workers there. It ends with its input."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints goes to the log
    commands: _Commands = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            commands.put(codec.from_json(line, AttemptCommand))
        os._exit(1)

    def write(line: str) -> None:
        with suppress(BrokenPipeError):  # the driver is gone: the end of our input ends us
            print(line, file=out, flush=True)

    def send(event: AttemptEvent) -> None:
        write(codec.to_json(event).decode())

    threading.Thread(target=listen, daemon=True).start()
    threading.Thread(target=_show_life, args=(write,), daemon=True).start()
    try:
        join_cluster(address)
        _serve(spec, commands, send)
    except Exception as error:  # noqa: BLE001  the driver must hear of any error
        text, repeats = f"{type(error).__name__}: {error}", isinstance(error, SpecError)
        send(AttemptEvent(ended=True, error=text, repeats=repeats))
    threading.Event().wait()


def _show_life(write: Callable[[str], None]) -> None:
    """Write an empty line now and then: to join a busy cluster may take minutes."""
    while True:
        write("")
        time.sleep(SIGN_OF_LIFE_S)


def _serve(spec: AttemptSpec, commands: _Commands, send: _Send) -> None:
    journal = Journal(folder(spec.run))
    run = journal.run()
    submitted = journal.plan(run.plan_digest)
    lease = None
    if not run.rehearsal:
        lease = Lease(spec.run, run.submitted_at_s, slices.kind_of(submitted).queue, spec.claim)
    watch = ClaimWatch(journal.path, spec.claim)
    args, chosen = _wait_for_start(submitted, commands, send, lease, watch)
    plan = journal.plan(args.plan_digest)
    metrics.publish(journal)
    found = slices.members(ray.nodes(), slices.kind_of(plan))
    places = {name: tuple(node["NodeID"] for node in found.get(name, ())) for name in chosen}
    fences = _fence(plan, chosen)

    def train() -> None:
        ending = _train(plan, args, spec.worker, places, rehearsal=run.rehearsal)
        if lease and ending.error is None:  # a run that failed comes back for its slices
            lease.leave()
        send(ending)

    threading.Thread(target=train, daemon=True).start()
    placed = False
    while True:  # report the slices on demand
        _end_if_superseded(watch)
        with suppress(queue.Empty):
            commands.get(timeout=_LOOK_EVERY_S)
            send(AttemptEvent(slices=_current_slices(plan, places)))
        beating = () if placed else heartbeat.read_heartbeats(folder(args.run), args.attempt)
        if len(beating) == plan.hosts:
            # All workers are up. Until now the other slices were fenced, and no other run had the
            # turn. Whole slices are free for others now; broken ones stay fenced.
            whole = {seen.name for seen in _current_slices(plan) if seen.whole} if fences else set()
            for name, group in fences:
                if name in whole:
                    remove_placement_group(group)
            if lease:
                lease.confirm(chosen)
            placed = True


def _end_if_superseded(watch: ClaimWatch) -> None:
    """End this process when its claim counts no more. Ray then frees its slices."""
    if lapse := watch.lapse():
        print(f"this attempt ends: {lapse}", file=sys.stderr, flush=True)
        os._exit(1)


def _wait_for_start(
    plan: Plan, commands: _Commands, send: _Send, lease: Lease | None, watch: ClaimWatch
) -> tuple[WorkerArgs, tuple[str, ...]]:
    """Report the slices whenever they change, until the driver starts the workers."""
    last: AttemptEvent | None = None
    while True:
        _end_if_superseded(watch)
        seen = _current_slices(plan)
        ahead: tuple[str, ...] = ()
        if lease:
            # The queue is asked after the look: a run that has just failed may have freed its
            # slices, and they are still its own.
            answer = lease.request()
            ahead, taken = answer.ahead, answer.taken
            seen = tuple(replace(look, free=look.free and look.name not in taken) for look in seen)
        event = AttemptEvent(slices=seen, ahead=ahead)
        if event != last:
            send(event)
            last = event
        with suppress(queue.Empty):
            command = commands.get(timeout=_LOOK_EVERY_S)
            if command.args:
                # Ask again: the driver chose by an answer that may be a second old.
                if lease and (ahead := lease.request().ahead):
                    raise OrchError(f"the turn to take slices went back to {', '.join(ahead)}")
                return command.args, command.slices


def _current_slices(plan: Plan, places: _Places | None = None) -> tuple[Slice, ...]:
    kind = slices.kind_of(plan)
    groups = slices.members(ray.nodes(), kind, places)
    return slices.slices_of(groups, private_api.free_resources(), kind, slices.answers)


def _fence(plan: Plan, chosen: tuple[str, ...]) -> list[Any]:
    """Reserve the first host of every slice not chosen, or Ray would retry one that lost a host.
    Nodes of GPUs need no fence: workers are started on the chosen ones by their ids.
    """
    kind, fences = slices.kind_of(plan), []
    if kind.has_gpus:
        return []
    bundle = {"TPU": float(kind.chips)} if kind.hosts == 1 else {f"TPU-{kind.name}-head": 1.0}
    for name, node in slices.heads_of_others(ray.nodes(), kind, chosen):
        group = placement_group([bundle], bundle_label_selector=[{_NODE_ID: node["NodeID"]}])
        fences.append((name, group))
    for _, group in fences:
        group.wait(_FENCE_LIMIT_S)  # a slice that another run holds needs no fence
    return fences


def _train(
    plan: Plan, args: WorkerArgs, worker: str, places: _Places, *, rehearsal: bool
) -> AttemptEvent:
    """Run the worker on every host of the plan's slices, with JAX joined; wait for all."""
    kind = slices.kind_of(plan)
    asked: dict[str, Any] = {"use_tpu": True, "topology": plan.topology}
    names: tuple[str, ...] = ()
    if kind.has_gpus:  # one process for all GPUs of a node, rank after rank on these nodes
        nodes = [node for name in places for node in places[name]]
        names = tuple(name for name in places for _ in places[name])
        if len(nodes) < plan.hosts:
            return AttemptEvent(ended=True, error="a slice lost a host before its ranks started")
        asked = {"use_gpu": True, "label_selector": [{_NODE_ID: node} for node in nodes]}
    # Ray keeps files of its own of a run: all hosts must see them. A rehearsal has one host.
    shared = is_address(args.run) and not rehearsal
    where = str(Path.cwd()) if rehearsal else os.curdir  # that of the user, not of Ray
    trainer = private_api.jax_trainer(private=rehearsal)(
        train_loop_per_worker=_on_worker,
        train_loop_config={"worker": worker, "args": args, "folder": where, "slices": names},
        jax_config=_JaxOnNodeAddress(use_tpu=not kind.has_gpus, use_gpu=kind.has_gpus),
        scaling_config=ScalingConfig(
            accelerator_type=kind.accelerator,
            num_workers=plan.hosts,
            resources_per_worker={kind.resource: kind.chips},
            **asked,
        ),
        run_config=RunConfig(
            name=f"attempt-{args.attempt}",
            storage_path=f"{args.run}/ray" if shared else str(folder(args.run) / "ray"),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001  Ray wraps every error in classes of its own
        dead = _find_dead_ranks(error, places)
        return AttemptEvent(ended=True, error=_cause(error), dead=dead)
    return AttemptEvent(ended=True)


def _on_worker(config: dict[str, Any]) -> None:
    os.chdir(config["folder"])  # a trainer may be there, or read files there
    rank = get_context().get_world_rank()
    if config["slices"]:  # of TPUs, Ray or Google's webhook has told it
        os.environ["TPU_NAME"] = config["slices"][rank]
    pkgutil.resolve_name(config["worker"])(config["args"], rank)


def _find_dead_ranks(error: BaseException, places: _Places) -> tuple[DeadRank, ...]:
    """The ranks whose processes Ray Train saw die. What raised an exception told it itself."""
    dead = []
    failures = getattr(error, "worker_failures", None) or {}
    for rank, failure in sorted(failures.items()):
        actor_error = getattr(failure, "health_check_failure", failure)
        process = private_api.process_of_actor(getattr(actor_error, "actor_id", None))
        nodes = {node["NodeID"]: node for node in ray.nodes()} if process else {}
        if process and (node := nodes.get(process[0])):
            host = f"{node['NodeManagerHostname']}, process {process[1]}"
            name = next((name for name, ids in places.items() if node["NodeID"] in ids), "")
            dead.append(DeadRank(rank=rank, host=host, slice_name=name, how=_HOW))
    return tuple(dead)


def _cause(error: BaseException) -> str:
    """The text of the innermost error, its last line first."""
    failures = getattr(error, "worker_failures", None)
    inner = next(iter(failures.values())) if failures else error
    lines = str(inner).strip().splitlines() or [type(inner).__name__]
    return "\n".join([lines[-1], *lines[:-1]])


# --- processes of an attempt listen only on the address of their node

_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"  # read by JAX on the first process


class _JaxOnNodeAddress(JaxConfig):
    """How Ray Train connects the processes, each of which listens on the address of its node."""

    @property
    def backend_cls(self) -> type:
        return _Backend


class _Backend(JaxConfig().backend_cls):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: JaxConfig) -> None:
        worker_group.execute(_set_address, NODE_ADDRESS)
        if backend_config.use_gpu:
            worker_group.execute(_set_defaults, ON_GPUS)
        super().on_start(_BoundGroup(worker_group), backend_config)


class _BoundGroup:
    """A group of workers. Of the first one Ray asks for the address of the coordinator."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def __len__(self) -> int:
        return len(self._group)

    def execute_single(self, rank: int, function: Any, *values: Any, **named: Any) -> Any:
        """Run a function on a worker; the address that it returns is the one to bind to."""
        address, port = self._group.execute_single(rank, function, *values, **named)
        self._group.execute_single(rank, _set_address, _BIND_ADDRESS, f"{address}:{port}")
        return address, port


def _set_address(name: str, address: str = "") -> None:
    os.environ[name] = address or ray.util.get_node_ip_address()


def _set_defaults(variables: dict[str, str]) -> None:
    for name, text in variables.items():
        os.environ.setdefault(name, text)


if __name__ == "__main__":
    main(os.environ["RAY_ADDRESS"], codec.from_json(sys.argv[1], AttemptSpec))

"""Lays a published run out as it was run, and prices it with the planner's own functions.

Only what no source states is searched: where on the torus each mesh axis lay.
"""

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog import Chip, Topology
from orchestrator.errors import OrchError
from orchestrator.network import maxtext_policies
from orchestrator.network.maxtext_policies import NAMED
from orchestrator.network.mesh_axes import GROUPS, ICI_AXES
from orchestrator.network.rematerialization import Policy
from orchestrator.plan.feasibility import placements, sizes_by_name
from orchestrator.plan.host import transfers
from orchestrator.plan.layout import Layout
from orchestrator.plan.search import SearchRequest, make_layout
from orchestrator.plan.time import step_time, time_lines
from orchestrator.plan.torus import Ints, Links, axis_sizes, find_links, make_torus, plain_links
from orchestrator.score.cells import Unscorable
from orchestrator.score.flop_counts import extra_parameters_per_layer
from orchestrator.score.published_runs import PublishedRun
from orchestrator.score.run_attention import attention_as_run, scaled
from orchestrator.score.run_experts import experts_as_run
from orchestrator.types.plan import LedgerLine, LineKind
from orchestrator.types.spec import Batch, Experiment, MeshRequest, Optimizer, Precision


@dataclass(frozen=True, kw_only=True)
class LaidOutRun:
    """A run's layout and its ledger of seconds."""

    layout: Layout
    lines: list[LedgerLine]

    @property
    def lower_s(self) -> float:
        return float(step_time(self.layout, self.lines).lower_s)


def lay_out(run: PublishedRun) -> LaidOutRun:
    """The run as it was run; `Unscorable` says why it cannot be planned."""
    try:
        chip = catalog.chip(run.chip)
        topology = topology_of(run, chip)
        layout = layout_as_run(run, chip, topology)
        return LaidOutRun(layout=layout, lines=lines_as_run(run, layout))
    except Unscorable:
        raise
    except OrchError as error:
        raise Unscorable(str(error)) from None


def topology_of(run: PublishedRun, chip: Chip) -> Topology:
    """The slice: the stated shape, or the shape with that many chips."""
    if run.chips % run.slices:
        raise Unscorable(f"{run.chips} chips are not {run.slices} slices of equal size")
    chips = run.chips // run.slices
    shape = re.search(r"\b\d+(x\d+){1,2}\b", re.sub(r"^\d+x ", "", run.topology))
    text = shape[0] if shape else f"{chip.slices.names[0]}-{chips * chip.slices.named_per_chip}"
    topology = catalog.topology(chip, text)
    if topology.chips != chips:
        raise Unscorable(f"{run.topology} is {topology.chips} chips, its row says {chips} a slice")
    return topology


def policy_of(run: PublishedRun) -> Policy:
    """The policy that a source names, or its list of tensors."""
    name = run.remat
    if name in NAMED:
        return NAMED[name]
    if name.startswith("gradient_checkpointing"):
        return NAMED["full"]  # Levanter's default keeps the input of each block alone
    if name.startswith("custom"):
        return custom(name.removeprefix("custom").lstrip(": "))
    if not name and run.hfu and run.mfu and run.hfu > run.mfu:
        return NAMED["full"]  # unnamed, but its hardware did more FLOPs than its model has
    raise Unscorable(
        f"it is unknown what remat {name!r} keeps" if name else "its remat is not stated"
    )


def custom(text: str) -> Policy:
    """MaxText's list of tensors: after `device` they stay in HBM, after `offload` on the host."""
    where, places = "device", dict[str, str]()
    for word in re.split(r"[\s;,=]+", text):
        if word in {"device", "offload", "remat"}:
            where = word
        elif word not in maxtext_policies.TENSORS:
            raise Unscorable(f"tensor {word!r} of remat {text!r} is unknown")
        else:
            places[word] = where
    return maxtext_policies.custom(places)


def layout_as_run(run: PublishedRun, chip: Chip, topology: Topology) -> Layout:
    """The fastest way to lay the run's mesh on the torus."""
    slice_torus = make_torus(chip, topology)
    mesh = mesh_as_run(run, slice_torus.devices)
    experiment = Experiment(
        model=run.model,
        tokens=run.sequences * run.length,
        batch=Batch(sequences=run.sequences, length=run.length),
        optimizer=Optimizer(name=run.optimizer),
        precision=Precision(parameters=run.parameters, compute=run.compute),
    )
    request = SearchRequest(chip, topology, slice_torus, experiment, mesh, run.slices)
    # Other trainers need not split the stream by position.
    divisible = 2 * (mesh.tensor or 1) * (mesh.sequence or 1)
    factors = placements(slice_torus, run.model, divisible, mesh, run.sequences // run.slices or 1)
    if not len(factors):
        raise Unscorable(
            f"its mesh {mesh_text(mesh)} does not divide its model or lie on {topology}"
        )
    return least_time(request, factors, run)


def mesh_as_run(run: PublishedRun, devices: int) -> MeshRequest:
    """The run's mesh of one slice: devices that its axes leave are replicas."""
    tensor, sequence = run.mesh["tensor"] or 1, run.mesh["sequence"] or 1
    expert = run.mesh["expert"] or 1
    rest, over = divmod(devices, tensor * sequence * expert)
    fsdp = run.mesh["fsdp"] or rest
    if over or rest % fsdp:
        raise Unscorable(
            f"{devices} devices are not fsdp {fsdp} x sequence {sequence} x tensor"
            f" {tensor} and whole replicas"
        )
    return MeshRequest(
        data=rest // fsdp,
        expert=expert,
        fsdp=fsdp,
        sequence=sequence,
        tensor=tensor,
        fsdp_dcn=run.mesh["fsdp_dcn"],
    )


def mesh_text(mesh: MeshRequest) -> str:
    return " x ".join(f"{axis} {getattr(mesh, axis)}" for axis in ICI_AXES)


def least_time(request: SearchRequest, factors: Ints, run: PublishedRun) -> Layout:
    """The fastest placement as plain numbers, by the rule of the search."""
    sizes = sizes_by_name(axis_sizes(factors))
    many = layout_of(request, sizes, run, find_links(request.torus, factors))
    time = step_time(many, time_lines(many))
    cost = time.lower_s + time.unoverlapped_s - transfers(many).hidden_s()
    row = int(np.argmin(np.broadcast_to(cost, len(factors))))
    best = factors[row : row + 1]
    sizes = {axis: prod(best[0, :, column].tolist()) for column, axis in enumerate(ICI_AXES)}
    return layout_of(request, sizes, run, plain_links(request.torus, best))


def layout_of(
    request: SearchRequest, sizes: dict[str, Any], run: PublishedRun, links: Links
) -> Layout:
    """The run on a mesh, or on many."""
    batch = request.experiment.batch.sequences
    return make_layout(request, sizes, batch, run.microbatches, policy_of(run), links)


def lines_as_run(run: PublishedRun, layout: Layout) -> list[LedgerLine]:
    """The ledger, scaled where the run's block or optimizer differ, with the run's attention."""
    tensor = layout.devices_along(GROUPS["tensor"])
    extra = run.model.layers * extra_parameters_per_layer(run) / tensor
    wider = 1 + extra / layout.layer_elements
    factors: dict[LineKind, float] = {
        "matmul": wider,
        "matmul_recompute": wider,
    }
    if run.parallel_block:  # one gather and one scatter serve attention and MLP together
        factors |= {"activation_gather": 0.5, "activation_scatter": 0.5}
    lines = [scaled(line, factors.get(line.kind, 1.0)) for line in time_lines(layout)]
    return attention_as_run(run, layout, experts_as_run(run, layout, lines))

"""The rehearsal of a plan: small, alike in kind, and open about what is not alike. Pure."""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from orchestrator import catalog
from orchestrator import reading as specs
from orchestrator.errors import SpecError
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import _Rehearsal, rehearse
from orchestrator.processes import emulated_devices
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.spec import CheckpointOptions, MeshRequest, Pods, Spec
from tests.conftest import ROOT, TRAINING_SPECS
from tests.example_specs import TINY, spec_of
from tests.shipped_plans import shipped_plan

SHIPPED = TRAINING_SPECS


def rehearsed(path: Path, **wish: int) -> tuple[Plan, _Rehearsal]:
    """A shipped spec's plan and the rehearsal of it."""
    plan = shipped_plan(path)
    return plan, rehearse(specs.load(path), plan, **wish)


def fewest_devices(plan: Plan) -> int:
    """The devices of the smallest slice that a rehearsal on its chip may have."""
    chip = catalog.chip_of(plan)
    sizes = [catalog.topology(chip, text).chips * chip.devices for text in catalog.topologies(chip)]
    return min(size for size in sizes if size >= 4)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_spec_can_be_rehearsed(path: Path) -> None:
    """Each has a small plan of its own: its pods, few devices, few parameters, one digest."""
    plan, small = rehearsed(path)
    assert small.plan.pods == min(plan.pods, 8)
    assert small.plan.devices_per_slice <= max(4, fewest_devices(plan))
    assert small.plan.model.parameters < 8e6
    assert small.plan.chip == plan.chip
    assert small.plan.digest != plan.digest
    assert small.spec.run.steps == small.steps
    assert codec.from_json(codec.to_json(small.spec), Spec) == small.spec
    assert codec.from_json(codec.to_json(small.plan), Plan) == small.plan


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("devices", [4, 8])
def test_no_axis_appears_that_the_plan_has_not(path: Path, devices: int) -> None:
    """What is split in the rehearsal is split in the plan, and what is not any more is said."""
    plan, small = rehearsed(path, devices=max(devices, fewest_devices(shipped_plan(path))))
    said, gone = "; ".join(small.changes), False
    for full, copy in zip(plan.each_stage, small.plan.each_stage, strict=True):
        lost = [axis for axis in full.mesh if full.mesh[axis] > 1 and copy.mesh[axis] == 1]
        assert [axis for axis in full.mesh if full.mesh[axis] == 1 and copy.mesh[axis] > 1] == []
        assert all(f"{axis} {full.mesh[axis]}" in said for axis in lost)
        gone = gone or bool(lost)
    assert ("too few devices" in said) == gone


def test_eight_devices_keep_three_kinds_of_axis() -> None:
    """More devices keep more of the mesh: fsdp, tensor and sequence before data."""
    mesh = MeshRequest(data=4, fsdp=4, sequence=2, tensor=4)
    asked = spec_of("llama3-8b", chip="v5p", topology="4x4x8", pods=4, sequences=256, mesh=mesh)
    small = rehearse(asked, make_plan(asked), devices=8)
    kept = {"pods": 4, "fsdp": 2, "sequence": 2, "tensor": 2}
    assert {axis: size for axis, size in small.plan.mesh.items() if size > 1} == kept
    assert (small.plan.topology, small.plan.hosts) == ("2x2x2", 8)


def test_the_model_keeps_its_proportions() -> None:
    """Llama 3 70B at a width of 128: d_ff 3.5 times that, eight query heads to a kv head."""
    plan, small = rehearsed(ROOT / "specs/llama3_70b_4pod.yaml")
    full, model = plan.model, small.plan.model
    assert model.d_model == 128
    assert model.d_ff / model.d_model == full.d_ff / full.d_model
    assert model.heads / model.kv_heads == full.heads / full.kv_heads
    assert model.heads * model.head_dim / model.d_model == full.heads * full.head_dim / full.d_model
    assert model.vocab / model.d_model == pytest.approx(full.vocab / full.d_model, rel=0.05)


def test_a_model_that_is_small_already_is_rehearsed_as_it_is() -> None:
    """Its slice, mesh, shape and batch stay: there is nothing to shrink."""
    plan, small = rehearsed(ROOT / "specs/tiny_2pod.yaml")
    assert small.plan.batch == plan.batch
    assert small.plan.model == plan.model
    assert small.plan.mesh == plan.mesh
    assert small.plan.topology == plan.topology
    assert all(
        "compiler_options" in change for change in small.changes
    )  # the CPU's compiler has none


def test_more_than_eight_pods_become_eight_and_that_is_said() -> None:
    """A laptop holds no more; the first lines say how many there were."""
    asked = spec_of("llama3-8b", chip="v5e", topology="4x4", pods=12, sequences=1536)
    small = rehearse(asked, make_plan(asked))
    assert small.plan.pods == 8
    assert "12 pods became 8" in small.changes


def test_what_the_cpu_has_not_is_said() -> None:
    """Compiler options of TPUs are left out, in words; offloading is rehearsed as planned."""
    asked = spec_of("llama3-70b", topology="8x8x8", pods=2, remat="offload_input")
    experiment = replace(asked.experiment, compiler_options={"xla_tpu_enable_x": True})
    asked = replace(asked, experiment=experiment)
    small = rehearse(asked, make_plan(asked))
    assert small.plan.remat == "offload_input"
    assert small.spec.experiment.compiler_options == {}
    said = "\n".join(small.changes)
    assert "compiler_options are left out" in said


def test_a_chip_of_two_devices_is_rehearsed_on_its_smallest_slice() -> None:
    """Four tpu7x chips are eight devices; four devices of it do not exist, and that is an error."""
    asked = spec_of("llama3-8b", chip="tpu7x", topology="4x4x4", pods=2, sequences=1024)
    plan = make_plan(asked)
    assert rehearse(asked, plan).plan.devices == 16
    with pytest.raises(SpecError, match="no slice has 4 devices; the next has 8"):
        rehearse(asked, plan, devices=4)


def test_nodes_of_gpus_are_rehearsed_as_pods() -> None:
    """Two NVLink domains of four, with the plan's mesh in each."""
    asked = spec_of(TINY, chip="h100", topology="4", pods=2, sequences=32, length=128)
    plan = make_plan(asked)
    copy = rehearse(asked, plan).plan
    assert (copy.chip, copy.pods, copy.devices) == ("h100", 2, 8)
    assert copy.mesh == plan.mesh


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_grouped_heads_divide_whatever_the_mesh_becomes(tensor: int) -> None:
    """Llama 3B has three query heads to a kv head: whole groups are kept, and tensor divides."""
    asked = spec_of(
        "llama-3b", topology="4x4x4", pods=2, sequences=1024, mesh=MeshRequest(tensor=tensor)
    )
    small = rehearse(asked, make_plan(asked), devices=8).plan
    assert small.model.heads == 3 * small.model.kv_heads
    assert small.model.heads % small.mesh["tensor"] == 0
    assert prod(small.mesh.values()) == small.devices == 16


def test_steps_decide_the_tokens_and_leave_room_for_a_checkpoint() -> None:
    """A rehearsal saves on its way, and warms up within its steps."""
    _, small = rehearsed(ROOT / "specs/llama3_70b_4pod.yaml", steps=50)
    assert small.plan.tokens == 50 * small.plan.batch.tokens
    assert small.spec.run.checkpoint.every == 10  # the run saves every 200 of 1,000
    assert small.plan.optimizer.warmup_steps == 13


@pytest.mark.parametrize(
    ("every", "run_steps", "here", "said"),
    [
        (100, 1_000, 2, False),
        (250, 1_000, 5, False),
        (None, 1_000, 10, True),  # the best interval is longer than half of the run
        (1_000, 1_000, 10, True),
        (200, 3_000_000, 2, True),
    ],
)
def test_saves_are_in_proportion_to_the_steps_or_it_is_said(
    every: int | None, run_steps: int, here: int, said: bool
) -> None:
    """Of 20 steps there are two saves to ten."""
    asked = spec_of(TINY, chip="v5e", topology="2x2", pods=2, sequences=32, length=64)
    options = replace(asked.run, steps=run_steps, checkpoint=CheckpointOptions(every=every))
    asked = replace(asked, run=options)
    small = rehearse(asked, make_plan(asked), steps=20)
    assert small.spec.run.checkpoint.every == here == small.plan.forecast.goodput.every_steps
    assert any("save" in change for change in small.changes) == said


def test_a_rehearsal_may_shrink_as_its_plan_may() -> None:
    """The fewest pods that the spec allows are the rehearsal's too, up to as many as it has."""
    asked = spec_of("llama3-8b", chip="v5e", topology="4x4", pods=12, sequences=1536)
    for fewest, kept in ((2, 2), (10, 8)):
        resources = replace(asked.resources, pods=Pods(min=fewest, max=12))
        shrinking = replace(asked, resources=resources)
        small = rehearse(shrinking, make_plan(shrinking))
        assert small.spec.resources.pods == Pods(min=kept, max=8)


TAKEN_AGAIN = """
import ctypes, resource, threading
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def step():
    memory = c.malloc(2**26)
    c.memset(memory, 1, 2**26)
    c.free(memory)
def steps():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=steps)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc has other habits")
def test_an_emulated_step_finds_the_memory_of_the_last_one() -> None:
    """A thread that takes, fills and gives back 64 MiB again has no page of it cleared again."""
    faults = {}
    for kept in (False, True):
        started = emulated_devices(os.environ, 1) if kept else os.environ
        done = subprocess.run(
            [sys.executable, "-c", TAKEN_AGAIN], env=started, capture_output=True, check=True
        )
        faults[kept] = int(done.stdout)
    assert faults[True] < 100 < faults[False]

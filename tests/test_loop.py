"""The loop: the same losses to the bit, however often it is stopped, killed or moved."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from orchestrator import catalog, plugins
from orchestrator.errors import (
    CheckpointFailed,
    DataUnusable,
    LossNotFinite,
    SpecError,
    UnknownName,
)
from orchestrator.processes import _STACK_FLAG
from orchestrator.values.plan import Plan
from orchestrator.values.run import Outcome, Step
from orchestrator.values.spec import CheckpointOptions, DataSource, Optimizer
from tests import toy
from tests.conftest import HoldGolden
from tests.trainer_plans import but_slow, plan_of
from tests.trainer_steps import QUICK_COMPILE, trained
from trainers import llama
from trainers.contract import Program, build
from trainers.data import pack
from trainers.data.batches import batch_source
from trainers.data.pack import _TokenArrays
from trainers.data.tokens import FILE_NAME
from trainers.loop import Assignment, run, train

STEPS = 12


def toy_plan_of(**mesh: int) -> Plan:
    """Four sequences on that mesh."""
    plan = plan_of(sequences=4, length=32, **dict[str, Any](mesh))
    return replace(plan, optimizer=Optimizer(peak_lr=30.0))


def toy_plan(**changes: Any) -> Plan:
    """The same over two replicas, with fields changed."""
    return replace(toy_plan_of(data=2), **changes)


def toy_program(plan: Plan) -> Program:
    return build(toy, plan, jax.devices()[: plan.devices])


def run_toy(
    folder: Path, plan: Plan | None = None, *, steps: int = STEPS, every: int = 3, **wishes: Any
) -> tuple[Outcome, list[Step]]:
    return trained(toy, plan or toy_plan(), folder, steps, every=every, **wishes)


def losses(steps: list[Step]) -> list[float]:
    return [step.loss for step in steps]


def stop_before(index: int) -> Callable[[], bool]:
    """Says stop when it is asked before the step of that index, from 0 on."""
    asked = iter(range(10**6))
    return lambda: next(asked) >= index


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """The steps of a run that nothing disturbed."""
    return run_toy(tmp_path_factory.mktemp("straight"))[1]


def test_a_run_learns_and_tells_every_step(straight: list[Step]) -> None:
    """Each step is emitted once, in order, measured; the loss falls."""
    assert [step.index for step in straight] == list(range(STEPS))
    assert straight[-1].loss < straight[0].loss - 0.5
    assert straight[0].startup is not None
    assert straight[0].startup.steps_done == 0
    assert straight[0].startup.compile_s > 0
    assert all(step.step_s > step.data_s + step.checkpoint_s for step in straight)
    assert all(step.startup is None and step.tokens_per_s_per_chip for step in straight[1:])
    assert [step.index for step in straight if step.checkpoint_s] == [3, 6, 9]
    assert {step.peak_hbm_bytes for step in straight} == {None}  # a CPU does not say


def test_the_loss_is_that_of_the_plain_formula(straight: list[Step]) -> None:
    """The first loss is the cross entropy of the initial table over the first batch."""
    plan = toy_plan()
    scores = np.asarray(toy_program(plan).init(plan.seed)["scores"], np.float64)
    tokens = first_batch(plan)
    chances = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    expected = -chances[tokens[:, :-1], tokens[:, 1:]].mean()
    assert straight[0].loss == pytest.approx(expected, rel=1e-6)


def first_batch(plan: Plan) -> np.ndarray:
    return batch_source(plan).batch(0, range(plan.batch.sequences))


def test_two_runs_are_the_same_to_the_bit(straight: list[Step], tmp_path: Path) -> None:
    """Same plan, same machine: every loss and every gradient norm is the very same number."""
    _, again = run_toy(tmp_path)
    assert losses(again) == losses(straight)
    assert [step.grad_norm for step in again] == [step.grad_norm for step in straight]


@pytest.mark.parametrize("stop_at", [0, 1, 3, 4, 11])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    stop_at: int, straight: list[Step], tmp_path: Path
) -> None:
    """A stop saves what was done; the next attempt continues there, bit for bit."""
    outcome, first = run_toy(tmp_path, stop=stop_before(stop_at))
    assert (outcome.steps_done, outcome.stopped) == (stop_at, True)
    outcome, second = run_toy(tmp_path)
    assert (outcome.steps_done, outcome.stopped) == (STEPS, False)
    assert outcome.startup.steps_done == stop_at
    assert losses(first) + losses(second) == losses(straight)


def test_every_attempt_may_be_one_step_long(straight: list[Step], tmp_path: Path) -> None:
    """Five attempts give what one gives."""
    found: list[float] = []
    for _ in range(5):
        found += losses(run_toy(tmp_path, stop=stop_before(1))[1])
    assert found == losses(straight)[:5]


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    """Asked for again, or for fewer steps, it neither trains nor saves."""
    run_toy(tmp_path)
    for steps in (STEPS, 5):
        outcome, emitted = run_toy(tmp_path, steps=steps)
        assert emitted == []
        assert (outcome.steps_done, outcome.stopped) == (STEPS, False)


def test_more_steps_may_be_asked_later(straight: list[Step], tmp_path: Path) -> None:
    """The first half and then the whole is the whole."""
    _, first = run_toy(tmp_path, steps=5)
    _, second = run_toy(tmp_path)
    assert losses(first) + losses(second) == losses(straight)


@pytest.mark.parametrize("mesh", [{"pods": 4}, {"fsdp": 4}, {"data": 1}])
def test_another_mesh_gives_the_same_losses(
    mesh: dict[str, int], straight: list[Step], tmp_path: Path
) -> None:
    """A run that changes its mesh midway goes on: float32 sums in another order, no more."""
    run_toy(tmp_path, steps=6)
    outcome, second = run_toy(tmp_path, toy_plan_of(**mesh))
    assert outcome.startup.steps_done == 6
    assert losses(second) == pytest.approx(losses(straight)[6:], rel=1e-5)


def test_a_damaged_checkpoint_is_skipped_and_told(straight: list[Step], tmp_path: Path) -> None:
    """The attempt goes on from the one before, says so, and its losses are the same."""
    run_toy(tmp_path, steps=9)
    sums = tmp_path / "checkpoints" / "9" / "sha256.json"
    sums.write_text(sums.read_text().replace("a", "b"))
    outcome, second = run_toy(tmp_path)
    assert outcome.startup.steps_done == 6
    assert [skip.step for skip in outcome.startup.skipped] == [9]
    assert second[0].startup == outcome.startup
    assert losses(second) == losses(straight)[6:]


def test_other_data_is_refused(tmp_path: Path) -> None:
    """A run does not go on with another seed: its steps would be of another run."""
    run_toy(tmp_path, steps=3)
    with pytest.raises(CheckpointFailed, match="holds another run: data was"):
        run_toy(tmp_path, toy_plan(seed=1))


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    """The error is named; the state of before is on disk, the poisoned one never is."""
    run_toy(tmp_path, steps=4)
    poisoned = toy_plan()
    poisoned = replace(poisoned, optimizer=replace(poisoned.optimizer, peak_lr=math.inf))
    with pytest.raises(LossNotFinite, match="step 6: loss is nan"):
        run_toy(tmp_path, poisoned, every=1)
    saved = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdecimal()}
    assert max(map(int, saved)) <= 5


def token_plan(folder: Path, tokens: int) -> Plan:
    np.save(folder / "a.npy", np.arange(tokens) % 64)
    tokenizer = _TokenArrays(name="x", vocab=64)
    pack.pack(folder / "set", [folder / "a.npy"], tokenizer)
    return toy_plan(data=DataSource(kind="tokens", path=str(folder / "set" / FILE_NAME)))


def test_a_token_set_is_trained_on(tmp_path: Path) -> None:
    """Text in which each token follows from the one before is learned from files too."""
    _, steps = run_toy(tmp_path, token_plan(tmp_path, 5000), steps=40, verify_data=True)
    assert steps[-1].loss < 0.5


def test_bad_data_ends_the_run_by_name(tmp_path: Path) -> None:
    """What the prefetching thread meets is raised here, and what was done is not lost."""
    plan = token_plan(tmp_path, 5000)
    shard = tmp_path / "set" / "tokens-00000.bin"
    content = bytearray(shard.read_bytes())
    content[2000:2002] = b"\xff\xff"
    shard.write_bytes(content)
    with pytest.raises(DataUnusable, match="token 1000 is 65535"):
        run_toy(tmp_path, plan, steps=100, every=1)
    with pytest.raises(DataUnusable, match="has changed since it was packed"):
        run_toy(tmp_path, plan, steps=100, verify_data=True)


def test_an_option_the_compiler_does_not_know_is_refused(tmp_path: Path) -> None:
    """Options come from the plan; a wrong one is the spec's fault, named."""
    with pytest.raises(SpecError, match=r"compiler_options: .*xla_no_such_option"):
        run_toy(tmp_path, toy_plan(compiler_options={"xla_no_such_option": True}))


def test_options_reach_the_compiler(tmp_path: Path) -> None:
    """A legal option of this compiler is taken."""
    options = {"xla_cpu_enable_fast_math": False}
    assert run_toy(tmp_path, toy_plan(compiler_options=options))[0].steps_done == STEPS


def test_options_of_accelerators_are_left_out_where_cpus_emulate_them(tmp_path: Path) -> None:
    """A chip's own options are in the plans of its rehearsals too: those of every chip."""
    chips = map(catalog.chip, catalog.chips())
    of_chips = [pair for chip in chips for pair in chip.compiler_options.items()]
    options = {name: option.value for name, option in of_chips if option.value is not None}
    named = {"xla_tpu_scoped_vmem_limit_kib", "xla_enable_async_all_reduce"}
    assert named | {"xla_gpu_enable_latency_hiding_scheduler"} <= set(options)
    assert run_toy(tmp_path, toy_plan(compiler_options=options))[0].steps_done == STEPS


def test_chosen_steps_are_traced(tmp_path: Path) -> None:
    """The trace of two steps lies under the run's directory, with their numbers in it."""
    run_toy(tmp_path, traced=lambda: range(5, 7))
    [trace] = (tmp_path / "profile").rglob("*.xplane.pb")
    assert b"step_num" in trace.read_bytes()


def test_a_stop_within_a_trace_ends_it(tmp_path: Path) -> None:
    """Another trace can be taken afterwards; in a folder of its own, for XProf names them by the
    second.
    """
    for folder in (tmp_path / "first", tmp_path / "second"):
        run_toy(folder, traced=lambda: range(1, 100), stop=stop_before(3))
        assert len(list((folder / "profile").rglob("*.xplane.pb"))) == 1


def test_mfu_is_measured_where_the_peak_is_known(tmp_path: Path) -> None:
    """A tenth of the peak is ten times the MFU; without a peak there is none."""
    _, steps = run_toy(tmp_path, peak_flops_per_s=1e9)
    for step in steps[1:]:
        assert step.mfu is not None
        assert step.model_flops_per_s_per_chip is not None
        assert step.mfu == pytest.approx(step.model_flops_per_s_per_chip / 1e9)


# Trainers in the loop


def assignment_of(folder: Path, steps: int, emit: Callable[[Step], None]) -> Assignment:
    return Assignment(
        directory=folder, steps=steps, emit=emit, checkpoint=CheckpointOptions(every=100, keep=1)
    )


@pytest.mark.parametrize("name", but_slow(plugins._BUILT_IN["trainer"], ["llama"]))
def test_every_trainer_is_trained_and_continued(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its name, on all devices; its whole state is saved and restored."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")
    plan = plan_of(data=4, fsdp=4, trainer=name, compiler_options=QUICK_COMPILE)
    emitted: list[Step] = []
    for steps in (2, 4):
        outcome = train(plan, assignment_of(tmp_path, steps, emitted.append))
    assert outcome.startup.steps_done == 2
    assert [step.index for step in emitted] == [0, 1, 2, 3]
    assert emitted[-1].loss < emitted[0].loss
    assert _STACK_FLAG in os.environ["LIBTPU_INIT_ARGS"]


def test_an_unknown_trainer_lists_the_known(tmp_path: Path) -> None:
    """The error names every trainer there is."""
    with pytest.raises(UnknownName, match=r"unknown trainer 'lama'; known: llama, mlp"):
        train(plan_of(trainer="lama"), assignment_of(tmp_path, 1, lambda _: None))


def test_ten_losses_of_llama(tmp_path: Path, golden: HoldGolden) -> None:
    """Six digits of each; a second run gives the very same bits."""
    plan = plan_of(data=2, fsdp=2)
    program = build(llama, plan, jax.devices()[: plan.devices])
    emitted: list[Step] = []
    for name in ("first", "second"):
        run(program, assignment_of(tmp_path / name, 10, emitted.append))
    first, second = losses(emitted[:10]), losses(emitted[10:])
    assert first == second
    lines = [f"{index} {loss:.6g}\n" for index, loss in enumerate(first)]
    golden("llama_losses.txt", "".join(lines))

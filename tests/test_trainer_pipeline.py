"""Trainer llama: pipelines. Their schedule, their numbers, their checkpoints on other meshes."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from orchestrator.errors import SpecError
from orchestrator.values.model import MixtureOfExperts
from orchestrator.values.plan import Plan
from orchestrator.values.spec import DataSource, Optimizer
from tests.test_trainer_numbers import KIND_TOLERANCE, check_against_reference
from tests.trainer_plans import TINY, but_slow, pipelined, plan_of
from tests.trainer_steps import (
    QUICK_COMPILE,
    expected,
    initial_state,
    random_parameters,
    random_tokens,
    take_step,
    trained,
)
from trainers import llama
from trainers.contract import build, place
from trainers.llama.pipeline import phases, schedule
from trainers.mesh import abstract_mesh_of

SIZES = [(2, 1, 1), (4, 1, 3), (4, 1, 9), (2, 2, 4), (4, 2, 8), (4, 4, 12), (3, 3, 6)]


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), SIZES)
def test_every_pass_follows_the_one_before(stages: int, chunks: int, microbatches: int) -> None:
    """Each microbatch passes all chunks in order and comes back, a stage and a tick at a time."""
    turns, slots = schedule(stages, chunks, microbatches)
    ticks: dict[tuple[int, int, int], list[int]] = {}  # of a direction, a chunk and a microbatch
    for backward, turn in enumerate((turns.forward, turns.backward)):
        for tick, stage in np.argwhere(turn.is_busy):
            chunk = turn.chunk[tick, stage] * stages + stage  # of all, in the order of layers
            ticks.setdefault((backward, turn.microbatch[tick, stage], chunk), []).append(int(tick))
    assert len(ticks) == 2 * stages * chunks * microbatches
    assert all(len(found) == 1 for found in ticks.values())
    for microbatch in range(microbatches):
        way = [ticks[0, microbatch, chunk][0] for chunk in range(stages * chunks)]
        back = [ticks[1, microbatch, chunk][0] for chunk in range(stages * chunks)][::-1]
        assert {after - before for before, after in [*pairwise(way), *pairwise(back)]} == {1}
        assert back[0] == way[-1]  # the last chunk, its loss, and back in one tick
        assert turns.head[way[-1]] == microbatch
        assert microbatch == 0 or turns.looked_up[way[0] - 1] == microbatch
        assert microbatch == microbatches - 1 or turns.finished[back[-1] + 1] == microbatch
    assert slots <= stages * (chunks + 1) - 1
    assert microbatches < 2 * stages or slots == stages * (chunks + 1) - 1


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), SIZES)
def test_a_slot_holds_one_input_until_it_is_used(
    stages: int, chunks: int, microbatches: int
) -> None:
    """Nothing that a backward pass needs is overwritten, not even by a tick without a pass."""
    turns, slots = schedule(stages, chunks, microbatches)
    for stage in range(stages):
        held: list[Any] = [None] * slots
        for tick in range(len(turns.head)):
            busy, *what, slot = (rows[tick, stage] for rows in turns.forward)
            held[slot] = what if busy else None
            busy, *what, slot = (rows[tick, stage] for rows in turns.backward)
            assert not busy or held[slot] == what


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), SIZES)
@pytest.mark.parametrize("train", [True, False])
def test_ticks_do_what_their_phase_says(
    stages: int, chunks: int, microbatches: int, train: bool
) -> None:
    """No tick lacks a pass, a loss or words that its turns need."""
    turns, _ = schedule(stages, chunks, microbatches)
    parts = [parts for n, parts in phases((stages, chunks, microbatches), train=train)
             for _ in range(n)]  # fmt: skip
    kinds = [kind for part in parts for kind, count in part for _ in range(count)]
    assert len(kinds) == (len(turns.head) if train else microbatches * chunks + stages - 1)
    for tick, kind in enumerate(kinds):
        assert kind.forward >= turns.forward.is_busy[tick].any()
        assert kind.backward >= (train and turns.backward.is_busy[tick].any())
        assert kind.head == (turns.head[tick] >= 0)
        assert kind.begins >= (turns.looked_up[tick] >= 0)
        assert kind.finishes >= (train and turns.finished[tick] >= 0)


MOE = MixtureOfExperts(experts=4, top_k=2, d_ff=32, balance_loss=0.01, z_loss=0.001)
BIASES: dict[str, Any] = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
PIPELINES: dict[str, Plan] = {
    "a mixture gathered once": pipelined(
        replace(TINY, moe=MOE), pipeline=2, expert=2, fsdp=2, microbatches=2,
        weight_gather="per_step", remat="keep_mlp",
    ),
    "interleaved, with an empty place": pipelined(
        replace(TINY, layers=3), pipeline=2, fsdp=2, tensor=2, chunks=2
    ),
    "a mixture": pipelined(
        replace(TINY, layers=3, moe=MOE), pipeline=2, expert=2, tensor=2, remat="none"
    ),
    "one after another": pipelined(replace(TINY, layers=4), pipeline=4),
    "documents, over pods": replace(
        pipelined(
            replace(TINY, layers=4, vocab=16), pipeline_dcn=2, pipeline=2, sequence=2,
            microbatches=5, sequences=10, weight_gather="per_step",
        ),
        data=DataSource(separator=3),
    ),
    "learned positions and a tied head": pipelined(
        replace(TINY, layers=5, tied=True, learned_positions=64, norm="layer", gated=False,
                vocab=131, **BIASES),
        pipeline=4, tensor=2, chunks=2, microbatches=8, remat="none",
        optimizer=Optimizer(z_loss=0.01),
    ),
    "a pattern of windows": pipelined(
        replace(TINY, layers=8, window=9, window_pattern="LG", norm_placement="both",
                embedding_scale=True, logit_cap=3.0),
        pods=2, pipeline=2, data=2, tensor=2, chunks=2, microbatches=2, remat="keep_qkv",
    ),
}  # fmt: skip


# The others take minutes together.
@pytest.mark.parametrize("name", but_slow(PIPELINES, set(PIPELINES) - {"a mixture gathered once"}))
def test_pipelines_give_the_reference(name: str) -> None:
    """Loss and gradients are those of one device without a pipeline."""
    check_against_reference(PIPELINES[name], KIND_TOLERANCE)


def test_evaluation_gives_the_reference() -> None:
    """The loss of a batch, without a backward pass, and its predicted tokens."""
    plan = pipelined(replace(TINY, layers=3), pipeline=2, tensor=2, chunks=2)
    program, tokens = build(llama, plan, jax.devices()[: plan.devices]), random_tokens(plan)
    state = initial_state(program, random_parameters(program))
    batch = place(program, lambda start, stop: tokens[start:stop])
    assert program.evaluate is not None
    sums = program.evaluate.lower(state, batch).compile(QUICK_COMPILE)(state, batch)
    assert int(sums["tokens"]) == plan.batch.tokens
    assert float(sums["loss_sum"]) / plan.batch.tokens == pytest.approx(expected(plan)[0], rel=1e-5)


@pytest.mark.slow
def test_routers_say_the_same_with_a_pipeline() -> None:
    """Metrics of a mixture are over all stages, without the places that have no layer."""
    model = replace(TINY, layers=3, moe=replace(MOE, capacity_factor=1.0))
    alone = take_step(plan_of(model, expert=2, microbatches=4)).metrics
    found = take_step(pipelined(model, pipeline=2, expert=2, chunks=2)).metrics
    assert found == pytest.approx(alone, rel=1e-5)
    assert alone["busiest_expert"] > 1


def test_a_checkpoint_continues_on_any_mesh(tmp_path: Path) -> None:
    """With stages and an empty place, without, and with them again: the losses are those of a run
    on one mesh.
    """
    model = replace(TINY, layers=3)
    quick: dict[str, Any] = {"compiler_options": QUICK_COMPILE}
    staged = pipelined(model, pipeline=2, chunks=2, microbatches=2, **quick)
    alone = plan_of(model, microbatches=2, **quick)
    _, steps = trained(llama, alone, tmp_path / "one", 6, every=2)
    found = []
    for number, plan in enumerate((staged, alone, staged), start=1):
        found += trained(llama, plan, tmp_path / "several", 2 * number, every=2)[1]
    assert [step.loss for step in found] == pytest.approx([s.loss for s in steps], rel=1e-5)


def test_layers_that_are_no_equal_chunks_are_refused() -> None:
    """The trainer says what a pipeline cannot have."""
    model = replace(TINY, layers=3, window=9, window_pattern="LLG")
    for wrong, words in (
        (pipelined(replace(TINY, layers=4), pipeline=2, remat="offload_qkv"), "offload"),
        (pipelined(replace(model, layers=4), pipeline=2), "pattern"),
        (pipelined(replace(TINY, layers=4), pipeline=2, chunks=2, microbatches=3), "microbatches"),
    ):
        with pytest.raises(SpecError, match=words):
            llama.program(wrong, abstract_mesh_of(wrong))

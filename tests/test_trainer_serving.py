"""Prefill and decoding of the trainer's network: the logits of its forward pass over all words."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from orchestrator.network.mesh_axes import AXES
from orchestrator.values.model import MixtureOfExperts, Model
from orchestrator.values.plan import Estimate
from orchestrator.values.program import ProgramForecast, ServedProgram
from tests.test_trainer_numbers import LATENT_TINY
from tests.trainer_logits import logits_of
from tests.trainer_plans import FP32, TINY, plan_of
from tests.trainer_steps import random_parameters
from trainers import llama
from trainers.contract import build
from trainers.llama.serving import _empty_cache, served, stored_weights
from trainers.llama.step import _runtime_of

NONE = ProgramForecast(
    memory_bytes_per_device=0.0, hbm_bytes_per_device=0.0, memory=(), time=(),
    step_s=Estimate(lower=0.0, unoverlapped=0.0),
)  # fmt: skip
WINDOWED = replace(TINY, window=6, layers=4, window_pattern="LG")
MIXTURE = replace(
    TINY, moe=MixtureOfExperts(experts=8, top_k=2, d_ff=24, shared_experts=1, biases=True)
)
LATENT_MIXTURE = replace(LATENT_TINY, moe=MixtureOfExperts(experts=8, top_k=2, d_ff=24))
CASES: dict[str, tuple[Model, dict[str, int]]] = {
    "dense": (TINY, {}),
    "heads replicated": (TINY, {"tensor": 8}),
    "windows": (WINDOWED, {"data": 2, "tensor": 4}),
    "latent": (LATENT_TINY, {"tensor": 2}),
    "mixture": (MIXTURE, {"expert": 2, "tensor": 4, "expert_ways": 4}),
    "latent mixture": (LATENT_MIXTURE, {"expert": 4, "tensor": 2, "expert_ways": 8}),
}
PROMPT, CHUNK, WORDS = 12, 4, 16
SCALE = 0.05  # of a narrow cache


def program(model: Model, phase: Any, **changes: Any) -> ServedProgram:
    mesh = {axis: changes.pop(axis, 1) for axis in AXES}
    fields: dict[str, Any] = {
        "name": "test", "phase": phase, "model": model, "precision": FP32, "weights": "bf16",
        "kv_cache": "bf16", "sequences": 2, "positions": WORDS, "tokens": CHUNK, "expert_ways": 1,
        "chip": "v5e", "topology": "2x4", "chips": 8, "devices": 8, "mesh": mesh, "axes": (),
        "compiler_options": {}, "forecast": NONE,
    }  # fmt: skip
    return ServedProgram(**(fields | changes))


def mesh_of(made: ServedProgram) -> Mesh:
    sizes = [made.mesh[axis] for axis in AXES]
    return Mesh(np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes), AXES)


def served_logits(
    model: Model, trained: Any, words: np.ndarray, **changes: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Logits [sequences, vocab] after a prompt in chunks, and [sequences, steps, vocab] after."""
    first, then = (program(model, phase, **changes) for phase in ("prefill", "decode"))
    mesh = mesh_of(first)
    parts = first.mesh["data"] * first.mesh["expert"]
    prefill, shapes, _ = served(first, mesh)
    decode, *_ = served(then, mesh)
    state = {"cache": _empty_cache(first), "parameters": stored_weights(first, trained)}
    for leaves in state["cache"].values():
        leaves |= {name: scale * SCALE for name, scale in leaves.items() if name.endswith("_scale")}
    state = jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), state, shapes)
    by_part = words.reshape(parts, first.sequences, -1)
    after = []
    for slot in range(first.sequences):
        for start in range(0, PROMPT, CHUNK):
            batch = {
                "words": by_part[:, slot, start : start + CHUNK],
                "first": np.full(parts, start, np.int32),
                "slot": np.full(parts, slot, np.int32),
            }
            state, logits = prefill(state, batch)
        after.append(np.asarray(logits))
    steps = []
    for place in range(PROMPT, WORDS):
        here = np.full(len(words), place, np.int32)
        state, logits = decode(state, {"words": words[:, place : place + 1], "first": here})
        steps.append(np.asarray(logits))
    prompts = np.stack(after, 1).reshape(len(words), -1)
    return prompts[:, : model.vocab], np.stack(steps, 1)[..., : model.vocab]


def check(model: Model, tolerance: float, **changes: Any) -> None:
    parts = changes.get("data", 1) * changes.get("expert", 1)
    plan = plan_of(model, sequences=2 * parts, length=WORDS)
    trained = build(llama, plan, jax.devices()[:1])
    weights = random_parameters(trained)
    words = np.random.default_rng(1).integers(0, model.vocab, (2 * parts, WORDS + 1))
    words = words.astype(np.int32)
    whole = logits_of(trained, _runtime_of(plan, trained.mesh), weights, words)
    prompts, steps = served_logits(model, weights, words[:, :-1], **changes)
    for found, expected in (prompts, whole[:, PROMPT - 1]), (steps, whole[:, PROMPT:]):
        missed, size = np.abs(found - expected), np.abs(whole)
        assert float(missed.mean() / size.mean()) < tolerance
        assert float(missed.max() / size.max()) < tolerance


@pytest.mark.parametrize("case", CASES)
def test_prefill_and_decoding_give_the_logits_of_the_forward_pass(case: str) -> None:
    """In chunks and word by word, on one device and on eight."""
    model, mesh = CASES[case]
    check(model, 1e-5, **mesh)


@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_narrow_types_give_nearly_the_same_logits(stored: str) -> None:
    """Of weights and of the cache, each in units of a scale."""
    check(TINY, 0.2, kv_cache=stored)
    # With all experts chosen, no choice depends on rounding.
    every = MixtureOfExperts(experts=8, top_k=8, d_ff=24)
    check(replace(TINY, moe=every), 0.2, weights=stored, expert_ways=4, expert=2, tensor=4)

"""Evaluation while training: the loss of the same text each time, and nothing else changes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from orchestrator.errors import CheckpointFailed, DataUnusable, SpecError
from orchestrator.evidence.explain.assemble import _goodput_section
from orchestrator.formatting import DAY_S
from orchestrator.journal.steps import StepLog, counted_steps
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.reading.load import load
from orchestrator.reading.problems import SpecProblems
from orchestrator.show.status_screen import status_screen
from orchestrator.tracking.mlflow import metrics
from orchestrator.values.plan import Plan
from orchestrator.values.report import Badput
from orchestrator.values.run import Evaluation, Outcome, Step, TimedStep
from orchestrator.values.spec import (
    CheckpointOptions,
    DataSource,
    EvaluationOptions,
    Optimizer,
    Spec,
)
from tests import toy, trainer_reference
from tests.journals import claimed_run, step, table_of, tiny_plan
from tests.reports import compare, preempted_run
from tests.trainer_plans import plan_of
from tests.trainer_steps import (
    QUICK_COMPILE,
    initial_state,
    random_parameters,
    random_tokens,
    trained,
)
from trainers import llama, mlp
from trainers.contract import build, place
from trainers.data import pack
from trainers.data.batches import HeldOut, held_out
from trainers.data.pack import _TokenArrays
from trainers.data.tokens import FILE_NAME
from trainers.loop import Assignment, run

SEPARATOR = 3
MESHES: dict[str, dict[str, Any]] = {
    "replicas": {"pods": 2, "fsdp": 2, "tensor": 2, "microbatches": 2},
    "positions": {"sequence": 2, "data": 2, "data_source": DataSource(separator=SEPARATOR)},
}


@pytest.mark.parametrize("name", list(MESHES))
def test_the_loss_is_that_of_the_counted_rows(name: str) -> None:
    """Five rows of sixteen count. It takes less memory than a step, and a third of the FLOPs."""
    mesh = dict(MESHES[name])
    source = mesh.pop("data_source", DataSource())
    plan = replace(plan_of(**mesh), data=source)
    program = build(llama, plan, jax.devices()[: plan.devices])
    parameters, tokens = random_parameters(program), random_tokens(plan)
    batch = place(program, lambda a, b: np.concatenate([tokens[:5], ~tokens[5:]])[a:b])
    assert program.evaluate is not None
    lowered = program.evaluate.lower(program.state, program.batch)
    compiled = lowered.compile(QUICK_COMPILE)
    sums = compiled(initial_state(program, parameters), batch)
    entropy, _ = trainer_reference.losses(
        parameters, jax.numpy.asarray(tokens[:5]), plan.model, 0.0, source.separator
    )
    ends = 0 if source.separator is None else int((tokens[:5, :-1] == SEPARATOR).sum())
    assert int(sums["tokens"]) == 5 * 32 - ends
    assert float(sums["loss_sum"]) / int(sums["tokens"]) == pytest.approx(float(entropy), rel=1e-5)
    trained = program.lowered().compile(QUICK_COMPILE)
    assert temporary_bytes(compiled) < temporary_bytes(trained)
    assert flops_of(compiled) < flops_of(trained) / 3 * 1.05


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    memory: Any = compiled.memory_analysis()
    return int(memory.temp_size_in_bytes)


def flops_of(compiled: jax.stages.Compiled) -> float:
    costs: Any = compiled.cost_analysis()
    return float(costs["flops"])


# The text


def token_set(folder: Path, tokens: int, first: int = 0) -> str:
    folder.mkdir()
    np.save(folder / "a.npy", (np.arange(tokens) + first) % 64)
    pack.pack(folder / "set", [folder / "a.npy"], _TokenArrays(name="x", vocab=64))
    return str(folder / "set" / FILE_NAME)


def test_the_sequences_are_the_first_of_the_set_whatever_the_batch(tmp_path: Path) -> None:
    options = EvaluationOptions(path=token_set(tmp_path / "a", 400), sequences=7)
    seen = []
    for rows in (4, 6):
        text = held_out(plan_of(sequences=rows, length=32), options)
        assert text.batches == 2
        every = np.concatenate([text.batch(n, range(rows)) for n in range(text.batches)])
        assert (every[7:] < 0).all()
        assert not (~every[7:, :1] - every[: len(every) - 7, :1]).any()
        seen.append(every[:7])
    assert (seen[0] == seen[1]).all()
    assert (seen[0] == (32 * np.arange(7)[:, None] + np.arange(33)) % 64).all()


def test_text_that_is_too_short_or_of_other_words_is_refused(tmp_path: Path) -> None:
    path = token_set(tmp_path / "a", 100)
    with pytest.raises(DataUnusable, match="100 tokens are 3 sequences of 32"):
        held_out(plan_of(length=32), EvaluationOptions(path=path, sequences=4))
    few_words = plan_of(replace(plan_of().model, vocab=32), length=32)
    with pytest.raises(DataUnusable, match="against a model vocabulary of 32"):
        held_out(few_words, EvaluationOptions(path=path, sequences=2))


def test_synthetic_text_is_held_out_too() -> None:
    """No seed of a spec gives it, and every seed has the same."""
    options = EvaluationOptions(sequences=5)
    texts = [held_out(plan_of(length=32, seed=seed), options).batch(0, range(5)) for seed in (0, 1)]
    assert (texts[0] == texts[1]).all()


# The loop

STEPS, EVERY = 11, 4


def train_toy(
    folder: Path, evaluation: EvaluationOptions | None, **wishes: Any
) -> tuple[Outcome, list[Step]]:
    plan = plan_of(sequences=4, length=32, data=2)
    plan = replace(plan, optimizer=Optimizer(peak_lr=30.0))
    return trained(toy, plan, folder, STEPS, every=2, evaluation=evaluation, **wishes)


def evaluations(steps: list[Step]) -> list[tuple[int, float, int]]:
    made = [taken.own_evaluation for taken in steps]
    return [
        (evaluation.steps_done, evaluation.loss, evaluation.tokens)
        for evaluation in made
        if evaluation
    ]


def stop_before(index: int) -> Callable[[], bool]:
    asked = iter(range(10**6))
    return lambda: next(asked) >= index


def test_a_run_evaluates_now_and_then_and_trains_as_before(tmp_path: Path) -> None:
    """After steps 4 and 8 and the last; also where a run is stopped and continues."""
    batches: list[None] = []
    options = EvaluationOptions(path=token_set(tmp_path / "text", 900), every=EVERY, sequences=6)
    _, plain = train_toy(tmp_path / "plain", None)
    _, steps = train_toy(tmp_path / "with", options, progressed=partial(batches.append, None))
    assert [taken.loss for taken in steps] == [taken.loss for taken in plain]
    assert [taken.grad_norm for taken in steps] == [taken.grad_norm for taken in plain]
    assert len(batches) == 3 * 2  # two batches of four rows for six sequences
    made = evaluations(steps)
    assert [(done, tokens) for done, _, tokens in made] == [(4, 192), (8, 192), (11, 192)]
    assert made[0][1] > made[1][1] > made[2][1]
    assert [taken.evaluation is not None for taken in steps] == [False] * 3 + [True] * 8
    _, first = train_toy(tmp_path / "again", options, stop=stop_before(6))
    _, rest = train_toy(tmp_path / "again", options)
    assert evaluations(first) + evaluations(rest) == made
    other = replace(options, path=token_set(tmp_path / "other", 900, first=5))
    with pytest.raises(CheckpointFailed, match="held_out was"):
        train_toy(tmp_path / "again", other)


def rows_of(text: HeldOut, number: int) -> Callable[[int, int], np.ndarray]:
    return lambda start, stop: text.batch(number, range(start, stop))


def test_the_loss_of_the_toy_is_the_plain_formula(tmp_path: Path) -> None:
    """Of a table of scores, worked out in numpy."""
    options = EvaluationOptions(path=token_set(tmp_path / "text", 900), every=1, sequences=6)
    plan = plan_of(sequences=4, length=32, data=2)
    program = build(toy, plan, jax.devices()[:2])
    state = program.init(0)
    assert program.evaluate is not None
    text = held_out(plan, options)
    total, count = 0.0, 0
    for number in range(text.batches):
        sums = program.evaluate(state, place(program, rows_of(text, number)))
        total, count = total + float(sums["loss_sum"]), count + int(sums["tokens"])
    scores = np.asarray(state["scores"], np.float64)
    chances = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    words = np.arange(6 * 32 + 1) % 64
    assert count == 192
    assert total / count == pytest.approx(-chances[words[:-1], words[1:]].mean(), rel=1e-5)


def test_a_trainer_without_evaluation_says_so(tmp_path: Path) -> None:
    plan = replace(plan_of(sequences=4, length=32), trainer="mlp")
    assignment = Assignment(
        directory=tmp_path,
        steps=1,
        emit=lambda _: None,
        checkpoint=CheckpointOptions(every=1),
        evaluation=EvaluationOptions(sequences=1),
    )
    with pytest.raises(SpecError, match="trainer mlp has no evaluation"):
        run(build(mlp, plan, jax.devices()[:1]), assignment)


# The spec, the plan and its forecast

SPEC = """
name: it
experiment:
  model: llama3-8b
  tokens: 1B
  batch: {sequences: 64, length: 4096}
  data: {DATA}
resources: {chip: v5p, topology: 4x4x4}
run:
  storage: runs/
  EVALUATION
"""


def spec_with(folder: Path, data: str, evaluation: str) -> Spec:
    text = SPEC.replace("{DATA}", data)
    path = folder / "spec.yaml"
    path.write_text(text.replace("EVALUATION", f"evaluation: {evaluation}" if evaluation else ""))
    return load(path)


@pytest.mark.parametrize(
    ("data", "evaluation", "code"),
    [
        ("{kind: tokens, path: a.json}", "{every: 10}", "data-path-missing"),
        ("{kind: synthetic}", "{path: b.json}", "data-path-unused"),
        ("{kind: tokens, path: a.json}", "{path: 'https://b/c.json'}", "no-such-bucket"),
    ],
)
def test_a_wrong_evaluation_is_refused(
    tmp_path: Path, data: str, evaluation: str, code: str
) -> None:
    with pytest.raises(SpecProblems) as raised:
        spec_with(tmp_path, data, evaluation)
    assert [(problem.code, problem.key) for problem in raised.value.problems] == [
        (code, "run.evaluation.path")
    ]


def test_its_cost_is_a_line_of_goodput(tmp_path: Path) -> None:
    """80 sequences in batches of 64 are two forward passes, every 50 steps."""
    tokens = "{kind: tokens, path: a.json}"
    without = make_plan(spec_with(tmp_path, tokens, ""))
    spec = spec_with(tmp_path, tokens, "{path: b.json, every: 50, sequences: 80}")
    plan = make_plan(spec)
    assert plan.digest == without.digest
    assert plan.forecast.step_s == without.forecast.step_s
    assert plan.forecast.memory == without.forecast.memory
    goodput, step_s = plan.forecast.goodput, plan.forecast.step_s.expected
    section = _goodput_section(plan)
    assert section is not None
    assert section.lines[-1].computed.value == pytest.approx(goodput.expected)
    [line] = [line for line in goodput.lines if line.kind == "evaluation"]
    executed = sum(line.inputs["flops"] for line in plan.forecast.time if line.resource == "mxu")
    tokens_per_device = 64 * 4096 / 64
    matmuls = 2 * (plan.model.parameters - 128_256 * 4096) * tokens_per_device  # norms are few
    attention = 4 * 32 * 128 * 32 * (4096 + 1024) / 2 * tokens_per_device
    assert goodput.inputs.evaluation is not None
    assert goodput.inputs.evaluation.forward_flops == pytest.approx(matmuls + attention, rel=2e-3)
    assert goodput.inputs.evaluation.step_flops == pytest.approx(executed)
    assert step_s is not None
    in_steps = 2 * goodput.inputs.evaluation.forward_flops / executed
    assert line.each_s == pytest.approx(in_steps * step_s)
    assert line.each_s * line.per_day / DAY_S == pytest.approx(line.share)
    assert sum(line.share for line in goodput.lines) + goodput.expected == pytest.approx(1.0)
    of_stepping = line.share / (line.share + goodput.expected)
    assert of_stepping == pytest.approx(in_steps / (50 + in_steps))
    assert goodput.expected < without.forecast.goodput.expected
    assert goodput.every_s == pytest.approx(200 * step_s * (1 + in_steps / 50))


def test_a_rehearsal_evaluates_a_batch(tmp_path: Path) -> None:
    """The vocabulary shrinks, so the text is synthetic."""
    spec = spec_with(tmp_path, "{kind: tokens, path: a.json}", "{path: b.json, every: 5000}")
    small = rehearse(spec, make_plan(spec), steps=20)
    evaluation = small.spec.run.evaluation
    sequences = small.plan.batch.sequences
    assert evaluation == EvaluationOptions(path=None, every=2, sequences=min(512, sequences))


# The journal, and what is made of it


def with_evaluation(done: int, loss: float) -> Evaluation:
    return Evaluation(steps_done=done, loss=loss, tokens=1000, evaluation_s=2.0)


def test_status_has_the_newest_evaluation(tmp_path: Path) -> None:
    """An attempt that has none yet shows that of the attempt before."""
    writer = claimed_run(tmp_path)
    newest = with_evaluation(2, log(8))
    for indices in (range(4), range(2, 4)):
        number = writer.start_attempt(tiny_plan())
        with StepLog(writer.journal.path, number) as steps:
            for index in indices:
                has = number == 1 and index >= 1
                steps.append(replace(step(index), evaluation=newest if has else None))
        writer.end_attempt("failure", error="x")
    run = writer.journal.run()
    assert run.evaluation == newest
    assert newest.perplexity == pytest.approx(8)
    shown = status_screen(writer.journal.status(), "orch status")
    assert "held-out   loss 2.0794, perplexity 8, after step 2, took 2 s" in shown


def evaluated_run() -> tuple[Any, dict[int, list[TimedStep]]]:
    """Ten steps, of which five are undone, then fifteen; evaluations after steps 4, 8 and 16."""
    run, steps = preempted_run()
    losses = {(1, 4): 3.0, (1, 8): 2.5, (2, 8): 2.5, (2, 16): 2.75}
    changed = {}
    for number, taken in steps.items():
        newest: Evaluation | None = None
        lines = []
        for timed in taken:
            done = timed.step.index + 1
            if (number, done) in losses:
                newest = with_evaluation(done, losses[number, done])
            lines.append(replace(timed, step=replace(timed.step, evaluation=newest)))
        changed[number] = lines
    return run, changed


def test_a_report_has_the_first_best_and_last() -> None:
    """Of the steps that count; the seconds of one that was undone are wasted."""
    run, steps = evaluated_run()
    report = compare(run, tiny_plan(), steps)
    assert report.evaluation is not None
    assert report.evaluation.count == 3
    first, best, last = report.evaluation.first, report.evaluation.best, report.evaluation.last
    assert [(evaluation.steps_done, evaluation.loss) for evaluation in (first, best, last)] == [
        (4, 3.0), (8, 2.5), (16, 2.75),
    ]  # fmt: skip
    _, plain = preempted_run()
    before = compare(run, tiny_plan(), plain).goodput
    assert report.goodput is not None
    assert before is not None
    lost = report.goodput.badput_s
    assert lost["evaluation"] == 6.0
    wasted: Badput = "wasted_progress_from_disruption"
    assert lost[wasted] == pytest.approx(before.badput_s[wasted] + 2.0)
    assert report.goodput.goodput_s == before.goodput_s


def test_tables_keep_evaluations_by_their_rows() -> None:
    _, steps = evaluated_run()
    table = counted_steps({number: table_of(taken) for number, taken in steps.items()})
    assert {int(table.index[row]): one.steps_done for row, one in table.evaluations.items()} == {
        3: 4, 7: 8, 15: 16,
    }  # fmt: skip


def test_mlflow_gets_each_evaluation_once() -> None:
    plan: Plan = tiny_plan()
    _, steps = evaluated_run()
    points = [point for timed in steps[2] for point in metrics.of_step(timed, plan)]
    found = {
        (point.name, point.step): point.value for point in points if point.name.startswith("eval/")
    }
    assert found == {
        ("eval/loss", 7): 2.5,
        ("eval/perplexity", 7): exp(2.5),
        ("eval/seconds", 7): 2.0,
        ("eval/loss", 15): 2.75,
        ("eval/perplexity", 15): exp(2.75),
        ("eval/seconds", 15): 2.0,
    }
    assert with_evaluation(1, 1e9).perplexity == float("inf")

"""Training in stages: planned one by one, added up, and trained as one run to the bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orchestrator as orch
from orchestrator.goodput.losses import SoFar, outlook
from orchestrator.journal.events import AttemptStarted
from orchestrator.journal.run_journal import outlook_of
from orchestrator.journal.run_state import _recent_steps
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.planner import make_plan, plan_on
from orchestrator.planning.rehearsal import rehearse
from orchestrator.reading.examples import spec_text
from orchestrator.reading.load import load
from orchestrator.reading.problems import SpecProblems
from orchestrator.run import proofs
from orchestrator.show.plan_screen import stages_screen
from orchestrator.show.status_screen import status_screen
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import Step
from orchestrator.values.spec import CheckpointOptions, DataSource, Spec
from tests.conftest import ROOT
from tests.reports import compare, run_of, timed
from tests.staged import STAGED, TOY_STEPS, staged_plan, staged_spec, toy_stages
from tests.test_journal_commands import status_of
from tests.test_token_sets import counting_set
from tests.trainer_plans import but_slow, plan_of
from trainers.contract import build
from trainers.contract import load as trainer_of
from trainers.data.batches import DataProgress, batch_source
from trainers.llama.optimizer import learning_rate
from trainers.loop import Assignment, train


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return staged_plan(tmp_path_factory.mktemp("staged"))


# --- the spec


def test_a_range_that_ends_at_zero_is_left_endlessly_far() -> None:
    """No published run on v5e kept activations on its host."""
    spec = load(ROOT / "specs/tiny_stages.yaml", ["experiment.remat={block_input: offload}"])
    figures = [note.figures for note in make_plan(spec).warnings if note.code == "extrapolation"]
    assert [known["high"] for known in figures if known["axis"] == "host_share"] == [0]


def test_what_a_stage_leaves_out_is_as_in_the_stage_before(tmp_path: Path) -> None:
    """Batch, length and optimizer are inherited; a new schedule has no warm-up of its own."""
    experiment = staged_spec(tmp_path).experiment
    batches = [(stage.batch.sequences, stage.batch.length) for stage in experiment.stages]
    assert batches == [(32, 128), (4, 1024), (4, 1024)]
    assert experiment.tokens == 40960 + 81920 + 40960
    assert experiment.batch == experiment.stages[0].batch
    warmups = [stage.optimizer.warmup_steps for stage in experiment.stages]
    assert warmups == [4, 4, 0]
    assert [stage.restarts_schedule for stage in experiment.stages] == [False, False, True]
    assert experiment.stages[2].optimizer.peak_lr == 3e-3


@pytest.mark.parametrize(
    ("stages", "codes"),
    [
        ("[{tokens: 40960, batch: 32}]", ["stage-without-batch"]),
        ("[{tokens: 8, batch: 32, length: 128}]", ["tokens-below-batch"]),
        ("[{tokens: 1M, batch: {sequences: 8, length: 64}, length: 32}]", ["two-lengths"]),
        ("[{tokens: 1M, batch: 8, length: 64, dta: 1}]", ["unknown-key"]),
        ("[{batch: 8, length: 64}]", ["missing-key"]),
        ("[]", ["illegal-value"]),
        ("[{tokens: 1M, batch: 8, length: 64}, {tokens: 1M, optimizer: {name: adafactor}}]",
         ["stage-optimizer"]),
        ("[{tokens: 1M, batch: 8, length: 64}, {tokens: 1M, optimizer: {end_lr: 1}}]",
         ["end-above-peak"]),
        ("[{tokens: 1M, batch: 8, length: 64, data: {kind: tokens}}]", ["data-path-missing"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_stage_is_said_where_it_stands(
    stages: str, codes: list[str], tmp_path: Path
) -> None:
    """Each problem has the line of the stage and its dotted key."""
    text = f"name: a\nexperiment:\n  model: llama-tiny\n  stages: {stages}\n"
    text += "resources: {chip: v5e, topology: 2x2}\n"
    with pytest.raises(SpecProblems) as caught:
        staged_spec(tmp_path, text)
    problems = caught.value.problems
    assert [problem.code for problem in problems] == codes
    assert {problem.place.line for problem in problems} == {4}
    assert all((problem.key or "").startswith("experiment.stages") for problem in problems)


def test_tokens_are_the_sum_of_all_stages(tmp_path: Path) -> None:
    """They may be left out; another number is a mistake. Without stages they are needed."""
    with pytest.raises(SpecProblems) as caught:
        staged_spec(tmp_path, STAGED.replace("  stages:", "  tokens: 1M\n  stages:"))
    assert [problem.code for problem in caught.value.problems] == ["tokens-of-stages"]
    with pytest.raises(SpecProblems) as caught:
        staged_spec(tmp_path, "name: a\nexperiment: {model: llama-tiny}\nresources: {chip: v5e}\n")
    assert [problem.key for problem in caught.value.problems] == [
        "experiment.tokens",
        "experiment.batch",
    ]


# --- the plan


def test_each_stage_has_a_plan_of_its_own(plan: Plan) -> None:
    """On the same slices, with another mesh where its batch needs one."""
    first, second, third = plan.stages
    assert [stage.total_steps for stage in plan.stages] == [10, 20, 10]
    assert [stage.first_step for stage in plan.stages] == [0, 10, 30]
    assert plan.total_steps == 40
    assert first.mesh != second.mesh
    assert second.mesh["sequence"] == 2
    assert {stage.chips for stage in plan.stages} == {8}
    assert [stage.schedule_span for stage in plan.stages] == [(0, 30), (0, 30), (30, 10)]
    assert third.stage
    assert third.stage.first_token == 40960 + 81920
    assert [plan.stage_of(step).stage for step in (0, 9, 10, 29, 39, 99)] == [
        shown.stage for shown in (first, first, second, second, third, third)
    ]
    assert codec.from_json(codec.to_json(plan), Plan) == plan
    assert len({plan.digest, *(stage.digest for stage in plan.stages)}) == 4


def test_the_verdict_on_all_stages_comes_first(plan: Plan) -> None:
    """Five lines, as of a plan without stages."""
    lines = [line.split("  ")[1] for line in stages_screen(plan, None).splitlines()[2:8]]
    assert [line.strip() for line in lines] == ["fits", "time", "cost", "MFU", "bound by", "model"]


def test_time_and_money_add_up(plan: Plan) -> None:
    """Days and dollars of a run are those of its stages and of its changes of stages."""
    days, dollars = plan.forecast.days, plan.forecast.dollars
    [change] = [line for line in plan.forecast.goodput.lines if line.kind == "stage_changes"]
    of_stages = [stage.forecast.days.expected or 0 for stage in plan.stages]
    assert days.expected == pytest.approx(sum(of_stages) + 2 * change.each_s / 86_400)
    assert days.expected
    assert days.lower == pytest.approx(sum(stage.forecast.days.lower for stage in plan.stages))
    assert dollars
    assert dollars.expected == pytest.approx(days.expected * 24 * 8 * 1.2)
    shares = sum(line.share for line in plan.forecast.goodput.lines)
    assert shares + plan.forecast.goodput.expected == pytest.approx(1)


def test_a_stated_goodput_counts_all_losses(plan: Plan, tmp_path: Path) -> None:
    """Changes of stages too: it is the share of all time."""
    spec = staged_spec(tmp_path)
    stated = make_plan(replace(spec, resources=replace(spec.resources, goodput=0.5)))
    assert stated.forecast.goodput.expected == pytest.approx(0.5)
    assert stated.forecast.goodput.lines == ()
    assert stated.digest == plan.digest


def test_fewer_pods_have_a_plan_for_every_stage(plan: Plan, tmp_path: Path) -> None:
    """Steps stay where they are, so that a run goes on in the same stage."""
    fewer = plan_on(staged_spec(tmp_path), plan, 1)
    assert {stage.pods for stage in fewer.stages} == {1}
    assert [stage.stage for stage in fewer.stages] == [stage.stage for stage in plan.stages]
    assert fewer.spec_digest == plan.spec_digest


def test_a_stage_without_a_plan_is_named(tmp_path: Path) -> None:
    """Nothing is suggested that would not suit the other stages."""
    text = STAGED.replace("{tokens: 81920, batch: 4,", "{tokens: 81920, batch: 3,")
    with pytest.raises(Infeasible) as caught:
        staged_plan(tmp_path, text)
    assert caught.value.reasons[0].code == "stage"
    assert caught.value.reasons[0].figures == {"number": 2, "of": 3}
    assert caught.value.suggestions() == ()


def test_offers_count_all_stages(tmp_path: Path) -> None:
    """The offer of the spec's own slices has the days and dollars of its plan."""
    text = STAGED.replace("{min: 1, max: 2}", "2")
    plan = staged_plan(tmp_path, text)
    found = orch.offers(staged_spec(tmp_path, text), chips="v5e", by="1d", budget=100)
    [own] = [offer for offer in found.offers if (offer.topology, offer.pods) == ("2x2", 2)]
    assert own.days == plan.forecast.days
    assert own.dollars == plan.forecast.dollars
    assert own.odds
    assert own.odds.both == pytest.approx(0.9)  # no published run is like it


def test_the_odds_of_the_deadline_are_those_of_all_stages(plan: Plan, tmp_path: Path) -> None:
    """A run that takes ten minutes holds an hour, and not a minute."""
    spec = staged_spec(tmp_path)

    def odds(deadline: str) -> float | None:
        found = orch.deadline_odds(replace(spec, run=replace(spec.run, deadline=deadline)), plan)
        return found.odds if found else None

    assert orch.deadline_odds(spec, plan) is None
    assert odds("1h") == pytest.approx(0.9)  # no published run is like it
    assert odds("0.0001h") == pytest.approx(0, abs=1e-6)
    assert odds("2020-01-01") == 0


def test_a_rehearsal_has_every_stage_on_its_own_axes(plan: Plan, tmp_path: Path) -> None:
    """Steps are dealt out; a stage has at least one."""
    small = rehearse(staged_spec(tmp_path), plan, steps=7)
    assert [stage.total_steps for stage in small.plan.stages] == [3, 2, 2]
    assert small.steps == small.plan.total_steps == 7
    assert [stage.mesh for stage in small.plan.stages] == [stage.mesh for stage in plan.stages]
    assert rehearse(staged_spec(tmp_path), plan, steps=1).steps == 3


# --- what is left, and what was done


def test_what_is_left_counts_the_stages_to_come(plan: Plan) -> None:
    """After the first stage, what its steps took over the forecast holds for the others."""
    first = plan.stages[0].forecast.step_s.expected
    assert first
    so_far = SoFar(
        now_s=1e9, running_s=10 * first, steps_done=10, steps=40, median_step_s=2 * first,
        measured_steps=10, starts=1, ended=False,
    )  # fmt: skip
    found = outlook(plan, so_far, None, forecast=False)
    assert found
    left_s = sum(stage.total_steps * stage.forecast.step_s.likeliest for stage in plan.stages[1:])
    goodput = found.goodput.value
    assert found.days_left.value * 86_400 == pytest.approx(2 * left_s / goodput, rel=0.01)
    assert found.steps_left == 30


@pytest.mark.parametrize("steps_of_second", [1, 4])
def test_what_is_measured_is_of_one_stage(steps_of_second: int, plan: Plan) -> None:
    """The one before, until the next has a step after its first: what is left does not jump where
    steps take twice their forecast in both.
    """
    each_s = [2 * stage.forecast.step_s.likeliest for stage in plan.stages]
    second = range(10, 10 + steps_of_second)
    steps = (*timed(10.0, range(10), each_s[0]), *timed(100.0, second, each_s[1]))
    found = _recent_steps(steps)
    assert found
    stage = 0 if steps_of_second == 1 else 1
    assert (found.steps, found.step_s) == (9 if stage == 0 else 3, each_s[stage])
    begun = AttemptStarted(at_s=10.0, attempt=1, plan_digest=plan.digest, pods=2)
    run = replace(
        run_of(begun), state="running", ended_at_s=None, rehearsal=True, recent=found,
        last_step=steps[-1], steps_done=len(steps), steps=40, read_at_s=10.0,
    )  # fmt: skip
    left = outlook_of(run, plan, None)
    assert left
    left_s = sum(2 * stage.total_steps * stage.forecast.step_s.likeliest for stage in plan.stages)
    left_s -= 10 * each_s[0] + steps_of_second * each_s[1]
    assert left.days_left.value * 86_400 * left.goodput.value == pytest.approx(left_s)


def test_status_names_the_stage(plan: Plan) -> None:
    text = "stage      2 of 3, steps 11 to 30"
    assert text in status_screen(status_of(stage=plan.stages[1].stage), "orch status")
    assert "\n  stage " not in status_screen(status_of(stage=plan.stage), "orch status")


def test_a_report_has_every_stage_and_their_sum(plan: Plan) -> None:
    """A step of the second stage is compared with its own forecast."""
    steps = timed(10.0, range(25), 0.5, tokens=4096)
    begun = AttemptStarted(at_s=10.0, attempt=1, plan_digest=plan.digest, pods=2)
    run = replace(run_of(begun), plan_digest=plan.digest, steps_done=25, steps=40)
    report = compare(run, plan, {1: steps})
    assert [stage.steps_done for stage in report.stages] == [10, 15, 0]
    assert report.stages[0].predicted_step_s == plan.stages[0].forecast.step_s.likeliest
    assert report.forecast.step_s == plan.stages[1].forecast.step_s
    assert report.measured
    assert report.measured.steps == 15
    totals = report.stage_totals
    assert totals
    assert totals.steps_s == pytest.approx(sum(step.step.step_s for step in steps))
    predicted = sum(stage.steps_done * (stage.predicted_step_s or 0) for stage in report.stages)
    assert totals.predicted_s == pytest.approx(predicted)
    assert totals.dollars == pytest.approx(totals.steps_s / 3600 * 8 * 1.2)


# --- the learning rate and the data


def test_the_learning_rate_goes_on_over_stages(plan: Plan) -> None:
    """One schedule for the first two, which the third starts anew."""
    first, second, third = (learning_rate(stage) for stage in plan.stages)
    assert float(first(0)) == pytest.approx(3e-3 / 4)
    assert float(first(12)) == pytest.approx(float(second(12)))
    assert float(second(29)) == pytest.approx(0, abs=1e-6)
    assert float(third(30)) == pytest.approx(3e-3 * 0.9)
    assert float(third(39)) == pytest.approx(0, abs=1e-6)


def test_a_later_stage_without_warm_up_can_be_lowered(plan: Plan) -> None:
    """The rate that a step is lowered with is one of its own stage."""
    third = replace(plan.stages[2].optimizer, warmup_steps=0)
    stage = replace(plan.stages[2], trainer="llama", optimizer=third)
    program = build(trainer_of(stage.trainer), stage, jax.devices()[: stage.devices])
    assert program.lowered().as_text()


def test_no_stage_repeats_a_token_of_another(tmp_path: Path) -> None:
    """Each begins in the ring of tokens where the one before it ends."""
    whole, vocab = toy_stages(), 1 << 20
    path = counting_set(tmp_path, whole.tokens, shard_tokens=1000)
    model, data = replace(plan_of().model, vocab=vocab), DataSource(kind="tokens", path=str(path))
    seen: list[int] = []
    for stage in whole.stages:
        source = batch_source(replace(stage, data=data, model=model), tmp_path)
        rows = range(stage.batch.sequences)
        for step in range(stage.total_steps):
            seen += [int(token) for token in source.batch(step, rows)[:, :-1].ravel()]
    assert len(seen) == whole.tokens
    assert sorted(seen) == list(range(whole.tokens))


def test_synthetic_text_differs_from_stage_to_stage() -> None:
    same = [replace(stage, batch=toy_stages().stages[1].batch) for stage in toy_stages().stages[:2]]
    first, second = (batch_source(source).batch(0, range(4)) for source in same)
    assert not np.array_equal(first, second)


# --- training


def train_toy(
    folder: Path, *, steps: int = TOY_STEPS, stop: Callable[[], bool] = lambda: False, **more: Any
) -> list[Step]:
    emitted: list[Step] = []
    assignment = Assignment(
        directory=folder,
        steps=steps,
        emit=emitted.append,
        checkpoint=CheckpointOptions(every=3, keep=3),
        stop=stop,
        **more,
    )
    train(toy_stages(), assignment)
    return emitted


def losses(steps: list[Step]) -> list[tuple[int, float]]:
    return [(step.index, step.loss) for step in steps]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """The steps of a staged run that nothing disturbed."""
    return train_toy(tmp_path_factory.mktemp("straight"))


def test_a_run_goes_from_stage_to_stage_by_itself(straight: list[Step]) -> None:
    """Each stage begins where the one before it ended, with its own batch and rate."""
    assert [step.index for step in straight] == list(range(TOY_STEPS))
    tokens = [stage.batch.tokens for stage in toy_stages().stages for _ in range(stage.total_steps)]
    assert [step.tokens for step in straight] == tokens
    begun = {step.index: step.startup.steps_done for step in straight if step.startup}
    assert begun == {0: 0, 5: 5, 11: 11}
    assert [straight[step].learning_rate for step in (4, 5, 11)] == [30.0, 20.0, 10.0]


@pytest.mark.parametrize("stop_at", but_slow([4, 5, 8, 12], [8, 12]))
def test_a_stopped_run_goes_on_in_its_stage(
    stop_at: int, straight: list[Step], tmp_path: Path
) -> None:
    """Before, at and after a boundary: the losses are the same to the bit."""
    asked = iter(range(100))
    first = train_toy(tmp_path, stop=lambda: next(asked) >= stop_at)
    second = train_toy(tmp_path)
    assert second[0].startup
    assert losses(first) + losses(second) == losses(straight)


def test_a_killed_run_repeats_what_was_not_saved(straight: list[Step], tmp_path: Path) -> None:
    """An attempt that ends inside the second stage, and another: of each step the last counts."""

    def die() -> bool:
        if next(asked) >= 9:
            raise KeyboardInterrupt
        return False

    asked = iter(range(100))
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path, stop=die)
    again = train_toy(tmp_path)
    assert 5 <= again[0].index <= 9
    assert losses(again) == losses(straight)[again[0].index :]


def test_a_damaged_boundary_is_trained_again(straight: list[Step], tmp_path: Path) -> None:
    """The run goes back to the stage before, from its last whole checkpoint."""
    train_toy(tmp_path, steps=5)
    for shard in (tmp_path / "checkpoints" / "5").rglob("*"):
        if shard.is_file() and "ocdbt" in str(shard):
            shard.write_bytes(b"damaged")
    again = train_toy(tmp_path)
    assert losses(again) == losses(straight)[3:]


def test_another_batch_keeps_the_order_of_the_data(tmp_path: Path) -> None:
    """A stage that goes on with fewer sequences takes the next ones of its own text."""
    plan = toy_stages()
    stage = plan.stages[1]
    whole = batch_source(stage)
    texts = [whole.batch(step, range(4)) for step in range(3)]
    fewer = plan_of(sequences=2, length=64, data=2, tensor=8)
    smaller = replace(stage, batch=fewer.batch, mesh=fewer.mesh, axes=fewer.axes)
    shrunk = replace(plan, stages=(plan.stages[0], smaller, plan.stages[2]))
    train_toy(tmp_path, steps=7)  # two steps of the second stage, of four sequences each

    seen: list[float] = []
    progress = DataProgress(original=plan, sequences_between=lambda start, stop: 4 * (stop - start))
    assignment = Assignment(
        directory=tmp_path,
        steps=9,
        emit=lambda step: seen.append(step.trainer_metrics["tokens_mean"]),
        checkpoint=CheckpointOptions(every=3, keep=3),
        data_progress=progress,
    )
    train(shrunk, assignment)
    expected = [texts[2][rows].astype(np.float32).mean() for rows in (slice(0, 2), slice(2, 4))]
    assert seen == pytest.approx(expected, rel=1e-6)


# --- the file


def test_a_staged_spec_is_written_as_it_is_read(tmp_path: Path) -> None:
    """What changes from stage to stage, so that inheritance gives the same."""
    for path in (ROOT / "specs").glob("*stages.yaml"):
        spec = load(path)
        assert staged_spec(tmp_path, spec_text(spec)) == spec
    spec = staged_spec(tmp_path)
    assert staged_spec(tmp_path, spec_text(spec)) == spec


def test_an_override_reaches_into_a_stage(tmp_path: Path) -> None:
    """By its number, counted from 0; a stage that is not there is a problem."""
    staged_spec(tmp_path)
    path = tmp_path / "staged.yaml"
    changed = load(path, ("experiment.stages.1.tokens=40960", "experiment.stages.1.batch=8"))
    assert changed.experiment.stages[1].tokens == 40960
    assert changed.experiment.stages[1].batch.sequences == 8
    with pytest.raises(SpecProblems) as caught:
        load(path, ("experiment.stages.7.tokens=40960",))
    assert [problem.code for problem in caught.value.problems] == ["override-inside-value"]


def test_every_stage_is_proved(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan with the spec of its stage, in order."""
    asked: list[tuple[int, int, str]] = []

    def proved(spec: Spec, one: Plan, *_: object) -> str:
        asked.append((spec.experiment.batch.length, one.batch.length, one.digest))
        return one.digest

    monkeypatch.setattr(proofs, "prove_plan", proved)
    found = proofs._prove_each_stage(staged_spec(tmp_path), plan)
    digests = [stage.digest for stage in plan.stages]
    assert asked == [(128, 128, digests[0]), (1024, 1024, digests[1]), (1024, 1024, digests[2])]
    assert [str(digest) for digest in found] == digests

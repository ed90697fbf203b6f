"""What a driver decides: which slices it takes, and why an attempt ended. No cluster is there."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import formatting as fmt
from orchestrator import journal
from orchestrator.drive import worker
from orchestrator.drive.driver import _select, _SliceRequest, _wait_text
from orchestrator.drive.monitor import AttemptEnd, explain_failure
from orchestrator.errors import JournalUnreadable, SpecError
from orchestrator.launch import provenance
from orchestrator.launch.backend import Slice, WorkerArgs
from orchestrator.launch.ray.slices import heads_of_others, kind_of, members, slices_of
from orchestrator.planning.planner import make_plan, plan_on
from orchestrator.values.goodput import SPARE_WAIT_S
from orchestrator.values.run import Step
from orchestrator.values.spec import Pods
from tests.example_specs import TINY, spec_of
from tests.journals import ME, claimed_run, step, tiny_plan
from tests.test_journal_heartbeat import beat
from tests.test_slices import plan_on as sliced

FOUR = _SliceRequest(pods=Pods(min=2, max=4), kind="v5e 2x2", started=False, private=False)


def slices(*free: str, busy: tuple[str, ...] = (), broken: tuple[str, ...] = ()) -> list[Slice]:
    """Slices of two hosts."""
    complete = [Slice(name=name, hosts=2, size=2, free=name in free) for name in (*free, *busy)]
    return [*complete, *(Slice(name=name, hosts=1, size=2, free=True) for name in broken)]


# --- which slices


def test_a_run_takes_what_it_asked_for() -> None:
    """All or none, and of more the ones that it had before."""
    assert _select(slices(*"abcd"), FOUR, (), 0.0) == ("a", "b", "c", "d")
    assert _select(slices(*"abc", busy=("d",)), FOUR, (), 1e6) == ()
    assert _select(slices(*"abcde"), FOUR, ("e", "d"), 0.0) == ("a", "b", "d", "e")
    assert _select(slices(*"acde", broken=("b",)), FOUR, ("a", "b"), 0.0) == ("a", "c", "d", "e")


def test_a_run_that_lost_a_slice_waits_and_goes_on_with_fewer() -> None:
    """Not before a spare had its time to come, and never with fewer than its minimum."""
    began = _SliceRequest(pods=FOUR.pods, kind=FOUR.kind, started=True, private=False)
    three = slices(*"acd", broken=("b",))
    assert _select(three, began, "abcd", SPARE_WAIT_S - 1) == ()
    assert _select(three, began, "abcd", SPARE_WAIT_S + 1) == ("a", "c", "d")
    assert _select(slices("a", busy=("b", "c", "d")), began, "abcd", 1e6) == ()


def test_where_nothing_comes_nobody_waits() -> None:
    """A cluster of one's own goes on at once, once the slices of the last attempt are free."""
    alone = _SliceRequest(pods=FOUR.pods, kind=FOUR.kind, started=True, private=True)
    assert _select(slices(*"acd", broken=("b",)), alone, "abcd", 0.0) == ("a", "c", "d")
    assert _select(slices("a", busy=("c", "d"), broken=("b",)), alone, "abcd", 0.0) == ()
    with pytest.raises(
        SpecError, match=r"^2 to 4 slices of v5e 2x2 requested, 1 whole, 1 free; b "
    ):
        _select(slices("a", broken=("b",)), alone, "abcd", 0.0)


def test_a_private_cluster_that_lost_a_slice_before_the_run_began_serves_it_with_fewer() -> None:
    """Nothing comes, so waiting would never end; elsewhere the run waits for what it asked."""
    three = slices(*"acd", broken=("b",))
    new = _SliceRequest(pods=FOUR.pods, kind=FOUR.kind, started=False, private=True)
    assert _select(three, new, (), 0.0) == ("a", "c", "d")
    assert _select(three, FOUR, (), 1e6) == ()


def test_what_the_cluster_has_not_noticed_is_waited_for() -> None:
    """A host that does not answer and still counts as alive would be reserved in vain."""
    alone = _SliceRequest(pods=FOUR.pods, kind=FOUR.kind, started=True, private=True)
    unsure = Slice(name="b", hosts=1, size=2, free=True, settled=False)
    assert _select([*slices("a"), unsure], alone, "ab", 0.0) == ()
    assert _select([*slices(*"acd"), unsure], alone, "ab", 0.0) == ()


def test_the_arithmetic_of_waiting_is_said() -> None:
    """Asked, whole, free, and what is broken."""
    visible = slices("a", busy=("b",), broken=("c",))
    assert "; first come, first served: a-1, b-1 is ahead" in _wait_text(
        visible, FOUR, ("/runs/a-1", "/elsewhere/b-1")
    )
    assert _wait_text(visible, FOUR) == (
        "2 to 4 slices of v5e 2x2 requested, 2 whole, 1 free; c has 1 of 2 hosts"
    )
    single = _SliceRequest(pods=Pods(min=1, max=1), kind=FOUR.kind, started=False, private=False)
    assert _wait_text(visible, single).startswith("1 slice of v5e 2x2 requested")


# --- why it ended


def test_a_host_that_is_gone_is_a_preemption() -> None:
    """Whatever the processes said of it; the rank that died first is named all the same."""
    died = beat(3, error="XlaRuntimeError: connection closed")
    ending = explain_failure(died, "Ray's words", ("a", "b", "c"), slices("a", broken=("b",)))
    assert ending == AttemptEnd(
        reason="preemption",
        error="slice b has 1 of 2 hosts left; slice c is gone",
        first_dead_rank=3,
    )


def test_an_error_is_the_first_dead_ranks() -> None:
    """Not what the launcher made of it; one that died silently has no error to compare."""
    here = slices("a", "b")
    heartbeat_with_error = beat(1, error="ValueError: no")
    assert explain_failure(heartbeat_with_error, "Ray's", "ab", here) == AttemptEnd(
        reason="failure", error="ValueError: no", first_dead_rank=1
    )
    assert explain_failure(beat(1), "Ray's", "ab", here).error is None
    assert explain_failure(None, "no controller", "ab", None) == AttemptEnd(
        reason="failure", error="no controller"
    )
    assert beat(1).process == ME


# --- which data comes next


def changed_batch(tmp_path: Path) -> journal.Journal:
    """A run of 64 sequences a step that went on with 32 after its third step."""
    writer = claimed_run(tmp_path)
    larger = tiny_plan()
    smaller = replace(larger, batch=replace(larger.batch, sequences=32), digest="5" * 64)
    for plan, indices in ((larger, range(4)), (smaller, range(3, 6))):
        number = writer.start_attempt(plan)
        tokens = plan.batch.sequences * plan.batch.length
        with journal.StepLog(writer.journal.path, number) as log:
            for index in indices:
                log.append(step(index, tokens=tokens, restored=indices.start or None))
        writer.end_attempt("preemption")
    return writer.journal


def test_the_data_goes_on_where_it_was(tmp_path: Path) -> None:
    """What steps took is counted by their own batches; of one that was redone, the newest."""
    recorded = changed_batch(tmp_path)
    taken = [worker._sequences_taken(recorded, 0, steps) for steps in (0, 3, 4, 6)]
    assert taken == [0, 192, 224, 288]
    with pytest.raises(JournalUnreadable, match="2 of the steps from 0 to 8 are not in it"):
        worker._sequences_taken(recorded, 0, 8)


def test_fewer_pods_have_a_plan_of_their_own() -> None:
    """They pods take the same batch where they can, and the nearest where they cannot."""
    spec = spec_of(TINY, chip="v5e", topology="2x2", pods=4, sequences=48, length=64)
    plan = make_plan(spec)
    assert plan_on(spec, plan, 4) is plan
    three, two = plan_on(spec, plan, 3), plan_on(spec, plan, 2)
    assert (three.pods, three.batch.sequences) == (3, 48)
    assert (two.pods, two.batch.sequences, two.spec_digest) == (2, 48, plan.spec_digest)
    rehearsed = plan_on(spec, replace(plan, chip_profile="of four pods"), 2)
    assert rehearsed.chip_profile is None  # its groups were not measured
    odd = spec_of(TINY, chip="v5e", topology="2x2", pods=4, sequences=64, length=64)
    moved = plan_on(odd, make_plan(odd), 3)
    assert moved.batch.sequences in (63, 66)
    # Beyond the tolerance it has a warning, within it none.
    size = moved.batch
    words = fmt.batch(size.sequences, size.length, size.requested_sequences)
    assert "from 64 to divide evenly" in words
    assert "other_batch" not in [note.code for note in moved.warnings]
    exact = replace(odd.experiment.batch, tolerance=0.0)
    strict = replace(odd, experiment=replace(odd.experiment, batch=exact))
    assert "other_batch" in [note.code for note in plan_on(strict, make_plan(odd), 3).warnings]


# --- what a cluster shows


def node(name: str, worker: int, *, alive: bool = True, kind: str = "v5p-16") -> dict[str, object]:
    """A host of a slice, as Ray lists it."""
    return {
        "NodeID": f"{name}-{worker}",
        "Alive": alive,
        "Resources": {"TPU": 4.0},
        "Labels": {
            "ray.io/tpu-slice-name": name,
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-pod-type": kind,
        },
    }


def test_slices_are_read_off_the_nodes() -> None:
    """Whole, free, and settled; other kinds of slices and dead nodes do not count."""
    nodes = [
        node("a", 0), node("a", 1), node("b", 0), node("b", 1, alive=False), node("c", 0),
        node("c", 1), node("d", 0), node("d", 1), node("x", 0, kind="v5p-8"),
        {"NodeID": "head", "Alive": True, "Resources": {"CPU": 1.0}},
    ]  # fmt: skip
    free = {"a-0": {"TPU": 4.0}, "a-1": {"TPU": 4.0}, "b-0": {"TPU": 4.0}, "c-0": {"TPU": 4.0},
            "c-1": {"CPU": 1.0}}  # fmt: skip
    kind = kind_of(sliced("v5p", "2x2x2"))
    groups = members(nodes, kind)
    slices_seen = slices_of(groups, free, kind, lambda one: one["NodeID"] != "d-1")
    assert slices_seen == (
        Slice(name="a", hosts=2, size=2, free=True),
        Slice(name="b", hosts=1, size=2, free=True),
        Slice(name="c", hosts=2, size=2, free=False),
        Slice(name="d", hosts=1, size=2, free=True, settled=False),
    )
    heads = heads_of_others(nodes, kind, ("a", "c"))
    assert [(name, head["NodeID"]) for name, head in heads] == [("b", "b-0"), ("d", "d-0")]


def test_steps_are_printed_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """`orch logs` shows how a run goes: its first step, then one every few seconds."""
    steps: list[Step] = []
    now_s = 0.0

    def clock() -> float:
        return now_s

    emit = worker._printed(steps.append, clock)
    for index in range(41):
        emit(step_of(index))
        now_s += 0.5
    assert len(steps) == 41
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 1", "step 21", "step 41"]
    assert lines[0] == "step 1: 0.25 s, loss 2.5000"


def step_of(index: int) -> Step:
    return Step(
        index=index, step_s=0.25, data_s=0.0, checkpoint_s=0.0, tokens=8, loss=2.5, grad_norm=1.0,
        learning_rate=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize("repeats", [True, False])
def test_an_error_of_a_program_repeats(repeats: bool) -> None:
    """The first dead rank says so; a backend does not know."""
    dead = beat(0, error="ProgramFailed: it raised", error_repeats=repeats)
    assert explain_failure(dead, "worker died", (), None).repeats is repeats
    assert not explain_failure(None, "worker died", (), None).repeats


def test_a_step_has_a_peak_where_the_forecast_is_for_these_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On chips, and on measured devices; not on a laptop that stands for chips."""
    plan = tiny_plan()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert worker._peak_flops_per_s(plan) is None
    measured = replace(plan, chip_profile="0123abcd")
    assert worker._peak_flops_per_s(measured) == plan.forecast.peak_flops_per_s
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    assert worker._peak_flops_per_s(plan) == plan.forecast.peak_flops_per_s


@pytest.mark.parametrize("rehearsal", [True, False])
def test_a_worker_joins_the_others_and_then_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rehearsal: bool
) -> None:
    """On a cluster with the versions of whoever submitted; a rehearsal has no others."""
    from trainers import loop, multihost  # noqa: PLC0415  it loads JAX

    done: list[object] = []
    monkeypatch.setattr(multihost, "join_processes", lambda: done.append("joined"))
    monkeypatch.setattr(loop, "train", lambda plan, _: done.append(plan.digest))
    monkeypatch.setattr(provenance, "check_versions", done.append)
    versions = {"jax": "9.9"}
    writer = claimed_run(tmp_path, rehearsal=rehearsal, environment=versions)
    args = WorkerArgs(
        run=str(writer.journal.path),
        claim=writer.number,
        attempt=writer.start_attempt(tiny_plan()),
        plan_digest=tiny_plan().digest,
        heartbeat_s=1.0,
        saves=(),
    )
    others: Any = SimpleNamespace(count_step=None, begin_stage=None)
    worker._train(args, 1, others, others)
    assert done == ["joined", *([] if rehearsal else [versions]), tiny_plan().digest]

"""The protocol of claims, attempts, checkpoints and slices, tried in every order within bounds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.journals import failed_once
from tests.model.checker import check
from tests.model.protocol import Bounds, Rules, rule_names
from tests.model.traces import Raw, faults_of, first_impossible

JOURNALS = Path(__file__).parent / "model" / "journals"

ONE_FAULT = Bounds(faults=1, drivers=3, steps=2)
TWO_FAULTS = Bounds(faults=2, drivers=2, steps=1)
# Without a guard: the promise that breaks, and a move that the shortest way to it has.
BROKEN = {
    "exclusive_numbers": ("claimed with a number that an event had", "claims by an old look"),
    "look_for_successor": ("is superseded, and cannot know it", "driver 0 goes on"),
    "ranks_watch": ("can never end", "on hosts that others cannot reach"),
    "evict": ("can never end", "the ranks of attempt 1 stop"),
    "end_ranks": ("two attempts are on the same slices", "one rank of attempt 1 dies"),
    "recorded_only": ("began from a step of a superseded claim", "driver 1 claims"),
    "own_folders": ("can never end", "another has saved step 1"),
    "prune_recorded": ("a checkpoint that counts is gone", "driver 1 claims"),
}


@pytest.mark.parametrize("bounds", [ONE_FAULT, TWO_FAULTS], ids=["one fault", "two faults"])
def test_no_step_of_a_superseded_claim_survives_and_a_resume_progresses(bounds: Bounds) -> None:
    """Whatever dies or stops, and however old a look at a folder is."""
    result = check(bounds)
    assert (result.broken, result.trace) == (None, ())
    assert result.states > 2_000


@pytest.mark.parametrize("rule", rule_names())
def test_each_guard_is_needed(rule: str) -> None:
    """Without it a few moves break a promise."""
    bounds = TWO_FAULTS if rule == "evict" else ONE_FAULT
    rules = Rules(**{name: name != rule for name in rule_names()})
    result = check(replace(bounds, rules=rules))
    promise, move = BROKEN[rule]
    assert result.broken
    assert promise in result.broken
    assert any(move in line for line in result.trace), result.trace


@pytest.mark.slow
def test_two_faults_and_two_steps() -> None:
    """A larger search: minutes."""
    assert check(Bounds(faults=2, drivers=3, steps=2)).broken is None


# --- real journals


def claimed(**more: object) -> Raw:
    return {"kind": "claimed", **more}


def started(attempt: int) -> Raw:
    return {"kind": "attempt started", "attempt": attempt}


def saved(claim: int, attempt: int, step: int) -> Raw:
    checkpoint = {"claim": claim, "attempt": attempt, "step": step}
    return {"kind": "checkpoint saved", "checkpoint": checkpoint}


def ended(attempt: int, reason: str = "failure") -> Raw:
    return {"kind": "attempt ended", "attempt": attempt, "reason": reason}


SUBMITTED: Raw = {"kind": "submitted"}
SUCCEEDED: Raw = {"kind": "ended", "state": "succeeded"}
FIRST = [SUBMITTED, claimed(), started(1)]
SAVED = [*FIRST, saved(2, 1, 5), saved(2, 1, 10)]
ADOPTED = claimed(adopted={"claim": 2, "attempt": 1, "step": 15})
DONE = [ended(1, "finished"), SUCCEEDED]


@pytest.mark.parametrize(
    "events",
    [
        [SUBMITTED],
        [*SAVED, *DONE],
        [*SAVED, ended(1), started(2), saved(2, 2, 20), ended(2, "finished"), SUCCEEDED],
        [*SAVED, claimed(), started(2), saved(6, 2, 20)],
        [*SAVED, ADOPTED, started(2), ended(2), started(3), saved(6, 3, 20)],
        [*FIRST, claimed(), claimed(), started(2)],
        [*FIRST, ended(1), {"kind": "ended", "state": "failed"}, claimed(), started(2)],
    ],
)
def test_what_drivers_write_is_a_trace_of_the_model(events: list[Raw]) -> None:
    """Retries, drivers that die, checkpoints that a new claim adopts."""
    assert first_impossible(events) is None


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([SUBMITTED, started(1)], 2),  # nobody had claimed the run
        ([*FIRST, started(2)], 4),  # the first attempt is running
        ([*FIRST, ended(2)], 4),
        ([*SAVED, claimed(), saved(2, 1, 20)], 7),  # by the superseded claim
        ([*SAVED, claimed(), ended(1)], 7),
        ([*SAVED, claimed(), started(2), saved(2, 1, 20)], 8),
        ([*SAVED, *DONE, claimed()], 8),  # it had succeeded
        ([*SAVED, ended(1), SUCCEEDED], 7),  # no attempt has finished
        ([*SAVED, ended(1), claimed(adopted={"claim": 2, "attempt": 2, "step": 20})], 7),
    ],
)
def test_what_the_protocol_forbids_is_none(events: list[Raw], number: int) -> None:
    """The first such event is named."""
    assert first_impossible(events) == number


def test_a_journal_on_disk_is_a_trace_until_it_is_changed(tmp_path: Path) -> None:
    """Its numbers and digests count too, and where its attempts begin."""
    run = failed_once(tmp_path)
    assert faults_of(run.path) == []
    events = run.paths.events
    third = events / "000003.json"
    third.write_bytes(third.read_bytes().replace(b'"pods":2', b'"pods":4'))
    assert faults_of(run.path) == ["event 4 did not come after event 3"]
    third.unlink()
    assert "event 3 is missing" in faults_of(run.path)


@pytest.mark.parametrize("path", sorted(JOURNALS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_journals_of_the_campaign_are_traces_of_the_model(path: Path) -> None:
    """Runs that met four faults each."""
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(events) > 5
    assert first_impossible(events) is None

"""Limits to the tick: what happens at a limit, and what beyond it."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.journal import boundary
from orchestrator.journal.heartbeat import _STARTUP_LIMIT_S
from orchestrator.journal.run_state import (
    MISSING_HEARTBEATS,
    UNCLAIMED_S,
    Observation,
    _driver_absence,
)
from orchestrator.values.goodput import _MIN_INTERVAL_S, heartbeat_interval_s
from tests.journals import CLAIM, state_after
from tests.test_journal_heartbeat import beat, watched

SILENCE_S = CLAIM.heartbeat_s * MISSING_HEARTBEATS


def test_a_driver_may_be_silent_for_exactly_its_limit() -> None:
    """By the clock of its machine or by that of the storage."""
    claimed = state_after(CLAIM)
    for seen in (
        Observation(now_s=1e6, silent_s=SILENCE_S),
        Observation(now_s=CLAIM.at_s + SILENCE_S),
    ):
        assert _driver_absence(claimed, seen) is None
    absence = _driver_absence(claimed, Observation(now_s=1e6, silent_s=SILENCE_S + 0.001))
    assert absence is not None
    assert absence.code == "driver_silent"


def test_a_run_may_wait_for_a_driver_for_exactly_its_limit() -> None:
    submitted = state_after()
    waited = Observation(now_s=submitted.submitted.at_s + UNCLAIMED_S)
    assert _driver_absence(submitted, waited) is None
    absence = _driver_absence(submitted, replace(waited, now_s=waited.now_s + 0.001))
    assert absence is not None
    assert absence.code == "unclaimed"


def test_an_attempt_may_be_without_progress_for_exactly_its_limit() -> None:
    """A rank that is silent, ranks that do no step, and no rank at all."""
    silent = watched((0.0, [beat(0), beat(1)]), (30.0, [beat(0, 30.0)]))
    assert silent.find_hang(30.0, 30.0) is None
    assert silent.find_hang(30.0, 30.001) is not None
    idle = watched((0.0, [beat(0, steps=1)]), (30.0, [beat(0, 30.0, steps=1)]))
    assert idle.find_hang(30.0, 30.0) is None
    assert idle.find_hang(30.0, 30.001) is not None
    starting = watched()
    assert starting.find_hang(30.0, _STARTUP_LIMIT_S) is None
    assert starting.find_hang(30.0, _STARTUP_LIMIT_S + 0.001) is not None


def test_a_rank_silent_since_exactly_then_counts_as_silent() -> None:
    monitor = watched((1.0, [beat(0), beat(1)]), (2.0, [beat(1, 2.0)]))
    assert [silent_rank.rank for silent_rank in monitor.silent_ranks(since_s=1.0)] == [0]
    assert [silent_rank.rank for silent_rank in monitor.silent_ranks(since_s=0.999)] == []


@pytest.mark.parametrize("ranks", [1, 99, 100])
def test_few_ranks_send_heartbeats_as_often_as_may_be(ranks: int) -> None:
    assert heartbeat_interval_s(ranks, 600.0) == _MIN_INTERVAL_S


def test_a_folder_may_have_exactly_so_many_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "_MAX_ENTRIES", 3)
    for name in "abc":
        (tmp_path / name).touch()
    assert boundary.names_in(tmp_path) == ["a", "b", "c"]
    (tmp_path / "d").touch()
    with pytest.raises(OSError, match="more than 3 entries"):
        boundary.names_in(tmp_path)


def test_a_file_may_have_exactly_so_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"abc")
    assert boundary.read_bytes(path, 3) == b"abc"
    with pytest.raises(OSError, match="larger than 2 bytes"):
        boundary.read_bytes(path, 2)

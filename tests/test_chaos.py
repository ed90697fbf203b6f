"""The campaign of faults: what it draws, how it goes on, what its table counts, and one fault."""

import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.chaos import campaign
from tests.chaos.drawn import EPISODE, draw
from tests.chaos.episode import run_episode
from tests.chaos.fault_record import FaultRecord
from tests.chaos.plain_runs import undisturbed_losses
from tests.chaos.points import Points
from tests.clusters import eventually

RECORD = FaultRecord(
    index=0, seed=0, backend="processes", name="driver killed", phase="claim",
    struck="driver killed", survived=True, identical=True, named=None, lost_s=4.0, redone=1,
    left_over=[], at="2026-11-22", commit="0123abc",
)  # fmt: skip


def test_a_number_is_always_the_same_fault() -> None:
    drawn = [draw(0, index) for index in range(campaign.FAULTS)]
    assert drawn == [draw(0, index) for index in range(campaign.FAULTS)]
    assert drawn != [draw(1, index) for index in range(campaign.FAULTS)]


def test_faults_strike_at_every_phase_alone_and_in_pairs() -> None:
    """Every process is killed and stopped."""
    drawn = [draw(0, index) for index in range(campaign.FAULTS)]
    phases = Counter(fault.phase for fault in drawn)
    expected = {"claim", "start", "compile", "step", "save", "commit", "between attempts"}
    assert phases.keys() == expected
    assert min(phases.values()) > 20
    strikes = {(strike.target, strike.how) for fault in drawn for strike in fault.strikes}
    processes = ("driver", "rank-0", "rank-1")
    assert strikes >= {(target, how) for target in processes for how in ("killed", "stopped")}
    assert sum(fault.name == "two at once" for fault in drawn) > 100


def test_a_part_goes_on_where_the_last_one_stopped() -> None:
    """Other seeds do not count."""
    done = [msgspec.structs.replace(RECORD, index=index) for index in (0, 1, 2, 3, 5)]
    assert campaign.due_episodes(done, 0, None)[0] == [4, 6, 7]
    assert campaign.due_episodes(done, 1, None)[0] == [0, 1, 2, 3]
    assert sum(map(len, campaign.due_episodes(done, 0, None))) == campaign.FAULTS - 5
    assert campaign.due_episodes(done, 0, None, first=6)[0] == [4, 6, 7]
    assert campaign.due_episodes(done, 0, None, first=8)[0] == [8, 9, 10, 11]
    on_ray = campaign.due_episodes([], 0, "ray")
    assert {campaign.backend_of(episode[0]) for episode in on_ray} == {"ray"}
    assert sum(map(len, on_ray)) == 48


def test_results_are_read_again_and_the_newest_counts(tmp_path: Path) -> None:
    lost = msgspec.structs.replace(RECORD, survived=False)
    with (tmp_path / "results.jsonl").open("wb") as file:
        file.writelines(msgspec.json.encode(record) + b"\n" for record in (lost, RECORD))
    assert campaign.known(tmp_path) == [RECORD]
    assert campaign.known(tmp_path / "nothing") == []


def test_the_table_counts_what_ran_and_what_was_lost() -> None:
    changed = msgspec.structs.replace
    bad = [
        changed(RECORD, index=1, survived=False, identical=None),
        changed(RECORD, index=2, identical=False),
        changed(RECORD, index=3, left_over=["process 7"]),
    ]
    assert [campaign.is_sound(record) for record in [RECORD, *bad]] == [True, False, False, False]
    assert campaign.row("all", [RECORD, *bad]) == (
        "all", "4", "3", "2 of 3", "", "4 median, 4 most", "1",
    )  # fmt: skip


def test_a_process_waits_at_an_armed_point_and_nowhere_else(tmp_path: Path) -> None:
    """It goes on when the campaign lets it."""
    points, passed = Points(tmp_path), threading.Event()
    points.come_to("commit", "rank-0")
    points.arm("commit", "rank-0")
    points.come_to("commit", "rank-1")
    points.come_to("save", "rank-0")
    assert points.reached() is None

    def process() -> None:
        points.come_to("commit", "rank-0")
        passed.set()

    threading.Thread(target=process).start()
    eventually(lambda: points.reached() is not None, 30)
    assert not passed.wait(0.1)
    points.disarm()
    assert passed.wait(30)


@pytest.mark.chaos
def test_an_episode_loses_nothing(tmp_path: Path) -> None:
    """Two faults on one run of plain processes."""
    folders = [tmp_path / name for name in ("undisturbed", "run")]
    for folder in folders:
        folder.mkdir()
    expected = undisturbed_losses(folders[0])
    faults = [draw(0, EPISODE), draw(0, EPISODE + 1)]
    records = run_episode(folders[1], faults, expected, 0, "")
    assert len(records) == 2
    assert all(campaign.is_sound(record) for record in records)

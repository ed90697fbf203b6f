"""What slowed a run, from the heartbeats of its ranks to its journal and to what people read."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import JournalUnwritable
from orchestrator.evidence.report import make_report
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.show.pages import page_of
from orchestrator.show.report_screen import slowdown_texts
from orchestrator.show.status_screen import status_screen
from orchestrator.values.slowdowns import HostCheck, HostTest, Slowdown, SlowHost
from tests.journals import claimed_run, tiny_plan, write_steps
from tests.test_monitor import ScriptedAttempt, beating, watched

SLOW = Slowdown(
    attempt=1, number=1, kind="level", first_step=120, last_step=None, steps=9,
    usual_s=1.0, step_s=1.9, lost_s=8.1,
)  # fmt: skip
HOST = replace(SLOW, number=2, kind="host", rank=1, part="devices", times=1.62, lost_s=40.0)
TESTS = (HostTest(name="matmul", median_s=0.01, least_s=0.009, most_s=0.02),)
NAMED = SlowHost(rank=3, slice_name="pod-1", host="tpu-7", test="matmul", seconds=0.02, times=2.0)
CHECK = HostCheck(attempt=1, hosts=4, took_s=3.0, tests=TESTS, slow=(NAMED,))


def running(storage: Path) -> Writer:
    writer = claimed_run(storage)
    writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, 1, range(130))
    return writer


def test_what_a_rank_reports_is_recorded_once_with_the_name_of_the_host(tmp_path: Path) -> None:
    with (
        watched(tmp_path, ScriptedAttempt()) as (writer, watch),
        beating(writer, 0) as rank,
        beating(writer, 1),
    ):
        nameless = replace(NAMED, rank=1, slice_name="", host="")
        rank.report_seen((SLOW, HOST), replace(CHECK, slow=(nameless,)))
        rank.start_again()  # writes
        for _ in range(2):
            watch.read_heartbeats()
        last = writer.journal.state().last
        ended = replace(SLOW, last_step=140, lost_s=18.0)
        rank.report_seen((ended, HOST))
        rank.start_again()
        watch.read_heartbeats()
    run = writer.run()
    assert writer.journal.state().last == last + 1
    assert [each.lost_s for each in run.slowdowns] == [18.0, 40.0]
    assert (run.slowdowns[1].host or "").endswith(", slice pod-1")
    [check] = run.host_checks
    assert [(slow.rank, slow.slice_name, slow.test) for slow in check.slow] == [
        (1, "pod-1", "matmul")
    ]


def test_a_full_disk_delays_the_record_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path, ScriptedAttempt()) as (writer, watch), beating(writer, 0) as rank:
        rank.report_seen((SLOW,))
        rank.start_again()

        def full(_: Slowdown) -> None:
            raise JournalUnwritable(str(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(writer, "record_slowdown", full)
            watch.read_heartbeats()
        assert writer.run().slowdowns == ()
        watch.read_heartbeats()
    assert writer.run().slowdowns == (SLOW,)


def test_an_attempt_that_is_over_records_nothing_more(tmp_path: Path) -> None:
    writer = running(tmp_path)
    writer.end_attempt("finished")
    with pytest.raises(ValueError, match="attempt 1 is not running"):
        writer.record_slowdown(SLOW)
    with pytest.raises(ValueError, match="attempt 1 is not running"):
        writer.record_host_check(CHECK)


def test_status_and_report_say_it_in_a_sentence_with_the_command_that_shows_more(
    tmp_path: Path,
) -> None:
    writer = running(tmp_path)
    for slowdown in (SLOW, replace(HOST, host="tpu-7, slice pod-1")):
        writer.record_slowdown(slowdown)
    writer.record_host_check(CHECK)
    journal = Journal(writer.journal.path)
    shown = " ".join(str(status_screen(journal.status(), "")).split())
    assert (
        "since step 121 rank 1 (tpu-7, slice pod-1) is slow: its devices took 1.62 x as long as"
        " those of the others; 1.9 s a step in place of 1 s, 40 s lost so far; 1 other slowdown:"
        f" orch logs it --storage {tmp_path} --rank 1"
    ) in shown
    assert "1 of 4 hosts slow: rank 3 (tpu-7, slice pod-1): matmul takes 2 x the median" in shown
    texts = slowdown_texts(make_report(journal))
    assert [text.split(";")[0] for text in texts[1:]] == [
        "Since step 121 steps are slow",
        "Hosts: 1 of 4 hosts slow: rank 3 (tpu-7, slice pod-1): matmul takes 2 x the median.",
    ]
    assert texts[0] in page_of(journal, None)[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "stall", "last_step": 120, "steps": 1, "step_s": 31.0, "lost_s": 30.0},
         "in step 121 a step stalled; 31 s a step in place of 1 s, 30 s lost"),
        ({"kind": "stall", "last_step": 130, "steps": 2},
         "from step 121 to 131 steps stalled; {AT}, 8.1 s lost"),
        ({"kind": "input"},
         "since step 121 steps wait for their input; {AT}, {LOST}"),
        ({"kind": "stall", "last_step": 120, "steps": 1, "rank": 2, "part": "stopped",
          "excess": 0.9},
         "in step 121 a step stalled because of rank 2: it stood still for 90 % of the time{CUT}"),
        ({"kind": "host", "rank": 2, "part": "stopped", "excess": 0.4},
         "since step 121 rank 2 is slow: it stood still for 40 % of the time; {AT}, {LOST}"),
    ],
)  # fmt: skip
def test_each_kind_has_a_sentence(changes: dict[str, object], text: str) -> None:
    slowdown = replace(SLOW, **changes)  # type: ignore[arg-type]
    assert slowdown.text == text.format(
        AT="1.9 s a step in place of 1 s",
        LOST="8.1 s lost so far",
        CUT="; 1.9 s a step in place of 1 s, 8.1 s lost",
    )


def test_a_check_of_hosts_is_a_sentence() -> None:
    alone = replace(CHECK, hosts=1, slow=())
    assert alone.text == "1 host checked in 3 s: nothing to compare it with"
    assert replace(CHECK, slow=()).text == "4 hosts checked in 3 s: none is slower than the rest"
    many = tuple(replace(NAMED, rank=rank) for rank in range(7))
    assert replace(CHECK, hosts=64, slow=many).text.endswith("; and 3 more")

"""Runs while they go on: a page that only its address opens and that brings itself up to date, and
the same on a terminal.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.evidence.report import RunReader, make_report
from orchestrator.journal.ownership import Writer
from orchestrator.journal.steps import StepLog, _encode
from orchestrator.show.charts import attempt_parts, host_strip
from orchestrator.show.pages import page_of
from orchestrator.show.report_screen import hosts_text
from orchestrator.show.watch import _top_screen, _Watch, _WatchedPage, _WatchServer
from orchestrator.values.run import TimedStep
from orchestrator.values.slowdowns import HostTimes
from tests.browser import MISSING, browser, chromium
from tests.conftest import ROOT, RunOrch
from tests.journals import claimed_run, failed_once, step, tiny_plan
from tests.records import train_steps
from tests.reports import finished_run

ORCH = str(Path(sys.executable).with_name("orch"))


def going_on(storage: Path, key: str = "it") -> tuple[Writer, int]:
    """A run in its second attempt, which has done 12 steps of 20."""
    writer = claimed_run(storage, key=key, plan=tiny_plan(), steps=20)
    train_steps(writer, range(10))
    writer.end_attempt("preemption", error="a slice is gone")
    return writer, train_steps(writer, range(5, 12))


def more_steps(writer: Writer, attempt: int, indices: range) -> None:
    """The attempt goes on."""
    with writer.journal.paths.steps(attempt).open("ab") as file:
        for index in indices:
            file.write(_encode(TimedStep(at_s=time.time(), step=step(index, loss=1.5))) + b"\n")


@contextmanager
def served(storage: Path, *runs: str) -> Iterator[tuple[_WatchedPage, str]]:
    page = _WatchedPage(_Watch(runs, storage))
    with _WatchServer(page) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield page, server.address
        finally:
            server.shutdown()


def fetch(address: str, **headers: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    try:
        asked = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_only_the_printed_address_opens_the_page(tmp_path: Path) -> None:
    """Not another token, not another name of this machine; and the page may load nothing else."""
    going_on(tmp_path)
    with served(tmp_path, "it") as (_, address):
        status, text = fetch(address)
        assert status == 200
        assert "12 of 20 steps" in text
        host, token = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/(.{32})/", address).groups()  # type: ignore[union-attr]
        assert fetch(f"http://{host}/")[0] == 403
        other = token[:-1] + ("y" if token.endswith("x") else "x")
        assert fetch(f"http://{host}/{other}/")[0] == 403
        assert fetch(f"http://{host}/{other}/parts?since=0")[0] == 403
        assert fetch(address, Host=f"evil.example:{host.partition(':')[2]}")[0] == 403
        assert fetch(f"{address}parts?since=no")[0] == 200
        assert fetch(f"{address}report-0")[0] == 200
        assert fetch(f"{address}report-1")[0] == 404
        assert fetch(f"{address}../../etc/passwd")[0] == 404
        with urllib.request.urlopen(address) as answer:
            policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert not re.findall(r'(?:src|href)="(?!report-\d)', text)


def test_only_changed_parts_are_sent(tmp_path: Path) -> None:
    """After more steps the figures come, and memory, which is as it was, does not."""
    writer, attempt = going_on(tmp_path)
    page = _WatchedPage(_Watch(["it"], tmp_path))
    first = json.loads(page.since(0))
    assert set(first["parts"]) == {
        f"r0-{name}" for name in ("head", "figures", "hosts", "steps", "time", "memory")
    }
    more_steps(writer, attempt, range(12, 14))
    page._again_at_s = 0.0
    news = json.loads(page.since(first["look"]))
    assert "14 of 20 steps" in news["parts"]["r0-head"]
    assert "r0-memory" not in news["parts"]
    assert json.loads(page.since(news["look"]))["parts"] == {}


def test_a_later_look_reads_what_a_first_one_would(tmp_path: Path) -> None:
    """Whether an attempt goes on, ends, or is followed by another."""
    writer, attempt = going_on(tmp_path)
    reader = RunReader(writer.journal, clock=lambda: 1e10)
    for change in (
        lambda: None,
        lambda: more_steps(writer, attempt, range(12, 15)),
        lambda: writer.end_attempt("failure", error="lost"),
        lambda: train_steps(writer, range(14, 20)),
        lambda: writer.end_attempt("finished"),
        lambda: writer.end_run("succeeded"),
    ):
        change()
        assert reader.read().report == make_report(writer.journal, clock=lambda: 1e10)


def test_attempts_are_drawn_as_long_as_they_took(tmp_path: Path) -> None:
    """The parts of each add up to the time until the next, and repeated steps are apart."""
    writer, _ = going_on(tmp_path)
    reading = RunReader(writer.journal).read()
    (first, _, parts), (second, start_s, _) = attempt_parts(reading)
    lasted_s = second.started_at_s - first.started_at_s
    assert start_s == lasted_s
    names = [part.name for part in parts]
    assert names[-1] == "not training"
    assert "repeated steps" in names
    goodput = reading.report.goodput
    assert goodput
    repeated_s = goodput.badput_s["wasted_progress_from_disruption"]
    assert sum(part.value for part in parts if part.name == "repeated steps") == pytest.approx(
        repeated_s
    )


def test_slow_hosts_stand_out(tmp_path: Path) -> None:
    """Of 40 processes the slowest are drawn: one by its devices, one by its Python, one stopped."""
    writer = claimed_run(tmp_path, plan=tiny_plan(), steps=200)
    number, usual = writer.start_attempt(tiny_plan()), (0.01,) * 40
    with StepLog(writer.journal.path, number) as log:
        for index in range(120):
            slow_s = 2.0 if index >= 60 else 1.0
            told = HostTimes(
                devices_s=tuple(slow_s * s if rank == 7 else s for rank, s in enumerate(usual)),
                host_s=tuple(s + 0.05 * (rank == 30) for rank, s in enumerate(usual)),
                input_s=(0.0,) * 40,
                stopped=tuple(0.3 * (rank == 31) for rank in range(40)),
            )
            hosts = told if index % 3 == 2 else None
            log.append(step(index, restored=0 if index == 0 else None, step_s=0.5, hosts=hosts))
    heat = RunReader(writer.journal).read().hosts
    assert heat
    assert (heat.hosts, len(heat.rows)) == (40, 24)
    times = {row.rank: row.times for row in heat.rows}
    assert (times[7][0], times[7][-1]) == pytest.approx((1.0, 2.0))
    assert times[30][-1] == pytest.approx(1.1)
    assert times[31][0] == pytest.approx(1.3)
    assert times[0] == pytest.approx([1.0] * len(heat.steps))
    assert "rank 7 takes 2 x as long" in hosts_text(heat)
    levels = dict(host_strip(heat).rows)
    assert [level for *_, level, _ in levels["rank 7"]] == [0, 4]
    [shown] = _Watch(["it"], tmp_path).look()
    assert "rank 7   ▁▁" in _top_screen([shown], "orch top")
    assert "Only the 24 that were slowest" in page_of(writer.journal, None)[0]
    # One process goes on, which is compared with none.
    writer.end_attempt("preemption")
    number = writer.start_attempt(tiny_plan())
    with StepLog(writer.journal.path, number) as log:
        log.append(step(120, restored=120))
    assert RunReader(writer.journal).read().hosts is None


def test_a_run_that_is_removed_says_so_and_others_go_on(tmp_path: Path) -> None:
    going_on(tmp_path, "a")
    other = failed_once(tmp_path, "b")
    watch = _Watch(["a", "b"], tmp_path)
    assert all(run.reading for run in watch.look())
    for file in sorted(other.path.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    here, gone = watch.look()
    assert here.reading
    assert gone.problem
    page = json.loads(_WatchedPage(watch).since(0))["parts"]
    assert "contains no run" in page["r1-head"]
    screen = _top_screen([here, gone], "orch top")
    assert "contains no run" in screen.replace("\n", " ")
    # The folder stays whole, so that it can be copied.
    others = [line for line in screen.splitlines() if str(tmp_path) not in line]
    assert max(map(len, others)) <= 80


@pytest.mark.skipif(chromium() is None, reason=MISSING)
def test_the_page_follows_and_stays_where_the_reader_is(tmp_path: Path) -> None:
    """New steps come; the window's place and the focused link stay; Pause stops it; and once
    nobody serves the page, it says so.
    """
    writer, attempt = going_on(tmp_path)
    with ExitStack() as stack, browser() as chrome:
        _, address = stack.enter_context(served(tmp_path, "it"))
        page = chrome.page()
        page.size(400, 700)
        page.open(address)
        page.wait("document.readyState === 'complete' && document.querySelector('.state') !== null")
        page.value("document.querySelector('#r0-head a').focus(), scrollTo(0, 600)")
        place = "document.querySelector('#r0-steps').getBoundingClientRect().top"
        before = page.value(place)
        more_steps(writer, attempt, range(12, 14))
        page.wait("document.querySelector('.state').textContent.includes('14 of 20')")
        assert page.value(place) == pytest.approx(before, abs=2)
        assert page.value("scrollY") > 400
        assert page.value("document.activeElement.textContent") == "The whole report"
        page.value("document.getElementById('pause').click()")
        more_steps(writer, attempt, range(14, 15))
        time.sleep(2.5)
        assert "14 of 20" in page.value("document.querySelector('.state').textContent")
        page.value("document.getElementById('pause').click()")
        page.wait("document.querySelector('.state').textContent.includes('15 of 20')")
        assert page.errors == []
        stack.close()
        page.wait("document.getElementById('said').textContent.includes('not served any more')")


def test_ctrl_c_ends_the_served_page_calmly(tmp_path: Path, orch_process: RunOrch) -> None:
    """The address is said at once, also into a pipe; the end is no error."""
    going_on(tmp_path)
    command = [ORCH, "report", "it", "--watch", "--storage", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = process.stdout.readline()
        assert fetch(said.split()[-1])[0] == 200
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(30) == 0
    done = orch_process("report", "it", "it", "--storage", str(tmp_path))
    assert done.returncode == 2
    assert "--watch and orch compare take several" in done.stderr.replace("\n", " ")


def test_top_is_one_snapshot_on_a_pipe(tmp_path: Path, orch_process: RunOrch) -> None:
    """Within 80 columns; without RUN the runs that go on; a run that is not there is named."""
    going_on(tmp_path, "a")
    finished_run(tmp_path, "b", plan=tiny_plan(), steps=[step(0, restored=0), step(1)])
    done = orch_process("top", "--storage", str(tmp_path))
    assert done.returncode == 0
    assert "12 of 20 steps, attempt 2" in done.stdout
    assert "attempt 1, preemption" in done.stdout
    assert "learning rate" in done.stdout
    assert max(map(len, done.stdout.partition("Next: ")[0].splitlines())) <= 80
    assert orch_process("top", "c", "--storage", str(tmp_path)).returncode == 2


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_q_and_ctrl_c_end_top_on_a_terminal(tmp_path: Path, key: bytes) -> None:
    """And the terminal is as it was."""
    going_on(tmp_path)
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    command = [ORCH, "top", "it", "--storage", str(tmp_path)]
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], cwd=ROOT, stdin=theirs, stdout=theirs,
        env=environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + 60
        while b"q ends it" not in seen and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 1 << 16)
        assert b"12 of 20 steps" in seen
        os.write(ours, key)
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    seen += os.read(ours, 1 << 16)
                except OSError:
                    break
        assert process.wait(30) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in seen
    assert b"\x1b[?1049l" in seen

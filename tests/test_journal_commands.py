"""The commands about runs, without a driver, a cluster or MLflow."""

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from orchestrator import formatting, journal
from orchestrator.journal import liveness
from orchestrator.journal.events import AttemptEnded, AttemptStarted, Ended, Pending
from orchestrator.journal.run_journal import prediction_of
from orchestrator.journal.run_state import Observation, StepSummary, build_run
from orchestrator.run import follow
from orchestrator.run.progress import Notice, Tracked
from orchestrator.show import status_screen
from orchestrator.show.machine_screens import weights_screen
from orchestrator.show.progress import Display, _tracked_text
from orchestrator.show.status_screen import next_run_command
from orchestrator.values.run import (
    EndState,
    ExportedWeights,
    RecentSteps,
    Status,
    TimedStep,
    TrackedRun,
)
from tests.conftest import HoldGolden, RunOrch
from tests.journals import (
    CLAIM,
    abandoned_run,
    claimed_run,
    failed_once,
    reason,
    run_request,
    state_after,
    step,
    tiny_plan,
    write_steps,
)

WAITING = Pending(at_s=9.0, reason=reason("4 slices of 2x2 requested", "waiting_for_slices"))
FAILED = Ended(at_s=4e3, state="failed", reason=reason("no budget is left"))
PROMISED = {"run", "state", "rehearsal", "plan_digest", "journal"}
PROMISED |= {"tracking"}


def status_of(*events: object, now_s: float = 7_600.0, **changes: object) -> Status:
    """A status made by hand."""
    steps = tuple(TimedStep(at_s=7_590.0, step=step(index, mfu=0.081)) for index in (40, 41))
    summaries = {1: StepSummary(last_steps=steps[:1]), 2: StepSummary(last_steps=steps)}
    sight = Observation(now_s=now_s, heartbeat_at_s=now_s - 1.2, steps=summaries)
    run = build_run("it-1", "/runs/it-1", state_after(CLAIM, *events), sight)  # type: ignore[arg-type]
    forecast = replace(prediction_of(tiny_plan()), chip_profile="c0ffee00" * 8)
    made = Status(**structs.asdict(run), stage=None, batch=None, forecast=forecast, outlook=None)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_an_uncalibrated_rehearsal_shows_no_expected_step() -> None:
    """Its forecast is for chips."""
    status = status_of(rehearsal=True)
    assert status.forecast is not None
    unmeasured = replace(status, forecast=replace(status.forecast, chip_profile=None))
    assert "expected" in status_screen.status_screen(status, "x")
    shown = status_screen.status_screen(unmeasured, "x")
    assert "expected" not in shown
    assert "nothing overlapped" not in shown
    assert "forecast   none: this machine is not calibrated" in shown
    real = replace(unmeasured, rehearsal=False)
    assert "expected" in status_screen.status_screen(real, "x")


def test_a_batch_that_other_pods_changed_is_shown() -> None:
    """Of a batch as requested nothing is said."""
    own = replace(tiny_plan().batch, sequences=40, requested_sequences=32)
    shown = status_screen.status_screen(status_of(batch=own), "x")
    assert "batch      40 sequences" in shown
    assert "raised 25.0 % from 32" in " ".join(shown.split())
    as_asked = replace(own, requested_sequences=40)
    assert "sequences" not in status_screen.status_screen(status_of(batch=as_asked), "x")


PLAN, SMALLER = "3f9a1c07" * 8, "80c5437d" * 8
START = AttemptStarted(at_s=10.0, attempt=1, plan_digest=PLAN, pods=4, slices=("a", "b"))
ERROR = "RuntimeError: slice a lost host 3\n  with a trace\n  of many lines"
PREEMPTED = AttemptEnded(
    at_s=3_610.0, attempt=1, reason="preemption", error=ERROR, first_dead_rank=3
)
AGAIN = AttemptStarted(at_s=3_700.0, attempt=2, plan_digest=SMALLER, pods=3, slices=("b", "c"))


# --- what is shown


def test_a_status_fits_a_screen(golden: HoldGolden) -> None:
    status = replace(
        status_of(START, PREEMPTED, AGAIN, rehearsal=True, cancel_requested_at_s=7_580.0),
        tracking=TrackedRun(tracker="mlflow", uri="sqlite:////runs/mlflow.db", run_id="0a1b"),
    )
    shown = status_screen.status_screen(status, "orch logs it-1 -f")
    golden("status_running.txt", shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_a_long_reason_is_wrapped() -> None:
    """It may have a full stop of its own."""
    text = "The actor died because its node has died, see /tmp/ray/session_latest/logs for more. "
    ended = Ended(at_s=4e3, state="failed", reason=reason(text * 2))
    run = status_of(START, PREEMPTED, ended)
    shown = status_screen.status_screen(run, "orch logs it-1")
    assert max(map(len, shown.splitlines())) <= 80
    assert ".." not in shown
    launched = status_screen.result_screen(run, tiny_plan(), "mlflow.db", "orch logs it-1")
    assert max(len(line) for line in launched.splitlines() if "why" in line) <= 80


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (4, "--no-calibrate skipped the calibration of this machine"),
        (3, "this number of pods is not calibrated"),
    ],
)
def test_a_rehearsal_result_says_why_nothing_was_expected(pods: int, expected: str) -> None:
    run = status_of(START, rehearsal=True, pods=pods, requested_pods=4)
    shown = status_screen.result_screen(run, tiny_plan(), "mlflow.db", "orch report it-1")
    assert f"expected unknown: {expected}" in shown


def test_a_rehearsal_says_its_result_first(capsys: pytest.CaptureFixture[str]) -> None:
    """And its plan in brief; a plan for chips is shown in whole."""
    plan, run = tiny_plan(), status_of(START, rehearsal=True)
    plan = replace(plan, chip_profile="0a1b2c3d" * 8)
    first, measured, *_ = status_screen.result_screen(run, plan, "", "x").splitlines()
    assert first == f"it-1: {run.state}, {run.steps_done} of {run.steps} steps"
    assert measured.startswith("measured ")
    for address, whole in ((None, False), ("http://h:8265", True)):
        display = Display()
        display(Notice("started", name="it", address=address, named_by="RAY_ADDRESS", study=None))
        display(Notice("planned", plan=plan))
        assert ("time per step" in capsys.readouterr().out) == whole


def test_a_run_that_is_not_recorded_yet_names_the_commands_that_record_and_show_it() -> None:
    run = status_of(START)
    busy = Tracked(tracker="mlflow", place="mlflow.db", problem="another process is recording it")
    text = _tracked_text(run, busy)
    assert text.startswith("not recorded yet: another process is recording it; completed by ")
    assert f"orch sync {run.run} --storage " in text
    assert ", shown by orch ui --storage " in text
    assert "orch ui" not in _tracked_text(run, structs.replace(busy, tracker="own", problem=None))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (status_of(WAITING), "  why        4 "),
        (status_of(START, now_s=9_000.0, driver=None), "step time  250 ms over the last 2; "),
        (status_of(START, forecast=None), "  MFU        8.1 %\n"),
        (status_of(START, recent=None), "  MFU        not measured; expected"),
        (status_of(START, PREEMPTED, FAILED),
         "Run: failed, MFU 8.1 %, 1 attempt, no budget is left.\n"),
        (status_of(START, problems=("events/x: is none of the journal's",)),
         "\nwarning: events/x: is none of the journal's\n"),
        (status_of(Ended(at_s=4e3, state="succeeded")), "Run: succeeded, MFU 8.1 %, 0 attempts."),
    ],
)  # fmt: skip
def test_a_status_shows_what_is_known(status: Status, expected: str) -> None:
    assert expected in status_screen.status_screen(status, "orch logs it-1")


@pytest.mark.parametrize(
    ("value_s", "expected"),
    [(0.0, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (185.0, "3 min 5 s"), (3_600.0, "1 h"),
     (7_205.0, "2 h"), (93_600.0, "1 d 2 h"), (86_400.0 * 400, "400 d")],
)  # fmt: skip
def test_elapsed_time_has_two_units(value_s: float, expected: str) -> None:
    assert formatting.elapsed(value_s) == expected


def test_runs_are_shown_as_a_table(golden: HoldGolden) -> None:
    runs = [
        status_of(START, PREEMPTED, AGAIN, run="llama3-70b-4pod-3f9a1c07-2", steps=1_000_000),
        status_of(START, rehearsal=True, recent=None),
        status_of(recent=RecentSteps(steps=1, step_s=1.0, mfu=None, tokens_per_s_per_chip=None)),
    ]
    golden("runs.txt", status_screen.runs_screen(list(runs), Path("runs")))


def test_a_narrow_terminal_shows_whole_keys_and_fewer_columns() -> None:
    key = "llama3-70b-4pod-study-dc20c392-trial-3.1"
    running = status_of(START, run=key, rehearsal=True)
    shown = status_screen.runs_screen([running, status_of(run="first")], Path("runs"))
    for width in (70, 80, 120):
        head, row, *_ = shown.on_terminal(width, styled=False).splitlines()
        assert row.startswith(f"{key} ")
        assert row.endswith(" rehearsal")
        assert len(row) <= width
        assert ("PODS" in head) == (width == 120)


# --- commands


def test_orch_runs_lists_the_newest_first(orch: RunOrch, tmp_path: Path) -> None:
    """On the screen and as JSON; an empty storage is no error."""
    empty = orch("runs", "--storage", str(tmp_path / "none"))
    assert (empty.returncode, empty.stderr) == (0, "")
    assert empty.stdout.startswith("No runs in ")
    for key in ("older", "newer"):
        journal.create_run(tmp_path, run_request(rehearsal=True), key)
    (tmp_path / "broken" / "events").mkdir(parents=True)
    table = orch("runs", "--storage", str(tmp_path))
    *rows, _, following = table.stdout.splitlines()
    assert [line.split()[0] for line in rows] == ["RUN", "newer", "older"]
    assert following == f"Next: orch status newer --storage {tmp_path}"
    assert "warning: " in table.stderr
    assert "broken: contains no run" in table.stderr
    listed = json.loads(orch("runs", "--storage", str(tmp_path), "--json").stdout)
    assert [run["run"] for run in listed] == ["newer", "older"]
    assert all(run.keys() >= PROMISED for run in listed)


def test_the_default_storage_is_runs(orch: RunOrch, tmp_path: Path) -> None:
    claimed_run(tmp_path / "runs")
    assert "starting" in orch("runs", cwd=tmp_path).stdout
    shown = orch("status", "it", cwd=tmp_path).stdout
    assert shown.splitlines()[-1] == "Next: orch logs it -f"


def test_orch_status_finds_a_run_by_key_prefix_or_path(orch: RunOrch, tmp_path: Path) -> None:
    """The next command can be typed as shown."""
    run_journal = failed_once(tmp_path, "llama-1")
    ahead_s = liveness.uptime_s() + 3_600  # the commands may take longer than missing heartbeats
    run_journal.paths.driver_heartbeat(2).write_text(f"{ahead_s}")
    journal.track(run_journal, TrackedRun(tracker="mlflow", uri="sqlite:////m.db", run_id="7"))
    for wanted in ("llama-1", "ll", str(run_journal.path)):
        done = orch("status", wanted, "--storage", str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("llama-1: running")
        assert done.stdout.endswith(f"Next: orch logs {wanted} --storage {tmp_path} -f\n")
    output = json.loads(orch("status", str(run_journal.path), "--json").stdout)
    assert output.keys() >= PROMISED | {"forecast"}
    assert (output["state"], output["tracking"]["run_id"]) == ("running", "7")
    assert [attempt["reason"] for attempt in output["attempts"]] == ["failure", None]


@pytest.mark.parametrize(
    ("state", "steps", "log", "following"),
    [
        ("succeeded", 3, "", "orch report it"),
        ("cancelled", 3, "a line\n", "orch resume it"),
        ("cancelled", 0, "a line\n", "orch resume it"),
        ("failed", 3, "a line\n", "orch resume it"),
        ("failed", 0, "a line\n", "orch logs it"),
        ("failed", 0, "", "orch doctor"),
    ],
)
def test_the_next_command_depends_on_the_state(
    tmp_path: Path, state: EndState, steps: int, log: str, following: str
) -> None:
    """What failed before its first step is looked at, not resumed: it would fail so again."""
    writer = claimed_run(tmp_path)
    write_steps(writer.journal.path, writer.start_attempt(tiny_plan()), range(steps))
    writer.journal.paths.driver_log(2).write_text(log)
    writer.end_attempt("cancelled")
    writer.end_run(state)
    command = following + f" --storage {tmp_path}" * following.endswith("it")
    assert next_run_command(writer.run(), "it", tmp_path) == command


@pytest.mark.parametrize("command", ["status", "logs", "report", "cancel", "resume"])
def test_without_a_name_the_newest_run_is_meant_and_named(
    orch: RunOrch, tmp_path: Path, command: str
) -> None:
    """To cancel it is the newest that goes on; nothing is removed without a name."""
    at = ("--storage", str(tmp_path))
    assert orch("rm", *at).returncode == 2
    assert f"no run in {tmp_path}; there are no runs yet" in orch(command, *at).stderr
    for key in ("older", "newer"):
        claimed_run(tmp_path, key=key)
    first, *_ = orch(command, *at).stderr.splitlines()
    assert first == f"newest run{' that goes on' * (command == 'cancel')}: newer"


def test_a_status_is_followed_to_the_end_of_the_run(
    orch: RunOrch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are shown as they come, and then how it ended."""
    writer = claimed_run(tmp_path)
    attempt = writer.start_attempt(tiny_plan())

    def go_on(_: float) -> None:
        write_steps(writer.journal.path, attempt, range(3))
        writer.end_attempt("finished")
        writer.end_run("succeeded")

    monkeypatch.setattr(follow, "time", SimpleNamespace(sleep=go_on))
    done = orch("status", "it", "-f", "--storage", str(tmp_path))
    assert done.returncode == 0
    assert "step   1 of 100" in done.stdout
    assert done.stdout.index("step   1 of 100") < done.stdout.index("it: succeeded")


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "rm"])
def test_an_unknown_run_is_an_error(orch: RunOrch, tmp_path: Path, command: str) -> None:
    """It exits with 2 and lists the known runs."""
    journal.create_run(tmp_path, run_request(), "only-1")
    done = orch(command, "other", "--storage", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    what = "run" if command == "logs" else "run or study"
    message, following = done.stderr.splitlines()
    assert message == f"error: no {what} in {tmp_path} begins with 'other'; known: only-1"
    assert following == f"Next: orch runs --storage {tmp_path}"


@pytest.mark.parametrize("command", ["runs", "status", "logs", "cancel", "rm"])
def test_each_command_has_an_example(orch: RunOrch, command: str) -> None:
    done = orch(command, "--help")
    assert done.returncode == 0
    assert f"orch {command}" in done.stdout.split("Example:")[1]


def test_orch_cancel_leaves_a_request(orch: RunOrch, tmp_path: Path) -> None:
    """The driver reads it; a second request is reported as such."""
    writer = claimed_run(tmp_path)
    done = orch("cancel", "it", "--storage", str(tmp_path))
    assert done.returncode == 0
    first, *effect, following = done.stdout.splitlines()
    assert first == "it: stop requested."
    text = " ".join(line.strip() for line in effect)
    assert text.startswith(f"Its driver (process {os.getpid()} on ")
    assert text.endswith("finishes the current step, saves a checkpoint and stops.")
    assert following == f"Next: orch status it --storage {tmp_path}"
    request = writer.heartbeat()
    assert request is not None
    assert not request.at_once
    again = orch("cancel", "it", "--now", "--storage", str(tmp_path))
    assert "it: stop requested, at once. A stop was requested " in again.stdout
    assert "steps since the last checkpoint are lost" in " ".join(again.stdout.split())
    request = writer.heartbeat()
    assert request is not None
    assert request.at_once


def test_orch_cancel_without_a_driver(orch: RunOrch, tmp_path: Path) -> None:
    """Before the driver comes, when it is gone, and when the run has ended."""
    storage = ("--storage", str(tmp_path))
    journal.create_run(tmp_path, run_request(), "waiting")
    assert "will stop before it takes a chip" in orch("cancel", "waiting", *storage).stdout
    abandoned_run(tmp_path, "orphan")
    done = orch("cancel", "orphan", *storage)
    assert "No driver runs it any more: its driver (process " in done.stdout
    output = json.loads(orch("status", "orphan", *storage, "--json").stdout)
    assert output["state"] == "cancelled"
    ended = claimed_run(tmp_path, key="ended")
    ended.end_run("succeeded")
    done = orch("cancel", "ended", *storage)
    assert "already succeeded. Nothing was requested." in done.stdout
    assert json.loads(orch("cancel", "ended", *storage, "--json").stdout)["state"] == "succeeded"
    assert list(ended.journal.paths.requests.iterdir()) == []


def test_orch_rm_asks_and_removes(orch: RunOrch, tmp_path: Path) -> None:
    """It refuses a live run, and needs `--yes` where nobody can answer."""
    storage = ("--storage", str(tmp_path))
    writer = claimed_run(tmp_path)
    refused = orch("rm", "it", *storage, "--yes")
    assert refused.returncode == 1
    assert (
        refused.stderr == f"error: run it is starting\nNext: orch cancel it {' '.join(storage)}\n"
    )
    writer.end_run("failed")
    unasked = orch("rm", "it", *storage)
    assert unasked.returncode == 2
    assert unasked.stderr.endswith(
        f"needs --yes where nobody can answer\nNext: orch rm it {' '.join(storage)} --yes\n"
    )
    assert writer.journal.path.exists()
    removed = orch("rm", "it", *storage, "--yes", "--json")
    assert json.loads(removed.stdout)["removed"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 1), (b"y\n", 0)])
def test_orch_rm_obeys_the_answer(tmp_path: Path, answer: bytes, left: int) -> None:
    """No keeps the run and exits with 130."""
    claimed_run(tmp_path).end_run("failed")
    leader, follower = pty.openpty()
    orch_path = str(Path(sys.executable).with_name("orch"))
    command = [orch_path, "rm", "it", "--storage", str(tmp_path)]
    with subprocess.Popen(
        command, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asking:
        os.write(leader, answer)
        _, question = asking.communicate(timeout=60)
    os.close(leader)
    os.close(follower)
    assert b"Remove it (failed, 0 steps), its journal, logs and checkpoints in " in question
    assert asking.returncode == (130 if left else 0)
    assert len(list(tmp_path.iterdir())) == left


def test_the_screen_of_exported_weights_ends_its_last_line() -> None:
    weights = ExportedWeights(
        folder="weights", model="llama-tiny", architecture="LlamaForCausalLM", step=64,
        dtype="fp32", parameters=918_656, files=1,
    )  # fmt: skip
    assert weights_screen(weights).endswith("# LlamaForCausalLM\n")

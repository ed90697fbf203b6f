"""The command line as a person meets it: what is printed where, and how it ends."""

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
from click import Context
from click.shell_completion import ShellComplete

from orchestrator.cli import orch as orch_commands
from orchestrator.show.terminal import telling_of
from tests.conftest import ROOT, RunOrch

FOUR_PODS = "specs/llama3_70b_4pod.yaml"
TINY = "specs/tiny_2pod.yaml"
SLOW = "planning: every mesh of these slices is priced\n"  # said on a machine that is busy


def test_plan_ends_with_the_verdict_and_the_next_command(orch: RunOrch) -> None:
    """The last lines say what to think and what to do; nothing is on stderr."""
    done = orch("plan", FOUR_PODS)
    assert done.returncode == 0
    assert done.stderr.removeprefix(SLOW) == ""
    verdict, *_, next_command = done.stdout[done.stdout.rindex("\n\n") + 2 :].splitlines()
    assert verdict.startswith("Plan: fits, bound by")
    assert next_command == f"Next: orch explain {FOUR_PODS}"


def test_what_takes_long_is_said_while_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan of seconds says what it does; a quick one nothing."""
    with telling_of("planning", after_s=3600.0):
        pass
    assert capsys.readouterr().err == ""
    said = threading.Event()
    echo = mock.patch("orchestrator.show.terminal.echo", side_effect=lambda *_, **__: said.set())
    with echo, telling_of("planning", after_s=0.0):
        assert said.wait(60)


def test_the_next_command_keeps_the_overrides(orch: RunOrch) -> None:
    """What is proposed is about the same spec, quoted for a shell."""
    done = orch("plan", FOUR_PODS, "--set", "resources.mesh={tensor: 8}")
    assert done.stdout.splitlines()[-1].endswith(
        f"{FOUR_PODS} --set 'resources.mesh={{tensor: 8}}'"
    )
    assert "set    resources.mesh={tensor: 8}" in done.stdout


def test_json_is_the_plan_and_nothing_else(orch: RunOrch) -> None:
    """A script can parse all of stdout; with alternatives it is a list."""
    assert json.loads(orch("plan", FOUR_PODS, "--json").stdout)["chips"] == 35_840
    several = json.loads(orch("plan", FOUR_PODS, "--json", "--alternatives", "2").stdout)
    assert len(several) == 3


def test_the_order_of_keys_in_a_file_does_not_matter(orch: RunOrch, tmp_path: Path) -> None:
    """The same spec written the other way round is the same plan, byte for byte."""
    first = tmp_path / "a.yaml"
    first.write_text(
        "name: a\n"
        "experiment: {model: llama3-8b, tokens: 1T, batch: {sequences: 64, length: 4096}}\n"
        "resources: {chip: v5e, topology: 16x16}\n"
    )
    other = tmp_path / "b.yaml"
    other.write_text(
        "resources: {topology: 16x16, chip: v5e}\n"
        "experiment: {batch: {length: 4096, sequences: 64}, tokens: 1e12, model: llama3-8b}\n"
        "name: a\n"
    )
    one, two = (orch("plan", str(path), "--json") for path in (first, other))
    assert one.returncode == 0, one.stderr
    assert one.stdout == two.stdout


def test_what_cannot_be_served_is_one_message_on_stderr(orch: RunOrch) -> None:
    """Exit 2, the arithmetic, no traceback, nothing on stdout."""
    done = orch("plan", FOUR_PODS, "--set", "experiment.batch.tolerance=0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no realizable plan" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["plan", "explain", "submit"])
def test_a_missing_file_is_said_plainly(orch: RunOrch, command: str) -> None:
    """Every command that reads a spec says the same."""
    done = orch(command, "nowhere.yaml")
    assert done.returncode == 2
    assert "nowhere.yaml: cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("typed", "message", "following"),
    [
        (("diff", "a", "b"), "`orch plan` does that", "orch plan --help"),
        (("watch", "a"), "`orch top` does that", "orch top --help"),
        (("plan", "first"), "first: cannot be read", "orch init first.yaml"),
        (("explain", TINY, "--set", "resources.topology=auto"), "is auto", f"orch plan {TINY}"),
    ],
)
def test_what_is_typed_amiss_leads_to_what_is_meant(
    orch: RunOrch, typed: tuple[str, ...], message: str, following: str
) -> None:
    """Commands of other programs, a run's name for a spec, a spec without slices."""
    done = orch(*typed)
    assert message in done.stderr
    assert done.stderr.endswith(f"Next: {following}\n")


def test_a_named_cluster_is_an_error_and_never_a_rehearsal(
    orch: RunOrch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the name comes from, the message says where, and no run is made."""
    stored = ("--no-prove", "--yes", "--set", f"run.storage={tmp_path}")
    by_flag = orch("submit", FOUR_PODS, *stored, "--address", "127.0.0.1:1")
    by_spec = orch("submit", FOUR_PODS, *stored, "--set", "cluster.address=127.0.0.1:2")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:3")
    by_shell = orch("submit", FOUR_PODS, *stored)
    for done, address, place in (
        (by_flag, "127.0.0.1:1", "--address"),
        (by_spec, "127.0.0.1:2", "cluster.address"),
        (by_shell, "127.0.0.1:3", "RAY_ADDRESS"),
    ):
        assert done.returncode == 1
        assert f"a run on the cluster {address}, from {place}." in done.stdout
        assert f"{address}: nothing answers on port" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_chips_are_not_taken_unasked(orch: RunOrch, tmp_path: Path) -> None:
    """Where nobody can be asked, a run on a named cluster needs --yes; nothing is contacted."""
    stored = ("--set", f"run.storage={tmp_path}")
    done = orch("submit", FOUR_PODS, "--address", "127.0.0.1:1", *stored)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs --yes where nobody can be asked" in done.stderr
    assert done.stderr.endswith(" --yes\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--detach",), "no cluster is named, and a rehearsal ends with this command"),
        (
            ("--address", "a:1", "--devices-per-pod", "4"),
            "--devices-per-pod is for rehearsals",
        ),
        (("--address", "somewhere", "--yes"), "'somewhere' is not the address of a cluster"),
    ],
)
def test_what_makes_no_sense_is_refused(
    orch: RunOrch, arguments: tuple[str, ...], said: str
) -> None:
    """Options of the one kind of run are not ignored by the other."""
    done = orch("submit", FOUR_PODS, "--no-prove", *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr


@pytest.mark.parametrize("named", [TINY, "specs/studies/tiny_weak.yaml"])
def test_a_storage_that_takes_no_run_is_said_before_anything_takes_long(
    orch: RunOrch, tmp_path: Path, named: str
) -> None:
    """In one line that names it as it was written; nothing is shown, and nothing is left there."""
    (tmp_path / "file").write_text("in the way")
    for storage, there in (
        ("/proc/x", "/proc: "),
        (f"{tmp_path}/file", f"{tmp_path}/file: "),
        (f"{tmp_path}/file/runs/", f"{tmp_path}/file: "),
    ):
        done = orch("submit", named, "--set", f"run.storage={storage}")
        assert (done.returncode, done.stdout) == (1, "")
        why = f"runs cannot be stored there: {there[:-2]} is not writable: "
        assert done.stderr.startswith(f"error: run.storage: {storage.rstrip('/')}: {why}")
        assert len(done.stderr.splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_for_the_program_is_said(orch: RunOrch) -> None:
    """Before anything is compiled."""
    done = orch("prove", TINY, "--hlo", "/proc/x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: --hlo: /proc/x: cannot be made: No such file or directory\n"
    )


@pytest.mark.parametrize("steps", ["5", "5:5", "7:5", "a:b", "-1:3"])
def test_steps_to_trace_are_a_range(orch: RunOrch, steps: str) -> None:
    """Anything else is refused with a legal value before anything is planned."""
    done = orch("submit", FOUR_PODS, f"--profile={steps}")
    assert done.returncode == 2
    assert "must be A:B with A below B, for example 10:13" in done.stderr


def test_init_writes_what_plans_and_never_overwrites(orch: RunOrch, tmp_path: Path) -> None:
    """From nothing to a plan in two commands."""
    path = tmp_path / "first-run.yaml"
    assert orch("init", str(path)).returncode == 0
    written = path.read_text()
    assert orch("plan", str(path)).returncode == 0
    schema = written.splitlines()[0].split("$schema=")[1]
    assert json.loads((tmp_path / schema).read_text()) == json.loads(orch("schema").stdout)
    again = orch("init", str(path))
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert path.read_text() == written


def test_init_into_a_missing_folder_is_said_plainly(orch: RunOrch, tmp_path: Path) -> None:
    """No traceback for what the file system refuses."""
    done = orch("init", str(tmp_path / "none" / "a.yaml"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_schema_is_json(orch: RunOrch) -> None:
    """What editors read is what validates."""
    assert json.loads(orch("schema").stdout)["$schema"].endswith("2020-12/schema")


@pytest.mark.parametrize("command", ["init", "schema", "plan", "explain", "submit"])
def test_each_command_shows_an_example(orch: RunOrch, command: str) -> None:
    """Help that can be copied."""
    done = orch(command, "--help")
    assert done.returncode == 0
    assert f"orch {command}" in done.stdout.split("Example:")[1]


def test_a_reader_that_stops_early_is_no_error() -> None:
    """`orch plan … | head -1` ends quietly."""
    orch_path = Path(sys.executable).with_name("orch")
    done = subprocess.run(
        f"{orch_path} plan {FOUR_PODS} --json | head -1",
        shell=True, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "{\n"
    assert done.stderr.removeprefix(SLOW) == ""


def on_a_terminal(**environment: str) -> str:
    """What `orch plan` writes when its output is a terminal."""
    leader, follower = pty.openpty()
    shown = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | environment
    process = subprocess.Popen(
        [Path(sys.executable).with_name("orch"), "plan", FOUR_PODS],
        cwd=ROOT, stdout=follower, stderr=follower, env=shown,
    )  # fmt: skip
    os.close(follower)
    output = b""
    while chunk := read(leader):
        output += chunk
    os.close(leader)
    assert process.wait() == 0
    return output.decode()


def read(leader: int) -> bytes:
    """The next bytes; a closed terminal reads as an error on Linux."""
    try:
        return os.read(leader, 65536)
    except OSError:
        return b""


def test_colour_is_for_terminals_that_want_it() -> None:
    """Warnings are yellow on a terminal, and plain under NO_COLOR or on one that has none."""
    assert "\x1b[33m" in on_a_terminal(TERM="xterm")
    assert "\x1b" not in on_a_terminal(NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(TERM="dumb")


def test_help_says_each_command_in_a_line_that_is_not_cut() -> None:
    """In a sentence that a terminal has room for."""
    names = orch_commands.list_commands(Context(orch_commands))
    commands = {name: orch_commands.get_command(Context(orch_commands), name) for name in names}
    short = {name: one.get_short_help_str(300) for name, one in commands.items() if one}
    assert len(short) == len(names)
    assert {name: text for name, text in short.items() if len(text) > 55} == {}


@pytest.mark.parametrize("command", [(), ("data",), ("export",)])
def test_a_group_alone_shows_its_help_and_is_no_error(
    orch: RunOrch, command: tuple[str, ...]
) -> None:
    """Only its exit code says that nothing was done."""
    done = orch(*command)
    assert done.returncode == 2
    assert done.stderr == orch(*command, "--help").stdout


def test_commands_stand_below_what_they_are_about(orch: RunOrch) -> None:
    """Each once, in a whole line of a screen; the shell completes all of them."""
    shown = orch("--help").stdout
    listing = shown[shown.index("Plan:\n") :]
    assert "..." not in listing
    lines = listing.splitlines()
    assert [line for line in lines if line[:1].strip()] == ["Plan:", "Run:", "Look:", "Machine:"]
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert listed == orch_commands.list_commands(Context(orch_commands))
    assert max(map(len, shown.splitlines())) <= 80
    completed = ShellComplete(orch_commands, {}, "orch", "_ORCH_COMPLETE").get_completions([], "")
    assert [completion.value for completion in completed] == listed


@pytest.mark.parametrize(
    ("output", "why"), [(">&-", "it is closed"), ("> /dev/full", "No space left on device")]
)
def test_an_output_that_takes_nothing_is_said(output: str, why: str) -> None:
    """In one line, and the exit code tells a script."""
    command = f"{Path(sys.executable).with_name('orch')} schema {output}"
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"error: standard output: nothing more can be written there: {why}\n"


@pytest.mark.parametrize("option", [("--html", "x.html"), ("--hlo", "x"), ("--search-remat",)])
def test_what_is_written_about_a_proof_is_about_one(orch: RunOrch, option: tuple[str, ...]) -> None:
    """Two programs side by side have no page and no text of their own."""
    refused = orch("prove", FOUR_PODS, FOUR_PODS, *option, "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["code"] == "usage"


def test_commands_parse_call_and_print() -> None:
    """What they decide is in the API, which a notebook has too."""
    files = (ROOT / "orchestrator" / "cli").glob("*.py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) < 1700


def test_a_trainer_that_is_not_there_is_refused_before_it_is_compiled(orch: RunOrch) -> None:
    """--trainer is run.trainer of the spec."""
    refused = orch("prove", FOUR_PODS, "--trainer", "nowhere.at:all")
    assert refused.returncode == 2
    assert "run.trainer" in refused.stderr

"""The compile process: its environment, its answers, its end, and its failures."""

import json
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.catalog.chips import table
from orchestrator.errors import ProofUnavailable, SpecError
from orchestrator.processes import _STACK_BYTES, _STACK_FLAG, deepen_compiler_stacks
from orchestrator.proving import compiler, verdict
from orchestrator.proving.compiled import CompileFailure, CompileRequest, CompileResult
from orchestrator.proving.compiler import _environment
from orchestrator.proving.platforms import platform_of
from orchestrator.values import codec
from orchestrator.values.program import AnyPlan
from tests.trainer_plans import plan_of

REQUEST = CompileRequest(plan="{}", topology="", topology_options={}, rates=None)
FAILED = codec.to_json(CompileResult(failure=CompileFailure(message="no", by="compiler"))).decode()
Fake = Callable[[str], None]


def _target(plan: AnyPlan) -> tuple[str, dict[str, Any]]:
    return platform_of(plan).target(plan)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put another program in the compiler's place."""

    def put(text: str) -> None:
        monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-c", text))

    return put


def answering(text: str = "") -> str:
    """A process that reads the request, does something, and answers."""
    message = json.dumps({"result": FAILED})
    return f"import sys, os, time\nsys.stdin.readline()\n{text}\nprint({message!r}, flush=True)"


# --- environment


def test_settings_of_the_shell_do_not_reach_the_compiler() -> None:
    """What steers jax, XLA, libtpu or a cluster is left out; the rest stays."""
    shell = {"PATH": "/bin", "HOME": "/home/me", "XLA_FLAGS": "--x", "JAX_ENABLE_X64": "1"}
    shell |= {"TPU_NAME": "mine", "MEGASCALE_SLICE_ID": "3", "LIBTPU_INIT_ARGS": "--y"}
    made = _environment(shell)
    assert made["PATH"] == "/bin"
    assert made["ALLOW_MULTIPLE_LIBTPU_LOAD"] == made["TPU_SKIP_MDS_QUERY"] == "1"
    assert not {"XLA_FLAGS", "TPU_NAME", "MEGASCALE_SLICE_ID"} & made.keys()
    assert made["LIBTPU_INIT_ARGS"] == f"{_STACK_FLAG}={_STACK_BYTES}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--y", f"--y {_STACK_FLAG}={_STACK_BYTES}"),
        (f"{_STACK_FLAG}=1 --y", f"{_STACK_FLAG}=1 --y"),
    ],
)
def test_the_compiler_of_a_run_has_the_same_stacks(before: str, after: str) -> None:
    """Beside what people set, and not where they chose the size."""
    variables = {"LIBTPU_INIT_ARGS": before}
    deepen_compiler_stacks(variables)
    assert variables == {"LIBTPU_INIT_ARGS": after}


@pytest.mark.parametrize(
    ("chip", "topology", "pods", "name", "options"),
    [
        ("v5p", "4x4x4", 1, "v5:4x4x4", {"chip_config_name": "megacore"}),
        ("v4", "4x4x4", 2, "v4:4x4x4", {"chip_config_name": "megacore", "num_slices": 2}),
        ("v5e", "8x8", 4, "v5e:8x8", {"num_slices": 4}),
        ("v6e", "16x16", 1, "v6e:16x16", {}),
        ("tpu7x", "4x4x8", 1, "tpu7x:4x4x8", {}),
    ],
)
def test_every_tpu_has_its_name_with_the_compiler(
    chip: str, topology: str, pods: int, name: str, options: dict[str, object]
) -> None:
    """Chips that would come as two devices are asked for as one."""
    assert _target(plan_of(chip=chip, topology=topology, pods=pods, data=4)) == (name, options)


def test_a_slice_of_one_chip_has_a_host_of_one_chip() -> None:
    """Hosts would have four."""
    alone = plan_of(chip="v6e", topology="1x1", pods=1)
    assert _target(alone) == ("v6e:1x1", {"chips_per_host_bounds": [1, 1, 1]})


def test_other_chips_have_no_proof() -> None:
    """The error says what has one, and how to go on."""
    plan = plan_of(chip="h100", topology="8")
    unnamed = {key: value for key, value in table("chips/h100.toml").items() if key != "xla_gpu"}
    with pytest.raises(ProofUnavailable, match=r"know a100, .*, and no mine\n.*--no-prove"):
        _target(replace(plan, chip="mine", chip_definition=unnamed))


@pytest.mark.parametrize(
    ("chip", "topology", "pods", "shape", "capability"),
    [
        ("h100", "8", 2, "2x1x8", "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES"),
        ("gb200", "64", 2, "2x16x4", "major: 10 minor: 0 feature_extension: ACCELERATED_FEATURES"),
        ("b300", "8", 1, "1x1x8", "major: 10 minor: 3 feature_extension: ACCELERATED_FEATURES"),
        ("a100", "4", 1, "1x1x4", "major: 8 minor: 0 }"),
    ],
)
def test_gpus_are_described_to_the_compiler(
    chip: str, topology: str, pods: int, shape: str, capability: str
) -> None:
    """Domains, hosts and GPUs; and the memory that CUDA reports, of which 0.92 is usable."""
    plan = plan_of(chip=chip, topology=topology, pods=pods, data=int(topology))
    name, options = _target(plan)
    assert (name, options["topology"]) == ("", shape)
    text = options["target_config"]
    assert capability in " ".join(text.split())
    memory = re.search(r"device_memory_size: (\d+)", text)
    assert memory
    usable = catalog.chip(chip).hbm_usable_bytes.value
    assert float(memory[1]) * 0.92 == pytest.approx(usable)


# --- the process


def test_the_answer_and_the_stages_arrive(fake: Fake) -> None:
    """Stages in order, then the answer; what the process writes to stderr is not shown."""
    stage = json.dumps({"stage": "compiling"})
    fake(answering(f"print({stage!r}, flush=True); sys.stderr.write('noise')"))
    stages: list[str] = []
    answer = compiler.compile_plan(REQUEST, stages.append)
    assert answer.failure is not None
    assert (answer.failure.message, stages) == ("no", ["compiling"])


def test_the_failure_of_a_process_that_dies_has_its_stderr(fake: Fake) -> None:
    """Its exit code, and what it wrote."""
    fake("import os, sys; sys.stderr.write('F1120 check'); sys.stderr.flush(); os.abort()")
    answer = compiler.compile_plan(REQUEST, lambda _: None)
    assert answer.failure is not None
    assert answer.failure.exit_code == -signal.SIGABRT
    assert "F1120 check" in answer.failure.message


def test_so_has_that_of_one_that_dies_before_it_is_asked(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the request."""
    written = codec.to_json

    def once_it_is_dead(request: CompileRequest) -> bytes:
        [process] = compiler._running
        process.wait()
        return written(request)

    fake("import sys; sys.exit('no jax here')")
    monkeypatch.setattr(codec, "to_json", once_it_is_dead)
    answer = compiler.compile_plan(REQUEST, lambda _: None)
    assert answer.failure is not None
    assert (answer.failure.exit_code, answer.failure.message) == (1, "no jax here\n")


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(true: Callable[[], bool], timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


LINGERS = """
child = __import__("subprocess").Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({pids!r}, "w").write(f"{{os.getpid()}} {{child.pid}} ")
print({stage!r}, flush=True)
time.sleep(600)
"""


def lingering(tmp_path: Path) -> tuple[str, Path]:
    pids = tmp_path / "pids"
    return answering(LINGERS.format(pids=str(pids), stage=json.dumps({"stage": "begun"}))), pids


def test_an_interruption_leaves_nothing_behind(fake: Fake, tmp_path: Path) -> None:
    """Neither the child nor what it started."""
    text, pids = lingering(tmp_path)
    fake(text)

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiler.compile_plan(REQUEST, interrupt)
    left = [int(pid) for pid in pids.read_text(encoding="ascii").split()]
    assert len(left) == 2
    assert wait_until(lambda: not any(map(alive, left)))


def test_several_at_once_do_not_meet(fake: Fake) -> None:
    """Each has its own process and its own answer."""
    fake(answering("time.sleep(0.2)"))
    with ThreadPoolExecutor(4) as several:
        answers = list(
            several.map(lambda _: compiler.compile_plan(REQUEST, lambda _: None), range(4))
        )
    assert [answer.failure is not None for answer in answers] == [True] * 4


ASKS = """
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-m", "orchestrator.proving.compile_process"],
    stdin=subprocess.PIPE,
    start_new_session=True,
)
child.stdin.write(b'{"plan": "{}"}')
child.stdin.flush()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_real_child_ends_with_its_parent() -> None:
    """Killed outright, the parent cannot clean up: the child sees its input close."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ASKS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not alive(child), 60)


# --- failures

PLAN = plan_of(chip="v5p", topology="4x4x4")
ABORTED = """I1120 14:00:00.000000   12 init.cc:3] hello
F1120 14:00:01.123456   77 spmd_partitioner.cc:1234] Check failed: shape.rank() == 2 (3 vs. 2)
%gather.3 = f32[8]{0} gather(...), metadata={op_name="jit(_step)/block/gather"}
*** Check failure stack trace: ***
    @     0x7f4d0b60cfd3  (unknown)
"""


# What libtpu 0.0.42.1 wrote of a shard_map that is manual over pods alone; no operation is named.
ABORTED_IN_A_PASS = """\
F1120 17:50:19.434210   15236 spmd_partitioner_util.cc:497] Check failed: \
group_list.num_replica_groups() == device_groups.num_devices_per_group()
*** Check failure stack trace: ***
    @     0x7fbe466d63df  xla::spmd::(anonymous namespace)::ExpandDeviceGroupsWithIota()
    @     0x7fbe4662d062  xla::spmd::SpmdPartitioningVisitor::HandleGather()
    @     0x7fbe4829689e  xla::PostOrderDFS<>()
"""


def error_text(message: str, exit_code: int | None = None) -> str:
    failure = CompileFailure(message=message, by="compiler", exit_code=exit_code)
    return str(compiler.error_of(PLAN, failure))


def test_an_abort_names_the_check_and_the_operation() -> None:
    """Not the C++ trace around it."""
    text = error_text(ABORTED, -signal.SIGABRT)
    assert "spmd_partitioner.cc:1234: Check failed: shape.rank() == 2 (3 vs. 2)" in text
    assert "at the operation jit(_step)/block/gather" in text
    assert "0x7f4d" not in text


def test_an_abort_in_a_pass_names_the_kind_of_operation() -> None:
    """The stack of the pass says what it visited, where nothing else does."""
    text = error_text(ABORTED_IN_A_PASS, -signal.SIGABRT)
    assert "spmd_partitioner_util.cc:497: Check failed" in text
    assert "It was at the operation Gather." in text


def test_a_failed_check_that_does_not_abort_reads_the_same() -> None:
    """The compiler's internal errors name their check too."""
    text = error_text("INTERNAL: RET_CHECK failure (a/b/motion.cc:1125) user->opcode() == kAdd ")
    assert "motion.cc:1125: user->opcode() == kAdd" in text
    assert "orch plan --alternatives" in text


RAISED = """Traceback (most recent call last):
  File "/here/orchestrator/prove/child.py", line 90, in _compiled
  File "/here/trainers/toy/model.py", line 12, in block
  File "/there/jax/lax.py", line 3, in psum
ValueError: no such axis
"""


@pytest.mark.parametrize(
    ("message", "exit_code", "part"),
    [
        ("", -signal.SIGKILL, "ended by SIGKILL: most likely the machine ran out of memory"),
        (RAISED, 1, "cannot prove: ValueError: no such axis (at trainers/toy/model.py:12)"),
        ("", 1, "the process ended without a word"),
        ("UNIMPLEMENTED: what\nmore", None, "the TPU compiler failed: UNIMPLEMENTED: what"),
    ],
)
def test_other_failures_are_explained(message: str, exit_code: int | None, part: str) -> None:
    """A killed compiler, a trainer that fails, a compiler that does not know how."""
    assert part in error_text(message, exit_code)


def test_what_the_spec_can_mend_is_the_specs_fault() -> None:
    """An option or a slice that the compiler does not have, a plan that the trainer refuses."""
    option = CompileFailure(
        message="INVALID_ARGUMENT: No such compile option: 'xla_x'", by="compiler"
    )
    slice_ = CompileFailure(message="INVALID_ARGUMENT: Unknown topology 3x5", by="compiler")
    refused = CompileFailure(message="128 positions at a time", by="trainer")
    for failed, text in (
        (option, "xla_x"),
        (slice_, "v5p slice 4x4x4"),
        (refused, "128 positions"),
    ):
        error = compiler.error_of(PLAN, failed)
        assert isinstance(error, SpecError)
        assert text in str(error)


def test_without_a_compiler_there_is_a_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac, on Arm: what is missing, where it exists, and the flag that does without."""
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(ProofUnavailable) as error:
        verdict._compile(PLAN, lambda _: None, None)
    text = str(error.value)
    assert "libtpu" in text
    assert "darwin arm64" in text
    assert "--no-prove" in text

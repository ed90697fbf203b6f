"""Traces of a run, from their files to its lines: no device, every trace is built from the schema
of XSpace, but for a cut of one that a TPU v6e wrote (tests/traces, from openxla/xprof, Apache-2.0).
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import orchestrator as orch
from orchestrator.cli.look_commands import profile_command
from orchestrator.errors import RunHasEnded, TraceUnreadable
from orchestrator.evidence.profile import make_profile, trace_folders
from orchestrator.evidence.report import make_report
from orchestrator.journal.heartbeat import ClaimWatch
from orchestrator.journal.ownership import Writer, request_cancel, request_trace
from orchestrator.proving.measured import measure
from orchestrator.proving.xspace import _space_class
from orchestrator.run.profile import measure_traces
from orchestrator.show.pages import page_of
from orchestrator.tracking.mlflow import metrics
from orchestrator.values import codec
from orchestrator.values.profile import PROGRAM, SECONDS, TRACE, Profile, TraceNote, TraceSeconds
from tests.conftest import ROOT
from tests.journals import claimed_run, tiny_plan, write_steps
from tests.test_monitor import ScriptedAttempt, watched

US = 1_000_000  # picoseconds
PLAN = tiny_plan()
NOTE = TraceNote(
    plan_digest=PLAN.digest, rank=0, first_step=10, end_step=12, platform="tpu",
    device_kind="TPU v5 lite",
)  # fmt: skip
TRAINER = 'metadata={{op_name="jit(step)/{}" stack_frame_id={}}}'
HLO = f"""HloModule jit_step, num_partitions=4

FileNames
1 "/home/me/trainers/llama/layers.py"

FunctionNames
1 "products"
2 "gather_matrix"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=84 end_line=84 column=2 end_column=2}}
2 {{file_name_id=1 function_name_id=2 line=58 end_line=58 column=2 end_column=2}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=1}}


%body (carry: f32[8,8]) -> f32[8,8] {{
  %carry = f32[8,8]{{1,0}} parameter(0)
  ROOT %dot.1 = f32[8,8]{{1,0}} dot(%carry, %carry), lhs_contracting_dims={{1}}, \
rhs_contracting_dims={{0}}, {TRAINER.format("while/body/transpose(jvp(matmul))/dot_general", 1)}
}}

ENTRY %main (given: f32[8,8]) -> f32[8,8] {{
  %given = f32[8,8]{{1,0}} parameter(0)
  %gather-start = (f32[8,8]{{1,0}}, f32[32,8]{{1,0}}) all-gather-start(%given), \
replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, {TRAINER.format("weight_gather/all_gather", 2)}
  %call.1 = f32[8,8]{{1,0}} call(%given), to_apply=%body
  %gather-done = f32[32,8]{{1,0}} all-gather-done(%gather-start)
  %tanh.1 = f32[8,8]{{1,0}} tanh(%call.1), {TRAINER.format("elementwise/tanh", 1)}
  ROOT %copy.1 = f32[8,8]{{0,1}} copy(%tanh.1)
}}
"""
PACKED = gzip.compress(HLO.encode(), mtime=0)
Event = tuple[str, float, float, dict[str, Any]]  # name, start and length in µs, stats


def number_of(entries: Any, name: str) -> int:
    """The number of an event's or a stat's name in a plane, which gets it if it lacks it."""
    known = {entry.value.name: entry.key for entry in entries}
    if name not in known:
        entry = entries.add(key=len(known) + 1)
        entry.value.name = name
        return len(known) + 1
    return int(known[name])


def add_stats(plane: Any, to: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        kind = "str_value" if isinstance(value, str) else "int64_value"
        to.stats.add(metadata_id=number_of(plane.stat_metadata, name), **{kind: value})


def packed(planes: dict[str, dict[str, Any]], said: dict[str, Any] | None = None) -> bytes:
    """A trace with these lines of planes; `said` are stats of the metadata of named events."""
    space = _space_class()()
    for plane_name, lines in planes.items():
        plane = space.planes.add(name=plane_name)
        for line_name, events in lines.items():
            line = plane.lines.add(name=line_name, timestamp_ns=1000)
            for name, start, length, own in events:
                event = line.events.add(offset_ps=int(start * US), duration_ps=int(length * US))
                event.metadata_id = number_of(plane.event_metadata, name)
                add_stats(plane, event, own)
        for entry in plane.event_metadata:
            add_stats(plane, entry.value, (said or {}).get(entry.value.name, {}))
    content: bytes = space.SerializeToString()
    return content


STEP: list[Event] = [  # of a step of 100 µs; the call contains the product
    ("%gather-start = all-gather-start()", 0, 0.1, {}),
    ("%call.1 = call()", 0.1, 39.9, {}),
    ("%dot.1 = dot()", 5, 30, {}),
    ("%gather-done = all-gather-done()", 60, 20, {}),
    ("%tanh.1 = tanh()", 80, 15, {}),
    ("%copy.1 = copy()", 95, 5, {}),
]


def tpu_trace(steps: int = 2, period: float = 110) -> bytes:
    ops = [(name, start + i * period, t, s) for i in range(steps) for name, start, t, s in STEP]
    modules: list[Event] = [("jit_step(123)", i * period, 100, {}) for i in range(steps)]
    sent: list[Event] = [
        ("%gather-start = all-gather-start()", i * period, 80, {}) for i in range(steps)
    ]
    lines = {"XLA Modules": modules, "XLA Ops": ops, "Async XLA Ops": sent}
    return packed({"/device:TPU:0": lines, "/device:TPU:1": lines})


def us(found: TraceSeconds) -> dict[str, tuple[int, int, int]]:
    """Microseconds of each line: computed, exposed, on links."""
    return {
        line.kind: (
            round(line.computed_s * 1e6), round(line.exposed_s * 1e6), round(line.wire_s * 1e6)
        )
        for line in found.ledger
    }  # fmt: skip


def test_operations_known_by_name_only_are_joined_with_the_program() -> None:
    """What hides a transfer is computed; a wait is exposed; gaps are idle or the host's."""
    found = measure(tpu_trace(), "t.pb", NOTE, PLAN, PACKED)
    assert us(found) == {
        "matmul": (30, 0, 0),
        "weight_gather": (0, 20, 80),
        "elementwise": (20, 0, 0),  # a copy is of what it copies
        "other": (10, 0, 0),  # the call around the product
        "idle": (0, 20, 0),
        "host": (0, 5, 0),
    }
    assert found.step_s == pytest.approx(105e-6)
    assert sum(line.total_s for line in found.ledger) == pytest.approx(found.step_s)
    assert (found.steps, found.devices, found.names) == (2, 2, "program")
    places = {line.line: line for line in found.lines}
    assert places["trainers/llama/layers.py:84 (products)"].products_s == pytest.approx(30e-6)
    assert places["trainers/llama/layers.py:84 (products)"].copies_s == pytest.approx(5e-6)
    waited = found.collectives[0]
    assert (waited.kind, waited.axes, waited.link) == ("all-gather", ("fsdp",), "ici")
    assert waited.calls_per_step == pytest.approx(1)


def test_a_trace_that_names_its_operations_needs_no_program() -> None:
    said = {
        "%dot.1 = dot()": {
            "tf_op": "jit(step)/transpose(jvp(matmul))/dot_general:", "hlo_category": "convolution",
            "source": "/x/trainers/llama/layers.py:84",
        },
        "%gather-done = all-gather-done()": {
            "tf_op": "jit(step)/weight_gather/all_gather", "hlo_category": "all-gather-done",
        },
        "%call.1 = call()": {"hlo_category": "call"},
    }  # fmt: skip
    lines = {"XLA Modules": [("jit_step(1)", 0, 100, {})], "XLA Ops": STEP}
    found = measure(packed({"/device:TPU:0": lines}, said), "t.pb", NOTE, PLAN, None)
    assert found.names == "trace"
    assert us(found)["matmul"] == (30, 0, 0)
    assert us(found)["weight_gather"] == (0, 20, 20)
    [place] = (line for line in found.lines if line.products_s)
    assert place.line == "trainers/llama/layers.py:84"


def test_kernels_on_two_streams_of_a_gpu_hide_each_other() -> None:
    """Steps are told apart by what runs once in each; no module and no run is marked."""

    def at(name: str, start: float, length: float) -> Event:
        return f"kernel {name}", start, length, {"hlo_op": name, "hlo_module": "jit_step"}

    compute = [at("tanh.1", 40 + i, 20) for i in (0, 100)]
    compute += [at("dot.1", i, 10) for i in (0, 15, 100, 115)]  # in a loop of two rounds
    compute += [at("copy.1", 60 + i, 10) for i in (0, 100)]
    sent = [at("gather-start", 10 + i, 40) for i in (0, 100)]
    to_host: list[Event] = [("MemcpyD2H", 70, 5, {})]
    planes: dict[str, dict[str, Any]] = {
        "/device:GPU:0": {"Stream #1(Compute)": compute, "Stream #2(NCCL)": sent,
                          "Stream #3(MemcpyD2H)": to_host},
        "/host:CPU": {"python": [("step", 0, 1, {"step_num": 10})]},
    }  # fmt: skip
    whole = replace(NOTE, platform="gpu")
    found = measure(packed(planes), "t.pb", whole, PLAN, PACKED)
    assert found.steps == 2
    assert us(found)["matmul"] == (20, 0, 0)
    assert us(found)["weight_gather"] == (0, 20, 40)  # 10 to 15 and 25 to 40 hide behind nothing
    assert us(found)["elementwise"] == (30, 0, 0)


def test_a_trace_of_real_chips() -> None:
    """Two steps of a TPU v6e that copies to its host and back all the time."""
    content = gzip.decompress((ROOT / "tests/traces/tpu_v6e_two_steps.xplane.pb.gz").read_bytes())
    found = measure(content, "v6e", NOTE, PLAN, None)
    assert (found.steps, found.devices) == (2, 1)
    assert found.lines[1].line.endswith("host_offload_stress_test.py:29")
    waits = sum(sent.exposed_s for sent in found.collectives if sent.kind == "copy")
    assert waits / found.step_s == pytest.approx(0.97, abs=0.01)
    assert sum(line.total_s for line in found.ledger) == pytest.approx(found.step_s, rel=1e-6)


@pytest.mark.parametrize(
    ("content", "program", "says"),
    [
        (tpu_trace()[:-40], PACKED, "is not a whole trace"),
        (b"not a trace at all", PACKED, "is not a whole trace"),
        (b"", PACKED, "no operation of a device, only nothing"),
        (packed({"/host:CPU": {"python": [("step", 0, 1, {})]}}), PACKED, "only /host:CPU"),
        (
            tpu_trace(),
            gzip.compress(HLO.replace("jit_step", "jit_x").encode(), mtime=0),
            "not of jit_x",
        ),
        (tpu_trace(), PACKED[:50], "the program next to t.pb is damaged"),
        (
            tpu_trace(),
            gzip.compress(HLO.replace("dot.1", "dot.2").replace("done", "end").encode(), mtime=0),
            "is of another program: 62% of its seconds",
        ),
        (tpu_trace(period=40), PACKED, "its clock jumps: steps on /device:TPU:0 overlap"),
        (
            packed({"/device:TPU:0": {"XLA Ops": [("%dot.1 = dot()", 5, -3, {})]}}), PACKED,
            "its clock runs backwards",
        ),
    ],
    ids=range(9),  # not their bytes
)  # fmt: skip
def test_a_bad_trace_says_what_is_wrong(content: bytes, program: bytes, says: str) -> None:
    with pytest.raises(TraceUnreadable, match=says):
        measure(content, "t.pb", NOTE, PLAN, program)


def traced_run(storage: Path, ranks: int = 1, **changes: Any) -> Writer:
    """A run of twenty steps with traces of steps 10 and 11."""
    writer = claimed_run(storage, profile=(10, 12), steps=20)
    writer.start_attempt(PLAN)
    write_steps(writer.journal.path, 1, range(20), **changes)
    for rank in range(ranks):
        at = writer.journal.path / "profile" / "steps-10-12" / f"rank-{rank}"
        files = at / "plugins" / "profile" / "2026_11_28"
        files.mkdir(parents=True)
        (files / "host.xplane.pb").write_bytes(tpu_trace())
        (at / PROGRAM).write_bytes(PACKED)
        (at / TRACE).write_bytes(codec.to_json(replace(NOTE, rank=rank)))
    return writer


def profile_of(storage: Path, run: str = "it") -> Profile:
    return orch.profile(run, storage)


def test_measured_stands_beside_what_was_predicted(tmp_path: Path) -> None:
    journal = traced_run(tmp_path, ranks=2).journal
    found = profile_of(tmp_path)
    assert (found.ranks, found.first_step, found.end_step) == ((0, 1), 10, 12)
    lines = {line.kind: line for line in found.lines}
    ledger = {line.kind: line.value for line in PLAN.forecast.time}
    assert lines["matmul"].lower_s == pytest.approx(ledger["matmul"])
    assert lines["matmul"].measured_s == pytest.approx(30e-6)
    parts = {line.kind: line.value for line in PLAN.forecast.expected_time}
    expected = {line.part: line.expected_s for line in found.lines if line.expected_s}
    assert expected["matmuls"] == pytest.approx(parts["matmul"])
    assert sum(expected.values()) == pytest.approx(PLAN.forecast.step_s.expected or 0)
    assert sum(line.measured_s for line in found.lines) == pytest.approx(found.step_s)
    # The loop says 0.25 s a step, and the trace 105 µs.
    assert [note.code for note in found.notes] == ["clock_jumped"]
    # The report, its page and MLflow have it from then on.
    report = make_report(journal)
    assert report.profile is not None
    assert report.profile.lines == found.lines
    assert "Where the time of a step went" in page_of(journal, None)[0]
    sent = {point.name: point.value for point in metrics.of_ending(report, 0.0)}
    assert sent["profile/matmul_seconds_measured"] == pytest.approx(30e-6)
    assert sent["profile/matmul_seconds_lower"] == pytest.approx(ledger["matmul"])
    done = CliRunner().invoke(profile_command, ["it", "--storage", str(tmp_path)])
    assert done.exit_code == 0
    assert "weight gather" in done.output
    assert "all-gather over ici fsdp" in done.output
    done = CliRunner().invoke(profile_command, ["it", "--storage", str(tmp_path), "--json"])
    assert json.loads(done.stdout)["lines"][0]["kind"]


def test_a_slow_host_is_named_by_the_line_that_it_computes_longer(tmp_path: Path) -> None:
    journal = traced_run(tmp_path).journal
    measure_traces(journal)
    at = trace_folders(journal)[0]
    usual = codec.from_json((at / "rank-0" / SECONDS).read_bytes(), TraceSeconds)
    slow = replace(
        usual,
        note=replace(NOTE, rank=1),
        ledger=tuple(
            replace(line, computed_s=1.5 * line.computed_s) if line.kind == "matmul" else line
            for line in usual.ledger
        ),
    )
    found = make_profile(journal, journal.run(), [usual, usual, slow], at)
    assert {line.kind: line.slowest_rank for line in found.lines}["matmul"] == 1
    assert found.notes[0].text == "rank 1 computes matmul longer than the others"


def test_a_trace_that_cannot_be_read_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    writer = traced_run(tmp_path, ranks=3)
    at = writer.journal.path / "profile" / "steps-10-12"
    (at / "rank-0" / TRACE).unlink()  # its process was killed while it traced
    (at / "rank-1" / TRACE).write_bytes(codec.to_json(replace(NOTE, plan_digest="feed" * 8)))
    found = profile_of(tmp_path)
    assert found.ranks == (2,)
    assert [note.code for note in found.notes] == ["unread", "unread", "clock_jumped"]
    assert "rank-0 is not whole" in found.notes[0].text
    assert "is of plan feedfeed, which is not of this run" in found.notes[1].text
    [path] = (at / "rank-2").rglob("*.xplane.pb")
    path.write_bytes(path.read_bytes()[:100])
    (at / "rank-2" / SECONDS).unlink()
    with pytest.raises(orch.OrchError, match=r"no trace of run it can be read: .*not a whole"):
        profile_of(tmp_path)
    assert make_report(writer.journal).measured is not None


def test_a_run_without_a_trace_says_how_to_get_one(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path, profile=(90, 95))
    writer.start_attempt(PLAN)
    write_steps(writer.journal.path, 1, range(20))
    with pytest.raises(orch.OrchError, match="has done 20 steps; its trace begins with step 90"):
        profile_of(tmp_path)
    request_cancel(writer.journal)
    writer.end_attempt("cancelled")
    writer.end_run("cancelled")
    with pytest.raises(RunHasEnded, match="it has no next step"):
        orch.profile("it", tmp_path, steps=3)


def test_the_driver_chooses_steps_that_every_rank_hears_of_in_time(tmp_path: Path) -> None:
    with watched(tmp_path, ScriptedAttempt()) as (writer, monitor):
        watch = ClaimWatch(writer.journal.path, writer.number, 1)
        number = request_trace(writer.journal, 3)
        writer.heartbeat()
        monitor._pass_on_trace_request()
        assert writer.journal.state().trace is None  # no step says yet how long one takes
        write_steps(writer.journal.path, 1, range(30))
        for _ in range(2):
            monitor._pass_on_trace_request()
        asked = writer.journal.state().trace
        assert asked is not None
        assert (asked.request, asked.end_step - asked.first_step) == (number, 3)
        assert asked.first_step > 30 + monitor.args.heartbeat_s / 0.25
        last = writer.journal.state().last
        monitor._pass_on_trace_request()
        assert writer.journal.state().last == last
        assert watch.lapse() is None
        assert watch.traced == range(asked.first_step, asked.end_step)
        # A request to stop is found among those for traces, and the other way round.
        request_trace(writer.journal, 1)
        request_cancel(writer.journal)
        assert writer.heartbeat() is not None
        assert writer.trace_request is not None

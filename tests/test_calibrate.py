"""Calibration: what is measured, in which processes, what is stored, and what is shown."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator import processes
from orchestrator.cli.look_commands import calibrate_command
from orchestrator.cli.plan_commands import plan_command
from orchestrator.errors import MeasurementFailed, UnknownName
from orchestrator.planning.calibrated import (
    _QUIET_SHARE,
    STEADY_SPREAD,
    ChipProfile,
    Measurements,
    Operation,
    Timing,
    with_profile,
)
from orchestrator.planning.plan_warnings import warning_texts
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.processes import emulated_devices
from orchestrator.run import calibrate
from orchestrator.run.calibrate import (
    _measure_plan,
    _stored_profile,
    _this_machine,
    _trainer_source,
    calibrated_plan,
)
from orchestrator.run.progress import ProgressEvent
from orchestrator.show.machine_screens import calibration_screen
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from tests.conftest import QUICK_XLA_FLAGS, HoldGolden
from tests.example_specs import TINY, spec_of
from tests.profiles import EMPTY, H200, chip_profile, device_timings, rehearsal_timings
from tests.trainer_plans import plan_of
from trainers import microbenchmarks

PLAN = plan_of(pods=2, tensor=2, hosts=2)
SPIN = "import time\nwhile time.process_time() < 0.4: pass"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "orch" / "profiles"


class FakeProcesses:
    """Replaces the measuring processes: answers at once, and notes the plans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, platform: str = "cpu") -> None:
        self.platform, self.plans = platform, list[Plan | None]()
        monkeypatch.setattr(calibrate, "_measure", self.run)

    def run(self, plan: Plan | None = None) -> Measurements:
        self.plans.append(plan)
        timings: tuple[Timing, ...] = rehearsal_timings(plan) if plan else device_timings()
        kind = "cpu" if self.platform == "cpu" else "an H200"
        return Measurements(platform=self.platform, device_kind=kind, timings=timings)


@pytest.mark.parametrize("operation", ["matmul", "copy", "attention"])
def test_every_operation_is_timed_on_a_real_device(operation: Operation) -> None:
    """Its amounts grow until a run takes long."""
    timing = microbenchmarks._timed(operation, "bf16", 16)
    amounts, seconds = zip(*timing.points, strict=True)
    assert (timing.operation, timing.dtype, timing.head_dim) == (operation, "bf16", 16)
    assert list(amounts) == sorted(amounts)
    assert min(seconds) > 0
    assert timing.per_s == amounts[-1] / seconds[-1]


@pytest.mark.parametrize(
    ("trainer", "hosts"), [pytest.param("llama", 1, marks=pytest.mark.slow), ("tests.toy", 2)]
)
def test_the_trainers_step_is_timed_in_the_processes_of_the_plan(
    trainer: str, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one layer and with three quarters of them, on as many emulated devices."""
    compile_quickly(monkeypatch)
    model = replace(PLAN.model, layers=6)
    plan = plan_of(model, pods=2, tensor=2, hosts=hosts, trainer=trainer)
    matmul, step = calibrate._measure(plan).timings
    assert (matmul.operation, step.operation) == ("matmul", "step")
    assert [layers for layers, _ in step.points] == [1, 4]
    assert min(seconds for _, seconds in step.points) > 0


def compile_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the measuring processes compile as the tests do: their environment is their own."""

    def environment(inherited: Mapping[str, str], count: int) -> dict[str, str]:
        made = emulated_devices(inherited, count)
        return made | {"XLA_FLAGS": f"{made['XLA_FLAGS']} {QUICK_XLA_FLAGS}"}

    monkeypatch.setattr(processes, "emulated_devices", environment)


def test_a_failed_measurement_is_one_message() -> None:
    """It has the end of what the process printed."""
    plan = replace(PLAN, trainer="trainers.mesh", hosts=1)
    with pytest.raises(MeasurementFailed, match=r"cannot be measured:(.|\n)*no function program"):
        calibrate._measure(plan)


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rehearsal of a shape measures nothing; another shape is added."""
    fake = FakeProcesses(monkeypatch)
    assert _stored_profile(PLAN) is None
    first = _measure_plan(PLAN)
    assert _stored_profile(PLAN) == first
    other = plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    assert _stored_profile(other) is None
    both = _measure_plan(other)
    assert fake.plans == [PLAN, other]
    assert _stored_profile(PLAN) == _stored_profile(other) == both
    assert codec.digest(both.profile) != codec.digest(first.profile)


@pytest.mark.parametrize(
    ("spreads", "others", "counts", "measured"),
    [
        ((0.1,), 0.1, 0.1, 1),
        ((0.9, 0.2), 0.0, 0.2, 2),
        ((0.9, 0.7), 0.0, 0.7, 2),
        ((0.7, 0.9), 0.0, 0.7, 2),
        ((0.1,), 0.6, 0.1, 1),
    ],
)
def test_an_unsteady_step_is_measured_again(
    spreads: tuple[float, ...],
    others: float,
    counts: float,
    measured: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, and by the next rehearsal too while none was steady; the plan then says so."""
    fake = FakeProcesses(monkeypatch)
    left, answer = iter(spreads), fake.run

    def unsteady(plan: Plan | None = None) -> Measurements:
        return replace(with_spread(answer(plan), next(left)), others=others)

    monkeypatch.setattr(calibrate, "_measure", unsteady)
    profile = _measure_plan(PLAN).profile
    assert len(fake.plans) == measured
    assert (profile.timings[-1].spread, profile.timings[-1].others) == (counts, others)
    is_steady = max(spreads[-1:]) <= STEADY_SPREAD and others <= _QUIET_SHARE
    assert (_stored_profile(PLAN) is not None) == is_steady
    warned = [
        warning
        for warning in with_profile(PLAN, profile).warnings
        if warning.code == "unsteady_profile"
    ]
    figures = {"spread": counts, "others": others}
    assert [warning.figures for warning in warned] == ([] if is_steady else [figures])
    assert ("busy while it was measured" in " ".join(warning_texts(warned))) == bool(warned)


def test_others_are_seen_on_these_cores() -> None:
    """What this process and its children do is their own; what others do is not."""
    busy = calibrate._BusyCores()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    cores_s = (time.monotonic() - busy.began_s) * len(calibrate._own_cores())
    own_s = calibrate._own_s() - busy.own_s
    assert own_s > 0.3
    assert busy.share_of_others() <= (cores_s - own_s) / cores_s + 0.1


def with_spread(measurements: Measurements, spread: float) -> Measurements:
    timings = tuple(
        replace(timing, spread=spread) if timing.operation == "step" else timing
        for timing in measurements.timings
    )
    return replace(measurements, timings=timings)


def test_a_changed_trainer_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module by its file, a package by all its files."""
    FakeProcesses(monkeypatch)
    module = tmp_path / "my_trainer.py"
    module.write_text("program = None", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    plan = replace(PLAN, trainer="my_trainer:program")
    _measure_plan(plan)
    assert _stored_profile(plan) is not None
    module.write_text("program = 1", encoding="utf-8")
    assert _stored_profile(plan) is None
    _measure_plan(plan)
    assert _stored_profile(plan) is not None
    assert _trainer_source("llama") != _trainer_source("mlp")


def test_orch_calibrate_measures_steps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest profile counts, and it has no step yet."""
    FakeProcesses(monkeypatch)
    _measure_plan(PLAN)
    calibrate.calibrate()
    assert _stored_profile(PLAN) is None


def test_a_known_shape_reports_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rehearsal says that it measures; the second has nothing to say."""
    FakeProcesses(monkeypatch)
    spec = spec_of(TINY, topology="2x2x1", pods=2, sequences=64, length=128)
    small, events = rehearse(spec, make_plan(spec)), list[ProgressEvent]()
    for told in (True, False):
        events.clear()
        made, _ = calibrated_plan(small.plan, events.append)
        assert made.forecast.step_s.expected is not None
        assert bool(events) is told


def test_a_profile_is_found_by_its_digest(cache: Path) -> None:
    """Whole or by a prefix; an unknown one is an error that lists what there is."""
    path = calibrate._keep(calibrate._KIND, EMPTY)
    assert path == cache / f"{codec.digest(EMPTY)}.json"
    assert calibrate.find(codec.digest(EMPTY)[:8]).profile == EMPTY
    for unknown in ("0" * 8, "../x", "*"):
        with pytest.raises(UnknownName, match=codec.short(codec.digest(EMPTY))):
            calibrate.find(unknown)


def test_only_profiles_of_this_machine_are_taken(cache: Path) -> None:
    """Of those the one stored last; other versions, torn and foreign files are ignored."""
    here = _this_machine()
    old, new = (replace(EMPTY, machine=here, measured_on=f"2026-01-0{day}") for day in (1, 2))
    for age_s, profile in ((30, old), (20, new), (0, EMPTY)):
        path = calibrate._keep(calibrate._KIND, profile)
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
    (cache / f"{'0' * 64}.json").write_text("{", encoding="utf-8")
    (cache / f"{'1' * 64}.json").write_bytes(codec.to_json(new))
    newest = calibrate._newest(here)
    assert newest is not None
    assert (newest.profile, newest.path.stem) == (new, codec.digest(new))
    assert calibrate._newest(replace(here, versions={"jax": "0"})) is None


def test_a_store_that_cannot_be_written_is_one_message(cache: Path) -> None:
    """It names the file and the reason."""
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(MeasurementFailed, match="cannot be written"):
        calibrate._keep(calibrate._KIND, EMPTY)


def test_an_accelerator_is_measured_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kind is what JAX calls it; nothing is emulated."""
    fake = FakeProcesses(monkeypatch, platform="gpu")
    profile = calibrate.calibrate().profile
    assert fake.plans == [None]
    assert not profile.emulated
    assert profile.machine.device_kind == "an H200"


def test_a_plan_is_forecast_on_the_profile_that_it_names() -> None:
    """`orch plan --profile` finds it in the store; one that is not there is an error."""
    settings = ["resources.chip=h200", "resources.topology=1", "resources.pods=1"]
    words = [
        "specs/tiny_2pod.yaml",
        "--json",
        *(x for setting in settings for x in ("--set", setting)),
    ]
    plain = CliRunner().invoke(plan_command, words)
    plan = codec.from_json(plain.stdout.encode(), Plan)
    stored = calibrate._keep(calibrate._KIND, chip_profile())
    done = CliRunner().invoke(plan_command, [*words, "--profile", stored.stem[:8]])
    assert done.exit_code == 0, done.output
    made = codec.from_json(done.stdout.encode(), Plan)
    assert (plan.chip_profile, made.chip_profile) == (None, stored.stem)
    both = [each.forecast.step_s.expected for each in (plan, made)]
    assert None not in both
    assert both[0] != both[1]  # as published runs take it, and as this machine does
    missing = CliRunner().invoke(plan_command, [*words, "--profile", "beef"])
    assert isinstance(missing.exception, UnknownName)


def test_a_profile_is_one_screen(golden: HoldGolden) -> None:
    """Each rate with its spread, and the digest."""
    profile = chip_profile(replace(H200, versions={"jax": "1", "jaxlib": "1"}))
    golden("calibration.txt", calibration_screen(profile, "/cache/it.json"))
    first, *others = profile.timings
    busy = replace(profile, timings=(replace(first, spread=0.8), *others))
    assert "was busy while it was measured (matmul)" in calibration_screen(busy, "/cache/it.json")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_measures_and_shows(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen, or the profile itself."""
    FakeProcesses(monkeypatch, platform="gpu")
    done = CliRunner().invoke(calibrate_command, options)
    assert done.exit_code == 0
    [path] = calibrate._folder_of("profiles").glob("*.json")
    if options:
        assert codec.digest(codec.from_json(done.stdout, ChipProfile)) == path.stem
    else:
        assert f"profile {codec.short(path.stem)}" in done.stdout.splitlines()[0]

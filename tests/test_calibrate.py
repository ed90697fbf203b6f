"""Calibration: what is measured, in which processes, what is stored, and what is shown."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from orchestrator.calibrate import for_plan, measure, of_machine, processes, profile_store
from orchestrator.calibrate.measure import this_machine
from orchestrator.cli.machine import calibrate as command
from orchestrator.cli.plan import plan as planning
from orchestrator.errors import MeasurementFailed, UnknownName
from orchestrator.plan import calibrated
from orchestrator.render.calibration_screen import calibration_screen
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmark, BenchmarkResult, ChipProfile, Operation
from orchestrator.types.plan import Plan
from tests.conftest import HoldGolden
from tests.profiles import EMPTY, H200, MACHINE, profile_for, timing_of
from tests.trainer_plans import plan_of

PLAN = plan_of(pods=2, tensor=2, hosts=2)
Run = Callable[..., BenchmarkResult]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "orch" / "profiles"


class FakeProcesses:
    """Replaces the measuring processes: answers at once, and notes what it was asked to time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, platform: str = "cpu") -> None:
        self.platform, self.requests = platform, list[tuple[Benchmark, ...]]()
        monkeypatch.setattr(measure, "run", self.run)

    def run(
        self, benchmarks: tuple[Benchmark, ...], *, processes: int, devices: int | None
    ) -> BenchmarkResult:
        self.requests.append(benchmarks)
        assert {one.processes for one in benchmarks} <= {processes}
        assert devices is None or {one.devices for one in benchmarks} <= {devices}
        return BenchmarkResult(
            platform=self.platform,
            device_kind="an H200",
            devices=8,
            timings=tuple(map(timing_of, benchmarks)),
        )


def benchmark(operation: Operation, processes: int = 1) -> Benchmark:
    """On two emulated devices; a collective joins both."""
    alone = operation in {"matmul", "attention", "elementwise", "copy"}
    return Benchmark(
        operation=operation,
        dtype="bf16",
        devices=2,
        processes=processes,
        group=1 if alone else 2,
        length=32 if operation == "attention" else 0,
        head_dim=16 if operation == "attention" else 0,
    )


def test_every_operation_is_timed_on_real_devices() -> None:
    """Each benchmark comes back, in its order, with seconds that grow with the amount."""
    benchmarks = tuple(benchmark(operation) for operation in get_args(Operation))
    result = processes.run(benchmarks, processes=1, devices=2)
    assert (result.platform, result.devices) == ("cpu", 2)
    assert tuple(timing.benchmark for timing in result.timings) == benchmarks
    for timing in result.timings:
        amounts, seconds = zip(*timing.points, strict=True)
        assert list(amounts) == sorted(amounts)
        assert 0 < seconds[0] < seconds[-1]
        assert timing.best_per_s >= max(a / s for a, s in timing.points)


def test_processes_are_timed_together() -> None:
    """Two processes of one device each reduce between them."""
    between = benchmark("all-reduce", processes=2)
    result = processes.run((between,), processes=2, devices=2)
    assert result.devices == 2
    assert [timing.benchmark for timing in result.timings] == [between]


def test_a_failed_measurement_is_one_message() -> None:
    """It has the end of what the process printed."""
    impossible = replace(benchmark("permute"), group=3)
    with pytest.raises(MeasurementFailed, match=r"cannot be measured:(.|\n)*ValueError"):
        processes.run((impossible,), processes=1, devices=2)


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rehearsal of a shape measures nothing; another shape measures what is new."""
    fake = FakeProcesses(monkeypatch)
    first = for_plan(PLAN)
    assert len(fake.requests) == 1
    assert for_plan(PLAN).profile == first.profile
    assert len(fake.requests) == 1
    other = plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    both = for_plan(other).profile
    assert set(fake.requests[1]).isdisjoint(fake.requests[0])
    assert calibrated.missing(PLAN, both) == calibrated.missing(other, both) == ()
    assert codec.digest(both) != codec.digest(first.profile)


def test_a_profile_is_found_by_its_digest(cache: Path) -> None:
    """Whole or by a prefix; an unknown one is an error that lists what there is."""
    stored = profile_store.store(EMPTY)
    assert stored.path == cache / f"{codec.digest(EMPTY)}.json"
    assert profile_store.find(codec.digest(EMPTY)[:8]).profile == EMPTY
    for unknown in ("0" * 8, "../x", "*"):
        with pytest.raises(UnknownName, match=codec.short(codec.digest(EMPTY))):
            profile_store.find(unknown)


def test_only_profiles_of_this_machine_are_taken(cache: Path) -> None:
    """Of those the one stored last; other versions, torn and foreign files are ignored."""
    here = this_machine()
    old, new = (replace(EMPTY, machine=here, measured_on=f"2026-01-0{day}") for day in (1, 2))
    for age_s, profile in ((30, old), (20, new), (0, EMPTY)):
        path = profile_store.store(profile).path
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
    (cache / f"{'0' * 64}.json").write_text("{", encoding="utf-8")
    (cache / f"{'1' * 64}.json").write_bytes(codec.to_json(new))
    newest = profile_store.newest(here)
    assert newest is not None
    assert (newest.profile, newest.path.stem) == (new, codec.digest(new))
    assert profile_store.newest(replace(here, versions={"jax": "0"})) is None


def test_a_store_that_cannot_be_written_is_one_message(cache: Path) -> None:
    """It names the file and the reason."""
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(MeasurementFailed, match="cannot be written"):
        profile_store.store(EMPTY)


def test_an_accelerator_is_measured_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device alone, and all of them together; nothing is emulated."""
    FakeProcesses(monkeypatch, platform="gpu")
    profile = of_machine().profile
    assert (profile.machine.platform, profile.machine.device_kind) == ("gpu", "an H200")
    benchmarks = [timing.benchmark for timing in profile.timings]
    assert {one.devices for one in benchmarks if one.group == 1} == {1}
    assert {one.group for one in benchmarks if one.group > 1} == {2, 4, 8}


def test_a_plan_is_forecast_on_the_profile_that_it_names() -> None:
    """`orch plan --profile` finds it in the store; one that is not there is an error."""
    settings = ["resources.chip=h200", "resources.topology=1", "resources.pods=1"]
    words = ["specs/tiny_2pod.yaml", "--json", *(x for one in settings for x in ("--set", one))]
    plain = CliRunner().invoke(planning, words)
    plan = codec.from_json(plain.stdout.encode(), Plan)
    stored = profile_store.store(profile_for(plan, H200))
    done = CliRunner().invoke(planning, [*words, "--profile", codec.digest(stored.profile)[:8]])
    assert done.exit_code == 0, done.output
    made = codec.from_json(done.stdout.encode(), Plan)
    assert (plan.chip_profile, made.chip_profile) == (None, codec.digest(stored.profile))
    assert plan.forecast.step_s.expected is None
    assert made.forecast.step_s.expected is not None
    missing = CliRunner().invoke(planning, [*words, "--profile", "beef"])
    assert isinstance(missing.exception, UnknownName)


def test_a_profile_is_one_screen(golden: HoldGolden) -> None:
    """Rates and collectives, each with its spread, and the digest."""
    profile = profile_for(PLAN, replace(MACHINE, versions={"jax": "1", "jaxlib": "1"}))
    golden("calibration.txt", calibration_screen(profile, "/cache/it.json", "orch submit it.yaml"))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_measures_and_shows(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen, or the profile itself."""
    FakeProcesses(monkeypatch, platform="gpu")
    done = CliRunner().invoke(command, options)
    assert done.exit_code == 0
    [path] = profile_store.folder().glob("*.json")
    if options:
        assert codec.digest(codec.from_json(done.stdout, ChipProfile)) == path.stem
    else:
        assert f"profile {codec.short(path.stem)}" in done.stdout.splitlines()[0]

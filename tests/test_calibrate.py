"""Calibration: what is measured, by which processes, what is kept of it, and what is shown."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.calibrate import for_plan, measure, of_machine, process, shelf
from orchestrator.calibrate.machine import emulating
from orchestrator.calibrate.words import Devices, Told
from orchestrator.cli.calibrating import calibrate as command
from orchestrator.cli.plan import plan as planning
from orchestrator.errors import MeasurementFailed, OrchError, UnknownName
from orchestrator.plan import calibrated
from orchestrator.render import calibration_screen as render
from orchestrator.types import codec
from orchestrator.types.chip_profile import (
    Benchmarks,
    ChipProfile,
    CollectiveBenchmark,
    Kernel,
    KernelBenchmark,
)
from orchestrator.types.plan import Plan
from tests.conftest import HoldGolden
from tests.profiles import EMPTY, H200, MACHINE, exchange_time, kernel_time, profile_for
from tests.trainer_plans import plan_of

PLAN = plan_of(pods=2, tensor=2, hosts=2)
KERNELS: tuple[Kernel, ...] = (
    "matmul forward", "matmul", "copy", "norm", "gate", "rotary", "logits", "update",
    "attention forward", "attention",
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shelf of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "orch" / "profiles"


class Machines:
    """Stands for the processes: answers every wish at once, and notes what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, platform: str = "cpu") -> None:
        self.platform, self.asked = platform, list[Benchmarks]()
        monkeypatch.setattr(measure, "ask", self.ask)

    def ask(self, wishes: Benchmarks, *, processes: int, devices: int | None) -> Iterator[Told]:
        self.asked.append(wishes)
        assert devices is None or devices >= processes
        assert {wish.processes for wish in wishes.exchanges} <= {processes}
        found = Devices(platform=self.platform, kind="an H200", count=8, versions={"jax": "1"})
        yield Told(devices=found)
        yield from (Told(ready=True) for _ in (*wishes.kernels, *wishes.exchanges))
        yield from (Told(kernel=kernel_time(wish)) for wish in wishes.kernels)
        yield from (Told(exchange=exchange_time(wish)) for wish in wishes.exchanges)


def ignore(done: int, total: int) -> None:
    """Nobody watches."""


def test_every_kernel_and_collective_is_timed_by_a_process_of_its_own() -> None:
    """Real devices, small amounts: each wish comes back, in its order, with its seconds."""
    kernels = tuple(
        KernelBenchmark(
            kernel=kernel,
            dtype="fp32" if kernel == "update" else "bf16",
            devices=2,
            amount=2e4,
            head_dim=16 if kernel.startswith("attention") else 0,
        )
        for kernel in KERNELS
    )
    exchanges = (
        *(wish_of(kind, 1, 1, 2**10) for kind in KINDS),
        *(replace(wish_of(kind, 1, 1, 2**10), dtype="bf16") for kind in KINDS),
        replace(wish_of("all-reduce", 1, 1, 2**10), together=3),
    )
    told = list(ask(kernels, exchanges, processes=1))
    times = [one.kernel for one in told if one.kernel]
    assert [time.kernel for time in times] == list(KERNELS)
    assert all(time.seconds >= time.least_s > 0 and time.amount > 5e3 for time in times)
    sent = [one.exchange for one in told if one.exchange]
    assert [(time.kind, time.dtype, time.bytes, time.together) for time in sent] == [
        (wish.kind, wish.dtype, wish.bytes, wish.together) for wish in exchanges
    ]
    assert told[0].devices is not None
    assert (told[0].devices.platform, told[0].devices.count) == ("cpu", 2)


KINDS = ("all-gather", "reduce-scatter", "all-reduce", "permute")


def wish_of(kind: str, processes: int, stride: int, size: int) -> CollectiveBenchmark:
    group = {"processes": processes, "devices": 2, "ways": 2, "stride": stride}
    fields = {"kind": kind, "dtype": "fp32", **group, "bytes": size}
    return codec.from_json(codec.to_json(fields), CollectiveBenchmark)


def ask(
    kernels: tuple[KernelBenchmark, ...], exchanges: tuple[CollectiveBenchmark, ...], processes: int
) -> Iterator[Told]:
    return process.ask(
        Benchmarks(kernels=kernels, exchanges=exchanges), processes=processes, devices=2
    )


def test_processes_are_timed_together() -> None:
    """Two processes of a device each reduce between them; the first one tells."""
    told = list(ask((), (wish_of("all-reduce", 2, 1, 2**10),), processes=2))
    [time] = [one.exchange for one in told if one.exchange]
    assert time.seconds > 0
    assert told[0].devices is not None
    assert told[0].devices.count == 2


def test_what_cannot_be_measured_is_one_message() -> None:
    """The child's own words, and no process left."""
    with pytest.raises(MeasurementFailed, match="this machine cannot be measured: ValueError"):
        list(ask((), (replace(wish_of("permute", 1, 1, 8), ways=3),), processes=1))


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rehearsal of a shape asks nothing; another shape asks for what is new."""
    machines = Machines(monkeypatch)
    first = for_plan(PLAN, ignore)
    count = len(machines.asked)
    assert count == 2  # kernels in one process, exchanges in two
    again = for_plan(PLAN, ignore)
    assert (len(machines.asked), again.profile) == (count, first.profile)
    other = for_plan(plan_of(pods=2, fsdp=2, tensor=2, hosts=2), ignore)
    assert len(machines.asked) == count + 1
    assert machines.asked[-1].kernels == ()
    assert calibrated.wishes(PLAN, other.profile) == Benchmarks()
    assert codec.digest(other.profile) != codec.digest(first.profile)


def test_progress_is_told_from_none_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each timing counts once."""
    Machines(monkeypatch)
    seen: list[tuple[int, int]] = []
    kept = for_plan(PLAN, lambda done, total: seen.append((done, total)))
    total = len(kept.profile.kernels) + len(kept.profile.exchanges)
    assert seen == [(done, total) for done in range(total + 1)]


def test_a_profile_is_found_by_its_digest(cache: Path) -> None:
    """Whole or by its beginning; an unknown one is an error that lists what there is."""
    kept = shelf.keep(EMPTY)
    assert kept.path == cache / f"{codec.digest(EMPTY)}.json"
    assert shelf.find(codec.digest(EMPTY)[:8]).profile == EMPTY
    for unknown in ("0" * 8, "../x", "*"):
        with pytest.raises(UnknownName, match=codec.short(codec.digest(EMPTY))):
            shelf.find(unknown)


def test_only_profiles_of_this_machine_are_taken(cache: Path) -> None:
    """Of those the one that was kept last; other versions, torn and foreign files are not seen."""
    here = emulating()
    old, new = (replace(EMPTY, machine=here, measured_on=f"2026-01-0{day}") for day in (1, 2))
    for age_s, profile in ((30, old), (20, new), (0, EMPTY)):
        path = shelf.keep(profile).path
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
    (cache / f"{'0' * 64}.json").write_text("{", encoding="utf-8")
    (cache / f"{'1' * 64}.json").write_bytes(codec.to_json(new))
    found = shelf.newest(here)
    assert found is not None
    assert (found.profile, found.path.stem) == (new, codec.digest(new))
    assert shelf.newest(replace(here, versions={"jax": "0"})) is None


def test_a_shelf_that_cannot_be_written_is_one_message(cache: Path) -> None:
    """It names the file and the reason."""
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(MeasurementFailed, match="cannot be written"):
        shelf.keep(EMPTY)


def test_an_accelerator_is_measured_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device alone, and all of them together; nothing is emulated."""
    machines = Machines(monkeypatch, platform="gpu")
    profile = of_machine(ignore).profile
    assert (profile.machine.platform, profile.machine.device_kind) == ("gpu", "an H200")
    assert {time.devices for time in profile.kernels} == {1}
    assert {(time.ways, time.processes) for time in profile.exchanges} == {(2, 1), (4, 1), (8, 1)}
    assert len(machines.asked) == 2


def test_a_plan_is_forecast_on_the_profile_that_it_names() -> None:
    """`orch plan --profile` takes it from the shelf; one that is not there is an error."""
    asked = ["resources.chip=h200", "resources.topology=1", "resources.pods=1"]
    words = ["specs/tiny_2pod.yaml", "--json", *(x for one in asked for x in ("--set", one))]
    plain = CliRunner().invoke(planning, words)
    plan = codec.from_json(plain.stdout.encode(), Plan)
    kept = shelf.keep(profile_for(plan, H200))
    done = CliRunner().invoke(planning, [*words, "--profile", codec.digest(kept.profile)[:8]])
    assert done.exit_code == 0, done.output
    made = codec.from_json(done.stdout.encode(), Plan)
    assert (plan.chip_profile, made.chip_profile) == (None, codec.digest(kept.profile))
    assert plan.forecast.step_s.expected is None
    assert made.forecast.step_s.expected is not None
    missing = CliRunner().invoke(planning, [*words, "--profile", "beef"])
    assert isinstance(missing.exception, UnknownName)


def small_profile() -> ChipProfile:
    profile = profile_for(PLAN)
    return replace(profile, machine=replace(MACHINE, versions={"jax": "1", "jaxlib": "1"}))


def test_a_profile_is_one_screen(golden: HoldGolden) -> None:
    """Rates by size and type, exchanges by group, each with its spread, and the digest."""
    golden(
        "ceilings.txt",
        render.calibration_screen(small_profile(), "/cache/it.json", "orch submit it.yaml"),
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_measures_and_shows(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen, or the profile itself; progress goes elsewhere."""
    Machines(monkeypatch, platform="gpu")
    done = CliRunner().invoke(command, options)
    assert done.exit_code == 0
    [path] = shelf.folder().glob("*.json")
    if options:
        assert codec.digest(codec.from_json(done.stdout, ChipProfile)) == path.stem
    else:
        assert f"profile {codec.short(path.stem)}" in done.stdout.splitlines()[0]
    assert "of" in done.stderr


def test_errors_of_measuring_are_orchs_own() -> None:
    """The terminal shows one message and exits with 1."""
    assert issubclass(MeasurementFailed, OrchError)
    assert MeasurementFailed.exit_code == 1

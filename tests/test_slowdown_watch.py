"""Slowdowns are found in the steps as they come: what is slow, since when, and nothing in noise."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.goodput.slowdowns import SlowdownWatch
from orchestrator.values.run import Step
from orchestrator.values.slowdowns import HostTimes, Slowdown
from tests.journals import step

EVERY, HOSTS = 3, 4  # steps between gathers
Change = Callable[[Step], Step]


def noisy(steps: int, seed: int = 0, usual_s: float = 1.0, noise: float = 0.02) -> list[Step]:
    dice = random.Random(seed)
    first = [step(0, restored=0, step_s=9.0)]
    return first + [
        step(index, step_s=usual_s * (1 + noise * dice.gauss(0, 1))) for index in range(1, steps)
    ]


def changed(steps: Sequence[Step], where: Iterable[int], change: Change) -> list[Step]:
    places = set(where)
    return [change(each) if each.index in places else each for each in steps]


def longer(by_s: float, **changes: Any) -> Change:
    return lambda each: replace(each, step_s=each.step_s + by_s, **changes)


def gathered(steps: Sequence[Step], **slow: float) -> list[Step]:
    """Steps with what each host measured of itself; the last host is slow in a part."""
    dice = random.Random(7)

    def own(part: str, usual: float) -> tuple[float, ...]:
        known = [usual * (1 + 0.02 * dice.gauss(0, 1)) for _ in range(HOSTS)]
        known[-1] += slow.get(part, 0.0)
        return tuple(known)

    return [
        replace(
            each,
            hosts=HostTimes(
                devices_s=own("devices", 1e-5),
                host_s=own("host", 2e-3),
                input_s=own("input", 1e-3),
                stopped=own("stopped", 0.01),
            ),
        )
        if each.index % EVERY == EVERY - 1
        else each
        for each in steps
    ]


def seen(
    steps: Sequence[Step], *, emulated: bool = False, saved_after: int = 0
) -> tuple[list[Slowdown], dict[int, int]]:
    """What was found in the end, and at which step each was first told."""
    watch = SlowdownWatch(1, emulated=emulated)
    told: dict[int, int] = {}
    last_save = 0
    for each in steps:
        last_save = each.index if each.checkpoint_s else last_save
        if each.index == last_save + saved_after:
            watch.saved()
        watch.add(each)
        told |= {number: each.index for number in watch.told if number not in told}
    watch.end(steps[-1].index)
    return list(watch.told.values()), told


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("noise", "emulated"), [(0.005, False), (0.04, False), (0.2, True)])
def test_noise_is_no_slowdown(seed: int, noise: float, *, emulated: bool) -> None:
    assert seen(gathered(noisy(1000, seed, noise=noise)), emulated=emulated) == ([], {})


def test_wandering_and_single_slow_steps_are_no_slowdown() -> None:
    """A shared machine: a slow drift by a quarter and back, and a step of twice the time now and
    then.
    """
    dice = random.Random(3)
    drift = [0.25 * abs(50 - index % 100) / 50 for index in range(600)]
    steps = [replace(each, step_s=each.step_s * (1 + drift[each.index])) for each in noisy(600)]
    rare = {index for index in range(600) if dice.random() < 0.05}
    assert seen(changed(steps, rare, longer(1.0)), emulated=True) == ([], {})


@pytest.mark.parametrize("by_s", [0.1, 0.3, 1.0])
def test_a_change_of_level_is_found_within_20_steps(by_s: float) -> None:
    (slow,), told = seen(changed(noisy(400, noise=0.01), range(200, 300), longer(by_s)))
    assert slow.kind == "level"
    assert told[slow.number] <= 219
    assert abs(slow.first_step - 200) <= 1
    assert abs((slow.last_step or 0) - 299) <= 3
    assert slow.usual_s == pytest.approx(1.0, rel=0.02)
    assert slow.step_s == pytest.approx(1.0 + by_s, rel=0.03)
    assert slow.lost_s == pytest.approx(100 * by_s, rel=0.1)


def test_a_slowdown_is_told_when_it_begins_when_its_cost_doubles_and_at_its_end() -> None:
    watch, told = SlowdownWatch(1, emulated=False), list[Slowdown]()
    for each in changed(noisy(400), range(100, 399), longer(1.0)):
        watch.add(each)
        told += [new for new in watch.told.values() if new not in told]
    watch.end(399)
    costs = [each.lost_s for each in told]
    assert all(after >= 2 * before for before, after in pairwise(costs))
    assert len(told) <= 7
    assert watch.told[1].last_step == 399


def test_a_single_long_step_is_a_stall_with_its_cause() -> None:
    """And stalls of one kind that are near are one slowdown."""
    steps = changed(noisy(300), (100, 120), longer(30.0))
    steps = changed(steps, (150,), longer(20.0, data_s=20.0))
    steps = changed(steps, (200,), longer(15.0, compile_s=15.0))
    steps = changed(steps, (250,), longer(40.0, checkpoint_s=40.0))
    found, told = seen(steps, saved_after=1)
    assert [(each.kind, each.first_step, each.last_step) for each in found] == [
        ("stall", 100, 120), ("input", 150, 150), ("compilation", 200, 200), ("saving", 250, 250),
    ]  # fmt: skip
    assert [round(each.lost_s) for each in found] == [60, 20, 15, 40]
    assert list(told.values()) == [100, 150, 200, 250]


def test_a_save_is_slow_against_the_saves_before() -> None:
    steps = changed(noisy(300), range(50, 250, 50), longer(2.0, checkpoint_s=2.0))
    assert seen(steps, saved_after=1) == ([], {})
    (slow,), _ = seen(changed(steps, (250,), longer(9.5, checkpoint_s=9.5)), saved_after=1)
    assert (slow.kind, slow.first_step, slow.lost_s) == ("saving", 250, 9.5)


def test_steps_that_are_slow_while_a_save_is_written_wait_for_it() -> None:
    steps = changed(noisy(200), (100,), longer(0.2, checkpoint_s=0.2))
    steps = changed(steps, range(101, 130), longer(0.5))
    (slow,), _ = seen(steps, saved_after=29)
    assert (slow.kind, slow.first_step) == ("saving", 101)
    assert abs((slow.last_step or 0) - 129) <= 2


def test_steps_that_begin_to_wait_for_input() -> None:
    (slow,), told = seen(changed(noisy(300), range(150, 300), longer(0.6, data_s=0.7)))
    assert (slow.kind, slow.first_step) == ("input", 150)
    assert told[1] <= 170
    assert slow.lost_s == pytest.approx(90, rel=0.05)


def test_steps_that_wait_for_input_from_the_first_one() -> None:
    steps = [each if each.startup else replace(each, data_s=0.6) for each in noisy(100)]
    (slow,), told = seen(steps)
    assert (slow.kind, told[1]) == ("input", 12)
    assert slow.usual_s == pytest.approx(0.4, rel=0.05)
    assert slow.lost_s == pytest.approx(60, rel=0.05)


@pytest.mark.parametrize(
    ("part", "by"), [("devices", 1e-5), ("host", 0.5), ("input", 0.5), ("stopped", 0.5)]
)
def test_a_host_that_slows_the_others_is_named(part: str, by: float) -> None:
    """The change of level and its host are one slowdown."""
    calm, other = gathered(noisy(200)), gathered(noisy(200), **{part: by})
    steps = [*calm[:100], *other[100:180], *calm[180:]]
    (slow,), _ = seen(changed(steps, range(100, 180), longer(0.5)))
    assert (slow.kind, slow.rank, slow.part) == ("host", 3, part)
    assert abs(slow.first_step - 100) <= 1
    assert abs((slow.last_step or 0) - 179) <= 2
    watch = SlowdownWatch(1, emulated=False)
    for each in changed(steps, range(100, 180), longer(0.5))[:112]:
        watch.add(each)
    assert [each.rank for each in watch.told.values()] == [3]


def test_where_all_hosts_are_starved_the_cause_stays_the_input() -> None:
    calm, other = gathered(noisy(200)), gathered(noisy(200), input=0.5)
    late = changed(other, range(100, 200), longer(0.6, data_s=0.6))
    (slow,), _ = seen([*calm[:100], *late[100:]])
    assert (slow.kind, slow.rank, slow.part) == ("input", 3, "input")


def test_a_host_that_is_slow_from_the_start_is_named() -> None:
    (slow,), told = seen(gathered(noisy(100), devices=6e-6))
    assert (slow.kind, slow.rank, slow.part) == ("host", 3, "devices")
    assert slow.times == pytest.approx(1.6, rel=0.1)
    assert told[1] <= 20
    assert slow.lost_s == pytest.approx(0.375 * 100, rel=0.2)


def test_the_host_that_stood_still_in_a_stall_is_named() -> None:
    calm, stopped = gathered(noisy(100)), gathered(noisy(100), stopped=0.9)
    steps = [stopped[62] if each.index == 62 else each for each in calm]
    (slow,), _ = seen(changed(steps, (61,), longer(30.0)))
    assert (slow.kind, slow.rank, slow.part, slow.first_step) == ("stall", 3, "stopped", 61)


def test_among_many_hosts_the_spread_of_all_is_no_news() -> None:
    dice = random.Random(1)
    wide = [1e-5 * (1 + 0.2 * dice.gauss(0, 1)) for _ in range(64)]
    times = HostTimes(
        devices_s=tuple(wide), host_s=(1e-3,) * 64, input_s=(0.0,) * 64, stopped=(0.0,) * 64
    )
    steps = [
        replace(each, hosts=times) if each.index % EVERY == EVERY - 1 else each
        for each in noisy(100)
    ]
    assert seen(steps) == ([], {})
    slower = replace(times, devices_s=(*wide[:-1], 4e-5))
    (slow,), _ = seen([replace(each, hosts=each.hosts and slower) for each in steps])
    assert (slow.kind, slow.rank) == ("host", 63)


def test_another_attempt_or_stage_begins_anew() -> None:
    """Its steps may take any time."""
    later = [replace(each, index=each.index + 200, step_s=3 * each.step_s) for each in noisy(100)]
    assert seen([*noisy(200), *later]) == ([], {})


def test_a_run_of_nothing_but_trouble_has_a_bounded_record() -> None:
    hiccups = changed(noisy(30_000), range(100, 30_000, 60), longer(30.0))
    watch = SlowdownWatch(1, emulated=False)
    for each in hiccups:
        watch.add(each)
    assert watch.told.keys() == set(range(169, 201))

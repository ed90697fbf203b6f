"""The compiler decides between plans that the forecast cannot tell apart."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

import orchestrator as api
from orchestrator.errors import OrchError, ProofUnavailable
from orchestrator.planning.contenders import make_contenders
from orchestrator.planning.planner import make_plan
from orchestrator.proving import choose, compiler
from orchestrator.proving.choose import ProgramSearch, search_programs
from orchestrator.proving.compare import proof_of
from orchestrator.proving.compiled import REPEATED
from orchestrator.proving.verdict import ProofResult
from orchestrator.reading.load import load
from orchestrator.show.proof_screen import search_screen
from orchestrator.values.plan import Plan, program_digest
from orchestrator.values.proof import Proof
from orchestrator.values.spec import Spec
from tests.clusters import eventually
from tests.conftest import ROOT, RunOrch
from tests.proofs import as_forecast
from tests.schedules import schedule

SPEC = Path("specs/llama3_70b_1slice.yaml")
Compile = Callable[[Spec, Plan], ProofResult]


def proof(plan: Plan, total_s: float, repeated: float = 0.0) -> Proof:
    """What the compiler might say of a plan, with a schedule of that many seconds."""
    found = as_forecast(plan)
    flops = found.summary.flops | {REPEATED: repeated * sum(found.summary.flops.values())}
    made = proof_of(plan, replace(found, summary=replace(found.summary, flops=flops)))
    shape = replace(schedule(), total_s=total_s, products_s=total_s, kernels_s=0.0, copies_s=0.0)
    return replace(made, schedule=replace(shape, other_s=0.0, exposed_s=0.0))


def compiles(seconds: Callable[[Plan], float], repeated: float = 0.0) -> Compile:
    return lambda _, plan: ProofResult(
        plan=plan, proof=proof(plan, seconds(plan), repeated), age_s=None
    )


def by_tensor(plan: Plan) -> float:
    """As on 26 November 2026: more tensor parallelism is scheduled faster, up to four ways."""
    return {1: 7.34, 2: 6.74, 4: 6.36}.get(plan.mesh["tensor"], 8.0)


def test_a_spec_with_a_choice_is_searched_as_if_it_had_none() -> None:
    spec = load(SPEC)
    assert spec.choice
    assert spec.resources.mesh.fsdp == 1024
    assert len({each.plan.mesh["tensor"] for each in make_contenders(spec, 3)}) == 3


def test_a_search_keeps_the_axes_that_only_a_spec_can_ask_for() -> None:
    """On GPUs a search chooses all, so what it pinned once is chosen again."""
    choice = load(SPEC).choice
    asked = load(ROOT / "specs/tiny_2pod.yaml", ["resources.mesh={sequence_dcn: 2}"])
    found = make_contenders(replace(asked, choice=choice), 1)[0].plan
    assert found.mesh["sequence_dcn"] == 2
    places = ["resources.chip=h100", "resources.topology=h100-8", "resources.pods=8"]
    mesh = "resources.mesh={data: 8, fsdp_dcn: 1}"
    pinned = load(ROOT / "specs/llama3_8b_1slice.yaml", [*places, mesh])
    free = make_contenders(replace(pinned, choice=choice), 1)[0].plan
    assert free.mesh != make_plan(replace(pinned, choice=None)).mesh


def test_contenders_are_programs_that_the_forecast_cannot_tell_apart() -> None:
    spec = load(SPEC)
    own = make_plan(spec)
    found = make_contenders(spec, 8)
    assert program_digest(found[0].plan) == program_digest(own)
    programs = {program_digest(each.plan) for each in found}
    assert len(programs) == len(found) == 8
    slowest = own.forecast.step_s.high
    assert slowest is not None
    assert all(each.plan.forecast.step_s.likeliest <= slowest for each in found)
    assert {each.plan.mesh["tensor"] for each in found[:3]} == {1, 2, 4}


@pytest.mark.parametrize("name", ["llama3_70b_4pod", "mixtral_8x7b_v5p", "llama3_405b_8pod"])
def test_what_pins_a_contender_plans_its_program(name: str) -> None:
    path = Path(f"specs/{name}.yaml")
    for each in make_contenders(load(path), 3):
        pinned = make_plan(load(path, each.overrides))
        assert program_digest(pinned) == program_digest(each.plan)


def test_a_contender_may_have_to_leave_room() -> None:
    spec = load(Path("specs/llama3_8b_v6e_2slice.yaml"))
    limit = make_plan(spec).forecast.hbm_bytes_per_device
    found = make_contenders(spec, 3, 0.3 * limit)
    assert found
    assert all(each.plan.forecast.memory_bytes_per_device <= 0.7 * limit for each in found)


def test_the_fastest_by_schedule_comes_first() -> None:
    found = search_programs(load(SPEC), 4, compile_plan=compiles(by_tensor))
    assert found.best.plan.mesh["tensor"] == 4
    assert found.best.scheduled_s == 6.36
    order = [float(f"{each.s_per_token:.3g}") for each in found.compared]
    assert order == sorted(order)
    assert found.choice.program == program_digest(found.best.plan)[:8]
    assert found.choice.compared == len(found.compared)
    # As fast, and it changes more.
    assert len(found.best.overrides) == 3
    # One of four compilations tries another setting of the winner's options.
    other = next(each for each in found.compared if "vmem" in " ".join(each.overrides))
    assert other.plan.mesh == found.best.plan.mesh


def test_batches_of_two_sizes_are_compared_by_token() -> None:
    found = search_programs(
        load(Path("specs/llama3_70b_4pod.yaml")),
        6,
        compile_plan=compiles(lambda plan: plan.batch.tokens * (2 + plan.mesh["fsdp"]) * 1e-7),
    )
    assert found.best.plan.mesh["fsdp"] == min(each.plan.mesh["fsdp"] for each in found.compared)


def test_what_cannot_win_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_parallel_jobs", lambda: 1)
    compiled = []

    def quick(_: Spec, plan: Plan) -> ProofResult:
        compiled.append(plan.digest)
        seconds = 0.9 * plan.forecast.step_s.lower if len(compiled) == 1 else 9.0
        return ProofResult(plan=plan, proof=proof(plan, seconds), age_s=None)

    found = search_programs(load(SPEC), 3, compile_plan=quick)
    assert len(compiled) == 1
    skipped = [each.failure for each in found.compared if each.scheduled_s is None]
    assert len(skipped) == 2
    assert all("is above the best schedule" in each for each in skipped)


def test_a_program_that_repeats_work_wants_more_room() -> None:
    spec = load(Path("specs/llama3_8b_v6e_2slice.yaml"))
    found = search_programs(spec, 4, compile_plan=compiles(lambda _: 9.0, repeated=0.06))
    assert found.best.repeated_share == pytest.approx(0.06 / 1.06, rel=1e-3)
    own = next(each for each in found.compared if each.plan.digest == found.first)
    least = min(each.plan.forecast.memory_bytes_per_device for each in found.compared)
    limit = own.plan.forecast.hbm_bytes_per_device
    assert least <= 0.95 * limit


def test_one_failure_ends_no_search_and_only_failures_do() -> None:
    def fails(_: Spec, plan: Plan) -> ProofResult:
        if plan.mesh["tensor"] == 1:
            raise ProofUnavailable("cannot prove: a check inside the compiler failed\nwhich")
        return ProofResult(plan=plan, proof=proof(plan, 6.0), age_s=None)

    found = search_programs(load(SPEC), 3, compile_plan=fails)
    assert found.best.plan.mesh["tensor"] != 1
    [failed] = [each for each in found.compared if each.failure]
    assert failed.failure == "cannot prove: a check inside the compiler failed"
    assert found.choice.compared == 2

    def always_fails(_: Spec, plan: Plan) -> ProofResult:
        raise ProofUnavailable(f"cannot prove {plan.name}")

    with pytest.raises(ProofUnavailable, match="cannot prove llama3-70b-1slice"):
        search_programs(load(SPEC), 3, compile_plan=always_fails)


def test_progress_tells_the_best_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_parallel_jobs", lambda: 1)
    told: list[tuple[str, str]] = []
    compile_plan, begun = compiles(by_tensor), count(1)

    def in_turn(spec: Spec, plan: Plan) -> ProofResult:
        """Each waits until all before it have been told."""
        number = next(begun)
        eventually(lambda: len(told) >= number, 60.0)
        return compile_plan(spec, plan)

    search_programs(load(SPEC), 3, lambda *words: told.append(words), in_turn)
    assert told[0] == ("0 of 3 plans, 1 at once", "")
    assert told[1][0] == "1 of 3 plans, 1 at once"
    assert told[1][1].startswith("best 7.34 s, about ")
    assert told[3] == ("3 of 3 plans, 1 at once", "best 6.36 s")


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_leaves_no_compiler_behind(monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    """Those that wait for a core are not begun."""
    monkeypatch.setattr(choose, "_parallel_jobs", lambda: jobs)
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(99)"))
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def remember(*arguments: object, **named: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = begin(*arguments, **named)  # type: ignore[call-overload]
        started.append(process)
        return process

    def interrupt(*_: object) -> None:
        while not compiler._running:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", remember)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nonexistent")
    with pytest.raises(KeyboardInterrupt):
        search_programs(load(Path("specs/tiny_2pod.yaml")), 2, interrupt)
    assert started
    assert all(process.wait(30) == -9 for process in started)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith("ThreadPool"):
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> ProgramSearch:
    """What the commands find in place of compiling."""
    search = search_programs(load(SPEC), 4, compile_plan=compiles(by_tensor))
    monkeypatch.setattr(api, "prove_search", lambda *_, **__: search)
    return search


def test_a_search_fits_a_terminal(found: ProgramSearch) -> None:
    text = search_screen(found, "orch plan x.yaml")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "1.256.1.4 none" in text or "256.4" in text
    assert "13.4 % less per token than the plan of the spec (7.34 s)" in " ".join(text.split())


def test_the_choice_is_written_planned_and_known_to_be_stale(
    found: ProgramSearch, orch: RunOrch, tmp_path: Path
) -> None:
    path = tmp_path / "best.yaml"
    done = orch("prove", str(SPEC), "--search", "4", "--write", str(path))
    assert done.returncode == 0, done.stdout
    assert f"Next: orch plan {path}" in done.stdout
    plan = make_plan(load(path))
    assert program_digest(plan) == found.best.program
    assert plan.choice == found.choice
    assert "stale_choice" not in {note.code for note in plan.warnings}
    shown = " ".join(orch("plan", str(path)).stdout.split())
    assert "choice by libtpu" in shown
    assert "6.36 s scheduled, the best of 4 programs" in shown
    changed = orch("plan", str(path), "--set", "experiment.precision.optimizer=bf16", "--json")
    codes = {note["code"] for note in json.loads(changed.stdout)["warnings"]}
    assert "stale_choice" in codes
    again = orch("prove", str(SPEC), "--search", "4", "--write", str(path))
    assert again.returncode == 1
    assert "exists already" in again.stderr


def test_what_a_search_of_programs_does_not_take(orch: RunOrch) -> None:
    alone = orch("prove", str(SPEC), "--write", "x.yaml")
    assert alone.returncode == 2
    assert "--write needs --search N" in alone.stderr
    remat = orch("prove", str(SPEC), "--search", "3", "--search-remat")
    assert remat.returncode == 2
    assert "--search-remat" in remat.stderr
    with pytest.raises(OrchError, match="pin its mesh in the stage"):
        api.prove_search("specs/tiny_stages.yaml", 2)

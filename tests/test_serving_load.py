"""Simulated arrivals, held to queueing formulas where these are exact; and the frontier."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

import orchestrator as api
from orchestrator.errors import SpecError
from orchestrator.evidence.score.serving_fit import BATCHES, ClosedLoop, Handover, closed_loops
from orchestrator.reading.offer_options import WrongOption
from orchestrator.serving.load import Requests, _StepCosts, drawn, simulated
from orchestrator.serving.planner import NotServed
from tests.conftest import RunOrch
from tests.test_serving import DEEPSEEK, QWEN, planned, tpot

ONE = np.array([1.0])
PROMPT = np.array([100.0]), ONE
NO_ANSWER = ONE, ONE


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_prompts_by_themselves_wait_as_in_a_queue(load: float) -> None:
    """M/D/1: a wait of load x service / (2 (1 - load)), and busy for its load."""
    service = 0.02
    costs = _StepCosts(step_s=np.full(10, 0.01), token_s=1e-4, chunk=100, most=9)
    requests = drawn("poisson", 200_000, load / service, PROMPT, NO_ANSWER, 1)
    ttft, _, waits, busy, _ = simulated(requests, costs)
    exact = load * service / (2 * (1 - load))
    assert waits.mean() == pytest.approx(exact, rel=0.05)
    assert ttft.mean() == pytest.approx(exact + service, rel=0.05)
    assert busy == pytest.approx(load, rel=0.01)


def test_littles_law_holds() -> None:
    """Requests in work are their rate times the time of an answer."""
    costs = _StepCosts(step_s=0.01 + 1e-4 * np.arange(65.0), token_s=1e-6, chunk=4096, most=64)
    requests = drawn("poisson", 20_000, 10.0, PROMPT, (np.array([200.0]), ONE), 2)
    _, tpot, _, _, most = simulated(requests, costs)
    in_work = 10.0 * 199 * tpot.mean()
    # The step is 10 ms and 0.1 ms a request: tpot = 0.01 + 1e-4 * rate * 199 * tpot.
    assert tpot.mean() == pytest.approx(0.01 / (1 - 1e-4 * 10 * 199), rel=0.03)
    assert in_work < most <= 64


def test_a_long_prompt_takes_a_step_for_each_chunk() -> None:
    """Three chunks while another request is answered, seven alone, and a half one."""
    costs = _StepCosts(step_s=np.array([0.01, 0.02, 0.03]), token_s=1e-4, chunk=100, most=2)
    arrival, prompt, output = np.array([0.0, 0.001]), np.array([100.0, 1050.0]), np.array([4.0, 1])
    ttft, tpot, *_ = simulated(Requests(arrival, prompt, output), costs)
    assert tpot[0] == pytest.approx(0.03)
    assert ttft[1] == pytest.approx(0.02 + 3 * 0.03 + 7 * 0.02 + 0.015 - 0.001)


def test_an_overload_serves_what_the_steps_allow() -> None:
    """With all places taken, the rate is that of full steps."""
    costs = _StepCosts(step_s=np.full(9, 0.02), token_s=0.0, chunk=800, most=8)
    requests = drawn("poisson", 2_000, 1e6, PROMPT, (np.array([11.0]), ONE), 3)
    ttft, tpot, _, busy, most = simulated(requests, costs)
    assert most == 8
    assert busy == pytest.approx(1.0, abs=1e-3)
    assert tpot.max() == pytest.approx(0.02)
    # Eight at a time, each for a step of prefill and ten of decoding.
    assert ttft.max() == pytest.approx(2_000 / 8 * 11 * 0.02, rel=0.05)


def test_a_seed_repeats_and_another_differs() -> None:
    first, again, other = (api.serving_load(DEEPSEEK, requests=500, seed=n) for n in (1, 1, 2))
    assert first == again
    assert first != other


def test_bursts_wait_longer_than_single_requests() -> None:
    single, bursts = (
        api.serving_load(DEEPSEEK, arrivals=kind, requests=4000) for kind in ("poisson", "bursts")
    )
    assert bursts.waits_s.p95 > 1.5 * single.waits_s.p95
    assert single.tpot_s is not None
    assert bursts.tpot_s is not None
    assert bursts.tpot_s.mean == pytest.approx(single.tpot_s.mean, rel=0.1)


def test_the_plans_percentiles_are_near_the_simulated_ones() -> None:
    """TPOT within 10 %; TTFT, from a formula, within a factor of two."""
    plan = planned(DEEPSEEK)
    load = api.serving_load(DEEPSEEK, requests=20_000)
    assert load.tpot_s is not None
    assert load.tpot_s.mean == pytest.approx(tpot(plan).expected, rel=0.1)
    assert 0.5 < load.ttft_s.p95 / plan.forecast.ttft_s.expected < 2


def test_thousands_of_requests_a_second() -> None:
    costs = _StepCosts(step_s=0.01 + 1e-4 * np.arange(65.0), token_s=1e-6, chunk=2048, most=64)
    requests = drawn("poisson", 20_000, 10.0, PROMPT, (np.array([200.0]), ONE), 2)
    began = time.process_time()
    simulated(requests, costs)
    assert 20_000 / (time.process_time() - began) > 1_000


def test_a_trace_is_simulated_as_it_is(tmp_path: Path, orch: RunOrch) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,prompt,output\n0,1000,10\n100,1000,10\n200,1000,10\n")
    found = json.loads(orch("plan", str(QWEN), "--load", str(path), "--json").stdout)
    assert found["requests"] == 3
    assert found["waits_s"]["p99"] == 0
    assert found["most_in_work"] == 1
    path.write_text("time_s,prompt\n0,1\n")
    with pytest.raises(WrongOption, match="numbers under time_s, prompt and output"):
        api.serving_load(QWEN, arrivals=str(path))


def test_a_trace_that_cannot_be_served_or_read_is_refused(tmp_path: Path, orch: RunOrch) -> None:
    path = tmp_path / "trace.csv"
    head = "time_s,prompt,output\n"
    path.write_text(f"{head}0,1000,10\n1,100000000,10\n")
    with pytest.raises(NotServed, match="a request of 100,000,010 tokens has no room on v6e 2x4"):
        api.serving_load(QWEN, arrivals=str(path))
    for bad in (b"\xff\xfe\x00", f"{head}nan,1,1\n".encode(), f"{head}0,1,\x001\n".encode()):
        path.write_bytes(bad)
        with pytest.raises(WrongOption, match="--load is ") as found:
            api.serving_load(QWEN, arrivals=str(path))
        assert "codec" not in str(found.value)
    with pytest.raises(WrongOption, match=r"--load is foo \(No such file or directory\), must be"):
        api.serving_load(QWEN, arrivals="foo")
    for count in (0, -5):
        with pytest.raises(SpecError, match=f"requests is {count}, must be at least 1"):
            api.serving_load(QWEN, requests=count)
    path.write_text(f"{head}0,1000,10\n")
    shown = orch("plan", str(QWEN), "--load", str(path)).stdout
    assert " ".join(shown.split()).startswith("serve-qwen3-32b-v6e: 1 request, ")
    assert "a second" not in shown


def test_prompts_are_taken_in_the_order_of_arrival() -> None:
    costs = _StepCosts(step_s=np.full(5, 0.01), token_s=1e-4, chunk=100, most=4)
    requests = Requests(np.zeros(3), np.array([250.0, 50.0, 10.0]), np.ones(3))
    ttft, _, waits, _, _ = simulated(requests, costs)
    # Two full chunks, then 50 of the first with the second; the third is alone.
    assert ttft == pytest.approx([0.06, 0.06, 0.071])
    assert waits == pytest.approx([0.0, 0.04, 0.06])


# --- the frontier


def test_a_frontier_trades_latency_for_throughput() -> None:
    found = api.serving_frontier(QWEN)
    assert found.best is not None
    for mode in ("interleaved", "disaggregated"):
        own = [point for point in found.points if point.mode == mode]
        assert len(own) > 5
        times = [point.tpot_s for point in own]
        rates = [point.output_tokens_per_s_chip for point in own]
        assert times == sorted(times)
        assert rates == sorted(rates)
    best = found.points[found.best]
    meeting = [point for point in found.points if point.meets_wishes]
    assert best.output_tokens_per_s_chip == max(p.output_tokens_per_s_chip for p in meeting)


def test_the_interleaved_best_is_the_plan() -> None:
    found = api.serving_frontier(QWEN)
    plan = planned(QWEN)
    own = [p for p in found.points if p.mode == "interleaved" and p.meets_wishes]
    best = max(point.output_tokens_per_s_chip for point in own)
    # The table leaves out points that are less than a tenth better than the one before.
    ratio = plan.forecast.output_tokens_per_s_chip.expected / best
    assert 1 <= ratio < 1.1


def test_disaggregated_slices_are_counted_and_the_cache_crosses() -> None:
    found = api.serving_frontier(QWEN)
    for point in found.points:
        if point.mode == "disaggregated":
            assert 1 <= point.prefill_slices <= 8
            assert 1 <= point.decode_slices <= 8
            # The cache of 1,638 tokens over 8 chips with 12.5 GB/s each.
            assert point.transfer_s == pytest.approx(1638.4 * 262_144 / (8 * 12.5e9))
        else:
            assert point.transfer_s == 0


def test_the_frontier_has_a_picture(tmp_path: Path, orch: RunOrch) -> None:
    page = tmp_path / "frontier.html"
    done = orch("plan", str(QWEN), "--frontier", "--html", str(page))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "wrote" not in line]
    assert max(map(len, lines)) <= 80
    text = page.read_text()
    assert "Throughput against latency" in text
    assert "<svg" in text
    again = json.loads(orch("plan", str(QWEN), "--frontier", "--json").stdout)
    assert {"mode", "tpot_s", "output_tokens_per_s_chip"} <= set(again["points"][0])


def test_options_of_serving_are_refused_for_training(orch: RunOrch) -> None:
    done = orch("plan", "specs/tiny_2pod.yaml", "--frontier")
    assert done.returncode == 2
    assert "--frontier goes with a serving spec" in done.stderr


def test_in_a_closed_loop_of_prompts_each_waits_for_all_others() -> None:
    """Five at a time, each a step of 20 ms: after the first round a prompt waits for five."""
    costs = _StepCosts(step_s=np.full(6, 0.01), token_s=1e-4, chunk=100, most=5)
    arrival = np.where(np.arange(50) < 5, 0.0, np.inf)
    requests = Requests(arrival, np.full(50, 100.0), np.ones(50))
    ttft, _, _, busy, _ = simulated(requests, costs)
    assert ttft[:5] == pytest.approx(0.02 * np.arange(1, 6))
    assert ttft[5:] == pytest.approx(0.1)
    assert busy == pytest.approx(1.0)


def _loops(requests: float) -> ClosedLoop:
    """One slice of prefill, 10 ms a prompt, and two of decoding: steps of 10 ms and 0.1 ms each."""
    one = np.ones(1)
    steps_s = 0.01 + 1e-4 * BATCHES[None]
    return ClosedLoop(requests * one, 2 * one, 100 * one, 0.01 * one, 0.02 * one, steps_s)


def test_slices_of_prefill_and_decoding_in_a_closed_loop() -> None:
    """Alone, a request takes its own time; many, what the busier slices allow; always as many are
    in work as the loop has.
    """
    handover = Handover(prefill=1.0, handover_s=0.1, waves=0.0)
    ttft, tpot, _ = closed_loops(_loops(1), handover)
    assert ttft == pytest.approx(0.1 + 0.02 + 0.01)
    assert tpot == pytest.approx(0.01 + 1e-4)
    for requests in (8.0, 64.0, 512.0, 4096.0):
        ttft, tpot, batch = closed_loops(_loops(requests), handover)
        per_s = requests / (ttft + 100 * tpot)
        assert per_s < 100  # a prompt takes 10 ms
        assert tpot == pytest.approx(0.01 + 1e-4 * batch, rel=0.01)
        assert 2 * batch == pytest.approx(per_s * 100 * tpot, rel=0.01)
    assert per_s == pytest.approx(100, rel=0.01)

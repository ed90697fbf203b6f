"""Arrivals over a plan's forecast, simulated: continuous batching with chunked prefill.

A copy of the model takes steps. In each, every request in work gets a token, and prompts that wait
get up to a chunk of prefill, in the order of their arrival. Between two events, which are arrivals
and ends of answers, steps without prefill are alike and pass at once.
"""

from collections import deque
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

import numpy as np

from orchestrator.planning.torus import Floats
from orchestrator.serving import step
from orchestrator.serving.layout import Serving
from orchestrator.values.codec import Value
from orchestrator.values.serving import EngineConstants

_BURST = 8  # requests that come at once
_PERCENTILES = (50, 95, 99)


class Percentiles(Value):
    """Seconds that half, 95 % and 99 % of the requests do not exceed."""

    mean: float
    p50: float
    p95: float
    p99: float


class ServingLoad(Value):
    """What requests see that arrive at random, or as in a trace. Those that all arrive at once have
    no `requests_per_s`. `waits_s` is the part of TTFT before a request's own
    prefill begins; `busy` the share of time in which a copy takes steps. Answers of one token have
    no TPOT.
    """

    name: str
    arrivals: str
    seed: int
    requests: int
    requests_per_s: float | None
    ttft_s: Percentiles
    tpot_s: Percentiles | None
    waits_s: Percentiles
    busy: float
    most_in_work: int


class Requests(NamedTuple):
    """Requests of one copy by time of arrival, with tokens of prompts and answers."""

    arrival_s: Floats
    prompt: Floats
    output: Floats


class _StepCosts(NamedTuple):
    """Seconds of a step by its requests in work, 0 and more, and of a token of prompts in it."""

    step_s: Floats
    token_s: float
    chunk: int
    most: int


def costs_of(
    layout: Serving, mix: step.Mix, engine: EngineConstants, chunk: int, most: int
) -> _StepCosts:
    sizes = np.arange(most + 1.0)[None]
    found = step.rates(*step.mix_work(layout, sizes, mix), mix.chunks, engine)
    step_s = np.broadcast_to(found.step_s, sizes.shape)[0]
    return _StepCosts(step_s, step.as_float(found.added_s) / mix.prompt, chunk, most)


def drawn(
    kind: str, count: int, per_s: float, prompts: tuple[Floats, Floats],
    outputs: tuple[Floats, Floats], seed: int,
) -> Requests:  # fmt: skip
    """Return random requests: lengths are drawn by their shares, gaps from an exponential. Bursts
    are of eight requests at the same rate.
    """
    dice = np.random.default_rng(seed)
    size = 1 if kind == "poisson" else _BURST
    gaps = dice.exponential(size / per_s, ceil(count / size))
    arrival = np.repeat(np.cumsum(gaps), size)[:count]
    prompt, output = (dice.choice(sizes, count, p=shares) for sizes, shares in (prompts, outputs))
    return Requests(arrival, prompt, output)


def simulated(requests: Requests, costs: _StepCosts) -> tuple[Floats, Floats, Floats, float, int]:
    """Return TTFT, TPOT and waits of each request, the busy share, and the most in work. Requests
    without a time of arrival (inf) come each when another ends, as in a closed loop.
    """
    arrival, prompt, output = (column.tolist() for column in requests)
    step_s, count = costs.step_s.tolist(), len(arrival)
    first, last, began = [0.0] * count, [0.0] * count, [0.0] * count
    waiting = deque[list[float]]()  # request, and tokens of its prompt that are left
    ending = list[tuple[int, int]]()  # the step after which a request ends
    now = busy = 0.0
    steps = arrived = most = 0
    closed = int(np.isfinite(requests.arrival_s).sum())  # the next request of a closed loop
    while arrived < count or waiting or ending:
        if not waiting and not ending:
            now = max(now, arrival[arrived])
        while arrived < count and arrival[arrived] <= now:
            waiting.append([arrived, prompt[arrived]])
            began[arrived] = -1.0
            arrived += 1
        taken, ready = _prefilled(waiting, costs.chunk, costs.most - len(ending), began, now)
        own_s = step_s[len(ending)]
        if taken:
            is_whole = taken == costs.chunk and not ready  # of one prompt, and more is left
            alike = _whole_chunks(waiting[0], costs.chunk, ending, steps) if is_whole else 1
            took = alike * (own_s + taken * costs.token_s)
        else:
            # Alike steps up to the next end, or to the arrival of a request that has room.
            alike = ending[0][0] - steps
            if arrived < count and len(ending) < costs.most:
                alike = min(alike, max(ceil((arrival[arrived] - now) / own_s), 1))
            took = alike * own_s
        now, busy, steps = now + took, busy + took, steps + alike
        ended = 0
        while ending and ending[0][0] <= steps:
            last[heappop(ending)[1]] = now
            ended += 1
        for request in ready:
            first[request] = last[request] = now
            if output[request] > 1:
                heappush(ending, (steps + int(output[request]) - 1, request))
            else:
                ended += 1
        if closed < count and ended:
            arrival[closed : closed + ended] = [now] * min(ended, count - closed)
            closed += ended
        most = max(most, len(ending))
    came, starts, firsts, lasts = map(np.array, (arrival, began, first, last))
    between = (lasts - firsts) / np.maximum(requests.output - 1, 1)
    return firsts - came, between, starts - came, busy / now, most


def _prefilled(
    waiting: deque[list[float]], room: float, free: int, began: list[float], now: float
) -> tuple[float, list[int]]:
    """Take prompts into a step, as far as its chunk and the room for requests go. Return their
    tokens, and the requests whose prompts are done.
    """
    taken, ready = 0.0, list[int]()
    while waiting and room > 0 and len(ready) < free:
        request, left = int(waiting[0][0]), waiting[0][1]
        part = min(left, room)
        if began[request] < 0:
            began[request] = now
        room, taken = room - part, taken + part
        waiting[0][1] -= part
        if left > part:
            break
        waiting.popleft()
        ready.append(request)
    return taken, ready


def _whole_chunks(
    prompt: list[float], chunk: int, ending: list[tuple[int, int]], steps: int
) -> int:
    """Take whole chunks of a long prompt, up to its last part or to the step in which a request
    ends. Return the number of steps, with the one whose chunk is taken.
    """
    alike = ceil(prompt[1] / chunk)
    if ending:
        alike = min(alike, ending[0][0] - steps)
    prompt[1] -= (alike - 1) * chunk
    return alike


def percentiles(values: Floats) -> Percentiles:
    p50, p95, p99 = np.percentile(values, _PERCENTILES).tolist()
    return Percentiles(mean=float(values.mean()), p50=p50, p95=p95, p99=p99)

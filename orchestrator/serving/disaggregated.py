"""Prompts and answers on slices of their own, under a closed loop: a number of requests is in work
at all times. Prompts queue for the slices of prefill, answers share steps of those of decoding.
"""

from typing import NamedTuple

import numpy as np

from orchestrator.planning.torus import Floats

# Requests of a decoding slice for which steps are known; others lie between.
_STEPS_OF_TWO = 2
BATCHES: Floats = 2.0 ** (np.arange(15 * _STEPS_OF_TWO) / _STEPS_OF_TWO)
_ROUNDS = 20  # until requests in decoding and their steps agree


class Handover(NamedTuple):
    """What engines do with prompts that have slices of their own: the seconds of a chunk as a
    multiple of those beside decoding, seconds between the end of a prompt and its first token,
    and the mean wait as a share of all prompts' time, as loops begin with all requests at once.
    """

    prefill: float
    handover_s: float
    waves: float


class ClosedLoop(NamedTuple):
    """Loops, an entry each: requests in work, slices of decoding, tokens of an answer, seconds of
    a prompt where slices of prefill are busy and where it is alone, and seconds of a step with
    `BATCHES` requests.
    """

    requests: Floats
    slices: Floats
    output: Floats
    prefill_s: Floats
    alone_s: Floats
    steps_s: Floats


def closed_loops(loops: ClosedLoop, handover: Handover) -> tuple[Floats, Floats, Floats]:
    """Return TTFT, TPOT and the requests in work of a decoding slice."""
    requests, rows = loops.requests, np.arange(len(loops.requests))
    busy_s, alone_s = handover.prefill * loops.prefill_s, handover.prefill * loops.alone_s
    own = requests / loops.slices
    queue_s = busy_s * (requests - 1)
    batch = np.maximum(own, 1.0)
    for _ in range(_ROUNDS):
        low = np.minimum((np.log2(batch) * _STEPS_OF_TWO).astype(int), len(BATCHES) - 2)
        few, many = loops.steps_s[rows, low], loops.steps_s[rows, low + 1]
        between = (batch - BATCHES[low]) / (BATCHES[low + 1] - BATCHES[low])
        step_s = few + (many - few) * between
        rest_s = handover.handover_s + alone_s + loops.output * step_s
        # A request finds in the queue the mean of what the others leave (Schweitzer's mean values):
        # its rate solves queue_s rest_s / requests x^2 - whole x + requests = 0.
        whole = busy_s + rest_s + queue_s
        per_s = 2 * requests / (whole + np.sqrt(whole**2 - 4 * queue_s * rest_s))
        batch = np.maximum(per_s * loops.output * step_s / loops.slices, 1.0)
    ttft_s = requests / per_s - loops.output * step_s + handover.waves * requests * busy_s
    return ttft_s, step_s, batch

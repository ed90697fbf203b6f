"""Throughput against latency: every layout of a slice with every number of requests, interleaved or
with prefill and decoding on slices of their own.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from orchestrator.planning.torus import Floats
from orchestrator.serving import step
from orchestrator.serving.layout import AXES
from orchestrator.serving.planner import ANY_WISH, NotServed, mix_of, searched
from orchestrator.values.codec import Value
from orchestrator.values.serving import ServingSpec

_MOST_SLICES = 8  # of prefill and of decoding, each
_PREFILL_LOAD = 0.8  # of a prefill slice: beyond it prompts wait for long
Mode = Literal["interleaved", "disaggregated"]


class FrontierPoint(Value):
    """What slices do with some requests in work. Seconds are those expected, TTFT at the percentile
    of its wish. Disaggregated, the KV cache of a prompt takes `transfer_s` over the network between
    slices, and slices of prefill are busy for 80 % of the time.
    """

    mode: Mode
    mesh: dict[str, int]
    batch: float
    prefill_slices: int
    decode_slices: int
    ttft_s: float
    tpot_s: float
    transfer_s: float
    output_tokens_per_s: float
    output_tokens_per_s_chip: float
    meets_wishes: bool


class ServingFrontier(Value):
    """The points of each mode that no other beats in both TPOT and tokens per second and chip, by
    TPOT. `best` is the place of the one with the most that meets the wishes, None without any.
    """

    name: str
    chip: str
    topology: str
    points: tuple[FrontierPoint, ...]
    best: int | None


def serving_frontier(spec: ServingSpec) -> ServingFrontier:
    """Return the frontier of a slice of a spec, with as many requests as there is room for."""
    if spec.serve.output_tokens == 1:
        raise NotServed(
            "answers of one token have no time between tokens to weigh against throughput: write"
            " --set serve.output=256"
        )
    free = replace(spec.serve, requests_per_s=None, concurrency=None)
    found = searched(replace(spec, serve=free, resources=replace(spec.resources, replicas=1)))
    layout, batch, mix = found.layout, found.points.batch, mix_of(free)
    chips = int(layout.copy_devices[0, 0] * layout.mesh["data"][0, 0]) // layout.chip.devices
    rates = step.rates(*step.mix_work(layout, batch, mix), mix.chunks, found.engine)
    shape = batch.shape
    step_s, prefill_s = (np.broadcast_to(part, shape) for part in rates[:2])
    copies = np.broadcast_to(layout.mesh["data"], shape)
    # Interleaved: the points of the search. Disaggregated: steps without prompts, and the mesh of
    # the most prompts per second on slices of prefill.
    per_s = copies[:, 0] / prefill_s[:, 0] * _PREFILL_LOAD * found.fits.any(axis=1)
    prefills, own_s = float(per_s.max()), float(prefill_s[int(per_s.argmax()), 0])
    decodes = copies * batch / step_s / mix.output
    pairs = [(p, d) for p in range(1, _MOST_SLICES + 1) for d in range(1, _MOST_SLICES + 1)]
    served = np.array([np.minimum(p * prefills, d * decodes) / (p + d) for p, d in pairs])
    chosen = served.argmax(axis=0)
    cluster = chips * layout.chip.dcn_bytes_per_s.value
    transfer_s = step.as_float(layout.cache_bytes(mix.prompt, whole=True)) / cluster
    # In the mean a prompt waits for r / (2 (1 - r)) prefills of a queue with load r.
    waited_s = own_s * (1 + _PREFILL_LOAD / (2 * (1 - _PREFILL_LOAD)))
    modes: dict[Mode, tuple[Floats, Floats, Floats]] = {
        "interleaved": (
            found.points.mean_tpot_s, found.points.ttft_s,
            found.points.output_tokens_per_s / chips,
        ),
        "disaggregated": (
            step_s, waited_s + transfer_s + step_s,
            served.max(axis=0) * mix.output / chips,
        ),
    }  # fmt: skip
    ttft, tpot = free.ttft or ANY_WISH, free.tpot or ANY_WISH
    points = []
    for mode, (tpot_s, ttft_s, rate) in modes.items():
        for place in _undominated(tpot_s, np.where(found.fits, rate, 0.0)):
            apart = mode == "disaggregated"
            prefill, decode = pairs[int(chosen[place])] if apart else (0, 1)
            at_wish = tpot_s if apart else found.points.tpot_s
            mesh = {name: int(layout.mesh[axis][place[0], 0]) for name, axis in AXES.items()}
            points.append(
                FrontierPoint(
                    mode=mode,
                    mesh=mesh | {"experts": int(layout.expert_ways[place[0], 0])},
                    batch=float(batch[place] * copies[place]) * decode,
                    prefill_slices=prefill,
                    decode_slices=decode,
                    ttft_s=float(ttft_s[place]),
                    tpot_s=float(tpot_s[place]),
                    transfer_s=transfer_s if apart else 0.0,
                    output_tokens_per_s=float(rate[place]) * chips * (prefill + decode),
                    output_tokens_per_s_chip=float(rate[place]),
                    meets_wishes=bool(ttft_s[place] <= ttft.time and at_wish[place] <= tpot.time),
                )
            )
    if not points:
        raise NotServed(f"{spec.name}: no layout of its slice serves a request")
    meeting = [i for i, point in enumerate(points) if point.meets_wishes]
    best = max(meeting, key=lambda i: points[i].output_tokens_per_s_chip, default=None)
    return ServingFrontier(
        name=spec.name, chip=layout.chip.name, topology=spec.resources.topology,
        points=tuple(points), best=best,
    )  # fmt: skip


def _undominated(time_s: Floats, rate: Floats) -> list[tuple[int, int]]:
    """Return the places that no other beats in both, by time."""
    order = np.lexsort((-rate.ravel(), time_s.ravel()))
    kept, most = [], 0.0
    for at in order.tolist():
        place = np.unravel_index(at, rate.shape)
        if rate[place] > most * 1.1:  # a tenth more is worth a row
            kept.append((int(place[0]), int(place[1])))
            most = float(rate[place])
    return kept

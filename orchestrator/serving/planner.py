"""Serving spec to ServingPlan: the best layout of a slice with as many requests as wishes allow."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import accumulate, compress
from math import ceil, exp, floor, log10
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.serving import ServingConstants, constants_of
from orchestrator.errors import SpecError
from orchestrator.formatting import HOUR_S, counted, in_memory, seconds
from orchestrator.network.decoder import decoder
from orchestrator.planning.forecast import price_of
from orchestrator.planning.layout import Number
from orchestrator.planning.torus import Floats
from orchestrator.serving import load, step
from orchestrator.serving.layout import AXES, Serving, decode, layouts, prefill
from orchestrator.serving.step import memory_of, pass_lines
from orchestrator.values.codec import MOST_SLICES
from orchestrator.values.model import Model
from orchestrator.values.plan import Plan
from orchestrator.values.serving import (
    LengthShare,
    Serve,
    ServingEstimate,
    ServingForecast,
    ServingMesh,
    ServingPlan,
    ServingResources,
    ServingSpec,
    Wish,
)

_SERVING_SCHEMA = 1
_BUSY = 0.9  # of the most requests per second, where a spec states no rate
_STEPS_OF_TWO = 4  # numbers of requests that are tried between one and its double
# Tokens of a prompt and of an answer, where a run says nothing of its requests.
_PROMPT, _OUTPUT = 1024, 256
ANY_WISH = Wish(time=float("inf"))


class NotServed(SpecError):
    """No layout of the slice serves the spec. The text has the arithmetic and a way out."""

    is_prose = True
    code = "not_served"


def serving_of(plan: Plan) -> ServingSpec:
    """Return the spec that serves the model of a training plan on one of its slices: prompts of
    1,024 and answers of 256 tokens, or less in the same proportion where positions are learned.
    """
    if not plan.ledger_describes_trainer:
        raise SpecError(
            f"{plan.name}: nothing is known of the network of trainer {plan.trainer}: write a"
            " serving spec of a model like it"
        )
    model = Model(**{key.name: getattr(plan.model, key.name) for key in fields(Model)})
    whole = _PROMPT + _OUTPUT
    output = max(min(whole, model.learned_positions or whole) * _OUTPUT // whole, 1)
    lengths = (output * _PROMPT // _OUTPUT, output)
    prompt, answer = ((LengthShare(tokens=tokens, share=1.0),) for tokens in lengths)
    return ServingSpec(
        name=plan.name,
        serve=Serve(model=model, prompt=prompt, output=answer),
        resources=ServingResources(
            chip=plan.chip,
            chip_definition=plan.chip_definition,
            topology=plan.topology,
            dollars_per_chip_hour=plan.forecast.dollars_per_chip_hour,
        ),
    )


def mix_of(serve: Serve) -> step.Mix:
    """The requests in the mean. Long answers are in work for longer: they count by their tokens."""
    prompt, output = serve.prompt_tokens, serve.output_tokens
    squares = sum(length.share * length.tokens**2 for length in serve.output)
    positions = sum(length.share * length.tokens**2 for length in serve.prompt) / prompt
    return step.Mix(prompt, output, prompt + squares / output / 2, positions, float(serve.chunk))


@dataclass(frozen=True)
class _Points:
    """What layouts (rows) do with numbers of requests in work (columns), with an engine."""

    batch: Floats
    tpot_s: Floats
    ttft_s: Floats
    mean_tpot_s: Floats
    ttft_lower_s: Floats
    tpot_lower_s: Floats
    copies: Floats
    output: float

    @property
    def output_tokens_per_s(self) -> Floats:
        return np.asarray(self.copies * self.batch / self.mean_tpot_s)

    def at(self, place: tuple[int, int]) -> dict[str, float]:
        names = [each.name for each in fields(self) if each.name not in ("copies", "output")]
        return {n: float(getattr(self, n)[place]) for n in (*names, "output_tokens_per_s")}


def _points(layout: Serving, batch: Number, serve: Serve, engine: ServingConstants) -> _Points:
    mix = mix_of(serve)
    decoded, chunked = step.mix_work(layout, batch, mix)
    found = step.rates(decoded, chunked, mix.chunks, engine)
    ttft, tpot = serve.ttft or ANY_WISH, serve.tpot or ANY_WISH
    # TTFT is that of a prompt at its percentile, with the attention and the steps of its own: of a
    # length that so many percent of requests do not exceed.
    ordered = sorted(serve.prompt, key=lambda length: length.tokens)
    shares = accumulate(part.share for part in ordered)
    enough = (share >= ttft.percentile / 100 - 1e-9 for share in shares)
    length = float(next(compress(ordered, enough), ordered[-1]).tokens)
    own = mix._replace(prompt=length, positions=length)
    prompt = step.mix_work(layout, batch, own)[1]
    own_s = (
        step.rates(decoded, prompt, own.chunks, engine).added_s + ceil(own.chunks) * found.step_s
    )
    ttft_s = own_s + step.waits_s(found, batch, mix.chunks, mix.output, ttft.percentile)
    tpot_s = step.tpot_at(found, batch, mix.output, tpot.percentile)
    # Prompts read experts that a step of few requests does not, which engines' steps leave out.
    ttft_lower_s, tpot_lower_s = own.chunks * step.lower_s(prompt), step.lower_s(decoded)
    shape = np.broadcast_shapes(np.shape(batch), np.shape(found.step_s))

    def filled(values: Number) -> Floats:
        return np.broadcast_to(np.asarray(values, float), shape)

    return _Points(
        batch=filled(batch),
        tpot_s=filled(np.maximum(tpot_s, tpot_lower_s)),
        ttft_s=filled(np.maximum(ttft_s, ttft_lower_s)),
        mean_tpot_s=filled(found.tpot_s(batch, mix.output)),
        ttft_lower_s=filled(ttft_lower_s),
        tpot_lower_s=filled(tpot_lower_s),
        copies=np.broadcast_to(layout.mesh["data"], shape),
        output=mix.output,
    )


@dataclass(frozen=True)
class _Searched:
    """The layouts of a slice, the requests that each copy may have, and what it then does."""

    spec: ServingSpec
    layout: Serving
    most: Floats
    points: _Points
    fits: Any
    engine: ServingConstants

    @property
    def excess(self) -> Floats:
        """How many times a point exceeds the wish that it misses most; at most 1 where all hold."""
        serve = self.spec.serve
        ttft, tpot = (wish.time if wish else float("inf") for wish in (serve.ttft, serve.tpot))
        return np.maximum(self.points.ttft_s / ttft, self.points.tpot_s / tpot)


def searched(spec: ServingSpec, *, advise: bool = True) -> _Searched:
    """Return what the layouts of a slice do. `NotServed` has a way out, which is planned itself;
    what is planned for that does without one, so that no way out asks for another.
    """
    serve, resources = spec.serve, spec.resources

    def refused(text: str, way_out: Callable[[], str]) -> NotServed:
        return NotServed(text + way_out() if advise else text)

    chip = catalog.chip_of(resources)
    topology = catalog.topology(chip, resources.topology)
    layout = layouts(chip, topology, serve.model, serve.weights, serve.kv_cache, resources.mesh)
    if layout is None:
        model = spec.serve.model
        no_mesh_text = (
            f"no mesh of {_slice_text(spec)} divides {model.name}: tensor divides its {model.heads}"
            f" heads and d_ff {model.d_ff:,}; attention splits requests of a mixture alone"
        )
        raise refused(no_mesh_text, lambda: _way_out(spec))
    engine = constants_of(serve.engine, chip.name)
    # Every copy holds at least the longest request, and as many as have room at their full length.
    longest = max(x.tokens for x in serve.prompt) + max(x.tokens for x in serve.output)
    chunk = float(serve.chunk)
    most = layout.most_requests(chunk, mix_of(serve).prompt + mix_of(serve).output)
    most = np.where(layout.most_requests(chunk, longest) < 1, 0, most)
    if not (most >= 1).any():
        # The arithmetic of the layout that is nearest to holding one request.
        short = layout.weights_bytes + layout.cache_bytes(longest) - layout.hbm_bytes
        best = layout.column(int(np.argmin(np.broadcast_to(short, layout.mesh["tensor"].shape))))
        weights, cache = map(step.as_float, (best.weights_bytes, best.cache_bytes(longest)))
        work = step.as_float(best.activation_bytes(spec.serve.chunk, 1))
        no_room_text = (
            f"{spec.serve.model.name} on {_slice_text(spec)}: not one request of {longest:,} tokens"
            f" fits. A device has {in_memory(best.hbm_bytes)}: weights take {in_memory(weights)},"
            f" a step {in_memory(work)} and the cache {in_memory(cache)}"
        )
        raise refused(no_room_text, lambda: _way_out(spec))
    replicas = resources.replicas * layout.mesh["data"]
    if serve.concurrency is not None:
        batch: Any = serve.concurrency / replicas
    else:
        doublings = np.arange(0, np.log2(most.max()) + 1e-9, 1 / _STEPS_OF_TWO)
        batch = np.unique(np.floor(2.0**doublings))[None, :]
        batch = np.concatenate([np.minimum(batch, np.maximum(most, 1)), np.maximum(most, 1)], 1)
    points = _points(layout, batch, serve, engine)
    if serve.requests_per_s is not None:
        # The requests that are in work where they arrive at that rate, between the tried numbers.
        wanted = np.broadcast_to(serve.requests_per_s / replicas, most.shape)
        rate = points.batch / points.mean_tpot_s / points.output
        rows = zip(wanted[:, 0], rate, points.batch, strict=True)
        batch = np.array([[np.interp(own, rates, sizes)] for own, rates, sizes in rows])
        served = rate.max(axis=1, keepdims=True) >= wanted
        points = _points(layout, batch, serve, engine)
        fits = served & (most >= 1)
        if not fits.any():
            most_s = float(np.where(most >= 1, rate * replicas, 0).max())
            overload_text = (
                f"serve.requests_per_s: {_slice_text(spec)} can serve {most_s:.3g} requests/s at"
                f" most, not {serve.requests_per_s:g}"
            )
            raise refused(overload_text, lambda: _more_replicas_text(spec, most_s))
    else:
        fits = (points.batch <= most + 1e-9) & (points.batch >= 1) & (most >= 1)
        if not fits.any():
            assert serve.concurrency is not None  # the others are tried with what fits
            raise NotServed(_misfit_text(spec, serve.concurrency, layout, most))
    return _Searched(spec, layout, most, points, fits, engine)


def make_serving_plan(spec: ServingSpec, *, advise: bool = True) -> ServingPlan:
    """Return the layout with the most output tokens/s that meets the wishes, or raise `NotServed`;
    at a given rate of requests, the one with the least time between tokens.
    """
    found = searched(spec, advise=advise)
    serve, points, excess = spec.serve, found.points, found.excess
    met = found.fits & (excess <= 1)
    if met.any():
        worth = points.output_tokens_per_s
        if serve.requests_per_s is not None:
            worth = 1 / points.tpot_s
        place = np.unravel_index(np.argmax(np.where(met, worth, 0.0)), met.shape)
        return _write(found, (int(place[0]), int(place[1])))
    # Which wishes are missed, and the nearest wishes that are met, planned themselves.
    excess = np.where(found.fits, excess, np.inf)
    place = np.unravel_index(int(np.argmin(excess)), excess.shape)
    reached = {"ttft": points.ttft_s[place], "tpot": points.tpot_s[place]}
    wishes: dict[str, Any] = {}
    said, options = [], []
    for name, time_s in reached.items():
        wish: Wish | None = getattr(serve, name)
        if wish is not None and time_s > wish.time:
            # Next number of milliseconds with two digits.
            value = float(time_s)
            digits = 10.0 ** (floor(log10(value * 1000)) - 1)
            time = ceil(value * 1000 / digits * (1 - 1e-12)) * digits / 1000
            wishes[name] = replace(wish, time=time)
            said.append(
                f"serve.{name}: {seconds(wish.time)} at p{wish.percentile:g} is met by no"
                f" layout of {_slice_text(spec)}; the nearest has {seconds(value)},"
                f" with {counted(round(float(points.batch[place])), 'request')} in work"
            )
            written = f"{time:.12g}s" if time >= 1 else f"{1000 * time:.12g}ms"
            options.append(f"--set serve.{name}.time={written}")
    made = make_serving_plan(replace(spec, serve=replace(serve, **wishes)))
    rate = made.forecast.output_tokens_per_s.expected
    raise NotServed(
        f"{'; '.join(said)}. Nearest that is met: {' '.join(options)}, with {rate:,.0f} output"
        " tokens/s"
    )


def _write(found: _Searched, place: tuple[int, int]) -> ServingPlan:
    spec, layout = found.spec, found.layout.column(place[0])
    serve, resources, chip = spec.serve, spec.resources, found.layout.chip
    topology = catalog.topology(chip, resources.topology)
    chips = topology.chips * resources.replicas
    mesh = {name: step.as_int(layout.mesh[axis]) for name, axis in AXES.items()}
    mesh["experts"] = step.as_int(layout.expert_ways)
    network = decoder(serve.model)
    return ServingPlan(
        schema=_SERVING_SCHEMA,
        name=spec.name,
        overrides=spec.overrides,
        serve=serve,
        parameters=network.parameters,
        active_parameters=network.active_parameters,
        chip=chip.name,
        chip_definition=resources.chip_definition,
        topology=str(topology),
        replicas=resources.replicas,
        chips=chips,
        devices=chips * chip.devices,
        mesh=mesh,
        forecast=_forecast(found, layout, found.points.at(place), place, chips),
        searched=int(found.fits.size),
    )


def _forecast(
    found: _Searched, layout: Serving, point: dict[str, float], place: tuple[int, int], chips: int
) -> ServingForecast:
    spec, serve, engine = found.spec, found.spec.serve, found.engine
    mix, batch, replicas = mix_of(serve), point["batch"], spec.resources.replicas
    decoded, chunked = step.mix_work(layout, batch, mix)
    bound_s = step.as_float(step.bound_tpot_s(decoded, chunked, mix.chunks * batch / mix.output))
    copies = replicas * step.as_int(layout.mesh["data"])
    most, expected = copies * batch / bound_s, replicas * point["output_tokens_per_s"]
    low, high = expected * exp(-engine.spread), min(expected * exp(engine.spread), most)
    rate = ServingEstimate(lower=most, expected=expected, low=low, high=high)
    if serve.requests_per_s is not None:
        # All requests are answered, unless the engine is slower than expected by too much.
        room = found.most[place[0] : place[0] + 1]
        all_at_once = _points(layout, room, serve, engine).output_tokens_per_s
        asked, most = serve.requests_per_s * mix.output, replicas * float(all_at_once.max())
        low = min(asked, most * exp(-engine.spread))
        rate = ServingEstimate(lower=asked, expected=asked, low=low, high=asked)
    price = price_of(layout.chip, spec.resources.dollars_per_chip_hour)
    dollars = None
    if price is not None:
        per_token = price * chips / HOUR_S * 1e6
        dollars = ServingEstimate(
            lower=per_token / rate.lower, expected=per_token / rate.expected,
            low=per_token / rate.high, high=per_token / rate.low,
        )  # fmt: skip
    lines = pass_lines(layout, decode(batch, mix.context))
    return ServingForecast(
        ttft_s=_time(point["ttft_lower_s"], point["ttft_s"], engine.spread),
        tpot_s=_time(point["tpot_lower_s"], point["tpot_s"], engine.spread)
        if mix.output > 1
        else None,
        output_tokens_per_s=rate,
        output_tokens_per_s_chip=_scaled(rate, 1 / chips),
        requests_per_s=_scaled(rate, 1 / mix.output),
        dollars_per_million_output_tokens=dollars,
        kv_bytes_per_token=step.as_float(layout.cache_bytes(1, whole=True)),
        kv_bytes_per_request=step.as_float(layout.cache_bytes(mix.prompt + mix.output, whole=True)),
        max_batch=int(found.most[place[0], 0]) * copies,
        batch=batch * copies,
        turns_at=step.turning_batch(layout),
        bound=max(lines, key=lambda line: line.value).resource or "",
        memory=memory_of(layout, batch, mix),
        decode=lines,
        prefill=pass_lines(layout, prefill(min(mix.chunk, mix.prompt), mix.positions, mix.prompt)),
        engine=serve.engine,
        learned_runs=engine.runs,
        dollars_per_chip_hour=price,
    )


def _time(lower: float, expected: float, spread: float) -> ServingEstimate:
    low = max(expected * exp(-spread), lower)
    return ServingEstimate(lower=lower, expected=expected, low=low, high=expected * exp(spread))


def _scaled(estimate: ServingEstimate, by: float) -> ServingEstimate:
    ends = ("lower", "expected", "low", "high")
    return ServingEstimate(**{end: getattr(estimate, end) * by for end in ends})


def layout_of(plan: ServingPlan) -> Serving:
    """Return the layout of a plan, on its best placement."""
    chip = catalog.chip_of(plan)
    found = layouts(
        chip, catalog.topology(chip, plan.topology), plan.serve.model, plan.serve.weights,
        plan.serve.kv_cache, ServingMesh(**plan.mesh),
    )  # fmt: skip
    assert found is not None
    return found


def loaded(
    plan: ServingPlan, kind: str, seed: int, count: int, given: load.Requests | None
) -> load.ServingLoad:
    """Return what requests see that arrive at a plan: random ones at its rate, or 90 % of what it
    serves at most, or the `given` ones of a trace, which its copies take in turn.
    """
    serve, mix, layout = plan.serve, mix_of(plan.serve), layout_of(plan)
    copies = plan.replicas * plan.mesh["replicas"]
    most = plan.forecast.max_batch // copies
    engine = constants_of(serve.engine, plan.chip)
    costs = load.costs_of(layout, mix, engine, serve.chunk, most)
    per_s: float | None
    if given is None:
        per_s = serve.requests_per_s or _BUSY * plan.forecast.requests_per_s.expected
        prompts, outputs = (
            (np.array([float(x.tokens) for x in part]), np.array([x.share for x in part]))
            for part in (serve.prompt, serve.output)
        )
        arrivals = load.drawn(kind, count, per_s / copies, prompts, outputs, seed)
    else:
        arrivals = load.Requests(*(column[::copies] for column in given))
        longest = float((given.prompt + given.output).max())
        if step.as_float(layout.most_requests(serve.chunk, longest)) < 1:
            raise NotServed(
                f"{kind}: a request of {longest:,.0f} tokens has no room on {plan.chip}"
                f" {plan.topology}: leave it out, or plan a larger slice"
            )
        lasts_s = float(np.ptp(given.arrival_s))
        per_s = len(given.arrival_s) / lasts_s if lasts_s else None
    ttft_s, tpot_s, waits_s, busy, in_work = load.simulated(arrivals, costs)
    tpot_s = tpot_s[arrivals.output > 1]
    return load.ServingLoad(
        name=plan.name, arrivals=kind, seed=seed, requests=len(arrivals.arrival_s),
        requests_per_s=per_s,
        ttft_s=load.percentiles(ttft_s), tpot_s=load.percentiles(tpot_s) if tpot_s.size else None,
        waits_s=load.percentiles(waits_s), busy=busy, most_in_work=in_work * copies,
    )  # fmt: skip


# --- why a spec is not served, and what is


def _slice_text(spec: ServingSpec) -> str:
    resources = spec.resources
    slices = f"{resources.replicas} slices of " if resources.replicas > 1 else ""
    return f"{slices}{resources.chip} {resources.topology}"


def _misfit_text(spec: ServingSpec, wanted: int, layout: Serving, most: Floats) -> str:
    """Why so many requests have no room, or are fewer than there are copies of the model."""
    copies = (layout.mesh["data"] * spec.resources.replicas)[most >= 1]
    requests = f"serve.concurrency: {counted(wanted, 'request')}"
    where = _slice_text(spec)
    if (more := copies[copies > wanted]).size:
        fewer = f"resources.replicas={wanted}"
        change = fewer if wanted < min(copies) == spec.resources.replicas else ""
        change = change or f"serve.concurrency={int(min(more))}"
        return (
            f"{requests} in work leave idle some of the {int(min(more))} copies of the model on"
            f" {where}: write --set {change}"
        )
    fits = int((most[most >= 1] * copies).max())
    return (
        f"{requests} have no room on {where}, which holds {fits}: write --set"
        f" serve.concurrency={fits}, or more replicas"
    )


def with_enough_replicas(spec: ServingSpec, *, advise: bool = True) -> ServingPlan:
    """Return the plan with the fewest replicas that serve the rate of requests; without a rate,
    with those of the spec.
    """
    wanted = spec.serve.requests_per_s
    if wanted is None:
        return make_serving_plan(spec, advise=advise)
    # As many as one replica serves with all requests that its wishes allow.
    alone = replace(spec.serve, requests_per_s=None), replace(spec.resources, replicas=1)
    full = make_serving_plan(replace(spec, serve=alone[0], resources=alone[1]), advise=advise)
    replicas = ceil(wanted / full.forecast.requests_per_s.expected - 1e-9)
    last = NotServed(f"{replicas:,} slices would serve {wanted:g} requests/s, more than may be")
    for more in (replicas, replicas + 1, ceil(replicas * 1.1) + 1):
        if more > MOST_SLICES:
            break
        resources = replace(spec.resources, replicas=more)
        try:
            return make_serving_plan(replace(spec, resources=resources), advise=False)
        except NotServed as error:
            last = error
    raise last


def _more_replicas_text(spec: ServingSpec, most: float) -> str:
    """Return the replicas that serve an overload, or the rate that the spec's own serve."""
    try:
        made = with_enough_replicas(spec)
    except NotServed as error:
        digits = 10.0 ** (floor(log10(most)) - 1)
        rate = floor(most / digits) * digits
        fewer = replace(spec, serve=replace(spec.serve, requests_per_s=rate))
        try:
            make_serving_plan(fewer, advise=False)
        except NotServed:
            return f"; and with any number of slices, {error}"
        return f": write --set serve.requests_per_s={rate:g}"
    share = made.forecast.batch / made.forecast.max_batch
    return (
        f". Nearest: --set resources.replicas={made.replicas}, with {share:.0%} of the room in use"
    )


def _way_out(spec: ServingSpec) -> str:
    """Return the smallest larger slice that serves the spec, or the narrow types that do; where
    none meets its wishes, one that serves it without.
    """
    chip = catalog.chip_of(spec.resources)
    chips = catalog.topology(chip, spec.resources.topology).chips
    tries: list[tuple[str, ServingSpec]] = []
    for text in catalog.topologies(chip):
        more = catalog.topology(chip, text).chips
        if chips < more <= 16 * chips:
            change = f"resources.topology={text}"
            resources = replace(spec.resources, topology=text)
            tries.append((change, replace(spec, resources=resources)))
    if spec.serve.weights == "bf16":
        serve = replace(spec.serve, weights="int8", kv_cache="int8")
        change = "serve.weights=int8 --set serve.kv_cache=int8"
        tries.insert(0, (change, replace(spec, serve=serve)))
    for unwished in (False, True):
        for change, other in tries:
            free = replace(other.serve, ttft=None, tpot=None)
            try:
                made = with_enough_replicas(
                    replace(other, serve=free) if unwished else other, advise=False
                )
            except SpecError:
                continue
            options = [change]
            if made.replicas != spec.resources.replicas:
                options.append(f"resources.replicas={made.replicas}")
            wishes = [key for key in ("ttft", "tpot") if unwished and getattr(spec.serve, key)]
            options += [f"serve.{key}=null" for key in wishes]
            return f". Nearest that is served: --set {' --set '.join(options)}"
    return ". No larger slice of this chip serves it either: take another chip or model"

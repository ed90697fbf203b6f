"""Show serving: plans, derivations and scores."""

from math import log1p
from pathlib import Path

from orchestrator import formatting as fmt
from orchestrator.evidence.explain.serving import ServingExplanation
from orchestrator.evidence.score.serving import ServingRow, ServingScore
from orchestrator.run.progress import RUNS, run_command
from orchestrator.serving.cheapest import ServingOffers
from orchestrator.serving.frontier import ServingFrontier
from orchestrator.serving.load import ServingLoad
from orchestrator.show import explain_screen
from orchestrator.show import parts as ui
from orchestrator.show.plan_text import in_words, resource_name
from orchestrator.values.plan import LedgerLine
from orchestrator.values.serving import (
    ANY_ENGINE,
    LengthShare,
    ServingEstimate,
    ServingPlan,
    Wish,
)

_INTERVAL = "80 % interval"
_WORST = 20  # runs of a score that are shown
_NO_TPOT = "none: answers of one token"
_FIGURES = {"output_tokens": "output tokens/s", "tpot": "TPOT", "ttft": "TTFT",
            "cache_room": "room for cache"}  # fmt: skip


def _lengths(lengths: tuple[LengthShare, ...]) -> str:
    if len(lengths) == 1:
        return fmt.count(lengths[0].tokens)
    return ", ".join(f"{fmt.count(x.tokens)} ({fmt.whole_percent(x.share)})" for x in lengths)


def _wish(wish: Wish | None, figure: ServingEstimate) -> str:
    """Return a time with its interval, and the wish that it meets."""
    at, wished = 50.0, ""
    if wish:
        at, wished = wish.percentile, f"; wished {fmt.seconds(wish.time)}"
    ends = fmt.span(fmt.seconds(figure.low), fmt.seconds(figure.high))
    return f"{fmt.seconds(figure.expected)} at p{at:g}, {_INTERVAL} {ends}{wished}"


def headline(plan: ServingPlan) -> str:
    chips = fmt.counted(plan.chips, f"{plan.chip} chip")
    return f"{plan.name}: {chips}, {fmt.counted(plan.replicas, 'slice')} of {plan.topology}"


def serving_screen(
    plan: ServingPlan, next_command: str | None, detail: ui.Detail = "usual"
) -> ui.Screen:
    forecast, serve, memory = plan.forecast, plan.serve, plan.forecast.memory
    rate = forecast.output_tokens_per_s
    used = memory.weights_bytes + memory.activations_bytes + memory.cache_bytes
    output = "all that is asked for"  # where all that arrives is answered
    if rate.low != rate.high:
        output = f"{_INTERVAL} {fmt.span(fmt.scaled(rate.low), fmt.scaled(rate.high))}"
    rows = [
        ("fits", f"yes: {fmt.in_memory(used)} of {fmt.in_memory(memory.hbm_bytes)} per device"),
        ("TTFT", _wish(serve.ttft, forecast.ttft_s)),
        ("TPOT", _wish(serve.tpot, forecast.tpot_s) if forecast.tpot_s else _NO_TPOT),
        ("output", f"{fmt.scaled(rate.expected)} tokens/s, {output}"),
    ]  # fmt: skip
    if cost := forecast.dollars_per_million_output_tokens:
        dollars = fmt.span(fmt.dollars(cost.low), fmt.dollars(cost.high))
        ends = f", {_INTERVAL} {dollars}" if cost.low != cost.high else ""
        rows.append(("price", f"{fmt.dollars(cost.expected)} per million output tokens{ends}"))
    rows.append(
        ("bound", f"decoding by {forecast.bound}: {in_words(resource_name(forecast.bound))}")
    )
    top: list[list[ui.Part]] = [
        [ui.heading(headline(plan))],
        ui.indent([ui.Table(rows, "<w", row_styles={0: "green"})]),
    ]
    if detail == "brief":
        return ui.screen(*top, ui.next_step(next_command))
    lines = [
        ("weights", memory.weights_bytes),
        ("activations", memory.activations_bytes),
        (f"KV cache of {plan.forecast.batch:,.4g} requests", memory.cache_bytes),
    ]
    free = memory.hbm_bytes - sum(value for _, value in lines)
    rows = [(name, fmt.in_memory(value)) for name, value in [*lines, ("free", free)]]
    memory_table = ui.Table(rows, bars=[*(value for _, value in lines), free])
    return ui.screen(
        *top,
        ui.indent([ui.Table(_decisions(plan), "<w")]),
        ui.section("memory per device", [memory_table]),
        ui.section("a decoding step, each line at its peak", [_lines(forecast.decode)]),
        ui.section("a chunk of prompts, each line at its peak", [_lines(forecast.prefill)]),
        ui.indent([_estimates(plan)]),
        ui.closing(_verdict(plan), next_command),
    )


def serving_text(plan: ServingPlan, run: str, storage: Path = RUNS) -> tuple[str, str]:
    """Return what it costs to serve the model of a run, and the command that plans it."""
    rate = f"{fmt.scaled(plan.forecast.output_tokens_per_s_chip.expected)} tokens/s a chip"
    if cost := plan.forecast.dollars_per_million_output_tokens:
        rate = f"{fmt.dollars(cost.expected)} per million output tokens at {rate}"
    where = f"{plan.serve.model.name} on one {plan.chip} {plan.topology}"
    return f"To serve {where}: {rate}", run_command("plan", run, storage, "--serve")


def _decisions(plan: ServingPlan) -> list[ui.Row]:
    forecast, serve = plan.forecast, plan.serve
    active = ""
    if plan.active_parameters != plan.parameters:
        active = f", {fmt.scaled(plan.active_parameters, 4)} of them active"
    mesh = ", ".join(f"{name} {size}" for name, size in plan.mesh.items() if size > 1)
    turns = f"from {fmt.counted(round(forecast.turns_at), 'request')} in work of a copy"
    room = fmt.counted(forecast.max_batch, "request")
    per_token = fmt.with_unit(forecast.kv_bytes_per_token, "B", 4)
    per_request = fmt.in_memory(forecast.kv_bytes_per_request)
    engine = f"{serve.engine}, learned from {fmt.counted(forecast.learned_runs, 'run')}"
    if serve.engine == ANY_ENGINE:
        engine = "any: what engines with published runs reach in the mean"
    asked = "as many requests as the wishes and the memory allow"
    if serve.concurrency is not None:
        asked = f"{fmt.counted(serve.concurrency, 'request')} in work"
    if serve.requests_per_s is not None:
        asked = f"{serve.requests_per_s:g} requests/s"
    requests = (
        f"{asked}; prompts of {_lengths(serve.prompt)}, answers of {_lengths(serve.output)}"
        f" {'token' if forecast.tpot_s is None else 'tokens'}"
    )
    return [
        ("model", f"{serve.model.name}, {fmt.scaled(plan.parameters, 4)} parameters{active}"),
        ("types", f"weights in {serve.weights}, KV cache in {serve.kv_cache}"),
        ("requests", requests),
        ("mesh", mesh or "one device"),
        ("batch", f"{forecast.batch:,.4g} in work; {room} of the full length have room"),
        ("cache", f"{per_token} per token, {per_request} per request"),
        ("turns", f"products with weights bind {turns}"),
        ("engine", engine),
    ]  # fmt: skip


def _lines(lines: tuple[LedgerLine, ...]) -> ui.Table:
    rows = []
    for line in lines:  # its name, its work and its rate, its seconds
        numbers = dict(line.inputs)
        rate = numbers.pop(next(name for name in ("bandwidth", "peak", "rate") if name in numbers))
        unit = "FLOP" if "flops" in numbers else "B"
        size = fmt.with_unit(numbers.get("flops", numbers.get("bytes", 0.0)), unit)
        times = f"{numbers['requests']:,.4g} x " if "requests" in numbers else ""
        amount = f"{times}{size} at {fmt.with_unit(rate, unit + '/s')}"
        rows.append((line.name, amount, fmt.seconds(line.value)))
    return ui.Table(rows, "<<>", bars=[line.value for line in lines])


def _estimates(plan: ServingPlan) -> ui.Table:
    forecast = plan.forecast

    def row(name: str, figure: ServingEstimate | None, show: ui.Show) -> ui.Row:
        if figure is None:
            return name, "", "none", ""
        ends = fmt.span(show(figure.low), show(figure.high))
        return name, show(figure.lower), show(figure.expected), ends

    rows = [
        ("", "bound", "expected", _INTERVAL),
        row("TTFT", forecast.ttft_s, fmt.seconds),
        row("TPOT", forecast.tpot_s, fmt.seconds),
        row("output tokens/s", forecast.output_tokens_per_s, fmt.scaled),
        row("a chip", forecast.output_tokens_per_s_chip, fmt.scaled),
        row("requests/s", forecast.requests_per_s, fmt.scaled),
    ]
    if cost := forecast.dollars_per_million_output_tokens:
        price = f"{fmt.dollars(forecast.dollars_per_chip_hour or 0.0)} a chip-hour"
        rows.append(row(f"per 1M tokens, {price}", cost, fmt.dollars))
    return ui.Table(rows)


def _verdict(plan: ServingPlan) -> str:
    forecast = plan.forecast
    cost = forecast.dollars_per_million_output_tokens
    price = f" at {fmt.dollars(cost.expected)} per million output tokens" if cost else ""
    every = ""
    if tpot_s := forecast.tpot_s:
        every = f", a token every {fmt.seconds(tpot_s.expected)}"
    return f"{fmt.scaled(forecast.output_tokens_per_s.expected)} output tokens/s{price}{every}."


def serving_offers_screen(
    found: ServingOffers, next_command: str | None, detail: ui.Detail = "usual"
) -> ui.Screen:
    """Return the cheapest slices of each chip that serve a spec, and why others do not."""
    days = f"{found.days:g} days"
    head: ui.Row = ("chip", "topology", "slices", "TTFT", "TPOT", "tokens/s", "per 1M", days)
    rows, left_out, seen = list[ui.Row](), dict[str, str](), set[str]()
    for offer in found.offers:
        if offer.plan is None:
            left_out[offer.chip] = offer.why
        elif detail == "full" or offer.chip not in seen or offer is found.cheapest:
            seen.add(offer.chip)
            forecast, cost = offer.plan.forecast, offer.dollars_per_million_output_tokens
            offer_row = (
                offer.chip,
                offer.topology,
                str(offer.replicas),
                fmt.seconds(forecast.ttft_s.expected),
                fmt.seconds(forecast.tpot_s.expected) if forecast.tpot_s else "",
                fmt.scaled(forecast.output_tokens_per_s.expected),
                "no price" if cost is None else fmt.dollars(cost),
                "" if offer.dollars is None else fmt.dollars(offer.dollars),
            )
            rows.append(offer_row)
    budget = "" if found.budget_dollars is None else f" within {fmt.dollars(found.budget_dollars)}"
    verdict = f"no slice serves it as wished{budget}"
    if best := found.cheapest:
        slices = fmt.counted(best.replicas, f"slice of {best.topology}", "")
        first = "no price is known; fewest chips" if best.dollars is None else "cheapest"
        verdict = f"{first}{budget}: {best.chip}, {slices}"
        if best.plan:
            verdict += f": {_verdict(best.plan)}"
    refused = [f"{chip}: {why}" for chip, why in left_out.items() if chip not in seen]
    planned = [offer for offer in found.offers if offer.plan]
    if unpriced := dict.fromkeys(offer.chip for offer in planned if offer.dollars is None):
        refused.append(f"{', '.join(unpriced)}: no price is known; --prices takes a file of yours")
    table = [] if detail == "brief" else ui.table(head, rows, "<<>>>>>>")
    return ui.screen(
        [ui.heading(f"{found.name}: {verdict}")],
        ui.indent(table),
        [ui.Text(text, hang=2) for text in refused],
        ui.next_step(next_command),
    )


def frontier_rows(found: ServingFrontier) -> list[ui.Row]:
    """Return a head and a row for each point; the best is marked."""
    rows: list[ui.Row] = [("", "slices", "mesh", "requests", "TTFT", "TPOT", "tokens/s/chip", "")]
    for number, point in enumerate(found.points):
        slices = "1"
        if point.prefill_slices:
            slices = f"{point.prefill_slices} + {point.decode_slices}"
        mark = "best" if number == found.best else "meets" if point.meets_wishes else ""
        rows.append((
            point.mode, slices, " x ".join(str(n) for n in point.mesh.values()),
            f"{point.batch:,.0f}", fmt.seconds(point.ttft_s), fmt.seconds(point.tpot_s),
            fmt.scaled(point.output_tokens_per_s_chip), mark,
        ))  # fmt: skip
    return rows


def frontier_screen(found: ServingFrontier, next_command: str) -> ui.Screen:
    verdict = "No point meets the wishes."
    if found.best is not None:
        best = found.points[found.best]
        verdict = (
            f"The most that meets the wishes: {best.mode}, {fmt.seconds(best.tpot_s)} a token,"
            f" {fmt.scaled(best.output_tokens_per_s_chip)} tokens/s per chip."
        )
    mesh = "mesh: replicas x attention x tensor x experts; slices: of prefill + of decoding"
    transfer = max(point.transfer_s for point in found.points)
    return ui.screen(
        [ui.heading(f"{found.name}: throughput against latency, {found.chip} {found.topology}")],
        ui.indent([ui.Table(frontier_rows(found), "<<<>>>><", spare=(2, 1)), mesh]),
        ui.indent([f"the KV cache of a prompt takes {fmt.seconds(transfer)} between slices"]),
        ui.closing(verdict, next_command),
    )


def load_screen(load: ServingLoad, next_command: str) -> ui.Screen:
    rows: list[ui.Row] = [("", "mean", "p50", "p95", "p99")]
    for label, found in (("TTFT", load.ttft_s), ("of it waiting", load.waits_s),
                         ("TPOT", load.tpot_s)):  # fmt: skip
        if found is None:
            rows.append((label, _NO_TPOT, "", "", ""))
            continue
        values = (found.mean, found.p50, found.p95, found.p99)
        rows.append((label, *(fmt.seconds(value) for value in values)))
    what = f"{fmt.counted(load.requests, 'request')}, {load.arrivals}"
    if load.requests_per_s is not None:
        what += f", {load.requests_per_s:.3g} a second"
    work = f"steps for {fmt.percent(load.busy)} of the time"
    if load.most_in_work:
        work += f", at most {fmt.counted(load.most_in_work, 'request')} in work"
    verdict = f"Half of the requests wait {fmt.seconds(load.ttft_s.p50)} for the first token."
    return ui.screen(
        [ui.heading(f"{load.name}: {what}")],
        ui.indent([ui.Table(rows)]),
        ui.indent([work]),
        ui.closing(verdict, next_command),
    )  # fmt: skip


def serving_explain_screen(sheet: ServingExplanation, next_command: str) -> ui.Screen:
    return ui.screen(
        [ui.heading(f"{headline(sheet.plan)}, worked out by hand")],
        explain_screen.inputs_table(sheet.inputs, wraps=True),
        *map(explain_screen.section_parts, sheet.sections),
        *explain_screen.published_parts(sheet.quotes),
        explain_screen.sources_parts(sheet.sources),
        ui.closing(f"Answer: {_verdict(sheet.plan)}", next_command),
    )


def serving_score_screen(score: ServingScore, next_command: str) -> ui.Screen:
    """Return errors by figure, then the runs with the worst ones, and what is left out."""
    totals: list[ui.Row] = [
        ("", "engine", "runs", "median", "p90", "inside 80 %", "baseline", "p90")
    ]
    for part in score.summary:
        shares = (
            part.median_abs_error, part.p90_abs_error, part.inside_interval,
            part.baseline_median_abs_error, part.baseline_p90_abs_error,
        )  # fmt: skip
        figure = _FIGURES[part.figure]
        said = ["" if share is None else fmt.percent(share) for share in shares]
        totals.append((figure, part.engine, str(part.runs), *said))

    def worst(run: ServingRow) -> float:  # a half is as far off as a double
        errors = (run.output_tokens_error, run.tpot_error, run.ttft_error)
        return max((abs(log1p(error)) for error in errors if error is not None), default=0.0)

    rows = sorted(score.rows, key=worst, reverse=True)[:_WORST]
    which = f"the {_WORST} runs furthest off; --json has all:"
    # Each figure that a run states, as measured and as expected.
    lines = []
    for row in rows:
        figures: tuple[tuple[str, float | None, float | None, ui.Show], ...] = (
            ("output tokens/s", row.output_tokens_per_s, row.output_tokens_error, fmt.scaled),
            ("TPOT", row.tpot_s, row.tpot_error, fmt.seconds),
            ("TTFT", row.ttft_s, row.ttft_error, fmt.seconds),
        )
        errors = (
            f"{name} {show(measured)}, expected {show(measured * (1 + error))}"
            f" ({fmt.signed_percent(error)})"
            for name, measured, error, show in figures
            if measured is not None and error is not None
        )
        lines.append(ui.Text(f"{row.id}: {'; '.join(errors)}", hang=2))
    # What is left out: the run, or how many for the same reason.
    named = dict[str, list[str]]()
    for run in score.left_out:
        named.setdefault(run.reason, []).append(run.id)
    reasons = (
        f"{ids[0] if len(ids) == 1 else fmt.counted(len(ids), 'run')}: {reason}"
        for reason, ids in named.items()
    )
    verdict = _score_verdict(score)
    title = f"{fmt.counted(len(score.rows), 'published run')} against their forecasts"
    return ui.screen(
        [ui.Title(title, score.learned_on)],
        ui.indent([ui.heading(verdict)]),
        ui.indent([ui.Table(totals, gap=2)] if score.summary else []),
        ui.indent([ui.heading(which if len(score.rows) > _WORST else "the runs:")] if rows else []),
        ui.indent(lines),
        ui.indent(ui.labelled("left out:", reason) for reason in reasons),
        ui.closing(verdict, next_command),
    )


def _score_verdict(score: ServingScore) -> str:
    out = f"{len(score.left_out)} left out"
    if not score.rows:
        return f"Score: no run that can be planned and converted, {out}."
    # The runs whose engine is known, if a figure has any.
    first = {part.figure: part for part in reversed(score.summary)}
    medians = [
        f"{fmt.percent(part.median_abs_error)} of {_FIGURES[figure]}"
        for figure, part in reversed(first.items())
        if figure != "cache_room"
    ]
    rates = first.get("output_tokens") or first.get("tpot")
    inside = ""
    if rates and rates.inside_interval is not None:
        share = fmt.percent(rates.inside_interval)
        inside = f", {share} of {_FIGURES[rates.figure]} inside the 80 % interval"
    above = f"{score.above_bound or 'none'} above what the bound allows"
    runs = fmt.counted(len(score.rows), "published run")
    return f"Score: {runs}, median error {', '.join(medians)}{inside}, {above}, {out}."

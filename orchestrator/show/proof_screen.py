"""Show a proof on one screen, next to the forecast that it checks."""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator import formatting as fmt
from orchestrator.evidence.profile import named_seconds
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.network.rematerialization import summary_of, text_of
from orchestrator.show import parts as ui
from orchestrator.show.plan_text import headline
from orchestrator.values import proof as proofs
from orchestrator.values.codec import short
from orchestrator.values.plan import ATTENTION_LINES
from orchestrator.values.program import AnyPlan

if TYPE_CHECKING:
    from orchestrator.proving.choose import ProgramSearch
    from orchestrator.proving.verdict import ProofResult

_LARGEST = 5  # buffers that are shown
_SMALL = 1e-3  # of the largest collective on a link: smaller ones are left to --json
_HEAD = ("", "compiled", "forecast", "forecast/compiled")


def proof_screen(
    plan: AnyPlan, proof: proofs.Proof, age_s: float | None, next_command: str | None,
    detail: ui.Detail = "usual",
) -> ui.Screen:  # fmt: skip
    """Return the verdict, then everything that it rests on, and what to do next."""
    # Whether it fits, whether the forecast agrees, and what crosses pods.
    peak, limit = map(fmt.in_memory, (proof.peak_hbm_bytes_per_device, proof.hbm_bytes_per_device))
    forecast = _agreement(proof)
    if proof.agrees is not None:
        memory = _ratio(proof.forecast_peak_hbm_bytes_per_device, proof.peak_hbm_bytes_per_device)
        flops = _ratio(proof.forecast_flops_per_device, proof.flops_per_device)
        answer = "agrees" if proof.agrees else "does not agree"
        forecast = f"{answer}: peak {memory} and FLOPs {flops} of the compiled"
    rows = [
        ("fits", f"{'yes' if proof.fits else 'no'}: {peak} of {limit} per device"),
        ("forecast", forecast),
    ]
    if proof.crossings:
        rows.append(("pods", "as planned" if proof.crosses_as_planned else "more than planned"))
    good = (proof.fits, proof.agrees is not False, proof.crosses_as_planned)
    styles = {row: "green" if right else "red" for row, right in enumerate(good[: len(rows)])}
    top: list[list[ui.Part]] = [
        [ui.Title(headline(plan), f"proof of plan {short(plan.digest)}")],
        ui.indent([ui.Table(rows, "<w", row_styles=styles)]),
    ]
    if detail == "brief":
        return ui.screen(*top, _advice(proof), ui.next_step(next_command))
    full, host_memory = detail == "full", fmt.with_unit(proof.compiler_memory_bytes, "B")
    compilation = [
        ("compiled", "now" if age_s is None else f"{fmt.ago(age_s)}, read from the cache"),
        ("by", ", ".join(f"{name} {version}" for name, version in proof.versions.items())),
        ("took", f"{proof.compile_s:.0f} s, {host_memory} of host memory"),
    ]
    return ui.screen(
        *top,
        ui.indent([ui.Table(compilation, "<w")]),
        _memory(proof, full=full),
        _collectives(proof, full=full),
        ui.indent(_dcn_check(proof) if proof.crossings else []),
        ui.section("FLOPs per device and step", _flops(proof)),
        _schedule_parts(plan, proof.schedule, full=full),
        _advice(proof),
        ui.closing(_verdict(proof), next_command),
    )


def proof_screens(
    found: "Sequence[ProofResult]", others: "Sequence[ProofResult] | None", next_command: str,
    detail: ui.Detail = "usual",
) -> list[str]:  # fmt: skip
    """Return the verdict on every stage, then those on plans that recompute less, where asked."""
    screens: list[str] = []
    for stage in found:
        following = next_command if stage is found[-1] else None
        screens += ["\n", proof_screen(stage.plan, stage.proof, stage.age_s, following, detail)]
    rows = []
    for other in others or ():
        fits = "fits" if other.proof.passes else "does not fit"
        peak = fmt.in_memory(other.proof.peak_hbm_bytes_per_device)
        rows.append((f"remat {text_of(other.plan.remat)}", peak, fits))
    if rows:
        name = "compiled policies, the least recompute first"
        screens += ["\n", ui.screen(ui.section(name, [ui.Table(rows, "<><")], 0))]
    elif others is not None:
        remat = text_of(found[-1].plan.remat)
        none = f"no plan on this mesh that recomputes less than remat {remat} may fit"
        screens += ["\n", ui.screen([none])]
    return screens[1:]


def _memory(proof: proofs.Proof, *, full: bool) -> list[ui.Part]:
    rows: list[ui.Row] = [_HEAD]
    rows += [(*_compared(line.name, line.compiled, line.forecast)[:3], "") for line in proof.ledger]
    peak, forecast = proof.peak_hbm_bytes_per_device, proof.forecast_peak_hbm_bytes_per_device
    rows.append(_compared("peak", peak, forecast))
    rows.append(("limit", fmt.in_memory(proof.hbm_bytes_per_device), "", ""))
    host, on_host = proof.host_bytes_per_device, proof.forecast_host_bytes_per_device
    if host or on_host:
        rows.append(_compared("on the host", host, on_host))
    sizes = [0, *(line.compiled for line in proof.ledger)]
    sizes += [0] * (len(rows) - len(sizes))
    parts: list[ui.Part] = [
        ui.Table(rows, "<>><", bars=sizes),
        f"the peak is at {proof.peak_at}",
    ]
    buffers = [
        (fmt.in_memory(buffer.bytes), f"{buffer.name} {buffer.shape}")
        for buffer in (proof.buffers if full else proof.buffers[:_LARGEST])
        if buffer.bytes >= fmt.GIB / 100
    ]
    if buffers:
        parts += ui.section("largest buffers", [ui.Table(buffers, ">w")], 0)
    return ui.section("memory per device", parts)


def _collectives(proof: proofs.Proof, *, full: bool) -> list[ui.Part]:
    most: dict[str, float] = defaultdict(float)
    for pair in proof.collectives:
        size = max(pair.bytes_per_step, pair.forecast_bytes_per_step or 0)
        most[pair.link] = max(size, most[pair.link])
    least = {link: 0.0 if full else _SMALL * size for link, size in most.items()}

    def in_bytes(size: float) -> str:
        return fmt.with_unit(size, "B", 4)

    rows = []
    for pair in proof.collectives:
        compiled, forecast = pair.bytes_per_step, pair.forecast_bytes_per_step
        if max(compiled, forecast or 0) >= least[pair.link]:
            link, what = f"{pair.link} {' x '.join(pair.axes)}", f"{pair.kind} {pair.dtype}"
            rows.append((link, *_compared(what, compiled, forecast, in_bytes)))
    if not rows:
        return []
    added = []
    for change in proof.changes:
        if change.bytes_per_step >= least.get(change.link, 0.0):
            link, size = f"{change.link} {' x '.join(change.axes)}", change.bytes_per_step
            added.append((change.what, link, f"+{fmt.with_unit(size, 'B')}"))
    payload = ui.table(("", "", "compiled", "forecast", "ratio"), rows, "<<>><")
    parts = ui.section("payload per device and step", payload)
    if added:
        parts += ui.section("added by the compiler", [ui.Table(added, "<<>")])
    return parts


def _ratio(forecast: float | None, compiled: float) -> str:
    return f"{forecast / compiled:.3f}" if compiled and forecast is not None else ""


def _compared(
    name: str, compiled: float, forecast: float | None, show: ui.Show = fmt.in_memory
) -> tuple[str, str, str, str]:
    known = "-" if forecast is None else show(forecast)
    return name, show(compiled), known, _ratio(forecast, compiled)


def _dcn_check(proof: proofs.Proof) -> list[ui.Part]:
    """Return whether pods exchange what is planned and nothing else."""
    faults: list[ui.Part] = []
    for fault in proof.crossing_faults:
        found = fault.crossing
        places = f", from {', '.join(found.places)}" if found.places else ""
        calls = f"{found.calls_per_step:,.0f} x " if found.calls_per_step > 1 else ""
        size = f"{found.bytes_per_step:,.0f} B {found.dtype}"
        text = f"{calls}{found.kind} {found.name} of {size}{places}"
        if fault.code == "not_planned":
            text = f"{text} crosses pods and is not in the plan"
        else:
            text = (
                f"{fault.bytes_per_step:,.0f} B of {found.carries} cross pods each step, but the"
                f" plan has {fault.allowed_bytes_per_step:,.0f} B; the largest: {text}"
            )
        faults.append(text)
    if not proof.crosses_as_planned:
        return ["pods exchange more than planned", *ui.indent(faults)]

    def exchanged(what: proofs.Payload) -> str:
        found = [crossing for crossing in proof.crossings if crossing.carries == what]
        total = fmt.with_unit(sum(crossing.bytes_per_step for crossing in found), "B", 4)
        return f"{total} in {fmt.count(sum(crossing.calls_per_step for crossing in found))}"

    gradients = f"{exchanged('gradients')} reductions"
    if not proof.only_gradients_cross_pods:
        parts = [f"gradients, {gradients}"]
        if any(crossing.carries == "weights" for crossing in proof.crossings):
            parts.append(f"weights, {exchanged('weights')} gathers")
        if any(crossing.carries == "activations" for crossing in proof.crossings):
            parts.append(f"activations, {exchanged('activations')} transfers")
        return [f"pods exchange only what is planned: {'; '.join(parts)}"]
    others = sum(data.bytes_per_step for data in proof.crossings if data.carries != "gradients")
    scalars = f" and {fmt.count(others)} B of scalars" if others else ""
    return [f"pods exchange only gradients: {gradients}{scalars}"]


def _flops(proof: proofs.Proof) -> list[ui.Part]:
    def amount(value: float) -> str:
        return fmt.with_unit(value, "FLOP", 4)

    rows: list[ui.Row] = []
    for line in proof.flops:
        *cells, _ = _compared(line.name, line.compiled, line.forecast, amount)
        rows.append((*cells, _ratio(line.forecast or 0, line.compiled)))
    total, forecast = proof.flops_per_device, proof.forecast_flops_per_device
    return ui.table(_HEAD, [*rows, _compared("all", total, forecast, amount)], "<>><")


def _advice(proof: proofs.Proof) -> list[ui.Part]:
    parts: list[ui.Part] = []
    for found in proof.disagreements:
        what = {
            "peak_memory": "peak memory is",
            "host_memory": "memory of the host is",
            "payload": f"payload over {' x '.join(found.axes)} is",
            "flops": "the program's FLOPs are",
        }.get(found.code, "")
        if found.code == "uncounted_kernel":
            uncounted = f"no formula counts the FLOPs of kernel {found.kernel} here"
            parts.append(ui.warning(f"{uncounted}: kernels are not compared"))
            continue
        if not found.forecast:
            text = f"{what} {found.compiled:,.0f} B, against 0 B in the forecast"
        else:
            text = f"{what} {found.compiled / found.forecast:.3f} times the forecast's"
        parts.append(ui.warning(f"the forecast is off: {text}"))

    def settings(change: proofs.PlanChange) -> str:
        return " ".join(f"--set {shlex.quote(override)}" for override in change.overrides)

    if proof.refusal:
        parts.append(ui.labelled("the compiler:", proof.refusal.message))
        parts.append("closest settings that fit, by the forecast corrected for this:")
        nearest = [settings(change) for change in proof.refusal.nearest]
        parts += ui.indent(nearest or ["none on these chips"])
    less = "memory is left for less recompute"
    return [*parts, *(f"{less}: {settings(change)}" for change in proof.hints)]


def _verdict(proof: proofs.Proof) -> str:
    margin, is_over = fmt.in_memory(abs(proof.margin_bytes)), proof.margin_bytes < 0
    of_limit = f"{margin} ({fmt.percent(abs(proof.margin_bytes) / proof.hbm_bytes_per_device)})"
    fits = {
        (False, True): f"does not fit: {margin} too much",
        (False, False): f"does not fit, though its buffers leave {of_limit} of the limit",
        (True, True): f"the compiler accepts it with {of_limit} more than the limit",
        (True, False): f"fits with {of_limit} to spare",
    }[proof.fits, is_over]
    more = "" if proof.crosses_as_planned else ", pods exchange more than planned"
    return f"Proof: {fits}, {_agreement(proof)}{more}."


def proof_summary(proof: proofs.Proof, age_s: float) -> str:
    fits = "fits" if proof.fits else "does not fit"
    peak = fmt.in_memory(proof.peak_hbm_bytes_per_device)
    return f"compiled {fmt.ago(age_s)}: peak {peak} per device, {fits}; {_agreement(proof)}"


def _agreement(proof: proofs.Proof) -> str:
    if proof.agrees is None:
        return f"no forecast describes trainer {proof.trainer}"
    return "the forecast agrees" if proof.agrees else "the forecast does not agree"


# A search of programs: how the compiler schedules plans that the forecast cannot tell apart.


def search_screen(search: "ProgramSearch", next_command: str) -> ui.Screen:
    """Return what both witnesses say of each plan, the best by the compiler's schedule first."""
    best, used = search.best, {axis for each in search.compared for axis in each.plan.mesh}
    used = {
        axis for axis in used if any(each.plan.mesh.get(axis, 1) > 1 for each in search.compared)
    }
    axes = [axis for axis in ICI_AXES if axis in used]
    rows: list[ui.Row] = [
        ("mesh", "remat", "micro", "expected", "scheduled", *(name for name, _ in proofs.KINDS))
    ]
    notes: list[ui.Part] = []
    for each in search.compared:
        plan = each.plan
        mesh = ".".join(str(plan.mesh.get(axis, 1)) for axis in axes)
        what = mesh, summary_of(plan.remat), str(plan.batch.microbatches)
        times = [each.scheduled_s, *(each.kinds.get(name) for _, name in proofs.KINDS)]
        cells = ["-" if value is None else fmt.seconds(value) for value in times]
        rows.append((*what, fmt.seconds(each.expected_s), *cells))
        own = [text for text in each.overrides if text.startswith("experiment.compiler_options")]
        says = [f"with {text.partition('options.')[2]}" for text in own]
        if (repeated := each.repeated_share or 0.0) >= _NEGLIGIBLE:
            says.append(f"the compiler repeats {fmt.percent(repeated)} of its work")
        says += [each.failure] if each.failure else []
        if says:
            rows[-1] = (f"{mesh} {_MARKS[len(notes) % len(_MARKS)]}", *rows[-1][1:])
            notes.append(f"{_MARKS[len(notes) % len(_MARKS)]} {'; '.join(says)}")
    asked = next(each for each in search.compared if each.plan.digest == search.first)
    took = fmt.seconds(best.scheduled_s or 0.0)
    if best is asked:
        choice = f"Search: the compiler schedules the spec's own plan fastest, {took} a step."
    elif asked.scheduled_s is None:
        choice = f"Search: the compiler schedules the first plan fastest, {took} a step."
    else:
        gain = 1 - best.s_per_token / (asked.scheduled_s / asked.plan.batch.tokens)
        asked_s = fmt.seconds(asked.scheduled_s)
        choice = (
            f"Search: the compiler schedules the first plan in {took} a step, {fmt.percent(gain)}"
            f" less per token than the plan of the spec ({asked_s})."
        )
    return ui.screen(
        [ui.Title(headline(best.plan), f"{fmt.counted(len(search.compared), 'plan')} compared")],
        ui.section(f"seconds of a step, by mesh ({'.'.join(axes)})", [
            ui.Table(rows, "<<>>>>>>>>", row_styles={1: "bold"}), *notes,
        ]),
        ui.section("pinned by", [ui.Command(f"--set {shlex.quote(o)}") for o in best.overrides]),
        ui.closing(choice, next_command),
    )  # fmt: skip


_NEGLIGIBLE = 0.001  # a share of the work
_MARKS = "abcdefghijklmnopqrstuvwxyz"


# A proof's schedule: where the compiled step loses time, by line, product and transfer.

_MOST = 3  # rows of each table; --json has all
_SMALL_SHARE = 0.002  # of a step: what takes less is left to --json
_LOW_SHARE = 0.75  # of the peak: products below it are shown


def _schedule_parts(
    plan: AnyPlan, schedule: proofs.Schedule | None, *, full: bool
) -> list[ui.Part]:
    """Return the schedule's total next to the ledger's, then where its seconds are."""
    if schedule is None:
        return ["no schedule: the catalog has no clock for this chip"]
    small_s = _SMALL_SHARE * schedule.total_s

    def kind_s(value_s: float) -> str:
        return fmt.seconds(value_s) if value_s >= small_s / 10 else "-"

    # What the device waits for, and what it was to hide behind.
    transfers: list[ui.Row] = []
    for transfer in schedule.collectives:
        if transfer.exposed_s >= small_s:
            over = (transfer.kind, "over", transfer.link, " x ".join(transfer.axes))
            what = f"{fmt.count(transfer.calls_per_step)} {' '.join(filter(None, over))}"
            how = f"hides behind {short_line(transfer.behind) if transfer.behind else 'nothing'}"
            how = how if transfer.asynchronous else "synchronous"
            words = (what, transfer.algorithm, f"of {short_line(transfer.line)}", how)
            times = fmt.seconds(transfer.exposed_s), fmt.seconds(transfer.wire_s)
            transfers.append((*times, ", ".join(filter(None, words))))
    lines = by_line(schedule.lines)
    line_rows: list[ui.Row] = [("", *(name for name, _ in proofs.KINDS), "")]
    for place in lines[:_MOST]:
        if place.total_s >= small_s:
            kinds = (kind_s(getattr(place, field)) for _, field in proofs.KINDS)
            line_rows.append((fmt.seconds(place.total_s), *kinds, short_line(place.line)))
    # The products that lose most against the peak.
    slow: list[ui.Row] = []
    for product in schedule.products:
        if product.peak_share < _LOW_SHARE and product.seconds >= small_s:
            took, share = fmt.seconds(product.seconds), fmt.percent(product.peak_share)
            fused, line = ", ".join(product.fused) or "-", short_line(product.line)
            slow.append((took, share, product.shape, fused, line))
    copies = [
        (fmt.seconds(line.copies_s), line.line)
        for line in sorted(lines, key=lambda line: -line.copies_s)[:_MOST]
        if line.copies_s >= small_s
    ]
    low = f"products below {fmt.percent(_LOW_SHARE)} of the peak"
    low_head, unpriced = ("", "of peak", "result", "fused in", ""), ", ".join(schedule.unpriced)
    return [
        *ui.section("seconds of a step, scheduled by the compiler", _totals(plan, schedule)),
        *ui.indent(_ledger_lines(plan, schedule, small_s, None if full else _MOST)),
        *ui.section("by line", [ui.Table(line_rows, ">>>>>>w")]),
        *ui.section(low, ui.table(low_head, slow[:_MOST], ">><<<")),
        *ui.section("copies and relayouts", [ui.Table(copies, ">w")] if copies else []),
        *ui.section("exposed transfers", ui.table(("", "sent in", ""), transfers[:_MOST], "<<w")),
        *ui.indent([f"not priced, and counted as nothing: {unpriced}"] if unpriced else []),
    ]


def _totals(plan: AnyPlan, schedule: proofs.Schedule) -> list[ui.Part]:
    """Return seconds by kind; the ledger's are at peak rates, with nothing hidden."""
    ledger: dict[str, float] = defaultdict(float)
    for line in plan.forecast.time if plan.ledger_describes_trainer else ():
        name = {"mxu": "products", "hbm": "other"}.get(line.resource or "", "exposed")
        ledger["kernels" if line.kind in ATTENTION_LINES else name] += line.value
    rows = []
    for name, field in proofs.KINDS:
        note = ""
        if name == "products" and schedule.products_s:
            rate = schedule.flops / schedule.products_s
            note = f"{fmt.percent(rate / schedule.peak_flops_per_s)} of the peak"
        in_ledger = fmt.seconds(ledger[name]) if name in ledger else ""
        rows.append((name, fmt.seconds(getattr(schedule, field)), in_ledger, note))
    whole = fmt.seconds(plan.forecast.step_s.unoverlapped) if ledger else ""
    judged = "to compare programs with"
    if schedule.low_s is not None and schedule.high_s is not None:
        judged = f"{fmt.seconds(schedule.low_s)} to {fmt.seconds(schedule.high_s)} in 4 runs of 5"
    rows.append(("scheduled", fmt.seconds(schedule.total_s), whole, judged))
    parts = ui.table(("", "compiled", "ledger", ""), rows, "<>><")
    if schedule.never_judged:
        parts.append(f"no measured run had {', '.join(schedule.never_judged)}")
    return parts


def _ledger_lines(
    plan: AnyPlan, schedule: proofs.Schedule, small_s: float, most: int | None
) -> list[ui.Part]:
    """Return seconds of the ledger's lines, if the trainer names any, next to the ledger's own."""
    if all(line.kind == proofs.OTHER_LINE for line in schedule.ledger):
        return []
    ledger, rows = named_seconds(plan), list[ui.Row]()
    for scheduled in schedule.ledger:
        kind = scheduled.kind
        if max(scheduled.total_s, scheduled.wire_s) >= small_s:
            times = scheduled.computed_s, scheduled.exposed_s, scheduled.wire_s
            shown = (fmt.seconds(s) if s > 0 else "-" for s in times)
            in_ledger = fmt.seconds(ledger[kind]) if kind in ledger else ""
            rows.append((kind.replace("_", " "), *shown, in_ledger))
    head = ("by line of the ledger", "computed", "exposed", "on links", "ledger")
    return ui.table(head, rows[:most], "<>>>>")


def by_line(lines_by_stack: Sequence[proofs.ScheduledLine]) -> list[proofs.ScheduledLine]:
    """Return the lines, each once, whichever calls led to it; the longest first."""
    alike: dict[str, list[proofs.ScheduledLine]] = defaultdict(list)
    for line in lines_by_stack:
        alike[line.line].append(line)
    joined = [
        proofs.ScheduledLine(
            line=name,
            stack=(name,),
            flops=sum(line.flops for line in lines),
            **{field: sum(getattr(line, field) for line in lines) for _, field in proofs.KINDS},
        )
        for name, lines in alike.items()
    ]
    return sorted(joined, key=lambda line: (-line.total_s, line.line))


def short_line(line: str) -> str:
    """Return a line by its file, number and innermost named function: `model.py:120 (mlp_part)`."""
    path, _, function = line.partition(" (")
    words = [word for word in function.strip("()").split(".") if word and not word.startswith("<")]
    return " ".join((path.rsplit("/", 1)[-1], *(f"({word})" for word in words[-1:])))

"""Show a proof on one screen, next to the forecast that it checks."""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.formatting import GIB, ago, count, in_memory, percent, seconds, with_unit
from orchestrator.network.rematerialization import text_of
from orchestrator.show.parts import (
    Detail,
    Part,
    Screen,
    Table,
    Title,
    closing,
    indent,
    labelled,
    next_step,
    screen,
    section,
    warning,
)
from orchestrator.show.plan_text import headline
from orchestrator.values.codec import short
from orchestrator.values.plan import ATTENTION_LINES, Plan
from orchestrator.values.proof import (
    Buffer,
    ComparedCollective,
    Comparison,
    CrossingFault,
    DcnCrossing,
    Disagreement,
    Payload,
    PlanChange,
    Proof,
    Schedule,
    ScheduledCollective,
    ScheduledLine,
    ScheduledProduct,
)

if TYPE_CHECKING:
    from orchestrator.proving.verdict import ProofResult

# Show a proof's schedule: where the compiled step loses time, by line, product and transfer.


MOST = 3  # rows of each table; --json has all
SMALL_SHARE = 0.002  # of a step: what takes less is left to --json
LOW_SHARE = 0.75  # of the peak: products below it are shown
KINDS = (
    ("products", "products_s"),
    ("kernels", "kernels_s"),
    ("copies", "copies_s"),
    ("other", "other_s"),
    ("exposed", "exposed_s"),
)


def schedule_parts(plan: Plan, schedule: Schedule | None) -> list[Part]:
    """Return the schedule's total beside the ledger's, then where its seconds are."""
    if schedule is None:
        return ["no schedule: the catalog has no clock for this chip"]
    return [
        *section("seconds of a step, scheduled by the compiler", [totals(plan, schedule)]),
        *section("by line", [lines(schedule)]),
        *section(f"products below {percent(LOW_SHARE)} of the peak", products(schedule)),
        *section("copies and relayouts", copies(schedule)),
        *section("exposed transfers", transfers(schedule)),
        *indent(unpriced(schedule)),
    ]


def totals(plan: Plan, schedule: Schedule) -> Table:
    """Return seconds by kind. The ledger's are at peak rates, with nothing hidden."""
    ledger = ledger_s(plan) if plan.ledger_describes_trainer else {}
    rows = [
        (name, seconds(getattr(schedule, field)), known(ledger.get(name)), note(schedule, name))
        for name, field in KINDS
    ]
    whole = plan.forecast.step_s.unoverlapped if ledger else None
    rows.append(("scheduled", seconds(schedule.total_s), known(whole), "an estimate, no promise"))
    return Table(rows=[("", "compiled", "ledger", ""), *rows], columns="<>><")


def known(value: float | None) -> str:
    return "" if value is None else seconds(value)


def note(schedule: Schedule, name: str) -> str:
    if name != "products" or not schedule.products_s:
        return ""
    reached = schedule.flops / schedule.products_s / schedule.peak_flops_per_s
    return f"{percent(reached)} of the peak"


def ledger_s(plan: Plan) -> dict[str, float]:
    """Return the ledger's seconds by the schedule's kinds; links are all that is on the wire."""
    by_kind: dict[str, float] = defaultdict(float)
    for line in plan.forecast.time:
        name = {"mxu": "products", "hbm": "other"}.get(line.resource or "", "exposed")
        by_kind["kernels" if line.kind in ATTENTION_LINES else name] += line.value
    return dict(by_kind)


def by_line(schedule: Schedule) -> list[ScheduledLine]:
    """Return the lines, each once, whichever calls led to it; the longest first."""
    alike: dict[str, list[ScheduledLine]] = defaultdict(list)
    for one in schedule.lines:
        alike[one.line].append(one)
    joined = [
        ScheduledLine(
            line=line,
            stack=(line,),
            flops=sum(one.flops for one in ones),
            **{field: sum(getattr(one, field) for one in ones) for _, field in KINDS},
        )
        for line, ones in alike.items()
    ]
    return sorted(joined, key=lambda one: (-one.total_s, one.line))


def lines(schedule: Schedule) -> Table:
    head = ("", *(name for name, _ in KINDS), "")
    rows = [
        (
            seconds(one.total_s),
            *(part(getattr(one, field), schedule) for _, field in KINDS),
            short_line(one.line),
        )
        for one in by_line(schedule)[:MOST]
        if one.total_s >= SMALL_SHARE * schedule.total_s
    ]
    return Table(rows=[head, *rows], columns=">>>>>><")


def part(value_s: float, schedule: Schedule) -> str:
    return seconds(value_s) if value_s >= SMALL_SHARE / 10 * schedule.total_s else "-"


def short_line(line: str) -> str:
    """Return a line of source by its file and number: `model.py:120 (mlp_part)`. Of a function's
    qualified name the last word stays that names one: `<listcomp>` names none.
    """
    path, _, function = line.partition(" ")
    words = [one for one in function.strip("()").split(".") if one and not one.startswith("<")]
    return " ".join((path.rsplit("/", 1)[-1], *(f"({one})" for one in words[-1:])))


def products(schedule: Schedule) -> list[Part]:
    """Return the products that lose most against the peak."""
    slow = [
        one
        for one in schedule.products
        if one.peak_share < LOW_SHARE and one.seconds >= SMALL_SHARE * schedule.total_s
    ]
    rows = [product_row(one) for one in slow[:MOST]]
    head = ("", "of peak", "result", "fused in", "")
    return [Table(rows=[head, *rows], columns=">><<<")] if rows else []


def product_row(one: ScheduledProduct) -> tuple[str, ...]:
    moved = ", ".join(one.fused) or "-"
    return seconds(one.seconds), percent(one.peak_share), one.shape, moved, short_line(one.line)


def copies(schedule: Schedule) -> list[Part]:
    longest = sorted(by_line(schedule), key=lambda one: -one.copies_s)[:MOST]
    rows = [
        (seconds(one.copies_s), one.line)
        for one in longest
        if one.copies_s >= SMALL_SHARE * schedule.total_s
    ]
    return [Table(rows=rows, columns=">w")] if rows else []


def transfers(schedule: Schedule) -> list[Part]:
    """Return what the device waits for, and what it was to hide behind."""
    waited = [
        one for one in schedule.collectives if one.exposed_s >= SMALL_SHARE * schedule.total_s
    ]
    rows = [transfer_row(one) for one in waited[:MOST]]
    return [Table(rows=[("", "sent in", ""), *rows], columns="<<w")] if rows else []


def transfer_row(one: ScheduledCollective) -> tuple[str, ...]:
    what = " ".join(filter(None, (one.kind, "over", one.link, " x ".join(one.axes))))
    how = f"hides behind {short_line(one.behind)}" if one.behind else "hides behind nothing"
    parts = (
        f"{count(one.calls_per_step)} {what}",
        one.algorithm,
        how if one.asynchronous else "synchronous",
        short_line(one.line),
    )
    return seconds(one.exposed_s), seconds(one.wire_s), ", ".join(filter(None, parts))


def unpriced(schedule: Schedule) -> list[Part]:
    names = ", ".join(schedule.unpriced)
    return [f"not priced, and counted as nothing: {names}"] if names else []


LARGEST = 5  # buffers that are shown
SMALL = 1e-3  # of the largest collective on a link: smaller ones are left to --json
HEAD = ("", "compiled", "forecast", "forecast/compiled")


def proof_screen(
    plan: Plan,
    proof: Proof,
    age_s: float | None,
    next_command: str | None,
    detail: Detail = "usual",
) -> Screen:
    """Return the verdict, then everything that it rests on, and what to do next."""
    top: list[list[Part]] = [
        [Title(left=headline(plan), right=f"proof of plan {short(plan.digest)}")],
        indent(verdict_lines(proof)),
    ]
    if detail == "brief":
        return screen(*top, advice(proof), next_step(next_command))
    full = detail == "full"
    return screen(
        *top,
        indent(compilation(proof, age_s)),
        memory(proof, full=full),
        collectives(proof, full=full),
        indent(dcn_check(proof)),
        flops(proof),
        schedule_parts(plan, proof.schedule),
        advice(proof),
        closing(verdict(proof), next_command),
    )


def verdict_lines(proof: Proof) -> list[Part]:
    """Return whether it fits, whether the forecast agrees, and what crosses pods."""
    peak, limit = in_memory(proof.peak_hbm_bytes_per_device), in_memory(proof.hbm_bytes_per_device)
    rows = [("fits", f"{'yes' if proof.fits else 'no'}: {peak} of {limit} per device")]
    rows.append(("forecast", compared(proof)))
    if proof.crossings:
        rows.append(("pods", "as planned" if proof.crosses_as_planned else "more than planned"))
    good = (proof.fits, proof.agrees is not False, proof.crosses_as_planned)
    styles = {row: "green" if right else "red" for row, right in enumerate(good[: len(rows)])}
    return [Table(rows=rows, columns="<w", row_styles=styles)]


def compared(proof: Proof) -> str:
    """Return whether the forecast agrees, with its peak and FLOPs over the compiled ones."""
    if proof.agrees is None:
        return agreement(proof)
    peak = ratio(proof.forecast_peak_hbm_bytes_per_device, proof.peak_hbm_bytes_per_device)
    flops_ratio = ratio(proof.forecast_flops_per_device, proof.flops_per_device)
    answer = "agrees" if proof.agrees else "does not agree"
    return f"{answer}: peak {peak} and FLOPs {flops_ratio} of the compiled"


def compilation(proof: Proof, age_s: float | None) -> list[Part]:
    """Return what compiled the plan, when, and at what cost."""
    when = "now" if age_s is None else f"{ago(age_s)}, read from the cache"
    versions = ", ".join(f"{name} {version}" for name, version in proof.versions.items())
    cost = f"{proof.compile_s:.0f} s, {with_unit(proof.compiler_memory_bytes, 'B')} of host memory"
    return [Table(rows=[("compiled", when), ("by", versions), ("took", cost)], columns="<w")]


def memory(proof: Proof, *, full: bool) -> list[Part]:
    """Return the memory at its peak, line by line, then the largest buffers."""
    rows = [
        (
            line.name,
            in_memory(line.compiled),
            figure(line.forecast),
            "",
        )
        for line in proof.ledger
    ]
    peak, forecast = proof.peak_hbm_bytes_per_device, proof.forecast_peak_hbm_bytes_per_device
    rows.append(("peak", in_memory(peak), figure(forecast), ratio(forecast, peak)))
    rows.append(("limit", in_memory(proof.hbm_bytes_per_device), "", ""))
    host, on_host = proof.host_bytes_per_device, proof.forecast_host_bytes_per_device
    if host or on_host:
        rows.append(("on the host", in_memory(host), figure(on_host), ratio(on_host, host)))
    where = f"the peak is at {proof.peak_at}"
    sizes = [0, *(line.compiled for line in proof.ledger)]
    sizes += [0] * (1 + len(rows) - len(sizes))
    table = Table(rows=[HEAD, *rows], columns="<>><", bars=sizes)
    buffers = proof.buffers if full else proof.buffers[:LARGEST]
    return section("memory per device", [table, where, *largest(buffers)])


def largest(buffers: tuple[Buffer, ...]) -> list[Part]:
    rows = [
        (in_memory(buffer.bytes), f"{buffer.name} {buffer.shape}")
        for buffer in buffers
        if buffer.bytes >= GIB / 100
    ]
    return section("largest buffers", [Table(rows=rows, columns=">w")], 0) if rows else []


def collectives(proof: Proof, *, full: bool) -> list[Part]:
    """Return the logical payload by group of axes, then what the compiler adds to it."""
    most: dict[str, float] = {}
    least = 0 if full else SMALL
    for one in proof.collectives:
        most[one.link] = max(size(one), most.get(one.link, 0.0))
    rows = [collective_row(one) for one in proof.collectives if size(one) >= least * most[one.link]]
    if not rows:
        return []
    added = [
        (one.what, f"{one.link} {' x '.join(one.axes)}", f"+{with_unit(one.bytes_per_step, 'B')}")
        for one in proof.changes
        if one.bytes_per_step >= least * most.get(one.link, 0)
    ]
    head = ("", "", "compiled", "forecast", "ratio")
    return [
        *section("payload per device and step", [Table(rows=[head, *rows], columns="<<>><")]),
        *(section("added by the compiler", [Table(rows=added, columns="<<>")]) if added else []),
    ]


def size(one: ComparedCollective) -> float:
    return max(one.bytes_per_step, one.forecast_bytes_per_step or 0)


def collective_row(one: ComparedCollective) -> tuple[str, ...]:
    compiled, forecast = one.bytes_per_step, one.forecast_bytes_per_step
    return (
        f"{one.link} {' x '.join(one.axes)}",
        f"{one.kind} {one.dtype}",
        with_unit(compiled, "B", 4),
        "-" if forecast is None else with_unit(forecast, "B", 4),
        ratio(forecast, compiled),
    )


def ratio(forecast: float | None, compiled: float) -> str:
    return f"{forecast / compiled:.3f}" if compiled and forecast is not None else ""


def figure(size: float | None) -> str:
    return "-" if size is None else in_memory(size)


def dcn_check(proof: Proof) -> list[Part]:
    """Return whether pods exchange what is planned and nothing else."""
    if not proof.crossings:
        return []
    if not proof.crosses_as_planned:
        return ["pods exchange more than planned", *indent(map(fault, proof.crossing_faults))]
    gradients = f"{exchanged(proof, 'gradients')} reductions"
    if not proof.only_gradients_cross_pods:
        weights = f"weights, {exchanged(proof, 'weights')} gathers"
        return [f"pods exchange only what is planned: gradients, {gradients}; {weights}"]
    others = sum(one.bytes_per_step for one in proof.crossings if one.carries != "gradients")
    scalars = f" and {count(others)} B of scalars" if others else ""
    return [f"pods exchange only gradients: {gradients}{scalars}"]


def exchanged(proof: Proof, what: Payload) -> str:
    """Return how much of a payload crosses pods in a step, and in how many calls."""
    sent = [one for one in proof.crossings if one.carries == what]
    total = with_unit(sum(one.bytes_per_step for one in sent), "B", 4)
    return f"{total} in {count(sum(one.calls_per_step for one in sent))}"


def flops(proof: Proof) -> list[Part]:
    rows = [flops_row(line) for line in proof.flops]
    total, forecast = proof.flops_per_device, proof.forecast_flops_per_device
    rows.append(("all", amount(total), amount(forecast), ratio(forecast, total)))
    return section("FLOPs per device and step", [Table(rows=[HEAD, *rows], columns="<>><")])


def flops_row(line: Comparison) -> tuple[str, ...]:
    forecast = line.forecast
    return line.name, amount(line.compiled), amount(forecast), ratio(forecast or 0, line.compiled)


def amount(value: float | None) -> str:
    return "-" if value is None else with_unit(value, "FLOP", 4)


def advice(proof: Proof) -> list[Part]:
    """Return what is wrong, and what could be set instead."""
    parts: list[Part] = [
        warning(f"the forecast is off: {disagreement(one)}") for one in proof.disagreements
    ]
    if proof.refusal:
        parts.append(labelled("the compiler:", proof.refusal.message))
        parts.append("closest settings that fit, by the forecast corrected for this:")
        parts += indent([settings(one) for one in proof.refusal.nearest] or ["none on these chips"])
    return [*parts, *(f"memory is left for less recompute: {settings(one)}" for one in proof.hints)]


def settings(change: PlanChange) -> str:
    """Return the overrides as they are typed."""
    return " ".join(f"--set {shlex.quote(override)}" for override in change.overrides)


def disagreement(one: Disagreement) -> str:
    """Return where the forecast is off, and by how much."""
    if one.code == "uncounted_kernel":
        return f"no formula counts the FLOPs of kernel {one.kernel}"
    what = {
        "peak_memory": "peak memory is",
        "host_memory": "memory of the host is",
        "payload": f"payload over {' x '.join(one.axes)} is",
        "flops": "the program's FLOPs are",
    }[one.code]
    if not one.forecast:
        return f"{what} {one.compiled:,.0f} B, against 0 B in the forecast"
    return f"{what} {one.compiled / one.forecast:.3f} times the forecast's"


def fault(one: CrossingFault) -> str:
    """Return what crosses pods and may not."""
    if one.code == "not_planned":
        return f"{crossing(one.crossing)} crosses pods and is not in the plan"
    return (
        f"{one.bytes_per_step:,.0f} B of {one.crossing.carries} cross pods each step, but the plan"
        f" has {one.allowed_bytes_per_step:,.0f} B; the largest: {crossing(one.crossing)}"
    )


def crossing(one: DcnCrossing) -> str:
    places = f", from {', '.join(one.places)}" if one.places else ""
    calls = f"{one.calls_per_step:,.0f} x " if one.calls_per_step > 1 else ""
    return f"{calls}{one.kind} {one.name} of {one.bytes_per_step:,.0f} B {one.dtype}{places}"


def verdict(proof: Proof) -> str:
    """Return the proof in one line."""
    margin = in_memory(abs(proof.margin_bytes))
    share = percent(abs(proof.margin_bytes) / proof.hbm_bytes_per_device)
    if not proof.fits and proof.margin_bytes < 0:
        parts = [f"does not fit: {margin} too much"]
    elif not proof.fits:
        parts = [f"does not fit, though its buffers leave {margin} ({share}) of the limit"]
    elif proof.margin_bytes < 0:
        parts = [f"the compiler accepts it with {margin} ({share}) more than the limit"]
    else:
        parts = [f"fits with {margin} ({share}) to spare"]
    parts.append(agreement(proof))
    if not proof.crosses_as_planned:
        parts.append("pods exchange more than planned")
    return f"Proof: {', '.join(parts)}."


def proof_summary(proof: Proof, age_s: float) -> str:
    """Return the proof as a line of a plan's screen."""
    fits = "fits" if proof.fits else "does not fit"
    peak = in_memory(proof.peak_hbm_bytes_per_device)
    return f"compiled {ago(age_s)}: peak {peak} per device, {fits}; {agreement(proof)}"


def agreement(proof: Proof) -> str:
    if proof.agrees is None:
        return f"no forecast describes trainer {proof.trainer}"
    return "the forecast agrees" if proof.agrees else "the forecast does not agree"


def proof_screens(
    found: "ProofResult",
    others: "Sequence[ProofResult] | None",
    next_command: str,
    detail: Detail = "usual",
) -> list[str]:
    """Return a verdict; below it those on plans that recompute less, where they were asked for."""
    shown = proof_screen(found.plan, found.proof, found.age_s, next_command, detail)
    if others is None:
        return [shown]
    return [shown, "\n", remat_screen(found.plan, [(one.plan, one.proof) for one in others])]


def stage_proof_screens(
    found: "Sequence[ProofResult]", next_command: str, detail: Detail = "usual"
) -> list[str]:
    """Return the verdict on every stage, one after another."""
    screens: list[str] = []
    for one in found:
        following = next_command if one is found[-1] else None
        screens += [proof_screen(one.plan, one.proof, one.age_s, following, detail), "\n"]
    return screens[:-1]


def remat_screen(plan: Plan, proofs: list[tuple[Plan, Proof]]) -> Screen:
    """Return the compiled policies that recompute less than a plan, the least recompute first."""
    if not proofs:
        remat = text_of(plan.remat)
        return screen([f"no plan on this mesh that recomputes less than remat {remat} may fit"])
    rows = [
        (
            f"remat {text_of(plan.remat)}",
            in_memory(proof.peak_hbm_bytes_per_device),
            "fits" if proof.passes else "does not fit",
        )
        for plan, proof in proofs
    ]
    name = "compiled policies, the least recompute first"
    return screen(section(name, [Table(rows=rows, columns="<><")], 0))

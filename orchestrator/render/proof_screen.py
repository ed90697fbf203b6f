"""a Proof on one screen, beside the Forecast that it was held against."""

from orchestrator.render.formatting import GIB, count, in_memory, percent, with_unit
from orchestrator.render.layout import columns, following, indent, page, title
from orchestrator.render.plan_screen import headline
from orchestrator.types.codec import short
from orchestrator.types.plan import Plan
from orchestrator.types.proof import (
    Buffer,
    ComparedCollective,
    Comparison,
    CrossingFault,
    DcnCrossing,
    Disagreement,
    PlanChange,
    Proof,
)

LARGEST = 5  # buffers shown
SMALL = 1e-3  # exchanges below this share of the largest on their link are left to --json
UNITS = ((2 * 86_400, 86_400, "days"), (3_600, 3_600, "h"), (60, 60, "min"), (0, 1, "s"))


def proof_screen(plan: Plan, proof: Proof, age_s: float | None, next_command: str | None) -> str:
    """The verdict with everything that it stands on, and what to do next."""
    blocks = [
        [title(headline(plan), f"proof of plan {short(plan.digest)}")],
        indent(compilation(proof, age_s)),
        indent(memory(proof)),
        indent(exchanges(proof)),
        indent(crossings(proof)),
        indent(flops(proof)),
        advice(proof),
        [verdict(proof), *following(next_command)],
    ]
    return page(blocks)


def compilation(proof: Proof, age_s: float | None) -> list[str]:
    """What compiled it, when, and at what cost."""
    when = "now" if age_s is None else f"{ago(age_s)}: from the cache, nothing was compiled"
    names = ", ".join(f"{name} {version}" for name, version in proof.versions.items())
    cost = f"{proof.compile_s:.0f} s, {with_unit(proof.compiler_memory_bytes, 'B')} of this machine"
    rows = [("compiled", when), ("by", names), ("took", cost)]
    return columns(rows, "<<")


def ago(seconds: float) -> str:
    """In the largest unit that says enough: 2 h ago, 30 h ago, 3 days ago."""
    _, size, unit = next(row for row in UNITS if seconds >= row[0])
    return f"{seconds // size:.0f} {unit} ago"


def memory(proof: Proof) -> list[str]:
    """What is held when the most is held, line by line, then the largest buffers."""
    rows = [("", "compiled", "forecast", "forecast/compiled"), *map(memory_row, proof.ledger)]
    peak, forecast = proof.peak_hbm_bytes_per_device, proof.forecast_peak_hbm_bytes_per_device
    rows.append(("peak", in_memory(peak), in_memory(forecast), ratio(forecast, peak)))
    rows.append(("limit", in_memory(proof.hbm_bytes_per_device), "", ""))
    lines = columns(rows, "<>><")
    return [
        "memory per device",
        *indent(lines),
        f"  the peak is at {proof.peak_at}",
        *indent(largest(proof.buffers)),
    ]


def memory_row(line: Comparison) -> tuple[str, ...]:
    forecast = "-" if line.forecast is None else in_memory(line.forecast)
    return line.name, in_memory(line.compiled), forecast, ""


def largest(buffers: tuple[Buffer, ...]) -> list[str]:
    rows = [
        (in_memory(b.bytes), b.name, b.shape) for b in buffers[:LARGEST] if b.bytes >= GIB / 100
    ]
    return ["the largest buffers", *indent(columns(rows, "><<"))] if rows else []


def exchanges(proof: Proof) -> list[str]:
    """Logical payload by group of axes, then what the compiler adds to it."""
    most = {link: max(size(e) for e in proof.collectives if e.link == link)
            for link in {e.link for e in proof.collectives}}  # fmt: skip
    shown = [e for e in proof.collectives if size(e) >= SMALL * most[e.link]]
    if not shown:
        return []
    rows = [("", "", "compiled", "forecast", "ratio"), *map(exchange_row, shown)]
    lines = ["payload per device and step", *indent(columns(rows, "<<>><"))]
    added = [
        (c.what, f"{c.link} {' x '.join(c.axes)}", f"+{with_unit(c.bytes_per_step, 'B')}")
        for c in proof.changes
        if c.bytes_per_step >= SMALL * most.get(c.link, 0)
    ]
    if added:
        lines += ["added by the compiler", *indent(columns(added, "<<>"))]
    return lines


def size(exchanged: ComparedCollective) -> float:
    return max(exchanged.bytes_per_step, exchanged.forecast_bytes_per_step)


def exchange_row(one: ComparedCollective) -> tuple[str, ...]:
    compiled, forecast = one.bytes_per_step, one.forecast_bytes_per_step
    return (
        f"{one.link} {' x '.join(one.axes)}",
        f"{one.kind} {one.dtype}",
        with_unit(compiled, "B", 4),
        with_unit(forecast, "B", 4),
        ratio(forecast, compiled),
    )


def ratio(forecast: float, compiled: float) -> str:
    """The forecast as a multiple of what was compiled."""
    return f"{forecast / compiled:.3f}" if compiled else ""


def crossings(proof: Proof) -> list[str]:
    """Whether pods exchange gradients and nothing else."""
    if not proof.crossings:
        return []
    gradients = [one for one in proof.crossings if one.is_gradient]
    others = sum(one.bytes_per_step for one in proof.crossings if not one.is_gradient)
    total = with_unit(sum(one.bytes_per_step for one in gradients), "B", 4)
    calls = count(sum(one.calls_per_step for one in gradients))
    if proof.only_gradients_cross_pods:
        said = f"gradients alone cross pods: {total} in {calls} sums"
        return [said + (f", and {count(others)} B of scalars" if others else "")]
    return ["more than gradients crosses pods", *indent(tuple(map(fault, proof.crossing_faults)))]


def flops(proof: Proof) -> list[str]:
    rows = [("", "compiled", "forecast", "forecast/compiled"), *map(flops_row, proof.flops)]
    total, forecast = proof.flops_per_device, proof.forecast_flops_per_device
    rows.append(("all", amount(total), amount(forecast), ratio(forecast, total)))
    return ["FLOPs per device and step", *indent(columns(rows, "<>><"))]


def flops_row(line: Comparison) -> tuple[str, ...]:
    forecast = "-" if line.forecast is None else amount(line.forecast)
    return line.name, amount(line.compiled), forecast, ratio(line.forecast or 0, line.compiled)


def amount(flops: float) -> str:
    return with_unit(flops, "FLOP", 4)


def advice(proof: Proof) -> list[str]:
    """What is wrong, and what could be set instead."""
    lines = [f"warning: the forecast is off: {disagreement(one)}" for one in proof.disagreements]
    if proof.refusal:
        lines.append(f"the compiler: {proof.refusal.message}")
        lines.append("nearest that fits, by the forecast corrected for this:")
        lines += indent(tuple(map(settings, proof.refusal.nearest)) or ("none on these chips",))
    lines += [f"room for less recompute: {settings(one)}" for one in proof.hints]
    return lines


def settings(change: PlanChange) -> str:
    """The overrides as they are typed."""
    return " ".join(f"--set {override}" for override in change.overrides)


def disagreement(one: Disagreement) -> str:
    """Where the forecast is off, and by how much."""
    if one.code == "uncounted_kernel":
        return f"no formula counts the FLOPs of kernel {one.kernel}"
    if one.code == "other_trainer":
        return "it describes another trainer's program, and is not compared"
    what = {
        "peak_memory": "peak memory is",
        "payload": f"payload over {' x '.join(one.axes)} is",
        "flops": "the program's FLOPs are",
    }[one.code]
    if not one.forecast:
        return f"{what} {one.compiled:,.0f} B, against 0 B in the forecast"
    return f"{what} {one.compiled / one.forecast:.3f} times the forecast's"


def fault(one: CrossingFault) -> str:
    """What crosses pods and may not."""
    if one.code == "not_a_gradient":
        return f"{crossing(one.crossing)} crosses pods: no gradient"
    return (
        f"{one.bytes_per_step:,.0f} B made by the backward pass cross pods each step, the gradients"
        f" alone are {one.allowed_bytes_per_step:,.0f} B; the most: {crossing(one.crossing)}"
    )


def crossing(one: DcnCrossing) -> str:
    places = f", from {', '.join(one.places)}" if one.places else ""
    calls = f"{one.calls_per_step:,.0f} x " if one.calls_per_step > 1 else ""
    return f"{calls}{one.kind} {one.name} of {one.bytes_per_step:,.0f} B {one.dtype}{places}"


def verdict(proof: Proof) -> str:
    """The proof in one line."""
    margin = in_memory(abs(proof.margin_bytes))
    share = percent(abs(proof.margin_bytes) / proof.hbm_bytes_per_device)
    if not proof.fits:
        parts = [f"does not fit: {margin} too much"]
    elif proof.margin_bytes < 0:
        parts = [f"the compiler accepts it with {margin} ({share}) more than the limit"]
    else:
        parts = [f"fits with {margin} ({share}) to spare"]
    parts.append("the forecast agrees" if proof.agrees else "the forecast does not agree")
    if not proof.only_gradients_cross_pods:
        parts.append("more than gradients crosses pods")
    return f"Proof: {', '.join(parts)}."


def proof_summary(proof: Proof, age_s: float) -> str:
    """The proof as a line under a plan."""
    fits = "fits" if proof.fits else "does not fit"
    agrees = "agrees" if proof.agrees else "does not agree"
    peak = in_memory(proof.peak_hbm_bytes_per_device)
    return f"compiled {ago(age_s)}: peak {peak} per device, {fits}; the forecast {agrees}"


def remat_screen(plans: list[tuple[Plan, Proof]]) -> str:
    """Each policy that was compiled, the least recompute first."""
    rows = [
        (
            f"remat {plan.remat}",
            in_memory(proof.peak_hbm_bytes_per_device),
            "fits" if proof.passes else "does not fit",
        )
        for plan, proof in plans
    ]
    heading = "policies compiled, the least recompute first"
    return "\n".join([heading, *indent(columns(rows, "<><"))]) + "\n"

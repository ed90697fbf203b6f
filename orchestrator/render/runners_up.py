"""The runners-up of a plan: what each would be, and why it is not the plan."""

from collections.abc import Callable, Sequence

from orchestrator.formatting import count, counted, in_memory, percent, seconds
from orchestrator.network.mesh_axes import ICI_AXES, in_use
from orchestrator.network.rematerialization import summary_of
from orchestrator.plan.passed_over import Reason, loss, passed_over
from orchestrator.plan.ranking import OFFLOAD_GAIN, TIE
from orchestrator.render.plan_text import in_microbatches
from orchestrator.render.screen_parts import Part, Table, Text, heading, indent
from orchestrator.types.plan import Plan

WHY = "it takes the least time per token, by the mean of lower bound and unoverlapped (loss)"
ALIKE_RULE = (
    "+n: other meshes with this tensor, remat and microbatches, slower by less than the forecast"
    " can tell"
)
LOSS_RULE = (
    "loss: extra time per token, midway between lower bound and unoverlapped; a policy that"
    f" offloads must gain {percent(OFFLOAD_GAIN)} to come before one that does not"
)


def runners_up_table(plans: Sequence[Plan]) -> list[Part]:
    """Return a row for each plan, the chosen one first, and why it is the one."""
    first, *others = plans
    has_estimate = all(plan.forecast.step_s.expected is not None for plan in plans)
    columns = ("expected", "MFU") if has_estimate else ("lower", "unoverlapped")
    head = ("mesh", "batch", "remat", "memory", *columns, "loss", "bound")
    axes = shown_axes(plans)
    rows = [head, *(runner_up(plan, first, axes, has_estimate=has_estimate) for plan in plans)]
    title = f"the plan and {counted(len(others), 'runner')}-up ({'.'.join(axes)})"
    table = Table(rows=rows, columns="<><>>>><", row_styles={1: "bold"})
    rules = (Text(text=rule, hang=2) for rule in (ALIKE_RULE, LOSS_RULE))
    return [heading(title), *indent([table, *rules, *choice(first, others)])]


def choice(plan: Plan, others: Sequence[Plan]) -> list[Part]:
    """Return why the plan is first, and why those are not that are expected to be faster."""
    faster: dict[Reason, list[Plan]] = {}
    for other in others:
        if reason := passed_over(plan, other):
            faster.setdefault(reason, []).append(other)
    known = plan.forecast.step_s.expected is not None
    text = WHY if faster or not known else f"{WHY}; it is also expected to be the fastest of these"
    axes = shown_axes((plan, *others))
    why_not = (not_chosen(plan, listed, reason, axes) for reason, listed in faster.items())
    return [Text(text=f"why the first: {text}", hang=2), *why_not]


def not_chosen(plan: Plan, others: Sequence[Plan], reason: Reason, axes: Sequence[str]) -> Text:
    """Return why plans that are expected to be faster rank lower, in the figures of the first."""
    mfus = ((mesh_text(one, axes), percent(one.forecast.mfu.expected or 0)) for one in others)
    names = (f"{mesh} (MFU {mfu})" for mesh, mfu in mfus)
    return Text(text=f"why not {', '.join(names)}: {WHY_NOT[reason](plan, others[0])}", hang=2)


def ranked_apart(plan: Plan, other: Plan) -> str:
    share = percent(abs(loss(plan, other)))
    return (
        f"by that rule a token takes {share} longer. What the higher estimate rests on, how much"
        " runs hide and how long they wait, is less certain between two meshes than their work"
    )


def gains_too_little(plan: Plan, other: Plan) -> str:
    gain, least = percent(abs(loss(plan, other))), percent(OFFLOAD_GAIN)
    return f"a token takes {gain} less by that rule, and a policy that offloads must gain {least}"


def moves_batch(plan: Plan, other: Plan) -> str:
    sequences, requested = other.batch.sequences, plan.batch.requested_sequences
    return (
        f"it is as fast by that rule, within {TIE:.0%}, and its {count(sequences)} sequences are"
        f" further from the {count(requested)} of the spec than {count(plan.batch.sequences)}"
    )


def leaves_out_waits(plan: Plan, other: Plan) -> str:
    share = percent(loss(plan, other))
    return (
        f"by that rule a token takes {share} longer: nothing hides the reduction of gradients."
        " It is expected to be faster because slices wait for each other once a step and not in"
        " each layer, and no published run on several slices shows that"
    )


WHY_NOT: dict[Reason, Callable[[Plan, Plan], str]] = {
    "work": ranked_apart,
    "offload": gains_too_little,
    "batch": moves_batch,
    "waits": leaves_out_waits,
}


def runner_up(
    plan: Plan, first: Plan, axes: Sequence[str], *, has_estimate: bool
) -> tuple[str, ...]:
    forecast = plan.forecast
    step_s = forecast.step_s
    if has_estimate:
        speed = seconds(step_s.expected or 0), percent(forecast.mfu.expected or 0)
    else:
        speed = seconds(step_s.lower), seconds(step_s.unoverlapped)
    return (
        mesh_with_alike(plan, axes),
        in_microbatches(plan.batch),
        summary_of(plan.remat),
        in_memory(forecast.memory_bytes_per_device),
        *speed,
        "-" if plan is first else percent(loss(first, plan)),
        forecast.bound,
    )


def shown_axes(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the axes inside a pod that any of the plans uses."""
    used = {axis for plan in plans for axis in in_use(plan.mesh, plan.mesh)}
    return tuple(axis for axis in ICI_AXES if axis in used)


def mesh_text(plan: Plan, axes: Sequence[str]) -> str:
    """Return the sizes of the mesh inside a pod."""
    return ".".join(str(plan.mesh[axis]) for axis in axes)


def mesh_with_alike(plan: Plan, axes: Sequence[str]) -> str:
    """Return the mesh inside a pod, and how many meshes are like it."""
    mesh = mesh_text(plan, axes)
    return f"{mesh} +{plan.search.alike}" if plan.search.alike else mesh

"""Where the mesh of a choice lies: the torus axes of each mesh axis, the links of each group."""

from math import prod

from orchestrator.network.mesh_axes import DCN_AXES, GROUPS, ICI_AXES, in_use
from orchestrator.plan.layout import Layout
from orchestrator.plan.search import Choice, SearchRequest, factors_of, slice_sizes
from orchestrator.plan.time import dcn_rate
from orchestrator.plan.torus import spans_of
from orchestrator.types.plan import DeviceGroup, MeshAxis


def place_axes(request: SearchRequest, choice: Choice) -> tuple[MeshAxis, ...]:
    """Each mesh axis with its link and the torus axes it lies on, outermost first."""
    factors = factors_of(choice)[0]
    between = (
        MeshAxis(name=axis, size=size, link="dcn", spans=())
        for axis, size in slice_sizes(request).items()
    )
    inside = (
        MeshAxis(
            name=axis,
            size=choice.mesh[axis],
            link="ici",
            spans=spans_of(request.torus, factors, (axis,)),
        )
        for axis in ICI_AXES
    )
    return (*between, *inside)


def device_groups(request: SearchRequest, choice: Choice, layout: Layout) -> dict[str, DeviceGroup]:
    """Each set of devices that a collective joins, with its rate; single devices left out."""
    factors = factors_of(choice)[0]
    groups = {
        name: DeviceGroup(
            axes=in_use(axes, choice.mesh),
            size=prod(choice.mesh[axis] for axis in axes),
            link="ici",
            spans=spans_of(request.torus, factors, axes),
            bytes_per_s=layout.links.rates[name],
        )
        for name, axes in GROUPS.items()
    }
    for axis in DCN_AXES:
        groups[axis] = DeviceGroup(
            axes=(axis,),
            size=layout.mesh[axis],
            link="dcn",
            spans=(),
            bytes_per_s=dcn_rate(request.chip),
        )
    if layout.model.moe is None:
        del groups["expert"], groups["experts"]
    if layout.model.moe is None or not layout.model.moe.biases:
        del groups["expert_replicas"]
    return {name: group for name, group in groups.items() if group.size > 1}

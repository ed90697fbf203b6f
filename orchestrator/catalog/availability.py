"""Which slices Google Cloud rents; fewer than exist."""

from math import prod

from orchestrator.catalog.chip import Chip, Topology


def schedulable(chip: Chip, topology: Topology, pods: int) -> tuple[str, ...]:
    """What stands against renting so many slices of that topology; empty if nothing does."""
    return tuple(filter(None, (_one_slice(chip, topology), _multislice(chip, topology, pods))))


def hosts(chip: Chip, topology: Topology) -> int:
    """Hosts of one slice: a process on each."""
    if topology.chips <= chip.single_host_chips:
        return 1
    return topology.chips // chip.chips_per_host


def _one_slice(chip: Chip, topology: Topology) -> str | None:
    most = prod(chip.largest_slice)
    if topology.chips <= most:
        return None
    shape = "x".join(map(str, chip.largest_slice))
    return (
        f"Google Cloud schedules at most {most:,} {chip.name} chips as one slice ({shape});"
        f" {topology} is {topology.chips:,}"
    )


def _multislice(chip: Chip, topology: Topology, pods: int) -> str | None:
    chips = topology.chips * pods
    if chip.multislice_chips is None or chips <= chip.multislice_chips.value:
        return None
    return (
        f"Google Cloud joins at most {chip.multislice_chips.value:,.0f} {chip.name} chips by"
        f" Multislice; {pods} x {topology} is {chips:,}"
    )

"""The rates that price a compiled program's schedule: the catalog's, as one device has them."""

from orchestrator import catalog
from orchestrator.catalog.efficiency import shared_efficiency
from orchestrator.plan.step_work import ICI_RATE
from orchestrator.plan.time import dcn_rate, peak
from orchestrator.plan.torus import HOP_S, make_torus
from orchestrator.types.plan import Plan
from orchestrator.types.schedule import ComputeRates, ScheduleRates, SliceTorus, TransferRates

LINKS = 2  # of a chip on each torus axis, one each way


def schedule_rates(plan: Plan) -> ScheduleRates | None:
    """None where the catalog has no clock for the chip: cycles are then no seconds."""
    chip = catalog.chip_of(plan)
    if chip.clock_hz is None:
        return None
    torus = make_torus(chip, catalog.topology(chip, plan.topology))
    host = chip.host_link_bytes_per_s
    return ScheduleRates(
        compute=ComputeRates(
            clock_hz=chip.clock_hz.value,
            peak_flops_per_s=peak(chip, plan.precision.compute).value / chip.devices,
            kernel_share=shared_efficiency("attention").value,
        ),
        transfers=TransferRates(
            hbm_bytes_per_s=chip.hbm_bytes_per_s.value / chip.devices,
            host_bytes_per_s=host.value / chip.devices if host else None,
            dcn_bytes_per_s=dcn_rate(chip),
        ),
        torus=SliceTorus(
            lengths=tuple(axis.length for axis in torus.axes),
            wraps=tuple(axis.wraps for axis in torus.axes),
            link_bytes_per_s=tuple(ICI_RATE * axis.bytes_per_s / LINKS for axis in torus.axes),
            devices_per_chip=chip.devices,
            hop_s=HOP_S,
        ),
    )

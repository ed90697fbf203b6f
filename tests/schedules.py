"""The schedule of a small program, for tests that need no compiler."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from orchestrator.proving.hlo.collectives import DeviceMesh
from orchestrator.proving.hlo.program import HloProgram
from orchestrator.proving.hlo.summary import summarize
from orchestrator.values.proof import (
    ComputeRates,
    Schedule,
    ScheduleRates,
    SliceTorus,
    TransferRates,
)
from tests.programs import program

ARRAY_BYTES = 128 * 128 * 4
US = 1e-6
LINE_OF_FOUR = SliceTorus(
    lengths=(4,), wraps=(False,), link_bytes_per_s=(ARRAY_BYTES / (2 * US),),
    devices_per_chip=1, hop_s=0.0,
)  # fmt: skip
# A thousand cycles are a microsecond, and so is a copy of the program's array from HBM.
RATES = ScheduleRates(
    compute=ComputeRates(
        clock_hz=1e9, peak_flops_per_s=2 * 128**3 / (0.5 * US), kernel_share=0.5
    ),
    transfers=TransferRates(
        hbm_bytes_per_s=ARRAY_BYTES / US, host_bytes_per_s=None, dcn_bytes_per_s=1.0
    ),
    torus=LINE_OF_FOUR,
)  # fmt: skip


def schedule(torus: SliceTorus = LINE_OF_FOUR, compute: ComputeRates = RATES.compute) -> Schedule:
    """The schedule of `programs/schedule.txt`."""
    return schedule_of(program("schedule"), torus, compute=compute)


def schedule_of(
    hlo: HloProgram,
    torus: SliceTorus = LINE_OF_FOUR,
    planned: Mapping[tuple[tuple[str, ...], str], str] = MappingProxyType({}),
    compute: ComputeRates = RATES.compute,
) -> Schedule:
    rates, places = (
        replace(RATES, torus=torus, compute=compute),
        tuple((place,) for place in range(4)),
    )
    mesh = DeviceMesh({"tensor": 4})
    found = summarize(hlo, mesh, DeviceMesh({"pods": 1}), 3, rates, places, planned).schedule
    assert found is not None
    return found

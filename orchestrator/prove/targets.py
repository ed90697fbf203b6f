"""The TPU compiler's names for chips and slices, and the environment that it needs."""

from collections.abc import Mapping
from typing import Any

from orchestrator import catalog
from orchestrator.device_settings import deepen_compiler_stacks, without_device_settings
from orchestrator.errors import ProofUnavailable
from orchestrator.types.plan import Plan

# Without these libtpu asks the machine which TPU it is, or cannot be loaded twice at a time.
SETTINGS = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def target(plan: Plan) -> tuple[str, dict[str, Any]]:
    """Name and options of the plan's topology, as `get_topology_desc` takes them."""
    names = catalog.chip_of(plan).libtpu
    if names is None:
        known = ", ".join(name for name in catalog.chips() if catalog.chip(name).libtpu)
        raise ProofUnavailable(
            f"cannot prove: the TPU compiler knows {known}, and no {plan.chip}\n"
            "A plan can be run without a proof: orch submit --no-prove"
        )
    options: dict[str, Any] = {}
    if names.chip_config:
        options["chip_config_name"] = names.chip_config
    if plan.chips == plan.pods:  # hosts have four chips unless one is set
        options["chips_per_host_bounds"] = [1, 1, 1]
    if plan.pods > 1:
        options["num_slices"] = plan.pods
    return f"{names.topology}:{plan.topology}", options


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the compile process."""
    settings = without_device_settings(inherited) | SETTINGS
    deepen_compiler_stacks(settings)
    return settings

"""The compilers that need no device of their own: what differs between TPUs and NVIDIA GPUs."""

import platform as machine
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import util
from typing import Any

from orchestrator import catalog, plugins
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.catalog.published import NARROW, shared_efficiency
from orchestrator.errors import MissingExtra, ProofUnavailable
from orchestrator.planning.planner import POOL_SHARE
from orchestrator.planning.step_work import ICI_RATE
from orchestrator.planning.time import peak
from orchestrator.planning.torus import HOP_S, cluster_rate, make_torus
from orchestrator.values.codec import MatmulType
from orchestrator.values.program import AnyPlan
from orchestrator.values.proof import ComputeRates, ScheduleRates, SliceTorus, TransferRates

_Target = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class _Platform:
    """One compiler. `title` is its name in messages, `jax_name` that of its platform in JAX;
    compiled programs depend on the versions of `packages`. `target` gives name and options of a
    plan's devices, as `get_topology_desc` takes them, and `rates` what prices a schedule, if it is
    known. `options` hold for the proof only, added to the plan's; with `beyond_hbm` the compiler
    takes what memory cannot hold. One that never refuses lacks these: the proof compares the peak.
    """

    title: str
    jax_name: str
    packages: tuple[str, ...]
    target: Callable[[AnyPlan], _Target]
    rates: Callable[[AnyPlan], ScheduleRates | None]
    require: Callable[[], None]
    options: Mapping[str, Any] = field(default_factory=dict)
    beyond_hbm: Mapping[str, Any] = field(default_factory=dict)


def platform_of(plan: AnyPlan) -> _Platform:
    chip = catalog.chip_of(plan)
    if chip.libtpu:
        return _TPU
    if chip.xla_gpu:
        return _GPU
    chips = map(catalog.chip, catalog.chips())
    known = ", ".join(chip.name for chip in chips if chip.libtpu or chip.xla_gpu)
    raise ProofUnavailable(
        f"cannot prove: the compilers know {known}, and no {plan.chip}\n"
        "A plan can be run without a proof: orch submit --no-prove"
    )


def other_options(plan: AnyPlan) -> list[dict[str, bool | int | float | str]]:
    chip = catalog.chip_of(plan)
    known = chip.libtpu or chip.xla_gpu
    return [
        {name: other}
        for name, option in (known.options if known else {}).items()
        if plan.compiler_options.get(name) == option.value
        for other in option.others
    ]


# --- TPUs

_LINKS = 2  # of a chip on each torus axis, one each way


def _tpu_target(plan: AnyPlan) -> _Target:
    names = catalog.chip_of(plan).libtpu
    assert names is not None
    options: dict[str, Any] = {}
    if names.chip_config:
        options["chip_config_name"] = names.chip_config
    if plan.chips == plan.pods:  # hosts have four chips unless one is set
        options["chips_per_host_bounds"] = [1, 1, 1]
    if plan.pods > 1:
        options["num_slices"] = plan.pods
    return f"{names.topology}:{plan.topology}", options


def _tpu_rates(plan: AnyPlan) -> ScheduleRates | None:
    chip = catalog.chip_of(plan)
    return rates_of(chip, catalog.topology(chip, plan.topology), plan.precision.compute)


def rates_of(chip: Chip, topology: Topology, compute: MatmulType) -> ScheduleRates | None:
    """Return the catalog's rates, as one device of a slice that multiplies in that type has them.
    None where it has no clock for the chip: cycles are then no seconds.
    """
    if chip.clock_hz is None:
        return None
    torus, efficiency = make_torus(chip, topology), catalog.efficiency(chip.name, compute)
    few = chip.products
    return ScheduleRates(
        compute=ComputeRates(
            clock_hz=chip.clock_hz.value,
            peak_flops_per_s=peak(chip, compute).value / chip.devices,
            wide_flops_per_s=_wide_rate(chip, compute),
            kernel_share=shared_efficiency("attention").value,
            product_share=efficiency.matmul.value if efficiency else 1.0,
            rows=few.rows if few else (1,),
            row_shares=few.shares if few else (1.0,),
        ),
        transfers=_transfer_rates(chip),
        torus=SliceTorus(
            lengths=tuple(axis.length for axis in torus.axes),
            wraps=tuple(axis.wraps for axis in torus.axes),
            link_bytes_per_s=tuple(ICI_RATE * axis.bytes_per_s / _LINKS for axis in torus.axes),
            devices_per_chip=chip.devices,
            hop_s=HOP_S,
        ),
    )


def _wide_rate(chip: Chip, compute: MatmulType) -> float | None:
    return peak(chip, "bf16").value / chip.devices if compute in NARROW else None


def _transfer_rates(chip: Chip) -> TransferRates:
    host = chip.host_link_bytes_per_s
    return TransferRates(
        hbm_bytes_per_s=chip.hbm_bytes_per_s.value / chip.devices,
        host_bytes_per_s=host.value / chip.devices if host else None,
        dcn_bytes_per_s=cluster_rate(chip),
    )


def _require_libtpu() -> None:
    plugins.require("prove")
    if util.find_spec("libtpu") is None:
        where = f"{sys.platform} {machine.machine()}"
        raise ProofUnavailable(
            f"cannot prove: libtpu, the TPU compiler, is not installed ({where})\n"
            "It exists for Linux on x86-64 alone; there, `make setup` installs it. A plan can be"
            " run without a proof: orch submit --no-prove"
        )


_TPU = _Platform(
    title="TPU compiler",
    jax_name="tpu",
    packages=("jax", "jaxlib", "libtpu"),
    target=_tpu_target,
    rates=_tpu_rates,
    require=_require_libtpu,
    beyond_hbm={"xla_tpu_no_crash_on_oom": True},
)


# --- NVIDIA GPUs

# Limits that all of these chips have, and the versions that XLA's own descriptions state.
_TARGET = """\
gpu_device_info {{
  name: "{kind}" device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability {capability}"
  cuda_compute_capability {{ major: {major} minor: {minor} {extension} }}
  core_count: {cores} fpus_per_core: {lanes} clock_rate_ghz: {clock_ghz}
  memory_bandwidth: {bandwidth} device_memory_size: {memory} l2_cache_size: {l2}
  shared_memory_per_core: {shared_core} shared_memory_per_block: 49152
  shared_memory_per_block_optin: {shared_block}
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  device_address_bits: 64 pcie_bandwidth: {host} ecc_enabled: true
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{kind}"
"""
# FlashAttention-3 reaches 75 % of H100's peak forward and 55 to 60 % backward (arXiv 2407.08608).
_CUDNN_SHARE = 0.6
_EXTENSIONS = {"a": "feature_extension: ACCELERATED_FEATURES", "": ""}


def _gpu_target(plan: AnyPlan) -> _Target:
    """Domains, the hosts of each, the GPUs of each host; and a text that describes the GPU."""
    chip = catalog.chip_of(plan)
    gpu = chip.xla_gpu
    assert gpu is not None
    number = gpu.compute_capability.rstrip("af")
    major, minor = number.split(".")
    hosts = catalog.hosts(chip, catalog.topology(chip, plan.topology))
    text = _TARGET.format(
        kind=chip.device_kinds[0],
        capability=gpu.compute_capability,
        major=major,
        minor=minor,
        extension=_EXTENSIONS[gpu.compute_capability.removeprefix(number)],
        cores=gpu.cores,
        lanes=gpu.lanes,
        clock_ghz=gpu.clock_hz / 1e9,
        bandwidth=int(chip.hbm_bytes_per_s.value),
        memory=int(chip.hbm_usable_bytes.value / POOL_SHARE),
        l2=int(gpu.l2_bytes),
        shared_core=gpu.shared_bytes_per_core,
        shared_block=gpu.shared_bytes_per_block,
        host=int(chip.host_link_bytes_per_s.value) if chip.host_link_bytes_per_s else -1,
    )
    shape = f"{plan.pods}x{hosts}x{plan.devices_per_slice // hosts}"
    return "", {"topology": shape, "target_config": text}


def _gpu_rates(plan: AnyPlan) -> ScheduleRates:
    chip = catalog.chip_of(plan)
    [domain] = make_torus(chip, catalog.topology(chip, plan.topology)).axes
    return ScheduleRates(
        compute=ComputeRates(
            clock_hz=0.0,  # the text has seconds
            peak_flops_per_s=peak(chip, plan.precision.compute).value / chip.devices,
            wide_flops_per_s=_wide_rate(chip, plan.precision.compute),
            kernel_share=_CUDNN_SHARE,
        ),
        transfers=_transfer_rates(chip),
        torus=SliceTorus(
            lengths=(domain.length,),
            wraps=(False,),
            link_bytes_per_s=(ICI_RATE * domain.bytes_per_s,),
            devices_per_chip=1,
            hop_s=HOP_S,
            switched=True,
        ),
    )


def _require_gpu_compiler() -> None:
    plugins.require("prove")
    if not plugins.missing("gpu"):
        return
    if sys.platform != "linux":
        raise ProofUnavailable(
            f"cannot prove: XLA's GPU compiler exists for Linux alone, and this is {sys.platform}\n"
            "A plan can be run without a proof: orch submit --no-prove"
        )
    raise MissingExtra(
        "cannot prove: XLA's GPU compiler is not installed (182 MB to download; no GPU needed)",
        next_command=plugins.install_command("gpu"),
    )


_GPU = _Platform(
    title="GPU compiler",
    jax_name="cuda",
    packages=("jax", "jaxlib", "jax-cuda12-pjrt"),
    target=_gpu_target,
    rates=_gpu_rates,
    require=_require_gpu_compiler,
    # No GPU is here to try kernels on. The statistics are seconds of each operation.
    options={"xla_gpu_autotune_level": 0, "xla_gpu_collect_cost_model_stats": True},
)

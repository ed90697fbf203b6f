"""Plan room: what has to be measured before a plan can be forecast on a machine."""

from dataclasses import replace
from math import log
from typing import get_args

from orchestrator.plan.kernels import KernelCalls, pieces
from orchestrator.plan.layout import Layout
from orchestrator.plan.messages import Message, messages, stride, vote, ways
from orchestrator.types.chip_profile import (
    Benchmarks,
    ChipProfile,
    CollectiveBenchmark,
    CollectiveTime,
    Exchanged,
    Kernel,
    KernelBenchmark,
    KernelTime,
)
from orchestrator.types.plan import Plan
from orchestrator.types.spec import DType

AT_ONCE = 4  # emulated devices on which a kernel is timed that as many or more are to run
# How well a kernel runs depends on its size: the largest of those that read more than they reckon
# no longer stays in a cache.
AMOUNTS: dict[Kernel, tuple[float, ...]] = {
    "matmul forward": (1e6, 3e7, 1e9),
    "matmul": (1e6, 3e7, 1e9),
    "copy": (1e5, 3e6, 5e7),
    "norm": (8e3, 2e5),
    "gate": (8e3, 2e5),
    "rotary": (8e3, 2e5),
    "logits": (1.6e4, 5e5),
    "update": (4e3, 2.5e5, 4e6),
    "attention forward": (6.5e4, 1e6, 4e6),
    "attention": (6.5e4, 1e6, 4e6),
}
HEAD_DIMS = (16, 64, 128)
EXCHANGE_BYTES = (2**10, 2**18, 2**22)


def wishes(plan: Plan, layout: Layout, *, shared: bool) -> Benchmarks:
    """What the forecast of a plan reads of a profile."""
    wanted = {wish: None for piece in pieces(layout) for wish in kernel_wishes(piece, plan, shared)}
    return Benchmarks(kernels=tuple(wanted), exchanges=tuple(exchange_wishes(plan, layout)))


def kernel_wishes(piece: KernelCalls, plan: Plan, shared: bool) -> list[KernelBenchmark]:
    """The kernel of a piece at its amounts."""
    return [
        KernelBenchmark(
            kernel=piece.kernel,
            dtype=piece.dtype,
            devices=at_once(plan.devices, shared=shared),
            amount=amount,
            head_dim=nearest_head(piece.head_dim),
        )
        for amount in AMOUNTS[piece.kernel]
    ]


def at_once(devices: int, *, shared: bool) -> int:
    """On how many devices a kernel is timed that so many are to run."""
    return min(devices, AT_ONCE) if shared else 1


def nearest_head(head_dim: int) -> int:
    """The head dimension that attention is timed with; zero for what has none."""
    return head_dim and min(HEAD_DIMS, key=lambda known: abs(log(known / head_dim)))


def exchange_wishes(plan: Plan, layout: Layout) -> list[CollectiveBenchmark]:
    """Every kind of collective in every group of the plan, small and large."""
    sent = all_messages(plan, layout)
    found = {
        (one.kind, one.dtype, ways(layout, one.axes), stride(layout, one.axes), one.together)
        for one in sent
    }
    return [
        CollectiveBenchmark(
            kind=kind,
            dtype=dtype,
            processes=plan.hosts,
            devices=plan.devices,
            ways=size,
            stride=apart,
            bytes=size_bytes,
            together=together,
        )
        for kind, dtype, size, apart, together in sorted(found)
        for size_bytes in EXCHANGE_BYTES
    ]


def all_messages(plan: Plan, layout: Layout) -> list[Message]:
    """Those of the trainer's step, and the loop's vote where there are several processes."""
    sent = messages(layout, plan.gradient_reduction == "per_layer")
    return [*sent, vote()] if plan.hosts > 1 else sent


def missing(wanted: Benchmarks, profile: ChipProfile) -> Benchmarks:
    """What of the wishes a profile does not have."""
    kernels = {key_of_kernel(time) for time in profile.kernels}
    exchanges = {key_of_exchange(time) for time in profile.exchanges}
    return Benchmarks(
        kernels=tuple(w for w in wanted.kernels if key_of_kernel(w) not in kernels),
        exchanges=tuple(w for w in wanted.exchanges if key_of_exchange(w) not in exchanges),
    )


def key_of_kernel(time: KernelBenchmark) -> tuple[object, ...]:
    """What tells kernels apart, their amount left out: it comes out a little different."""
    return time.kernel, time.dtype, time.devices, time.head_dim


def key_of_exchange(time: CollectiveBenchmark) -> tuple[object, ...]:
    group = time.processes, time.devices, time.ways, time.stride, time.together
    return time.kind, time.dtype, *group


def merged(old: ChipProfile, new: ChipProfile) -> ChipProfile:
    """A profile with what another adds; of what both have, the newer."""
    kernels = {key_of_kernel(time) for time in new.kernels}
    exchanges = {key_of_exchange(time) for time in new.exchanges}
    kept_kernels = (time for time in old.kernels if key_of_kernel(time) not in kernels)
    kept_exchanges = (time for time in old.exchanges if key_of_exchange(time) not in exchanges)
    return replace(
        new,
        kernels=(*kept_kernels, *new.kernels),
        exchanges=(*kept_exchanges, *new.exchanges),
    )


def kernel_times(profile: ChipProfile, piece: KernelCalls, devices: int) -> list[KernelTime]:
    """What a profile has of a piece, the smallest first."""
    found = [
        time
        for time in profile.kernels
        if key_of_kernel(time) == (piece.kernel, piece.dtype, devices, nearest_head(piece.head_dim))
    ]
    return sorted(found, key=lambda time: time.amount)


def exchange_times(profile: ChipProfile, wish: tuple[object, ...]) -> list[CollectiveTime]:
    """What a profile has of a collective, the smallest first."""
    found = [time for time in profile.exchanges if key_of_exchange(time) == wish]
    return sorted(found, key=lambda time: time.bytes)


def of_own_devices(devices: int) -> Benchmarks:
    """What is worth knowing of accelerators in one process: each alone, and in groups of all sizes,
    next to each other and apart.
    """
    sizes = [size for size in range(2, devices + 1) if devices % size == 0]
    groups = [
        (size, apart)
        for size in sizes
        for apart in range(1, devices // size + 1)
        if devices // size % apart == 0
    ]
    return Benchmarks(
        kernels=every_kernel((1,)),
        exchanges=tuple(
            wish for size, apart in groups for wish in every_exchange(1, devices, apart, size)
        ),
    )


def of_emulated_devices() -> Benchmarks:
    """Of CPU devices: one alone, several that share the cores, in one process and in two."""
    return Benchmarks(
        kernels=every_kernel((1, AT_ONCE)),
        exchanges=(
            *every_exchange(1, AT_ONCE, 1, AT_ONCE),
            *every_exchange(2, 2 * AT_ONCE, 1, AT_ONCE),
            *every_exchange(2, 2 * AT_ONCE, AT_ONCE, 2),
        ),
    )


def every_kernel(devices: tuple[int, ...]) -> tuple[KernelBenchmark, ...]:
    """Each kernel in both types, at each of its amounts, on so many devices at once."""
    return tuple(
        KernelBenchmark(kernel=kernel, dtype=dtype, devices=count, amount=amount, head_dim=head_dim)
        for count in devices
        for kernel, amounts in AMOUNTS.items()
        for dtype in get_args(DType)
        for head_dim in (HEAD_DIMS if kernel.startswith("attention") else (0,))
        for amount in amounts
    )


def every_exchange(
    processes: int, devices: int, stride: int, ways: int
) -> list[CollectiveBenchmark]:
    """Each kind of collective in groups of that form; none where one device is alone."""
    return [
        CollectiveBenchmark(
            kind=kind,
            dtype=dtype,
            processes=processes,
            devices=devices,
            ways=ways,
            stride=stride,
            bytes=size_bytes,
        )
        for kind in get_args(Exchanged)
        for dtype in get_args(DType)
        for size_bytes in EXCHANGE_BYTES
        if ways > 1
    ]

"""Proof: what the compiler reports about a Plan. Plain values, no opinions."""

from typing import Literal

from orchestrator.values.codec import Value
from orchestrator.values.plan import Estimate, Link

ScheduledLink = Literal["ici", "dcn", "host", "hbm"]


class ScheduledLine(Value):
    """Seconds of one step and device by the source line that asks for them.

    `stack` are the lines that lead to it, the outermost first and itself last. `exposed_s` is
    waited for what it sends or fetches. `flops` are those of its matrix products.
    """

    line: str
    stack: tuple[str, ...]
    products_s: float
    kernels_s: float
    copies_s: float
    other_s: float
    exposed_s: float
    flops: float

    @property
    def total_s(self) -> float:
        return self.products_s + self.kernels_s + self.copies_s + self.other_s + self.exposed_s


OTHER_LINE = "other"  # of operations that no line of the ledger prices


class ScheduledLedgerLine(Value):
    """Seconds of one step and device by the kind of the ledger's line that prices the operations.

    What is computed and what is waited for add up to the step; `wire_s` are those of links to other
    devices and to the host, hidden or not. `kind` is `other` where the trainer names no line.
    """

    kind: str
    computed_s: float
    exposed_s: float
    wire_s: float

    @property
    def total_s(self) -> float:
        return self.computed_s + self.exposed_s


class ScheduledProduct(Value):
    """Matrix products of one line and shape: seconds of a step, and the share of the peak.

    `shape` is the result's. `fused` are the operations inside the fusion that move data.
    """

    line: str
    shape: str
    fused: tuple[str, ...]
    calls_per_step: float
    flops: float
    seconds: float
    peak_share: float


class ScheduledCollective(Value):
    """Alike transfers of one line: on the wire, and waited for.

    `link` is `ici` or `dcn` for what goes to other devices, `host` for what goes to the host, `hbm`
    for what is fetched into the chip's own fast memory. `algorithm` is the compiler's name for how
    it runs; empty where it gives none. A synchronous one hides behind nothing; `behind` is the line
    whose computation runs most while an asynchronous one is on its way, `behind_s` all that runs.
    """

    kind: str
    axes: tuple[str, ...]
    link: ScheduledLink
    algorithm: str
    asynchronous: bool
    line: str
    calls_per_step: float
    bytes_per_step: float
    wire_s: float
    exposed_s: float
    behind: str
    behind_s: float


class ScheduledEvent(Value):
    """Something that runs in one round of a loop. `track`: compute, or the link it keeps busy."""

    track: str
    kind: str
    name: str
    line: str
    start_s: float
    seconds: float


class ScheduledLoop(Value):
    """One round of a loop over layers, and how often it runs in a step."""

    name: str
    trips: int
    round_s: float
    events: tuple[ScheduledEvent, ...]


# A schedule's kinds of seconds, and their fields.
KINDS = (
    ("products", "products_s"),
    ("kernels", "kernels_s"),
    ("copies", "copies_s"),
    ("other", "other_s"),
    ("exposed", "exposed_s"),
)


class Schedule(Value):
    """A step as the compiler schedules it. The five kinds of seconds add up to `total_s`.

    `exposed_s` is all waiting: for collectives, for other pods, for the host and for the chip's own
    memory. `unpriced` are kernels without a formula, and loops whose rounds are not known: they
    count as nothing, or as one round. The longest lines, products and transfers come first.

    `low_s` and `high_s` are the ends of the 80 % interval of a measured step, learned from programs
    of published runs. `never_judged` says what this program has and none of those had: then there
    is no interval: the seconds serve to compare programs.
    """

    total_s: float
    products_s: float
    kernels_s: float
    copies_s: float
    other_s: float
    exposed_s: float
    flops: float
    peak_flops_per_s: float
    lines: tuple[ScheduledLine, ...]
    products: tuple[ScheduledProduct, ...]
    collectives: tuple[ScheduledCollective, ...]
    loops: tuple[ScheduledLoop, ...]
    unpriced: tuple[str, ...]
    ledger: tuple[ScheduledLedgerLine, ...] = ()
    low_s: float | None = None
    high_s: float | None = None
    never_judged: tuple[str, ...] = ()


class SliceTorus(Value):
    """A slice's torus axes, and one direction's rate of a link on each. A switched domain of GPUs
    has one axis, whose rate is that of a device to all others.
    """

    # Where a chip is several devices, the last axis joins these: its links belong to a device.
    lengths: tuple[int, ...]
    wraps: tuple[bool, ...]
    link_bytes_per_s: tuple[float, ...]
    devices_per_chip: int
    hop_s: float
    switched: bool = False


class ComputeRates(Value):
    """How fast a device computes. Products reach at most `product_share` of the peak, kernels
    `kernel_share`. `clock_hz` is 0 where the compiler estimates seconds and not cycles. Where the
    peak is that of fp8, `wide_flops_per_s` is that of all whose factors are wider.
    """

    clock_hz: float
    peak_flops_per_s: float
    kernel_share: float
    wide_flops_per_s: float | None = None
    product_share: float = 1.0
    rows: tuple[int, ...] = (1,)
    row_shares: tuple[float, ...] = (1.0,)


class TransferRates(Value):
    """Bytes a second of a device, besides those of the slice's links; None where none is known."""

    hbm_bytes_per_s: float
    host_bytes_per_s: float | None
    dcn_bytes_per_s: float


class ScheduleRates(Value):
    """Everything that turns a compiled program's operations into seconds."""

    compute: ComputeRates
    transfers: TransferRates
    torus: SliceTorus


PROOF_SCHEMA = 4

FaultCode = Literal["not_planned", "too_many_bytes"]
Payload = Literal["gradients", "weights", "activations", "other"]
DisagreementCode = Literal["peak_memory", "host_memory", "payload", "flops", "uncounted_kernel"]


class Comparison(Value):
    """A figure of the compiled program and the Forecast's; None where it has no such line."""

    name: str
    compiled: float
    forecast: float | None


class Buffer(Value):
    """A large buffer of the compiled program. `name` is the trainer's line that makes it."""

    name: str
    shape: str
    bytes: float


class ComparedCollective(Value):
    """Collectives of one kind, group of axes, link and type: logical payload per device and step.

    All-gather and reduce-scatter count V (n - 1) / n, an all-reduce twice that. Padding, and what
    the compiler runs in place of a collective, stand in `Proof.changes`.
    """

    axes: tuple[str, ...]
    link: Link
    kind: str
    dtype: str
    bytes_per_step: float
    forecast_bytes_per_step: float | None
    calls_per_step: float


class CompilerChange(Value):
    """Bytes that the compiler adds to a collective: by padding it, or by running another kind."""

    what: str
    axes: tuple[str, ...]
    link: Link
    bytes_per_step: float


class DcnCrossing(Value):
    """One operation that crosses pods, the trainer's lines that ask for it, and what it sends.

    `gradients` are sums of what a backward pass made, `weights` are gathered as they are stored;
    `activations` pass stages, or are exchanged for attention or experts, as the trainer says.
    """

    name: str
    kind: str
    dtype: str
    bytes_per_step: float
    calls_per_step: float
    places: tuple[str, ...]
    carries: Payload
    axes: tuple[str, ...]


class CrossingFault(Value):
    """What crosses pods and may not.

    `not_planned`: the operation sends something else than the plan's gradients, its weights where
    pods share them, and its activations where a mesh axis of these joins pods. `too_many_bytes`:
    all of one of these together are `bytes_per_step`, more than the Forecast's
    `allowed_bytes_per_step`; the operation sends the most of them.
    """

    code: FaultCode
    crossing: DcnCrossing
    bytes_per_step: float
    allowed_bytes_per_step: float


class Disagreement(Value):
    """Where the Forecast is off, beyond its tolerance.

    `peak_memory`, `host_memory` and `payload` are bytes, `flops` are FLOPs; `axes` are those of the
    payload.
    `uncounted_kernel`: no formula counts the FLOPs of `kernel`.
    """

    code: DisagreementCode
    compiled: float = 0.0
    forecast: float = 0.0
    axes: tuple[str, ...] = ()
    kernel: str = ""


class PlanChange(Value):
    """Overrides that lead to another plan, and what that plan should need.

    `peak_hbm_bytes_per_device` is its Forecast, corrected by what the Forecast missed in the plan
    that was compiled.
    """

    overrides: tuple[str, ...]
    peak_hbm_bytes_per_device: float
    step_s: Estimate


class CompilerRefusal(Value):
    """Why the compiler refuses the plan; the figures of the Proof are then what it would need.

    `message` is the compiler's own sentence. `nearest` lead to plans like this one that should fit.
    """

    message: str
    needed_bytes: float
    nearest: tuple[PlanChange, ...]


class Proof(Value):
    """The compiler's verdict on a Plan, compared with its Forecast.

    `fits`: the compiler accepts the program. `margin_bytes` is `hbm_bytes_per_device` less the
    peak; it is negative where the compiler accepts more than the catalog says a chip has.
    `agrees`: the Forecast is right within tolerances; `disagreements` list where it is not. It is
    None, and so are all figures of the Forecast, where the ledger does not describe the trainer.
    `memory` is the compiler's own account by class. `ledger` is what is alive at the peak, while
    `peak_at` runs. FLOPs are those of the compiled program: what is computed twice counts twice.
    `only_gradients_cross_pods` is also true where nothing crosses; it is false of a plan whose pods
    share weights. `schedule` is the compiler's own estimate of the step, None where the catalog has
    no clock for the chip. `crosses_as_planned`: all that crosses is part of the plan. `hints` lead
    to plans that compute less twice and should fit.
    """

    schema: int
    plan_digest: str
    trainer: str
    fits: bool
    agrees: bool | None
    refusal: CompilerRefusal | None
    hbm_bytes_per_device: float
    peak_hbm_bytes_per_device: float
    forecast_peak_hbm_bytes_per_device: float | None
    host_bytes_per_device: float
    forecast_host_bytes_per_device: float | None
    margin_bytes: float
    memory: dict[str, float]
    ledger: tuple[Comparison, ...]
    peak_at: str
    buffers: tuple[Buffer, ...]
    collectives: tuple[ComparedCollective, ...]
    changes: tuple[CompilerChange, ...]
    only_gradients_cross_pods: bool
    crosses_as_planned: bool
    crossing_faults: tuple[CrossingFault, ...]
    crossings: tuple[DcnCrossing, ...]
    flops_per_device: float
    forecast_flops_per_device: float | None
    flops: tuple[Comparison, ...]
    schedule: Schedule | None
    disagreements: tuple[Disagreement, ...]
    hints: tuple[PlanChange, ...]
    compile_s: float
    compiler_memory_bytes: float
    versions: dict[str, str]

    @property
    def passes(self) -> bool:
        return self.fits and self.crosses_as_planned

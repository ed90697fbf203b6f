"""Forecasts a plan with what was measured on a machine. On chips a single device takes the measured
rates, and links those of the datasheet. Emulated devices share the cores of one machine: the
trainer's own step is timed with fewer layers.
"""

from dataclasses import replace
from typing import Literal, get_args

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Quantity
from orchestrator.errors import SpecError
from orchestrator.goodput.losses import exactly
from orchestrator.network.mesh_axes import sizes
from orchestrator.network.rematerialization import policy
from orchestrator.planning import flops, plan_warnings
from orchestrator.planning.forecast import Terms, plain_line, write_forecast
from orchestrator.planning.layout import Training, activation_type
from orchestrator.planning.step_work import FORWARD_AND_BACKWARD, pass_bytes, transfers
from orchestrator.planning.time import device_peak
from orchestrator.planning.torus import NO_LINKS
from orchestrator.values import codec
from orchestrator.values import plan as values
from orchestrator.values.codec import DType, MatmulType, Value
from orchestrator.values.goodput import GoodputInputs

# What is timed. Each has an amount that its seconds grow with.
Operation = Literal[
    "matmul",  # FLOPs of a product and of both products of its backward pass
    "attention",  # FLOPs of a forward and a backward pass, as the ledger counts them
    "copy",  # bytes read and written
    "step",  # layers of the network: a whole step of the trainer on emulated devices
]

# Medians of nine repeats that spread no more than this are about 15 % off, two of three times.
STEADY_SPREAD = 0.5
_QUIET_SHARE = 0.25  # of the cores, that other programs may have meanwhile


class Timing(Value):
    """Median seconds of an operation for each amount of work, smallest first.

    It runs on one device; a step, on all devices of a plan: `shape` and `source` are the digests of
    what its seconds depend on. `head_dim` is that of attention. `spread` is the width of the middle
    half of the runs over their median, where it is largest. `others` is the share of the machine's
    cores that other programs had meanwhile.
    """

    operation: Operation
    dtype: MatmulType
    points: tuple[tuple[float, float], ...]  # amount, seconds
    spread: float
    head_dim: int = 0
    shape: str = ""
    source: str = ""
    others: float = 0.0

    @property
    def is_steady(self) -> bool:
        return self.spread <= STEADY_SPREAD and self.others <= _QUIET_SHARE

    @property
    def per_s(self) -> float:
        """The rate of the largest amount: less of it fits in caches, or leaves units idle."""
        amount, seconds = self.points[-1]
        return amount / seconds


class Measurements(Value):
    """The devices that JAX reports, and the timings; `others` as in a timing."""

    platform: str
    device_kind: str
    timings: tuple[Timing, ...]
    others: float = 0.0


class Machine(Value):
    """What was measured, and with which versions. Emulated CPU devices share its cores."""

    platform: str
    device_kind: str
    processor: str
    cores: int
    memory_bytes: int
    versions: dict[str, str]


class ChipProfile(Value):
    """Measurements of a machine, newest last. The digest is its name."""

    schema: int
    machine: Machine
    measured_on: str
    timings: tuple[Timing, ...] = ()

    @property
    def emulated(self) -> bool:
        return self.machine.platform == "cpu"


_CORES = "cores"
_FASTEST, _SLOWEST = 0.8, 1.4  # measured steps over forecasts: docs/calibrate.md has the table
_OPERATIONS: dict[str | None, Operation] = {"mxu": "matmul", "hbm": "copy"}  # by resource


def shape_digest(plan: values.Plan) -> str:
    """Return the identity of all that a step's seconds depend on except the trainer's source."""
    model = replace(plan.model, name="")
    split = plan.pods, plan.hosts, plan.mesh, plan.gradient_reduction, plan.remat
    return codec.digest((plan.trainer, model, plan.batch, plan.precision, *split))


def with_profile(plan: values.Plan, profile: ChipProfile) -> values.Plan:
    """Return the plan with a forecast from a profile, which it names; its digest changes, too."""
    replaced = plan_warnings.forecast_warnings(plan)  # of the forecast by datasheets
    forecast = _emulated_forecast if profile.emulated else _chip_forecast
    calibrated = replace(plan, chip_profile=codec.digest(profile), forecast=forecast(plan, profile))
    warnings = [warning for warning in plan.warnings if warning not in replaced]
    warnings += [*plan_warnings.too_long(calibrated), *plan_warnings.unknown_rates(calibrated)]
    if not profile.emulated:
        warnings += plan_warnings.goodput_warnings(calibrated)
    elif not (step := _timing_of(profile, "step", plan)).is_steady:
        warnings.append(
            plan_warnings.make_warning("unsteady_profile", spread=step.spread, others=step.others)
        )
    return replace(calibrated, digest=values.plan_digest(calibrated), warnings=tuple(warnings))


def with_own_profile(plan: values.Plan, profile: ChipProfile) -> values.Plan:
    """Return the plan with a profile; one of another kind of chip than the plan's is an error."""
    kind, kinds = profile.machine.device_kind, catalog.chip_of(plan).device_kinds
    if kind not in kinds:
        raise SpecError(
            f"the profile is of {kind}, the plan of {plan.chip}, which JAX calls {kinds[0]}"
        )
    return with_profile(plan, profile)


def _write(
    plan: values.Plan,
    layout: Training,
    lines: list[values.LedgerLine],
    lower_s: float,
    bound: tuple[str, float],
    goodput: GoodputInputs,
    price: float | None = None,
    hidden_s: float = 0.0,
) -> values.Forecast:
    """Return the forecast of these lines. Where nothing overlaps but transfers to the host, on
    emulated devices and on a single chip, their sum is expected, less the hidden transfers.
    """
    sum_s = max(sum(line.value for line in lines), lower_s)
    step_s = values.Estimate(lower=lower_s, unoverlapped=sum_s)
    # Transfers to the host, without what computation hides of them.
    exposed = [
        replace(
            line,
            value=line.value - hidden_s,
            formula="both ways - hidden",
            inputs={"both_ways": line.value, "hidden": hidden_s},
        )
        if line.kind == "offload"
        else line
        for line in lines
    ]
    if bound[0] == _CORES or plan.devices == 1:
        expected_s = max(sum(line.value for line in exposed), lower_s)
        low_s, high_s = max(expected_s * _FASTEST, lower_s), expected_s * _SLOWEST
        step_s = replace(step_s, expected=expected_s, low=low_s, high=high_s)
    time, parts = (
        tuple(sorted(map(plain_line, ledger), key=lambda line: -line.value))
        for ledger in (lines, exposed)
    )
    return write_forecast(
        layout,
        Terms(plan.tokens, goodput, price),
        memory=plan.forecast.memory,
        time=time,
        step_s=step_s,
        bottleneck=bound,
        expected_time=parts if step_s.expected else (),
    )


def _emulated_forecast(plan: values.Plan, profile: ChipProfile) -> values.Forecast:
    """Return a forecast whose `lower` is what MFU counts, at the measured rate of a matmul."""
    rate, source = _timing_of(profile, "matmul", plan).per_s, _source_of(profile)
    chip = replace(
        catalog.chip_of(plan),
        # Emulated devices widen what is in fp8: one rate for all products.
        peak_flops_per_s=dict.fromkeys(
            (plan.precision.compute, activation_type(plan.precision)),
            Quantity(value=rate / plan.chips, source=source),
        ),
        hbm_usable_bytes=Quantity(value=profile.machine.memory_bytes / plan.devices, source=source),
        dollars_per_hour=None,
    )
    lower_s = float(flops.model_flops_per_step(plan.model, plan.batch) / rate)
    # The layers, and all else: what is left of a measured step without its layers.
    (few, few_s), (more, more_s) = _timing_of(profile, "step", plan).points
    layer_s = min(max(more_s - few_s, 0.0) / (more - few), few_s / few)
    parts: tuple[tuple[values.LineKind, str, float, float], ...] = (
        ("layers", "layers", plan.model.layers, layer_s),
        ("outside_layers", "outside the layers", 1, few_s - few * layer_s),
    )
    lines = [
        values.LedgerLine(
            kind=kind,
            name=name,
            value=calls * measured_s,
            unit="s",
            formula="calls x measured",
            inputs={"calls": calls, "measured": measured_s},
            sources=(source,),
            resource=_CORES,
        )
        for kind, name, calls, measured_s in parts
    ]
    # A rehearsal is too short to fail; a stated goodput stays.
    usual, never = plan.forecast.goodput.inputs, exactly(0.0)
    nothing = replace(
        usual, failures_per_day=never, restart_s=never, restore_s=never,
        save=replace(usual.save, blocking_s=never, write_s=never),
        failures_known=True, assumed=False,
    )  # fmt: skip
    return _write(plan, layout_of(plan, chip), lines, lower_s, (_CORES, 0.0), nothing)


def _chip_forecast(plan: values.Plan, profile: ChipProfile) -> values.Forecast:
    """Return a forecast with the plan's bound, peak and price, and seconds of links and hosts."""
    was, layout = plan.forecast, layout_of(plan, catalog.chip_of(plan))
    between = values.LedgerLine(
        kind="elementwise",
        name="between matmuls",
        value=0.0,
        unit="s",
        formula="",
        inputs={"bytes": float(pass_bytes(layout))},
        resource="hbm",
    )
    lines = []
    for line in (*was.time, between):
        measured = line
        if line.resource in _OPERATIONS:
            operation = (
                "attention" if line.kind in values.ATTENTION_LINES else _OPERATIONS[line.resource]
            )
            rate = _timing_of(profile, operation, plan).per_s
            unit = "flops" if "flops" in line.inputs else "bytes"
            measured = replace(
                line,
                value=line.inputs[unit] / rate,
                formula=f"{unit} / measured rate",
                inputs={unit: line.inputs[unit], "rate": rate},
                sources=(_source_of(profile),),
            )
        lines.append(measured)
    # What passes at the measured rates hide of transfers to the host.
    moved, hidden_s = transfers(layout), 0.0
    if moved.one_way_s:
        peak = device_peak(layout)
        matmul = _timing_of(profile, "matmul", plan).per_s / peak
        attention = _timing_of(profile, "attention", plan).per_s / peak
        hbm_s = lines[-1].value / FORWARD_AND_BACKWARD
        hidden_s = float(moved.hidden_s(matmul, attention, hbm_s))
    bound, inputs = (was.bound, was.bound_by), was.goodput.inputs
    made = _write(
        plan, layout, lines, was.step_s.lower, bound, inputs, was.dollars_per_chip_hour, hidden_s
    )
    return replace(made, hidden_s=was.hidden_s, never_hidden_s=was.never_hidden_s)


def _timing_of(profile: ChipProfile, operation: Operation, plan: values.Plan) -> Timing:
    """Return the newest timing of an operation for a plan; attention's of the nearest head."""
    dtype, head_dim = plan.precision.compute, plan.model.head_dim
    if profile.emulated and operation == "matmul":
        dtype = activation_type(plan.precision)
    wanted = (operation, dtype, shape_digest(plan) if operation == "step" else "")
    newest_first = reversed(profile.timings)
    same = [each for each in newest_first if (each.operation, each.dtype, each.shape) == wanted]
    if not same:
        way_out = "orch calibrate measures it"
        if dtype not in get_args(DType):
            way_out = f"orch calibrate measures {' and '.join(get_args(DType))}; plan without it"
        raise SpecError(f"the profile has no {operation} in {dtype}: {way_out}")
    return min(same, key=lambda timing: abs(timing.head_dim - head_dim))


def _source_of(profile: ChipProfile) -> str:
    return f"profile {codec.short(codec.digest(profile))}"


def layout_of(plan: values.Plan, chip: Chip) -> Training:
    """Return the plan's layout, without links."""
    return Training(
        chip=chip,
        model=plan.model,
        precision=plan.precision,
        optimizer=plan.optimizer,
        remat=policy(plan.remat),
        length=plan.batch.length,
        sequences=plan.batch.sequences,
        microbatches=plan.batch.microbatches,
        links=NO_LINKS,
        mesh=sizes(plan.mesh),
        chunks=plan.pipeline.chunks if plan.pipeline else 1,
        gathers_once=int(bool(plan.pipeline and plan.pipeline.weight_gather == "per_step")),
    )

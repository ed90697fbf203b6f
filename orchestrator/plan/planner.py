"""Plan room: Spec to Plan, the arrow of this room."""

from dataclasses import asdict, replace
from math import ceil, prod

from orchestrator import catalog
from orchestrator.network.mesh_axes import AXES, GROUPS, ICI_AXES
from orchestrator.plan import flops
from orchestrator.plan import torus as links
from orchestrator.plan.collectives import per_layer
from orchestrator.plan.expected import beyond
from orchestrator.plan.forecast import forecast
from orchestrator.plan.infeasible import infeasible
from orchestrator.plan.layout import Layout
from orchestrator.plan.search import (
    RULE,
    Choice,
    SearchRequest,
    SearchResult,
    factors_of,
    plain_layout,
    ranked,
    search,
)
from orchestrator.plan.time import dcn_rate
from orchestrator.types import codec
from orchestrator.types.plan import (
    DeviceGroup,
    MeshAxis,
    Plan,
    PlannedBatch,
    PlannedModel,
    SearchSummary,
)
from orchestrator.types.spec import Spec

SCHEMA = 2

FEW_STEPS, MANY_YEARS, DAYS_OF_YEAR = 100, 5, 365.25
LEDGER_TRAINER = "llama"  # whose program the ledger describes
UNDIGESTED = (
    *("digest", "name", "trainer", "ledger_describes_trainer", "overrides", "warnings"),
    *("search", "forecast"),
)
DIGESTED_IF_GIVEN = ("chip_definition", "chip_profile")


def make_plan(spec: Spec) -> Plan:
    """The fastest realizable plan of a spec; `Infeasible` says why there is none."""
    return make_plans(spec, 1)[0]


def make_plans(spec: Spec, most: int) -> list[Plan]:
    """The plan of a spec and its runners-up, best first, each on another mesh."""
    ask = ask_of(spec)
    found = search(ask)
    choices = ranked(ask, found.candidates, most)
    if not choices:
        raise infeasible(ask, found)
    return [planned(spec, ask, found, choice) for choice in choices]


def ask_of(spec: Spec) -> SearchRequest:
    chip = catalog.chip_of(spec.resources)
    topology = catalog.topology(chip, spec.resources.topology)
    return SearchRequest(
        chip=chip,
        topology=topology,
        torus=links.torus(chip, topology),
        experiment=spec.experiment,
        mesh=spec.resources.mesh,
        pods=spec.resources.pods.max,
    )


def planned(spec: Spec, ask: SearchRequest, found: SearchResult, choice: Choice) -> Plan:
    """One choice written out, with its forecast and digest."""
    layout = plain_layout(ask, choice)
    mesh = dict(zip(AXES, (ask.pods, *choice.mesh), strict=True))
    experiment = spec.experiment
    plan = Plan(
        schema=SCHEMA,
        digest="",
        name=spec.name,
        trainer=spec.run.trainer,
        ledger_describes_trainer=spec.run.trainer == LEDGER_TRAINER,
        spec_digest=codec.digest(experiment),
        overrides=spec.overrides,
        model=PlannedModel(
            **asdict(experiment.model), parameters=flops.parameters(experiment.model)
        ),
        tokens=experiment.tokens,
        batch=PlannedBatch(
            sequences=choice.sequences,
            length=experiment.batch.length,
            tokens=choice.sequences * experiment.batch.length,
            requested_sequences=experiment.batch.sequences,
            sequences_per_replica=choice.sequences // int(layout.ways("batch")),
            microbatches=choice.microbatches,
        ),
        optimizer=experiment.optimizer,
        precision=experiment.precision,
        remat=choice.remat,
        data=experiment.data,
        seed=experiment.seed,
        compiler_options=experiment.compiler_options,
        chip=ask.chip.name,
        chip_definition=spec.resources.chip_definition,
        topology=str(ask.topology),
        pods=ask.pods,
        chips=ask.pods * ask.topology.chips,
        devices=prod(mesh.values()),
        hosts=ask.pods * catalog.hosts(ask.chip, ask.topology),
        mesh=mesh,
        axes=axes(ask, choice, mesh),
        groups=groups(ask, choice, layout),
        gradient_reduction="per_layer" if per_layer(layout) else "at_end",
        chip_profile=None,
        forecast=forecast(layout, experiment, spec.resources),
        search=SearchSummary(
            enumerated=found.enumerated,
            realizable=found.realizable,
            priced=len(found.candidates),
            rule=RULE,
        ),
        warnings=warnings(spec, ask, found),
    )
    warned = (*plan.warnings, *too_few_steps(plan), *too_long(plan), *beyond(plan))
    return replace(plan, digest=plan_digest(plan), warnings=(*not_described(plan), *warned))


def not_described(plan: Plan) -> tuple[str, ...]:
    """A warning where the forecast is about the program of another trainer."""
    if plan.ledger_describes_trainer:
        return ()
    warning = (
        f"the forecast describes the program of trainer {LEDGER_TRAINER}, not that of"
        f" {plan.trainer}: memory, time and cost of {plan.trainer} are unknown"
    )
    return (warning,)


def plan_digest(plan: Plan) -> str:
    """Identity of what will be done, without what it is called and what it should take."""
    fields = asdict(plan)
    left_out = {*UNDIGESTED, *(key for key in DIGESTED_IF_GIVEN if fields[key] is None)}
    return codec.digest({key: fields[key] for key in fields if key not in left_out})


def axes(ask: SearchRequest, choice: Choice, mesh: dict[str, int]) -> tuple[MeshAxis, ...]:
    """Each mesh axis with its link and the torus axes it lies on."""
    factors = factors_of(choice)[0]
    inside = (
        MeshAxis(
            name=name,
            size=mesh[name],
            link="ici",
            spans=links.spans_of(ask.torus, factors, (name,)),
        )
        for name in ICI_AXES
    )
    return (MeshAxis(name="pods", size=ask.pods, link="dcn", spans=()), *inside)


def groups(ask: SearchRequest, choice: Choice, layout: Layout) -> dict[str, DeviceGroup]:
    """Each set of devices that a collective joins, with its rate; single devices omitted."""
    factors = factors_of(choice)[0]
    sizes = dict(zip(ICI_AXES, choice.mesh, strict=True))
    found = {
        name: DeviceGroup(
            axes=members,
            size=prod(sizes[axis] for axis in members),
            link="ici",
            spans=links.spans_of(ask.torus, factors, members),
            bytes_per_s=layout.links.rates[name],
        )
        for name, members in GROUPS.items()
        if prod(sizes[axis] for axis in members) > 1
    }
    if ask.pods > 1:
        rate = dcn_rate(ask.chip)
        found["pods"] = DeviceGroup(
            axes=("pods",), size=ask.pods, link="dcn", spans=(), bytes_per_s=rate
        )
    return found


def warnings(spec: Spec, ask: SearchRequest, found: SearchResult) -> tuple[str, ...]:
    """What a person should know before paying for this plan."""
    said = list(catalog.schedulable(ask.chip, ask.topology, ask.pods))
    if spec.experiment.remat == "auto" and found.margin == 0:
        said.append("nothing fits with a tenth of HBM to spare: this plan uses the margin")
    if spec.experiment.precision.parameters == "bf16":
        said.append(
            "bf16 parameters without an fp32 master copy lose small updates; the book counts"
            " memory this way, few train this way"
        )
    return tuple(said)


def too_few_steps(plan: Plan) -> tuple[str, ...]:
    """That the tokens are soon used up, which a batch does that was mistyped."""
    steps = ceil(plan.tokens / plan.batch.tokens)
    if steps >= FEW_STEPS:
        return ()
    taken = f"{steps} step{'s' * (steps != 1)}"
    advice = "ask for more tokens or a smaller batch"
    return (f"all tokens are used up in {taken}, too few to train a model: {advice}",)


def too_long(plan: Plan) -> tuple[str, ...]:
    """That nobody will wait for it."""
    days = plan.forecast.days
    years = (days.expected or days.unoverlapped) / DAYS_OF_YEAR
    if years < MANY_YEARS:
        return ()
    return (f"it would last {years:,.0f} years: ask for more chips, or fewer tokens",)

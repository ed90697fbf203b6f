"""The step of a plan's trainer, timed with fewer layers than the plan has."""

import time
from dataclasses import replace

import jax

from orchestrator.plan import flops
from orchestrator.types.chip_profile import Timing
from orchestrator.types.plan import Plan
from trainers.contract import build, load, place
from trainers.data.synthetic import Synthetic
from trainers.microbenchmarks.rounds import in_rounds
from trainers.multihost import barrier


def step_timing(plan: Plan) -> Timing:
    """The step at each depth."""
    runs = {float(one): CompiledStep(with_layers(plan, one)).seconds for one in depths(plan)}
    return in_rounds("step", plan.precision.compute, runs)


def depths(plan: Plan) -> tuple[int, ...]:
    """One layer, and three quarters of the layers, at least two."""
    return 1, max(2, plan.model.layers * 3 // 4)


def with_layers(plan: Plan, layers: int) -> Plan:
    model = replace(plan.model, layers=layers)
    return replace(plan, model=replace(model, parameters=flops.parameters(model)))


class CompiledStep:
    """The step of a plan with a state and a batch; the devices have done it once."""

    def __init__(self, plan: Plan) -> None:
        program = build(load(plan.trainer), plan, jax.devices())
        self.step = program.step.lower(program.state, program.batch).compile()
        barrier(f"a step of {plan.model.layers} layers is compiled")
        self.state = jax.block_until_ready(program.init(plan.seed))
        data = Synthetic(plan.model.vocab, plan.batch.length, plan.seed)
        self.batch = place(program, lambda start, stop: data.batch(0, range(start, stop)))
        self.seconds()

    def seconds(self) -> float:
        """Do the next step."""
        begin = time.perf_counter()
        self.state, metrics = self.step(self.state, self.batch)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - begin

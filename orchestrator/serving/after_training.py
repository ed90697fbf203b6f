"""How the model of a training plan is served on the chips that trained it."""

from dataclasses import fields

from orchestrator.values.model import Model
from orchestrator.values.plan import Plan
from orchestrator.values.serving import (
    LengthShare,
    Serve,
    ServingResources,
    ServingSpec,
    Wish,
)

# What is assumed of the requests, where nobody says more.
_PROMPT, _OUTPUT = 2048, 512
_TTFT, _TPOT = Wish(time=2.0), Wish(time=0.05)


def serving_of(plan: Plan) -> ServingSpec:
    """Return the spec in bf16: each slice of the plan serves by itself, prompts of 2,048 tokens and
    answers of 512, half of which have their first token in 2 s and the others 50 ms apart.
    """
    longest = plan.model.learned_positions or _PROMPT + _OUTPUT
    output = min(_OUTPUT, longest // 4)
    return ServingSpec(
        name=f"{plan.name}-served"[:63].rstrip("-"),
        serve=Serve(
            model=Model(**{key.name: getattr(plan.model, key.name) for key in fields(Model)}),
            prompt=(LengthShare(tokens=min(_PROMPT, longest - output), share=1.0),),
            output=(LengthShare(tokens=output, share=1.0),),
            ttft=_TTFT,
            tpot=_TPOT,
        ),
        resources=ServingResources(
            chip=plan.chip,
            chip_definition=plan.chip_definition,
            topology=plan.topology,
            replicas=plan.pods,
            dollars_per_chip_hour=plan.forecast.dollars_per_chip_hour,
        ),
    )

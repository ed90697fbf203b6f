"""The mixture of experts of a model, as a spec has it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from orchestrator.types.spec_fields import NonNegativeNumber, PositiveInteger, PositiveNumber, about


@dataclass(frozen=True, kw_only=True)
class MixtureOfExperts:
    """A mixture of experts in place of the MLP: a router chooses `top_k` experts for each token."""

    experts: Annotated[int, about("The number of experts of a layer.", 128, ge=2, le=100_000)]
    top_k: Annotated[int, about("The number of experts that a token goes to.", 8, ge=1, le=100_000)]
    d_ff: Annotated[
        PositiveInteger | None,
        about("The hidden width of an expert; that of the model's `d_ff` when left out.", 1536),
    ] = None
    shared_experts: Annotated[
        int, about("The number of further experts that every token goes to.", ge=0, le=1000)
    ] = 0
    dense_layers: Annotated[
        int,
        about(
            "The number of layers before the first mixture. They have a plain MLP of the model's"
            " `d_ff`.",
            ge=0,
            le=10_000,
        ),
    ] = 0
    every: Annotated[
        int,
        about(
            "Of so many layers the last one is a mixture; the others have a plain MLP.",
            ge=1,
            le=10_000,
        ),
    ] = 1
    router: Annotated[
        Literal["softmax", "sigmoid"], about("The function that makes scores of experts.")
    ] = "softmax"
    normalized: Annotated[
        bool, about("Whether the scores of a token's experts are divided by their sum.")
    ] = True
    scale: Annotated[
        PositiveNumber, about("What the scores of a token's experts are multiplied by.")
    ] = 1.0
    groups: Annotated[
        int,
        about(
            "The number of groups of experts, of which a token first chooses some.",
            ge=1,
            le=100_000,
        ),
    ] = 1
    top_groups: Annotated[
        int, about("The number of groups that a token chooses.", ge=1, le=100_000)
    ] = 1
    balance_loss: Annotated[
        NonNegativeNumber,
        about(
            "The weight of the load-balancing loss of each layer: experts x their shares of a"
            " sequence's choices x their mean scores, summed over experts."
        ),
    ] = 0.0
    balance_bias: Annotated[
        NonNegativeNumber | None,
        about(
            "How far a bias of each expert moves after a step: down where the expert had more than"
            " the mean load, up where it had less. The choice adds it to the scores; there is none"
            " when left out.",
            0.001,
        ),
    ] = None
    z_loss: Annotated[
        NonNegativeNumber,
        about("The weight of the router's z-loss: the squared logarithm of its denominator."),
    ] = 0.0
    imbalance: Annotated[
        float,
        about(
            "The load of the busiest devices of the mesh axis `expert` over the mean, where none is"
            " dropped: the others wait for them. It is planned, and changes no training.",
            1.2,
            ge=1,
            le=1000,
        ),
    ] = 1.0
    biases: Annotated[bool, about("Whether the matrices of experts have biases.")] = False
    router_bias: Annotated[
        bool, about("Whether the router has a trained bias, besides a `balance_bias`.")
    ] = False
    capacity_factor: Annotated[
        PositiveNumber | None,
        about(
            "The rows of an expert for each sequence, over those of even loads. Choices beyond"
            " them are dropped; none is when left out.",
            1.25,
        ),
    ] = None

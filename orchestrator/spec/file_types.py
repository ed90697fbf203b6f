"""The forms in which a spec names another file: a model's config, a chip of one's own."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from orchestrator.types.spec import DataSource, Optimizer
from orchestrator.types.spec_fields import Microbatches, Name, PositiveInteger, Text, about

Sequences = Annotated[int, Meta(ge=1, le=10_000_000)]
Length = Annotated[int, Meta(ge=1, le=100_000_000)]


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """A model that a Hugging Face config.json describes."""

    huggingface: Annotated[
        Text, about("The path of the config.json, from the spec.", "config.json")
    ]
    name: Annotated[
        Name | None,
        about("The name of the model in plans; the config's model_type when left out."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChipFile:
    """A chip of one's own."""

    file: Annotated[Text, about("The path of the chip's TOML file, from the spec.", "my-chip.toml")]


@dataclass(frozen=True, kw_only=True)
class StageBatch:
    """The batch of a stage; a key that is left out is as before."""

    sequences: Annotated[
        Sequences | None,
        about("The number of sequences in a step, over all pods; as before when left out.", 1024),
    ] = None
    length: Annotated[
        Length | None, about("The number of tokens in a sequence; as before when left out.", 8192)
    ] = None
    tolerance: Annotated[
        float | None,
        about(
            "The share by which the plan may raise or lower `sequences`; as before when left out.",
            "10%",
            notation="tolerance",
        ),
    ] = None
    microbatches: Annotated[
        Microbatches | None,
        about(
            "The number of parts of its sequences that a replica trains one after another; as"
            " before when left out.",
            2,
            notation="microbatches",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class StageEntry:
    """A part of the training; what it leaves out is as in the stage before it."""

    tokens: Annotated[PositiveInteger, about("The number of tokens of this stage.", "252M")]
    batch: Annotated[
        int | None,
        about(
            "The number of sequences in a step, or keys of `experiment.batch`; as before when left"
            " out.",
            1024,
            notation="stage_batch",
        ),
    ] = None
    length: Annotated[
        Length | None, about("The number of tokens in a sequence; as before when left out.", 8192)
    ] = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    data: DataSource = field(default_factory=DataSource)

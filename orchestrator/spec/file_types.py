"""What files hold that no value holds in the same form: a model's config by path, a study."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from orchestrator.types.spec_fields import Name, Text, about
from orchestrator.types.study import AfterFailure, Scaling


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """A model as its Hugging Face config.json has it."""

    huggingface: Annotated[Text, about("The config.json, relative to the spec.", "config.json")]
    name: Annotated[
        Name | None,
        about("What plans call the model; the config's model_type when left out."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChipFile:
    """A chip of one's own."""

    file: Annotated[Text, about("The chip's TOML file, relative to the spec.", "my-chip.toml")]


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """What is varied, and how the trials are run."""

    base: Annotated[
        str,
        about("The spec that is varied, relative to this file.", "../llama3_70b_4pod.yaml"),
        Meta(min_length=1, title="the path of a spec"),
    ]
    scaling: Annotated[
        Scaling,
        about(
            "Whether all trials have the batch that the base asks for (strong), or the batch grows"
            " with the pods (weak)."
        ),
    ] = "strong"
    vary: Annotated[
        dict[str, Annotated[list[Any], Meta(min_length=1)]],
        about(
            "Dotted keys of a spec, each with its values; several keys make a grid.",
            {"resources.pods": [1, 2, 4]},
        ),
        Meta(min_length=1, title="a mapping of dotted keys to lists of values"),
    ]
    repeats: Annotated[
        int,
        about("How often each trial is run; the spread over repeats is reported.", ge=1, le=100),
    ] = 1
    after_failure: Annotated[
        AfterFailure,
        about("Whether the study stops when a trial fails, or goes on with the next."),
    ] = "stop"


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """One spec varied: every combination of the values is a trial. What is left out has the default
    named here.
    """

    name: Annotated[
        Name | None,
        about(
            "What the study is called; the name of its base and the kind of scaling when left out.",
            "llama3-70b-pods",
        ),
    ] = None
    study: StudySection

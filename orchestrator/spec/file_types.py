"""The forms in which a spec names another file: a model's config, a chip of one's own."""

from dataclasses import dataclass
from typing import Annotated

from orchestrator.types.spec_fields import Name, Text, about


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

"""Weights as Hugging Face has them: what is asked for, and what was written."""

from dataclasses import dataclass
from typing import Any, Literal

WeightType = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class WeightsRequest:
    """What to write where. `copies` are files that go along, such as a tokenizer's."""

    plan: str
    checkpoint: str
    sha256: str | None
    out: str
    dtype: WeightType
    config: dict[str, Any]
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WeightsResult:
    """What the process wrote."""

    parameters: int
    files: int


@dataclass(frozen=True, kw_only=True)
class ExportedWeights:
    """A folder that `transformers` loads, and the checkpoint that it is from."""

    folder: str
    model: str
    architecture: str
    step: int
    dtype: WeightType
    parameters: int
    files: int

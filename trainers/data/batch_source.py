"""What a source of batches promises, and the source of a plan."""

from pathlib import Path
from typing import Protocol

import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.types.plan import Plan
from trainers.data.synthetic import Synthetic
from trainers.data.tokens import ShuffledWindows, TokenSet


class BatchSource(Protocol):
    """A source of batches. The same step and row always give the same tokens, on any host."""

    @property
    def digest(self) -> str:
        """Identity of the text: sources of equal digest hold the same tokens."""
        ...

    def batch(self, step: int, rows: range) -> np.ndarray:
        """Token ids int32 [rows, length + 1] of some rows of the batch of this step."""
        ...


def batch_source(plan: Plan, folder: Path = Path(), *, verify: bool = False) -> BatchSource:
    """The batches of a plan's data; `verify` first reads a token set through.

    A relative path begins at `folder`, the spec's, so a plan is the same in every checkout.
    """
    if plan.data.kind == "synthetic":
        return Synthetic(plan.model.vocab, plan.batch.length, plan.seed)
    source = TokenSet.open(folder / _manifest_path(plan), verify=verify)
    if source.manifest.vocab > plan.model.vocab:
        raise DataUnusable(
            f"{source.path}: tokens of {source.manifest.tokenizer!r} reach"
            f" {source.manifest.vocab - 1}, against a model vocabulary of {plan.model.vocab}"
        )
    return ShuffledWindows(source, plan.batch.sequences, plan.batch.length, plan.seed)


def _manifest_path(plan: Plan) -> Path:
    if plan.data.path is None:
        raise DataUnusable("data.kind is tokens, but data.path names no manifest")
    return Path(plan.data.path)

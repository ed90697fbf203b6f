"""Multi-head latent attention of a model, as a spec has it (arXiv 2405.04434)."""

from dataclasses import dataclass
from typing import Annotated

from orchestrator.types.spec_fields import PositiveInteger, about


@dataclass(frozen=True, kw_only=True)
class LatentDimensions:
    """Queries, keys and values that are made from narrow latents of the stream.

    A head of queries and keys has a part without positions and a part that RoPE turns: together
    they are the model's `head_dim`. All heads share the turned part of keys.
    """

    query_rank: Annotated[
        PositiveInteger | None,
        about(
            "The width of the latent that queries are made from; when left out, they are made"
            " from the stream.",
            1536,
        ),
    ] = None
    kv_rank: Annotated[
        PositiveInteger, about("The width of the latent that keys and values are made from.", 512)
    ]
    nope_dim: Annotated[
        PositiveInteger, about("The numbers of a head of queries or keys without positions.", 128)
    ]
    rope_dim: Annotated[
        PositiveInteger, about("The numbers of such a head that RoPE turns; even.", 64)
    ]
    value_dim: Annotated[PositiveInteger, about("The width of a head of values.", 128)]

    @property
    def head_dim(self) -> int:
        """The width of a head of queries and keys."""
        return self.nope_dim + self.rope_dim

"""Published runs of mixtures of experts: columns of their own, and the mixture that they describe.

A file with a column `experts` has these columns; its other cells are read as those of all runs.
"""

import re

from orchestrator.catalog.tables import FOLDER
from orchestrator.score.cells import Unscorable, positive, whole
from orchestrator.types.latent import LatentDimensions
from orchestrator.types.moe import MixtureOfExperts

MIXTURES = FOLDER / "mixture_runs.csv"
# The column of a file of mixtures → the column that all runs have.
SAME = {
    "fsdp": "ici_fsdp",
    "tp": "ici_tp",
    "cp": "ici_sp",
    "grad_accum": "microbatches",
    "precision": "compute_dtype",
}
OWN = (
    "experts", "top_k", "d_ff_expert", "shared_experts", "dense_layers", "routing",
    "capacity_factor", "attention", "ep",
)  # fmt: skip
# Of d_model and of an expert's width: `wi_tile_…` and `wo_tile_…` of MaxText's base.yml, 1,024 in
# both. What does not fill a tile of megablox is multiplied all the same.
MEGABLOX_TILE = 1024
# Rows that grouped matmuls take at a time: `wi_tile_fwd_batch_seq` of base.yml for megablox. The
# tuned tables of tokamax (pallas_mosaic_tpu.py) have 128 to 1,024, and 512 in the middle.
GROUPED_ROWS = 512
BESIDES = " ("  # after a value: whether it is a default, or assumed


def has_mixtures(columns: list[str]) -> bool:
    return "experts" in columns


def translated(row: dict[str, str]) -> dict[str, str]:
    """The row under the names that all runs have."""
    cells = row | {SAME[column]: text for column, text in row.items() if column in SAME}
    cells["chip"] = row.get("chip", "").lower()
    dense = row.get("d_ff_dense", "") not in ("", "0")
    cells["d_ff"] = row["d_ff_dense"] if dense else row.get("d_ff_expert", "")
    cells["remat_policy"] = row.get("remat", "").partition(BESIDES)[0]
    stored = row.get("weight_dtype", "").partition(BESIDES)[0]
    if stored:
        cells["notes"] = f"{row.get('notes', '')}; weight_dtype {stored}"
    return cells


def mixture_of(row: dict[str, str]) -> MixtureOfExperts | None:
    """The mixture of a row; None where its model is dense. `Unscorable` says what it lacks."""
    if not row.get("experts"):
        return None
    return MixtureOfExperts(
        experts=whole(row, "experts"),
        top_k=whole(row, "top_k"),
        d_ff=whole(row, "d_ff_expert"),
        shared_experts=int(row["shared_experts"] or 0),
        dense_layers=int(row["dense_layers"] or 0),
        capacity_factor=capacity_of(row),
    )


LATENT = re.compile(
    r"MLA: (?:no q lora|q lora (?P<query_rank>\d+)), kv lora (?P<kv_rank>\d+),"
    r" nope (?P<nope_dim>\d+) \+ rope (?P<rope_dim>\d+), v (?P<value_dim>\d+)"
)


def latent_of(row: dict[str, str]) -> LatentDimensions | None:
    """The latent attention of a row; None where its heads are plain."""
    attention = row.get("attention", "")
    if not attention.startswith("MLA"):
        return None
    sizes = LATENT.match(attention)
    if sizes is None:
        raise Unscorable(f"the sizes of its latent attention are not stated: {attention!r}")
    numbers = {name: int(size) for name, size in sizes.groupdict().items() if size}
    return LatentDimensions(**numbers)


def dispatches_by_matmuls(row: dict[str, str]) -> bool:
    """Whether tokens go to their experts, and come back, by products with masks."""
    return "dense matmuls" in row.get("routing", "")


def expert_tile_of(row: dict[str, str]) -> int | None:
    """Elements of both widths that the row's grouped matmul takes at a time, where it is known."""
    routing = row.get("routing", "")
    return MEGABLOX_TILE if "megablox" in routing and "megablox False" not in routing else None


def expert_rows_of(row: dict[str, str]) -> int | None:
    """Rows that the row's grouped matmul takes at a time; None where every expert has as many."""
    return GROUPED_ROWS if row.get("routing", "").startswith("dropless") else None


def capacity_of(row: dict[str, str]) -> float | None:
    """The capacity factor, where choices are dropped."""
    if not row["routing"].startswith("dropping"):
        return None
    if row["capacity_factor"] == "not stated":
        raise Unscorable("it drops choices, and its capacity factor is not stated")
    return positive(row, "capacity_factor")

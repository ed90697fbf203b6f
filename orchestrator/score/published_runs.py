"""Reads published runs from CSV, including what only their notes state."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from orchestrator import catalog
from orchestrator.catalog import Chip
from orchestrator.catalog.tables import FOLDER
from orchestrator.errors import UnknownName
from orchestrator.plan import flops
from orchestrator.score import mixture_rows, software
from orchestrator.score.cells import Unscorable, dtype, note, noted_count, number, positive, whole
from orchestrator.score.software import RunSoftware, software_of
from orchestrator.types.model import Model
from orchestrator.types.spec_fields import DType

PUBLISHED = FOLDER / "published_runs.csv"
OTHER_SOFTWARE = FOLDER / "other_software_runs.csv"
# Without these nothing can be planned; the others may be empty.
NEEDED = ("id", "chip", "num_chips", "model", "layers", "d_model", "d_ff", "n_heads", "vocab",
          "seq_len")  # fmt: skip
COLUMNS = (*NEEDED, "source_repo", "source_path", "num_slices", "topology", "n_kv_heads",
           "head_dim", "gated_mlp", "moe_experts", "batch_per_device_seqs", "global_batch_tokens",
           "dcn_dp", "dcn_fsdp", "ici_fsdp", "ici_tp", "ici_sp", "pp", "microbatches", "params_b",
           "remat_policy", "compute_dtype", "attention_block", "optimizer", "flop_convention",
           "step_time_s", "tflops_per_chip", "mfu_pct", "notes")  # fmt: skip
# Where a file lacks one of these, it is assumed; an empty cell means something else.
NEWER = ("attention_kernel", *software.COLUMNS)
OptimizerName = Literal["adamw", "adafactor"]
GEMMA_EVERY = 6  # five local layers to one global layer


@dataclass(frozen=True)
class Window:
    """Layers see `tokens` back; one in `every` is global, and may have other heads."""

    tokens: int
    every: int | None = None
    whole_head_dim: int | None = None
    whole_kv_heads: int | None = None

    @property
    def whole(self) -> float:
        """Share of global layers."""
        return 1 / self.every if self.every else 0.0


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One row. None where it states nothing; the mesh is that inside a slice, and the
    slices that share weights.
    """

    id: str
    group: str
    document: str
    chip: str
    chips: int
    slices: int
    topology: str
    model: Model
    window: Window | None
    length: int
    sequences: int
    mesh: dict[str, int | None]
    microbatches: int
    remat: str
    hfu: float | None
    parallel_block: bool
    compute: DType
    parameters: DType
    optimizer: OptimizerName
    software: RunSoftware
    attention_block: int | None
    dispatch_matmuls: bool
    expert_tile: int | None
    expert_rows: int | None
    convention: str
    step_s: float | None
    flops_per_chip_s: float | None
    mfu: float | None


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a file, as text, each with every column of COLUMNS."""
    columns, rows = _columns_and_rows(path)
    if not rows:
        why = "holds no runs; `orch score` alone scores the project's own file"
        raise Unscorable(f"{path}: {why}", file=str(path))
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise Unscorable(f"{path}: has no column {', '.join(missing)}", file=str(path))
    try:
        for row in rows:
            software_of(row)
    except Unscorable as reason:
        raise Unscorable(
            f"{path}: {reason}", file=str(path), line=reason.line, column=reason.column
        ) from None
    return rows


def _columns_and_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file, restval="")
            table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
            columns = table.fieldnames
            apart = mixture_rows.has_mixtures(columns)
            columns += ["d_ff"] if apart else []
            return columns, [
                named(mixture_rows.translated(row) if apart else row, table.line_num)
                for row in table
            ]
    except OSError as error:
        raise Unscorable(f"{path}: cannot be read: {error.strerror}", file=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise Unscorable(f"{path}: is no CSV in UTF-8: {error}", file=str(path)) from None


def named(row: dict[str, str], line: int) -> dict[str, str]:
    """The known columns, with its line, and a name for a row without one."""
    cells = {column: (row.get(column) or "").strip() for column in COLUMNS}
    newer = {
        column: (row[column] or "").strip()
        for column in (*NEWER, *mixture_rows.OWN)
        if column in row
    }
    return cells | newer | {"id": cells["id"] or f"row {line}", "line": str(line)}


def run_of(row: dict[str, str]) -> PublishedRun:
    """The run of a row. `Unscorable` has the reason why there is none."""
    refuse_unplannable(row)
    stated = software_of(row)
    chips, slices = whole(row, "num_chips"), whole(row, "num_slices", 1)
    length = whole(row, "seq_len")
    tensor, sequence = whole(row, "ici_tp", 1), whole(row, "ici_sp", 1)
    # A second axis that shards weights is the same as more of the first.
    again = noted_count(row, r"fsdp_transpose=(\d+)", 1)
    fsdp = whole(row, "ici_fsdp") * again if row["ici_fsdp"] else None
    return PublishedRun(
        id=row["id"],
        group=f"{row['source_repo']} {row['chip']}".strip(),
        document=f"{row['source_repo']} {first_word(row['source_path'])} {row['chip']}".strip(),
        chip=row["chip"],
        chips=chips,
        slices=slices,
        topology=row["topology"],
        model=model_of(row),
        window=window_of(row),
        length=length,
        sequences=sequences_of(row, chips * chip_of(row).devices, length),
        mesh={
            "fsdp": fsdp,
            "sequence": sequence,
            "tensor": tensor,
            "fsdp_dcn": shared_slices(row),
            "expert": whole(row, "ep", 1) if "ep" in row else 1,
        },
        microbatches=whole(row, "microbatches", 1),
        remat=row["remat_policy"],
        hfu=float(match[1]) / 100 if (match := note(row, r"\bHFU (\d+(?:\.\d+)?)")) else None,
        parallel_block=note(row, r"parallel attn") is not None,
        compute=dtype(row["compute_dtype"] or "bfloat16"),
        parameters=dtype(match[1] if (match := note(row, r"weight_dtype (\w+)")) else "fp32"),
        optimizer=optimizer_of(row),
        software=stated,
        attention_block=whole(row, "attention_block") if row["attention_block"] else None,
        dispatch_matmuls=mixture_rows.dispatches_by_matmuls(row),
        expert_tile=mixture_rows.expert_tile_of(row),
        expert_rows=mixture_rows.expert_rows_of(row),
        convention=row["flop_convention"],
        step_s=positive(row, "step_time_s"),
        flops_per_chip_s=positive(row, "tflops_per_chip", 1e12),
        mfu=positive(row, "mfu_pct", 1e-2),
    )


def first_word(text: str) -> str:
    """The document in a source path; the rest names a table or settings."""
    return text.split(maxsplit=1)[0].rstrip(";") if text else ""


def refuse_unplannable(row: dict[str, str]) -> None:
    """Refuse models and parallelism that a plan cannot describe."""
    if whole(row, "moe_experts", 1) > 1:
        raise Unscorable(
            f"a mixture of {row['moe_experts']} experts: their width and their router are not"
            " stated; a file of mixtures has the columns experts, top_k, d_ff_expert, …"
        )
    if note(row, r"\bMuon\b"):
        raise Unscorable("its optimizer is Muon: rows may have AdamW or Adafactor")
    if whole(row, "pp", 1) > 1:
        raise Unscorable(f"{row['pp']} pipeline stages: plans have no pipeline")
    slices, shared = whole(row, "num_slices", 1), shared_slices(row)
    replicas = whole(row, "dcn_dp", max(slices // shared, 1))
    if replicas * shared != slices:
        raise Unscorable(
            f"its {slices} slices are not as many replicas, each of {shared}: dcn_dp is {replicas}"
        )


def shared_slices(row: dict[str, str]) -> int:
    """Slices that share one copy of the weights: the cell, or what the notes state."""
    return whole(row, "dcn_fsdp", noted_count(row, r"dcn_fsdp=(\d+)", 1))


def chip_of(row: dict[str, str]) -> Chip:
    try:
        return catalog.chip(row["chip"])
    except UnknownName as error:
        raise Unscorable(str(error)) from None


def optimizer_of(row: dict[str, str]) -> OptimizerName:
    """The cell, or what the notes name."""
    stated = row["optimizer"].lower() or ("adafactor" if note(row, "(?i)adafactor") else "adamw")
    known = get_args(OptimizerName)
    if stated not in known:
        raise Unscorable(f"its optimizer is {stated}: rows may have {' or '.join(known)}")
    return cast(OptimizerName, stated)


def sequences_of(row: dict[str, str], devices: int, length: int) -> int:
    """Sequences of a global step; a tpu7x chip is two devices."""
    if row["global_batch_tokens"]:
        tokens = whole(row, "global_batch_tokens")
    elif each := positive(row, "batch_per_device_seqs"):
        tokens = round(each * devices * length)
    else:
        raise Unscorable("neither global_batch_tokens nor batch_per_device_seqs is stated")
    if not tokens or tokens % length:
        raise Unscorable(f"a batch of {tokens:,} tokens is not whole sequences of {length:,}")
    return tokens // length


def model_of(row: dict[str, str]) -> Model:
    """The shape. If nothing states whether tables are tied, the parameter count decides."""
    counts = {"layers": "layers", "d_model": "d_model", "d_ff": "d_ff", "heads": "n_heads",
              "vocab": "vocab"}  # fmt: skip
    shape: dict[str, Any] = {key: whole(row, column) for key, column in counts.items()}
    shape["kv_heads"] = whole(row, "n_kv_heads", shape["heads"])
    shape["head_dim"] = whole(row, "head_dim", max(shape["d_model"] // shape["heads"], 1))
    gated = row["gated_mlp"] not in {"0", "false", "False"}
    shape["moe"], shape["latent"] = mixture_rows.mixture_of(row), mixture_rows.latent_of(row)
    if shape["latent"] is not None:
        shape["head_dim"] = shape["latent"].head_dim
    either = [Model(name=row["model"], gated=gated, tied=tied, **shape) for tied in (True, False)]
    if "tied embeddings" in row["notes"] or "gemma" in row["model"]:
        return either[0]
    if not row["params_b"]:
        return either[1]
    stated = number(row, "params_b") * 1e9
    return min(either, key=lambda model: abs(flops.parameters(model) - stated))


def window_of(row: dict[str, str]) -> Window | None:
    """Only the notes state sliding windows: `5:1 local(1024):global`, `local window 1024`."""
    pattern = note(row, r"(\d+):1 local\((\d+)\):global")
    if pattern:
        return Window(int(pattern[2]), int(pattern[1]) + 1)
    tokens = note(row, r"window (\d+)")
    if not tokens:
        return None
    head, keys = (
        note(row, r"global head_dim (\d+)"),
        note(row, r"global kv heads (\d+)"),
    )
    if not (head or keys):
        return Window(int(tokens[1]))
    # Where only the heads of global layers are named, their number is that of the family.
    return Window(
        int(tokens[1]), GEMMA_EVERY, int(head[1]) if head else None, int(keys[1]) if keys else None
    )

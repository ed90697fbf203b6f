"""Reads published runs from CSV, including what only their notes state."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from orchestrator import catalog
from orchestrator.catalog.chips import FOLDER, Chip
from orchestrator.errors import SpecError, UnknownName
from orchestrator.planning import flops
from orchestrator.values.fields import DType
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model

# Reads one cell of a published run's row: numbers, types, and what only the notes state.


Row = dict[str, str]
MOST = 10**15  # of anything counted; beyond it sums are no longer exact
TYPES: dict[str, DType] = {"bfloat16": "bf16", "bf16": "bf16", "float32": "fp32", "fp32": "fp32"}


class Unscorable(SpecError):
    """A row cannot be scored: its run cannot be planned, or its figure not converted.

    What is wrong with a whole file has the file, and the line and the column of a cell.
    """

    def __init__(
        self, why: str, *, file: str | None = None, line: int | None = None,
        column: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(why)
        self.file, self.line, self.column = file, line, column


def number(row: dict[str, str], column: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        content = f"says {row[column]!r}" if row[column] else "is empty"
        raise Unscorable(f"{column} {content}: a number is needed") from None


def positive(row: dict[str, str], column: str, scale: float = 1.0) -> float | None:
    """A figure in base units; None where the row states none."""
    if not row[column]:
        return None
    value = number(row, column)
    if not 0 < value < float("inf"):
        raise Unscorable(f"{column} says {row[column]}: it must be positive")
    return value * scale


def whole(row: dict[str, str], column: str, default: int | None = None) -> int:
    """A positive count; an empty cell is the default, where there is one."""
    if not row[column] and default is not None:
        return default
    value = number(row, column)
    if not (1 <= value <= MOST and value.is_integer()):
        raise Unscorable(f"{column} says {row[column]}: a positive whole number is needed")
    return int(value)


def dtype(text: str) -> DType:
    if text.lower() not in TYPES:
        raise Unscorable(f"the type {text!r} is none of {', '.join(TYPES)}")
    return TYPES[text.lower()]


def note(row: dict[str, str], pattern: str) -> re.Match[str] | None:
    return re.search(pattern, row["notes"])


def noted_count(row: dict[str, str], pattern: str, default: int) -> int:
    """A count that only the notes state."""
    match = note(row, pattern)
    return int(match[1]) if match else default


# Published runs of mixtures of experts: columns of their own, and the mixture that they
# describe.


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


# What a row states of its software, its attention kernel and its figure, and what is assumed.


Kernel = Literal["flash", "splash", "splash-fused", "fused", "none"]
Averages = Literal["steps", "run"]
SOFTWARE, KERNEL, AVERAGES = SOFTWARE_COLUMNS = ("software", "kernel", "averages")
UNKNOWN_SOFTWARE = "not stated"
NAME = re.compile(r"[a-z0-9][a-z0-9._/+-]*")


@dataclass(frozen=True, kw_only=True)
class RunSoftware:
    """What a run's program was. `assumed` names the columns that its row does not state.

    `kernel` is that of attention: `splash-fused` with one backward kernel, `fused` where the source
    does not name it, `none` where scores go through HBM. A figure averages steady `steps`, or a
    whole `run` with its evaluations and saves.
    """

    name: str
    kernel: Kernel
    averages: Averages
    assumed: tuple[str, ...] = ()


# Projects whose pages are about runs of their own trainer; the first that matches decides.
OF_SOURCE = (
    (r"pytorch|torch[-_]?xla|torchprime|optimum-tpu", "pytorch-xla"),
    (r"maxtext", "maxtext"),
    (r"axlearn", "axlearn"),
    (r"marin|levanter", "levanter"),
    (r"easylm|openllama|open_llama", "easylm"),
    (r"t5x|2204\.02311", "t5x"),
    (r"tpu-recipes training/ironwood/", "maxtext"),  # its other pages name MaxText
)
# Words of a source about its attention.
OF_WORDS: tuple[tuple[str, Kernel], ...] = (
    (r"\b(no|none|not|without)\b|unfused|einsum|dot_product|eager", "none"),
    (r"tokamax", "splash-fused"),
    (r"splash", "splash"),
    (r"flash", "flash"),
)
# MaxText says flash of any kernel. The first one is of pallas; since January 2024 it is splash.
MAXTEXT_FLASH = "flash"


def software_of(row: dict[str, str]) -> RunSoftware:
    """The three cells of a row, or what is assumed for them."""
    stated = {column: stated_cell(row, column) for column in SOFTWARE_COLUMNS}
    stated[KERNEL] = stated[KERNEL] or kernel_of_words(row)
    return RunSoftware(
        name=stated[SOFTWARE] or software_of_source(row),
        kernel=cast(Kernel, stated[KERNEL] or assumed_kernel(row)),
        averages=cast(Averages, stated[AVERAGES] or averages_of_notes(row)),
        assumed=tuple(column for column in SOFTWARE_COLUMNS if not stated[column]),
    )


def stated_cell(row: dict[str, str], column: str) -> str:
    """The cell in lower case; an error names the line, the column and what may stand there."""
    text = row.get(column, "").lower()
    known = {KERNEL: get_args(Kernel), AVERAGES: get_args(Averages)}.get(column)
    if not text or (NAME.fullmatch(text) if known is None else text in known):
        return text
    wanted = f"one of {', '.join(known)}" if known else "a name such as maxtext or pytorch-xla"
    line = row["line"]
    why = f"line {line}, column {column}: {text!r} is not {wanted}"
    raise Unscorable(why, line=int(line), column=column)


def software_of_source(row: dict[str, str]) -> str:
    source = f"{row['source_repo']} {row['source_path']}".lower()
    return next((name for words, name in OF_SOURCE if re.search(words, source)), UNKNOWN_SOFTWARE)


def kernel_of_words(row: dict[str, str]) -> str:
    """The kernel that the source's own words mean; empty where they say nothing known."""
    words = row.get("attention_kernel", "").lower()
    if words == MAXTEXT_FLASH and software_of_source(row) == "maxtext":
        return "splash"
    return next((kernel for pattern, kernel in OF_WORDS if re.search(pattern, words)), "")


def assumed_kernel(row: dict[str, str]) -> Kernel:
    """None where the file has a column of kernels and the cell is empty."""
    return "none" if row.get("attention_kernel") == "" else "fused"


def averages_of_notes(row: dict[str, str]) -> Averages:
    return "run" if re.search(r"whole[- ]run", row["notes"]) else "steps"


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
NEWER = ("attention_kernel", *SOFTWARE_COLUMNS)
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
            apart = has_mixtures(columns)
            columns += ["d_ff"] if apart else []
            return columns, [
                named(translated(row) if apart else row, table.line_num) for row in table
            ]
    except OSError as error:
        raise Unscorable(f"{path}: cannot be read: {error.strerror}", file=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise Unscorable(f"{path}: is no CSV in UTF-8: {error}", file=str(path)) from None


def named(row: dict[str, str], line: int) -> dict[str, str]:
    """The known columns, with its line, and a name for a row without one."""
    cells = {column: (row.get(column) or "").strip() for column in COLUMNS}
    newer = {column: (row[column] or "").strip() for column in (*NEWER, *OWN) if column in row}
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
        dispatch_matmuls=dispatches_by_matmuls(row),
        expert_tile=expert_tile_of(row),
        expert_rows=expert_rows_of(row),
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
    shape["moe"], shape["latent"] = mixture_of(row), latent_of(row)
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

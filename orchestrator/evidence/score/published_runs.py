"""Published runs from CSV, including what only their notes state."""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

from orchestrator import catalog
from orchestrator.catalog.chips import FOLDER
from orchestrator.errors import SpecError
from orchestrator.planning import flops
from orchestrator.values.codec import DType, MatmulType, Value
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model

Row = dict[str, str]
_MOST = 10**15  # of anything counted; beyond it sums are no longer exact
_TYPES: dict[str, DType] = {"bfloat16": "bf16", "bf16": "bf16", "float32": "fp32", "fp32": "fp32"}
_NARROW: dict[str, MatmulType] = {"int8": "int8", "fp8": "fp8"}  # of products alone


class Unscorable(SpecError):
    """A row, or a whole file, whose run cannot be planned or whose figure cannot be converted."""

    def __init__(
        self, why: str, *, file: str | None = None, line: int | None = None,
        column: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(why)
        self.file, self.line, self.column = file, line, column


class SkippedRow(Value):
    """A row that is in no figure, and the reason."""

    id: str
    reason: str


def _number(row: Row, column: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        content = f"says {row[column]!r}" if row[column] else "is empty"
        raise Unscorable(f"{column} {content}: a number is needed") from None


def figure_in(row: Row, column: str, scale: float = 1.0) -> float | None:
    """Return a figure in base units; None where the row states none."""
    if not row[column]:
        return None
    value = _number(row, column)
    if not 0 < value < float("inf"):
        raise Unscorable(f"{column} says {row[column]}: it must be positive")
    return value * scale


def count_in(row: Row, column: str, default: int | None = None) -> int:
    """Return a positive count; an empty cell is the default, where there is one."""
    if not row[column] and default is not None:
        return default
    value = _number(row, column)
    if not (1 <= value <= _MOST and value.is_integer()):
        raise Unscorable(f"{column} says {row[column]}: a positive whole number is needed")
    return int(value)


def _dtype(text: str) -> DType:
    if text.lower() not in _TYPES:
        raise Unscorable(f"the type {text!r} is none of {', '.join(_TYPES)}")
    return _TYPES[text.lower()]


def _note(row: Row, pattern: str) -> str | None:
    """Return the first group of a pattern in the notes; None where they do not have it."""
    return match[1] if (match := re.search(pattern, row["notes"])) else None


# Published runs of mixtures of experts: columns of their own, and the mixture that they describe.
MIXTURES = FOLDER / "mixture_runs.csv"
QUANTIZED = FOLDER / "quantized_runs.csv"  # published runs whose products are in int8 or fp8
# The column of a file of mixtures → the column that all runs have.
_SAME = {
    "fsdp": "ici_fsdp",
    "tp": "ici_tp",
    "cp": "ici_sp",
    "grad_accum": "microbatches",
    "precision": "compute_dtype",
}
_OWN = (
    "experts", "top_k", "d_ff_expert", "shared_experts", "dense_layers", "routing",
    "capacity_factor", "attention", "ep",
)  # fmt: skip
# Elements of d_model and of an expert's width in a tile of megablox, which is always multiplied
# whole: `wi_tile_…` and `wo_tile_…` of MaxText's base.yml have 1,024 for both.
_MEGABLOX_TILE = 1024
# Rows that grouped matmuls take at a time: `wi_tile_fwd_batch_seq` of base.yml for megablox. The
# tuned tables of tokamax (pallas_mosaic_tpu.py) have 128 to 1,024, and 512 in the middle.
_GROUPED_ROWS = 512
_LATENT = re.compile(
    r"MLA: (?:no q lora|q lora (?P<query_rank>\d+)), kv lora (?P<kv_rank>\d+),"
    r" nope (?P<nope_dim>\d+) \+ rope (?P<rope_dim>\d+), v (?P<value_dim>\d+)"
)

# What a row states of its software, its attention kernel and its figure, and what is assumed.
_Kernel = Literal["flash", "splash", "splash-fused", "fused", "none"]
_Averages = Literal["steps", "run"]
_SOFTWARE, _KERNEL, _AVERAGES = _SOFTWARE_COLUMNS = ("software", "kernel", "averages")
_UNKNOWN_SOFTWARE = "not stated"
_NAME = re.compile(r"[a-z0-9][a-z0-9._/+-]*")


class _RunSoftware(Value):
    """A run's program; `assumed` names the columns that its row does not state. `kernel` of
    attention: `splash-fused` has one backward kernel, `fused` is unnamed by the source, `none` has
    scores in HBM. A figure averages `steps`, or a `run` with evaluations and saves.
    """

    name: str
    kernel: _Kernel
    averages: _Averages
    assumed: tuple[str, ...] = ()


# Projects whose pages are about runs of their own trainer; the first that matches decides.
_OF_SOURCE = (
    (r"pytorch|torch[-_]?xla|torchprime|optimum-tpu", "pytorch-xla"),
    (r"maxtext", "maxtext"),
    (r"axlearn", "axlearn"),
    (r"marin|levanter", "levanter"),
    (r"easylm|openllama|open_llama", "easylm"),
    (r"t5x|2204\.02311", "t5x"),
    (r"tpu-recipes training/ironwood/", "maxtext"),  # its other pages name MaxText
)
# Words of a source about its attention.
_OF_WORDS: tuple[tuple[str, _Kernel], ...] = (
    (r"\b(no|none|not|without)\b|unfused|einsum|dot_product|eager", "none"),
    (r"tokamax", "splash-fused"),
    (r"splash", "splash"),
    (r"flash", "flash"),
)


def _software_of(row: Row) -> _RunSoftware:
    """Return the three cells of a row, or what is assumed for them; refuse a wrong cell."""
    stated = {column: row.get(column, "").lower() for column in _SOFTWARE_COLUMNS}
    for column, text in stated.items():
        allowed = {_KERNEL: get_args(_Kernel), _AVERAGES: get_args(_Averages)}.get(column)
        if text and not (text in allowed if allowed else _NAME.fullmatch(text)):
            wanted = "a name such as maxtext or pytorch-xla"
            wanted = f"one of {', '.join(allowed)}" if allowed else wanted
            why = f"line {row['line']}, column {column}: {text!r} is not {wanted}"
            raise Unscorable(why, line=int(row["line"]), column=column)
    source = f"{row['source_repo']} {row['source_path']}".lower()
    known = (name for pattern, name in _OF_SOURCE if re.search(pattern, source))
    of_source = next(known, _UNKNOWN_SOFTWARE)
    words = row.get("attention_kernel", "").lower()
    if not stated[_KERNEL]:  # what the source's own words mean, where they say something known
        kernels = (kernel for pattern, kernel in _OF_WORDS if re.search(pattern, words))
        # MaxText says flash of any kernel. The first is of pallas; since January 2024 it is splash.
        is_maxtext = words == "flash" and of_source == "maxtext"
        stated[_KERNEL] = "splash" if is_maxtext else next(kernels, "")
    # Without a kernel where the file has a column of kernels and the cell is empty.
    kernel = stated[_KERNEL] or ("none" if row.get("attention_kernel") == "" else "fused")
    whole_run = re.search(r"whole[- ]run", row["notes"])
    return _RunSoftware(
        name=stated[_SOFTWARE] or of_source,
        kernel=cast(_Kernel, kernel),
        averages=cast(_Averages, stated[_AVERAGES] or ("run" if whole_run else "steps")),
        assumed=tuple(column for column in _SOFTWARE_COLUMNS if not stated[column]),
    )


PUBLISHED = FOLDER / "published_runs.csv"
OTHER_SOFTWARE = FOLDER / "other_software_runs.csv"
# Without these nothing can be planned; the others may be empty.
_NEEDED = ("id", "chip", "num_chips", "model", "layers", "d_model", "d_ff", "n_heads", "vocab",
          "seq_len")  # fmt: skip
_COLUMNS = (*_NEEDED, "source_repo", "source_path", "num_slices", "topology", "n_kv_heads",
           "head_dim", "gated_mlp", "moe_experts", "batch_per_device_seqs", "global_batch_tokens",
           "dcn_dp", "dcn_fsdp", "ici_fsdp", "ici_tp", "ici_sp", "pp", "microbatches", "params_b",
           "remat_policy", "compute_dtype", "attention_block", "optimizer", "flop_convention",
           "step_time_s", "tflops_per_chip", "mfu_pct", "notes")  # fmt: skip
# Where a file lacks one of these, it is assumed; an empty cell means something else.
_NEWER = ("attention_kernel", *_SOFTWARE_COLUMNS)
_OptimizerName = Literal["adamw", "adafactor"]
_GEMMA_EVERY = 6  # five local layers to one global layer


@dataclass(frozen=True)
class _Window:
    """Layers see `tokens` back; one in `every` is global, and may have other heads."""

    tokens: int
    every: int | None = None
    whole_head_dim: int | None = None
    whole_kv_heads: int | None = None

    @property
    def whole(self) -> float:
        return 1 / self.every if self.every else 0.0


class PublishedRun(Value):
    """One row; None where it states nothing. The mesh has the slices that share weights, too."""

    id: str
    group: str
    document: str
    chip: str
    chips: int
    slices: int
    topology: str
    model: Model
    window: _Window | None
    length: int
    sequences: int
    mesh: dict[str, int | None]
    microbatches: int
    remat: str
    hfu: float | None
    parallel_block: bool
    compute: MatmulType
    parameters: DType
    optimizer: _OptimizerName
    software: _RunSoftware
    attention_block: int | None
    evaluated: float
    dispatch_matmuls: bool
    expert_tile: int | None
    expert_rows: int | None
    convention: str
    step_s: float | None
    flops_per_chip_s: float | None
    mfu: float | None


@contextmanager
def said_of(path: Path) -> Iterator[None]:
    try:
        yield
        return
    except OSError as error:
        reason = Unscorable(f"cannot be read: {error.strerror}")
    except (UnicodeDecodeError, csv.Error) as error:
        reason = Unscorable(f"is no CSV in UTF-8: {error}")
    except Unscorable as error:
        reason = error
    message = f"{path}: {reason}"
    raise Unscorable(message, file=str(path), line=reason.line, column=reason.column) from None


def header_of(path: Path) -> list[str]:
    """Return the columns of a file, without any where it cannot be read: reading says why."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [name.strip().lower() for name in next(csv.reader(file), [])]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def read(path: Path) -> list[Row]:
    """Return the rows of a file, as text, each with every known column."""
    with said_of(path), path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file, restval="")
        table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
        columns = [*table.fieldnames, *(["d_ff"] if "experts" in table.fieldnames else [])]
        rows = []
        for row in table:
            cells = row
            if "experts" in row:  # of a file of mixtures: under the names that all runs have
                cells = row | {_SAME[name]: text for name, text in row.items() if name in _SAME}
                cells["chip"] = row.get("chip", "").lower()
                dense = row.get("d_ff_dense", "") not in ("", "0")
                cells["d_ff"] = row["d_ff_dense"] if dense else row.get("d_ff_expert", "")
                # After a value there may be in brackets whether it is a default, or assumed.
                cells["remat_policy"] = row.get("remat", "").partition(" (")[0]
                if stored := row.get("weight_dtype", "").partition(" (")[0]:
                    cells["notes"] = f"{row.get('notes', '')}; weight_dtype {stored}"
            others = [column for column in (*_NEWER, *_OWN) if column in cells]
            known = {name: (cells.get(name) or "").strip() for name in (*_COLUMNS, *others)}
            line = str(table.line_num)
            rows.append(known | {"id": known["id"] or f"row {line}", "line": line})
        if not rows:
            raise Unscorable("holds no runs; `orch score` alone scores the project's own file")
        if missing := [column for column in _NEEDED if column not in columns]:
            raise Unscorable(f"has no column {', '.join(missing)}")
        for row in rows:
            _software_of(row)
    return rows


def run_of(row: Row) -> PublishedRun:
    """Return the run of a row. An error says why a row describes no run."""
    _refuse_unplannable(row)
    software = _software_of(row)
    chips, length = count_in(row, "num_chips"), count_in(row, "seq_len")
    # A second axis that shards weights is the same as more of the first.
    transposed = int(_note(row, r"fsdp_transpose=(\d+)") or 1)
    fsdp = count_in(row, "ici_fsdp") * transposed if row["ici_fsdp"] else None
    # The document in a source path; the rest names a table or settings.
    path = row["source_path"]
    document = path.split(maxsplit=1)[0].rstrip(";") if path else ""
    chip = catalog.chip(row["chip"])
    noted = "adafactor" if _note(row, "(?i)(adafactor)") else "adamw"
    optimizer = row["optimizer"].lower() or noted
    if optimizer not in (known := get_args(_OptimizerName)):
        raise Unscorable(f"its optimizer is {optimizer}: rows may have {' or '.join(known)}")
    compute = row["compute_dtype"] or "bfloat16"
    hfu, routing = _note(row, r"\bHFU (\d+(?:\.\d+)?)"), row.get("routing", "")
    megablox = "megablox" in routing and "megablox False" not in routing
    # The sequences that its seconds evaluate for each one that they train on.
    pattern = r"(?i)includes an evaluation of ([\d,]+) sequences after each ([\d,]+) trained"
    evaluated = 0.0
    if match := re.search(pattern, row["notes"]):
        evaluated = float(match[1].replace(",", "")) / float(match[2].replace(",", ""))
    return PublishedRun(
        id=row["id"],
        group=f"{row['source_repo']} {row['chip']}".strip(),
        document=f"{row['source_repo']} {document} {row['chip']}".strip(),
        chip=row["chip"],
        chips=chips,
        slices=count_in(row, "num_slices", 1),
        topology=row["topology"],
        model=_model_of(row),
        window=_window_of(row),
        length=length,
        sequences=_sequences_of(row, chips * chip.devices, length),
        mesh={
            "fsdp": fsdp,
            "sequence": count_in(row, "ici_sp", 1),
            "tensor": count_in(row, "ici_tp", 1),
            "fsdp_dcn": _shared_slices(row),
            "expert": count_in(row, "ep", 1) if "ep" in row else 1,
        },
        microbatches=count_in(row, "microbatches", 1),
        remat=row["remat_policy"],
        hfu=float(hfu) / 100 if hfu else None,
        parallel_block=_note(row, r"(parallel attn)") is not None,
        compute=_NARROW.get(compute.lower()) or _dtype(compute),
        evaluated=evaluated,
        parameters=_dtype(_note(row, r"weight_dtype (\w+)") or "fp32"),
        optimizer=cast(_OptimizerName, optimizer),
        software=software,
        attention_block=count_in(row, "attention_block") if row["attention_block"] else None,
        dispatch_matmuls="dense matmuls" in routing,
        expert_tile=_MEGABLOX_TILE if megablox else None,
        expert_rows=_GROUPED_ROWS if routing.startswith("dropless") else None,
        convention=row["flop_convention"],
        step_s=figure_in(row, "step_time_s"),
        flops_per_chip_s=figure_in(row, "tflops_per_chip", 1e12),
        mfu=figure_in(row, "mfu_pct", 1e-2),
    )


def _refuse_unplannable(row: Row) -> None:
    if count_in(row, "moe_experts", 1) > 1:
        raise Unscorable(
            f"a mixture of {row['moe_experts']} experts: their width and their router are not"
            " stated; a file of mixtures has the columns experts, top_k, d_ff_expert, …"
        )
    if _note(row, r"\b(Muon)\b"):
        raise Unscorable("its optimizer is Muon: rows may have AdamW or Adafactor")
    if count_in(row, "pp", 1) > 1:
        text = f"{row['pp']} pipeline stages: a file for --kind gpu has a column for their chunks"
        raise Unscorable(text)
    slices, shared = count_in(row, "num_slices", 1), _shared_slices(row)
    replicas = count_in(row, "dcn_dp", max(slices // shared, 1))
    if replicas * shared != slices:
        raise Unscorable(
            f"its {slices} slices are not as many replicas, each of {shared}: dcn_dp is {replicas}"
        )


def _shared_slices(row: Row) -> int:
    """Return slices that share one copy of the weights: the cell, or what the notes state."""
    return count_in(row, "dcn_fsdp", int(_note(row, r"dcn_fsdp=(\d+)") or 1))


def _sequences_of(row: Row, devices: int, length: int) -> int:
    """Return sequences of a global step; a tpu7x chip is two devices."""
    if row["global_batch_tokens"]:
        tokens = count_in(row, "global_batch_tokens")
    elif each := figure_in(row, "batch_per_device_seqs"):
        tokens = round(each * devices * length)
    else:
        raise Unscorable("neither global_batch_tokens nor batch_per_device_seqs is stated")
    if not tokens or tokens % length:
        raise Unscorable(f"a batch of {tokens:,} tokens is not whole sequences of {length:,}")
    return tokens // length


def _model_of(row: Row) -> Model:
    """Return the shape. If nothing states whether tables are tied, the parameter count decides."""
    layers, d_model, d_ff, heads, vocab = (
        count_in(row, column) for column in ("layers", "d_model", "d_ff", "n_heads", "vocab")
    )
    head_dim = count_in(row, "head_dim", max(d_model // heads, 1))
    moe: MixtureOfExperts | None = None
    if row.get("experts"):
        capacity = None
        if row["routing"].startswith("dropping"):  # choices are dropped
            if row["capacity_factor"] == "not stated":
                raise Unscorable("it drops choices, and its capacity factor is not stated")
            capacity = figure_in(row, "capacity_factor")
        moe = MixtureOfExperts(
            experts=count_in(row, "experts"),
            top_k=count_in(row, "top_k"),
            d_ff=count_in(row, "d_ff_expert"),
            shared_experts=int(row["shared_experts"] or 0),
            dense_layers=int(row["dense_layers"] or 0),
            capacity_factor=capacity,
            biases="gpt-oss" in row["model"],
        )
    attention = row.get("attention", "")
    latent: LatentDimensions | None = None
    if attention.startswith("MLA"):
        sizes = _LATENT.match(attention)
        if sizes is None:
            raise Unscorable(f"the sizes of its latent attention are not stated: {attention!r}")
        latent = LatentDimensions(
            **{name: int(size) for name, size in sizes.groupdict().items() if size}
        )
    untied = Model(
        name=row["model"],
        layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        kv_heads=count_in(row, "n_kv_heads", heads),
        head_dim=head_dim if latent is None else latent.head_dim,
        vocab=vocab,
        gated=row["gated_mlp"] not in {"0", "false", "False"},
        moe=moe,
        latent=latent,
    )
    tied = replace(untied, tied=True)
    if "tied embeddings" in row["notes"] or "gemma" in row["model"]:
        return tied
    if not row["params_b"]:
        return untied
    stated = _number(row, "params_b") * 1e9
    return min((tied, untied), key=lambda model: abs(flops.parameters(model) - stated))


def _window_of(row: Row) -> _Window | None:
    """Return the window that the notes state: `5:1 local(1024):global`, `local window 1024`."""
    if pattern := re.search(r"(\d+):1 local\((\d+)\):global", row["notes"]):
        return _Window(int(pattern[2]), int(pattern[1]) + 1)
    tokens = _note(row, r"window (\d+)")
    head, keys = _note(row, r"global head_dim (\d+)"), _note(row, r"global kv heads (\d+)")
    if not tokens or not (head or keys):
        return _Window(int(tokens)) if tokens else None
    # Where only the heads of global layers are named, their number is that of the family.
    return _Window(
        int(tokens), _GEMMA_EVERY, int(head) if head else None, int(keys) if keys else None
    )

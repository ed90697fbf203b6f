"""Published runs on GPUs, from CSV, and the work of their steps. The ledger prices products, passes
over activations and exchanges of a microbatch; stages and copies of weights are those of Megatron.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import replace
from math import gcd, inf
from pathlib import Path

from orchestrator import catalog
from orchestrator.catalog.chips import FOLDER, Chip
from orchestrator.errors import OrchError
from orchestrator.evidence.score.published_runs import (
    Row,
    SkippedRow,
    Unscorable,
    count_in,
    figure_in,
    header_of,
    said_of,
)
from orchestrator.network.mesh_axes import AXES, GROUPS, WEIGHT_EXCHANGES
from orchestrator.network.rematerialization import NAMED, Policy
from orchestrator.planning import flops
from orchestrator.planning import step_work as steps
from orchestrator.planning.collectives import exchanges
from orchestrator.planning.gpu_expected import (
    LAST_MICROBATCH,
    GpuWork,
    bias_bytes,
    row_bytes,
    waits_for_host,
)
from orchestrator.planning.layout import Training
from orchestrator.planning.torus import Links
from orchestrator.values.codec import Value
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model
from orchestrator.values.spec import Optimizer, Precision

GPU_RUNS = FOLDER / "gpu_runs.csv"
_NEEDED = (
    "id", "chip", "num_gpus", "layers", "d_model", "d_ff", "n_heads", "seq_len",
    "global_batch_seqs", "precision",
)  # fmt: skip
_COLUMNS = (
    *_NEEDED, "source_repo", "source_path", "gpus_per_node", "interconnect", "model", "n_kv_heads",
    "head_dim", "vocab", "gated_mlp", "tied_embeddings", "micro_batch_seqs", "grad_accum", "tp",
    "cp", "pp", "interleave", "ep", "dp", "sequence_parallel", "sharding", "recompute",
    "attention_kernel", "compiled", "flop_convention", "step_time_s", "tflops_per_gpu", "mfu_pct",
    "notes",
)  # fmt: skip
_USUAL_VOCABULARY = 51_200  # of Megatron's GPT, where a row states none
# Words of a precision → the type of the blocks' products, and the type whose peak it has.
_TYPES = (
    (r"nvfp4|fp4", "nvfp4", "fp4"),
    (r"mxfp8|fp8-mx", "mxfp8", "fp8"),
    (r"fp8", "fp8", "fp8"),
    (r"bf16|bfloat16|fp16", "bf16", "bf16"),
)
_NARROW_BYTES = {"nvfp4": 1, "mxfp8": 1, "fp8": 1, "bf16": 2}
# Words of a source about its software; the first that matches decides, else its repository.
_SOFTWARE = (
    (r"mlcommons/.*/(AMD|.*MI3\d\d)", "rocm"),
    (r"mlcommons/", "nemo-mlperf"),
    (r"megatron-bridge", "megatron-bridge"),
    (r"vtrain|megatron-lm", "megatron-lm"),
    (r"nemo", "nemo"),
    (r"llm-foundry", "llm-foundry"),
    (r"torchtitan", "torchtitan"),
    (r"simumax", "megatron-lm"),
    (r"jax-toolbox|paxml", "paxml"),
)
# Software that sends by default while it multiplies: exchanges over tp, and gradients of zero1.
_IN_PIECES = frozenset({"nemo", "nemo-mlperf", "megatron-bridge"})
# Words of rows that describe other steps than those of a decoder that is trained whole.
_OTHER_STEPS = (
    (r"lora|peft|adapter", "trains adapters, not the whole model"),
    (r"mamba|\bssm\b|nemotron-?(h|3|nano|super)|delta ?net|linear attention", "has other layers"),
    (r"\bvl\b|vision|video|diffusion|multimodal|\bomni\b", "has more than text"),
)  # fmt: skip
_MOST_LAYERS, _MOST_GPUS = 10_000, 10_000_000
# What a policy of recomputation keeps. Flash attention recomputes its scores by itself.
_RECOMPUTE: tuple[tuple[str, Policy], ...] = (
    (r"^full", NAMED["full"]),
    (r"selective op", NAMED["save_dot_with_context_except_mlp"]),  # every second product
    (r"save dots|per-tensor", NAMED["minimal"]),
    (r"^(none|not stated|selective|core_attn|$)", NAMED["none"]),
)
_EXPERTS = re.compile(
    r"(\d+) experts,?(?: d_ff (\d+),)? ?(?:d_ff (\d+), )?top (\d+)(?:, (\d+) sh)?"
)
_MLA = re.compile(r"q rank (\d+), kv rank (\d+), rope (\d+), v head (\d+)")
_UNSTATED_MLA = ("1536", "512", "64", "128")  # DeepSeek-V3's, as in every published model since
_MONTH = re.compile(r"\b(2\d)\.(0[1-9]|1[0-2])\b(?!\d)")
_FIRST_MONTH = 26 * 12  # months of software count from the end of 2025
_USUAL_WATTS, _CLOCK_POWER = 700, 0.4
_MESH = ("tp", "cp", "pp", "interleave", "dp", "ep")
_GRADIENT_BYTES, _WEIGHT_BYTES = 2, 2  # as they are sent
# A microbatch reads weights twice, and reads and writes their fp32 gradient. An update reads that,
# reads and writes fp32 weights and both moments, and writes weights in bf16.
_MAIN_GRADIENT_BYTES, _UPDATE_BYTES = 8, 4 + 2 * 12 + 2
_ATTENTION_PASSES = 3.5  # a forward kernel of two products, and a backward kernel of five


class GpuRun(Value):
    """A row that describes a run. `job` is what editions of it share; `months` is how old its
    software is, None where nobody says. `learned` is false where the row itself is doubtful.
    """

    id: str
    job: str
    document: str
    software: str
    chip: str
    devices: int
    nodes: int
    type: str
    mixture: bool
    old_kernel: bool
    months: int | None
    learned: bool
    model: Model
    sequences: int
    length: int
    mesh: dict[str, int]
    measured_s: float
    lower_s: float
    work: GpuWork
    model_flops: float


def read(path: Path) -> list[Row]:
    """Return the rows of a file, as text, each with every known column."""
    with said_of(path), path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file, restval="")
        names = table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
        if missing := [column for column in _NEEDED if column not in names]:
            raise Unscorable(f"has no column {', '.join(missing)}")
        found = [
            {column: (row.get(column) or "").strip() for column in _COLUMNS}
            | {"line": str(table.line_num)}
            for row in table
        ]
        if not found:
            raise Unscorable("holds no runs; `orch score --kind gpu` scores the project's own file")
    return found


def is_gpu(path: Path) -> bool:
    return "num_gpus" in header_of(path)


def gpu_runs(rows: Iterable[Row]) -> tuple[list[GpuRun], list[SkippedRow]]:
    usable, skipped = [], []
    for row in rows:
        try:
            usable.append(_run_of(row))
        except OrchError as reason:
            skipped.append(SkippedRow(id=row["id"] or f"row {row['line']}", reason=str(reason)))
    return usable, skipped


def _run_of(row: Row) -> GpuRun:
    chip, model = catalog.chip(row["chip"].lower()), _model_of(row)
    if not chip.switched:
        raise Unscorable(f"{chip.name} is no GPU: a file of its runs has num_chips for num_gpus")
    words = row["precision"].lower()
    kind, rate = next(((t, r) for p, t, r in _TYPES if re.search(p, words)), ("", ""))
    if rate not in chip.peak_flops_per_s:
        raise Unscorable(f"{chip.name} has no peak for the precision {row['precision']!r}")
    mesh = {axis: count_in(row, axis, 1) for axis in _MESH}
    devices, parallel = count_in(row, "num_gpus"), mesh["tp"] * mesh["cp"] * mesh["pp"]
    if not row["dp"]:
        mesh["dp"] = max(devices // parallel, 1)
    if devices > _MOST_GPUS:
        raise Unscorable(f"{devices} GPUs are more than {_MOST_GPUS:,}")
    if parallel * mesh["dp"] != devices:
        says = " x ".join(f"{axis} {mesh[axis]}" for axis in ("tp", "cp", "pp", "dp"))
        raise Unscorable(f"{says} are {parallel * mesh['dp']} GPUs, and its row says {devices}")
    if (mesh["cp"] * mesh["dp"] * mesh["tp"]) % mesh["ep"]:
        raise Unscorable(f"ep {mesh['ep']} does not divide tp x cp x dp")
    if model.layers < mesh["pp"] * mesh["interleave"] - 2:
        raise Unscorable(f"{model.layers} layers are fewer than pp x interleave chunks")
    sequences, length = count_in(row, "global_batch_seqs"), count_in(row, "seq_len")
    each = count_in(row, "micro_batch_seqs", 0) or sequences // mesh["dp"]
    if not each:
        raise Unscorable(f"{sequences} sequences are fewer than dp {mesh['dp']}")
    microbatches = count_in(row, "grad_accum", max(sequences // (mesh["dp"] * each), 1))
    if microbatches * each * mesh["dp"] != sequences:
        text = f"{microbatches} microbatches of {each} x dp {mesh['dp']} are not {sequences}"
        raise Unscorable(f"{text} sequences")
    source = f"{row['source_repo']}/{row['source_path']}"
    repository = row["source_repo"].rpartition("/")[2].lower() or "not stated"
    found = (name for pattern, name in _SOFTWARE if re.search(pattern, source, re.IGNORECASE))
    # Megatron in fp16 is that of 2020 to 2022.
    software = next(found, repository) + (" fp16" if "fp16" in words else "")
    layout = _layout_of(row, chip, model, mesh, microbatches)
    work, lower_s = _work_of(row, layout, mesh, kind, rate, software in _IN_PIECES)
    flops_of_token = flops.model_flops_per_token(model, length)
    dated = _MONTH.search(row["notes"]) or _MONTH.search(row["source_path"])
    places = (
        *mesh.values(),
        each,
        sequences,
        length,
        model.layers,
        row["sharding"][:5],
        row["compiled"][:3],
    )
    # Old kernels of attention reach less on chips that came after them.
    old = re.search(r"flash|sdpa", row["attention_kernel"].lower())
    return GpuRun(
        id=row["id"] or f"row {row['line']}",
        job=" ".join(map(str, (software, chip.name, kind, devices, model.name, *places))),
        document=f"{row['source_repo']} {row['source_path']}",
        software=software,
        chip=chip.name,
        devices=devices,
        nodes=-(-devices // count_in(row, "gpus_per_node", chip.chips_per_host)),
        type=kind,
        mixture=model.moe is not None,
        old_kernel=bool(old) and "cudnn" not in row["attention_kernel"].lower(),
        months=int(dated[1]) * 12 + int(dated[2]) - _FIRST_MONTH if dated else None,
        learned=not re.search(r"\bweak\b|known regression", row["notes"]),
        model=model,
        sequences=sequences,
        length=length,
        mesh=mesh | {"microbatches": microbatches},
        measured_s=_measured_s(row, model, devices, chip, rate),
        lower_s=lower_s,
        work=work,
        model_flops=flops_of_token * sequences * length,
    )


def _model_of(row: Row) -> Model:
    if not row["d_model"]:
        raise Unscorable("its row does not state the model's shape")
    words = f"{row['model']} {row['notes']} {row['source_path']}".lower().replace("_", " ")
    for pattern, why in _OTHER_STEPS:
        if re.search(pattern, words):
            raise Unscorable(f"its run {why}")
    if count_in(row, "layers") > _MOST_LAYERS:
        raise Unscorable(f"{row['layers']} layers are more than {_MOST_LAYERS:,}")
    notes, heads = row["notes"], count_in(row, "n_heads")
    experts, latent, head = _EXPERTS.search(notes), None, count_in(row, "head_dim", 0)
    if "MLA" in notes:
        stated = _MLA.search(notes)
        queries, keys, rope, values = map(int, stated.groups() if stated else _UNSTATED_MLA)
        head = head or 192
        if head <= rope:
            raise Unscorable(f"a head of {head} is no more than the {rope} that RoPE turns")
        latent = LatentDimensions(
            query_rank=queries, kv_rank=keys, nope_dim=head - rope, rope_dim=rope, value_dim=values
        )
    moe, name = None, re.sub(r"[^a-z0-9.-]", "-", row["model"].lower()) or "custom"
    preset = catalog.model(name) if name in catalog.models() else None
    if experts:
        dense = re.search(r"(\d+) dense layer", notes)
        count, top = int(experts[1]), int(experts[4])
        moe = MixtureOfExperts(
            experts=count,
            top_k=top,
            d_ff=int(experts[2] or experts[3] or row["d_ff"]),
            shared_experts=int(experts[5] or 0),
            dense_layers=int(dense[1]) if dense else 0,
            biases=bool(preset and preset.moe and preset.moe.biases),
            capacity_factor=1.0,  # dropless and balanced: no row is empty
        )
    window = re.search(r"window (\d+) in every second", notes)
    return Model(
        name=name,
        layers=count_in(row, "layers"),
        d_model=count_in(row, "d_model"),
        d_ff=count_in(row, "d_ff"),
        heads=heads,
        kv_heads=heads if latent else count_in(row, "n_kv_heads", heads),
        head_dim=head or count_in(row, "d_model") // heads,
        vocab=count_in(row, "vocab", _USUAL_VOCABULARY),
        gated=row["gated_mlp"] != "0",
        tied=row["tied_embeddings"] == "1",
        latent=latent,
        moe=moe,
        window=int(window[1]) if window else None,
        window_pattern="LG" if window else "L",
    )


def _measured_s(row: Row, model: Model, devices: int, chip: Chip, rate: str) -> float:
    """Return the seconds of a step, from a rate by the FLOPs that the row's source counts."""
    if (seconds := figure_in(row, "step_time_s")) is not None:
        return seconds
    per_device = figure_in(row, "tflops_per_gpu", 1e12)
    if per_device is None and (mfu := figure_in(row, "mfu_pct", 1e-2)):
        per_device = mfu * chip.peak_flops_per_s[rate].value
    if per_device is None:
        raise Unscorable("states neither seconds nor a rate of its step")
    words, length = row["flop_convention"].lower(), count_in(row, "seq_len")
    attention = 3 * flops.attention_flops_per_token(model, length)
    if "6n" in words:
        token = flops.simple_flops_per_token(model)
        token += 0.0 if "no attention" in words else 2 * attention
    elif re.search(r"causal|half|full attention", words):
        token = flops.model_flops_per_token(model, length)
        token += attention if "full attention" in words else 0.0
    else:
        raise Unscorable("states a rate and not which FLOPs it counts")
    return token * count_in(row, "global_batch_seqs") * length / (per_device * devices)


# --- the step that a row describes


def _layout_of(
    row: Row, chip: Chip, model: Model, mesh: dict[str, int], microbatches: int
) -> Training:
    """Return the layout of a pipeline's devices as if they had one stage: all layers, in bf16."""
    recompute = row["recompute"].lower()
    policies = (policy for pattern, policy in _RECOMPUTE if re.search(pattern, recompute))
    policy = next(policies, None)
    if policy is None:
        raise Unscorable(f"it is unknown what recompute {recompute!r} repeats")
    sizes = dict.fromkeys(AXES, 1)
    # Experts lie on the ranks of dp; beyond them on those of cp and tp, which split an expert.
    experts = gcd(mesh["ep"], mesh["dp"]) if model.moe else 1
    sizes |= {"tensor": mesh["tp"], "sequence": mesh["cp"], "expert": experts}
    sizes["data"] = mesh["dp"] // experts
    if limit := re.search(r"(\d{3,4}) W power limit", row["interconnect"]):
        # The clock that a power allows grows with about its root.
        scale = min((int(limit[1]) / _USUAL_WATTS) ** _CLOCK_POWER, 1.0)
        peaks = {
            name: replace(peak, value=peak.value * scale)
            for name, peak in chip.peak_flops_per_s.items()
        }
        chip = replace(chip, peak_flops_per_s=peaks)
    return Training(
        chip=chip,
        model=model,
        precision=Precision(parameters="fp32", compute="bf16"),
        length=count_in(row, "seq_len"),
        sequences=count_in(row, "global_batch_seqs"),
        mesh=sizes,
        links=Links(dict.fromkeys(GROUPS, inf), {}, {}, {}),
        optimizer=Optimizer(name="adamw"),
        remat=policy,
        microbatches=microbatches,
    )


class _Places:
    """Where the devices of a row lie, and what its links reach."""

    def __init__(self, row: Row, chip: Chip) -> None:
        self.domain = int(chip.pod_chips.value)
        self.nvlink = chip.ici_link_bytes_per_s.value
        self.cluster = chip.dcn_bytes_per_s.value  # of a GPU, or as the row says
        if stated := re.search(r"(\d+) Gb/s a (GPU|node)", row["interconnect"]):
            each = 1 if stated[2] == "GPU" else count_in(row, "gpus_per_node", chip.chips_per_host)
            self.cluster = int(stated[1]) * 1e9 / 8 / each

    def inside(self, ways: int, stride: int) -> int:
        """Return how many of a group's devices share a domain: the most that divide it."""
        room = max(self.domain // stride, 1)
        return max(n for n in range(1, ways + 1) if ways % n == 0 and n <= room)

    def spread_s(self, volume: float, ways: int, stride: int) -> float:
        """Return the seconds of a gather in each domain, and of its parts between domains."""
        near = self.inside(ways, stride)
        out = ways // near
        near_s = volume * (near - 1) / near / self.nvlink
        return near_s + volume / near * (out - 1) / out / self.cluster


def _work_of(
    row: Row, layout: Training, mesh: dict[str, int], kind: str, rate: str, in_pieces: bool
) -> tuple[GpuWork, float]:
    """Return the work of the slowest stage's step, and the least that it can take."""
    chip, network, places = layout.chip, layout.network, _Places(row, layout.chip)
    tp, cp, pp, chunks, dp, ep = (mesh[axis] for axis in _MESH)
    m, hbm = layout.microbatches, chip.hbm_bytes_per_s.value
    peak, wide = (chip.peak_flops_per_s[name].value for name in (rate, "bf16"))

    # A stage has its share of the layers, and warms up and drains for (pp - 1) / (m chunks) of its
    # time. Where chunks divide layers, the last stage has the head besides; else the first and the
    # last have fewer layers for it.
    layers, head = network.layers, 1.0
    if pp > 1 and layers % (pp * chunks):
        head = 0.0
        layers += 2 if (layers + 2) % (pp * chunks) == 0 else 0
    body = layers / network.layers / pp * (1 + (pp - 1) / (m * chunks))

    # Products, of experts and of others; attention, with the forward kernel again where the policy
    # repeats it; bytes between them.
    routed = flops.experts_forward_flops(layout) * 3
    again = flops.blocks_recompute_flops(layout)
    blocks = flops.blocks_forward_flops(layout) * 3 - routed + again
    seen = flops.attention_flops_per_token(layout.model, layout.length)
    attention = seen * layout.step_tokens / tp * (_ATTENTION_PASSES + (again > 0))
    narrow = replace(layout, precision=Precision(compute="fp8"))
    casts = steps.quantization_bytes(narrow) if kind != "bf16" else 0.0
    logits = steps.logits_bytes(layout)

    # What a microbatch sends. Tokens that leave the domain on their way take the cluster network.
    moved: dict[str, float] = {}
    for exchange in exchanges(layout):
        moved[exchange.group] = moved.get(exchange.group, 0.0) + (
            0.0 if exchange.line in WEIGHT_EXCHANGES else exchange.moved_bytes
        )
    tokens, at_home = moved.get("expert", 0.0), places.inside(ep, 1)
    leaving = tokens * (ep - at_home) / max(ep - 1, 1)
    keys = places.nvlink if places.inside(cp, tp) == cp else places.cluster
    stream = 2 * m * chunks * layout.tokens * layout.model.d_model * layout.compute_bytes / tp
    stages = places.nvlink if 2 * tp * cp * dp <= places.domain else places.cluster

    # Weights of a device: those of its layers, and a table at either end of a pipeline. Experts are
    # shared by fewer devices than others.
    routed_weights = layout.over_layers(layout.routed_elements) / pp
    others = layout.layer_elements / pp - routed_weights + layout.table_elements
    copies, of_experts = dp * cp, max(dp * cp * tp // max(ep, tp), 1)
    sharded = re.search(r"zero3|fsdp", row["sharding"]) is not None
    sent = _WEIGHT_BYTES + _GRADIENT_BYTES  # once; or in each microbatch, weights twice
    sent = m * (2 * _WEIGHT_BYTES + _GRADIENT_BYTES) if sharded else sent
    weights_s = places.spread_s(others * sent, copies, tp)
    weights_s += places.spread_s(routed_weights * sent, of_experts, max(ep, tp))
    owned = others / copies + routed_weights / of_experts
    owned = others + routed_weights if row["sharding"] == "ddp" else owned
    read = (layout.layer_elements * body + layout.table_elements * head) * (
        2 * _NARROW_BYTES[kind] + _MAIN_GRADIENT_BYTES
    )
    work = GpuWork(
        linear_s=blocks * body / peak,
        routed_s=routed * body / peak,
        wide_s=3 * flops.unembedding_forward_flops(layout) * head / wide,
        attention_s=attention * body / wide,
        hbm_s=(m * read + owned * _UPDATE_BYTES) / hbm,
        passes_s=((steps.pass_bytes(layout) - logits) * body + logits * head) / hbm,
        casts_s=casts * body / hbm,
        rows_s=row_bytes(layout) * body / hbm,
        biases_s=bias_bytes(layout) * body / hbm,
        tensor_s=moved.get("tensor", 0.0) * body / places.nvlink,
        waits=network.layers * m * body * (tp > 1 and not in_pieces),
        sequence_s=moved.get("sequence", 0.0) * body / keys,
        tokens_s=tokens * body / places.nvlink,
        tokens_out_s=leaving * body / places.cluster,
        sends_s=stream / stages if pp > 1 else 0.0,
        weights_s=weights_s,
        layers=network.layers * m * body,
        mixtures=network.mixture_layers * m * body,
        in_pieces=float(in_pieces),
        in_node=float(waits_for_host(chip)),
        behind=float(chunks > 1),
        overlapped=1.0 if sharded else LAST_MICROBATCH / m * in_pieces,
    )
    products_s = work.linear_s + work.routed_s + work.wide_s + work.attention_s
    lower_s = max(products_s, work.hbm_s, work.tensor_s + work.tokens_s * at_home / ep)
    return work, float(lower_s)

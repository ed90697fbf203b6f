"""Published serving runs from CSV: what each served, how, and how fast it was measured."""

import csv
import re
from collections import Counter
from functools import cache
from math import inf
from pathlib import Path

import msgspec

from orchestrator import catalog
from orchestrator.catalog.chips import FOLDER, table
from orchestrator.errors import OrchError
from orchestrator.evidence.score.published_runs import (
    Row,
    SkippedRow,
    Unscorable,
    header_of,
    said_of,
)
from orchestrator.serving.layout import Serving, layouts
from orchestrator.serving.step import as_float, as_int
from orchestrator.values.codec import Value
from orchestrator.values.model import Model
from orchestrator.values.serving import ServingMesh, StoredType

SERVING = FOLDER / "serving_runs.csv"
DISAGGREGATED = FOLDER / "serving_disaggregated_runs.csv"
COLUMNS = ("model", "chip", "chips", "input_len", "output_len", "tpot_ms")  # that tell the kind

# The first word of a framework, in small letters → its engine.
_ENGINES = {
    "sglang-jax": "sglang-jax", "vllm-tpu": "vllm-tpu", "tensorrt-llm": "trtllm",
    "trtllm": "trtllm", "vllm": "vllm", "sglang": "sglang", "tensorrt": "mlperf-trtllm",
    "jetstream-pytorch": "jetstream",
}  # fmt: skip
# vLLM on TPUs was rewritten in the autumn of 2025 (tpu-inference).
_REWRITTEN, _BEFORE = "2025-11", "vllm-tpu-2025"
# Requests in work at most, where a row does not say: defaults of the engines.
_MOST_REQUESTS = {"sglang-jax": 256, "vllm-tpu": 256, _BEFORE: 256, "vllm": 1024, "sglang": 1024}
_MOST_OF_OTHERS = 2048  # TensorRT-LLM's, for each part of the requests
_CACHE_SHARE = {"trtllm": 0.9}  # of free memory that the cache gets: its default
STEP_TOKENS = 8192  # of a step, for which memory is set aside
_DRAWN = 0.9  # mean of lengths that are drawn between 80 and 100 % of the nominal ones
_DRAWN_LENGTHS = re.compile(r"80-100 %|range ratio 0\.8|InferenceX client")
_LATENT_8_BIT = ("trtllm", "mlperf-trtllm")  # keep the cache in fp8 where weights are narrow
_LOOPS = 10  # requests of a closed loop for each that is in work, where a row does not say


class PrefillSlices(Value):
    """Slices of prefill of a run, whose `layout` is then of those of decoding. `output` are the
    nominal tokens of an answer, of which its rate is told, `decoding` the share of its time that a
    request spends in decoding, as measured.
    """

    layout: Serving
    copies: int
    output: float
    decoding: float


class ServingRun(Value):
    """A published run. `concurrency` is inf where all requests wait at once. `in_waves`: requests
    begin and end together, so that prompts do not slow the steps between tokens. `tpot_limit_s`
    is that of TPOT at p99 under which requests arrive as fast as they can. TTFT is that of
    `loops` requests for each in work, which have one token to answer if it is `of_prompts`; their
    lengths are `drawn` between 80 and 100 % of the nominal ones, or fixed.
    """

    id: str
    document: str
    software: str
    engine: str
    chip: str
    layout: Serving
    copies: int
    prompt: float
    output: float
    concurrency: float
    most_requests: float
    in_waves: bool
    tpot_limit_s: float | None
    output_tokens_per_s: float | None
    tpot_s: float | None
    ttft_s: float | None
    loops: float
    of_prompts: bool
    drawn: bool
    weak: bool
    prefill: PrefillSlices | None = None

    @property
    def batch(self) -> float:
        """Requests in work of a copy of the model."""
        own = self.concurrency / self.copies * (self.prefill.decoding if self.prefill else 1)
        return max(min(own, self.most_requests), 1.0)


@cache
def _models() -> dict[str, Model]:
    found = dict[str, Model]()
    for name, entry in table("serving_models.toml").items():
        shape = entry.get("shape")
        known = {"name": re.sub("[^a-z0-9]", "-", name), **(shape or {})}
        model = msgspec.convert(known, Model) if shape else catalog.model(name)
        found |= dict.fromkeys(map(_plain, entry["names"]), model)
    return found


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9.]", "", name.lower())


def is_serving(path: Path) -> bool:
    return set(COLUMNS) <= set(header_of(path))


def read(path: Path) -> list[Row]:
    """Return the rows of a file; a column that it lacks is empty."""
    empty = dict.fromkeys(header_of(SERVING), "")
    with said_of(path), path.open(encoding="utf-8-sig", newline="") as file:
        return [
            empty | {name.strip().lower(): text for name, text in row.items() if name and text}
            for row in csv.DictReader(file)
        ]


def runs_of(rows: list[Row]) -> tuple[list[ServingRun], list[SkippedRow]]:
    """Return the runs that can be forecast, and the others with their reasons."""
    runs, left_out, seen = [], [], Counter[str]()
    for row in rows:
        name = row.get("id") or ""
        if not name and row.get("prefill_workers"):
            name = row["source"].partition(" id ")[2]
        if not name:
            words = (
                row["framework"].split(" ")[0], row["model"], f"{row['chip']}x{row['chips']}",
                row["weights_dtype"].split(" ")[0],
                f"{row['input_len'].split(' ')[0]}x{row['output_len']}",
                f"c{row['concurrency_or_rate'].split(',')[0]}",
            )  # fmt: skip
            small = (re.sub("[^a-z0-9.]+", "-", word.lower()) for word in words if word)
            name = "-".join(small)
        seen[name] += 1
        name += f"-{seen[name]}" if seen[name] > 1 else ""
        try:
            make = _disaggregated_of if row.get("prefill_workers") else _run_of
            runs.append(make(name, row))
        except OrchError as error:
            left_out.append(SkippedRow(id=name, reason=error.message))
    return runs, left_out


def document_of(row: Row) -> str:
    """Return what is held out together: a page, a submitter's system, or of a collection one
    campaign with a model on a chip.
    """
    source, _, name = row["source"].partition(" id ")
    source = source.split("@")[0]
    if name:
        return f"{source} {re.sub(r'^[0-9_]*', '', re.sub('_(dis)?agg.*', '', name))}"
    return source.rsplit("/", 2)[0] if "mlcommons" in source else source


def _number(text: str) -> float | None:
    match = re.match(r"[0-9][0-9,]*(\.[0-9]+)?(e[0-9]+)?", text.strip())
    return float(match[0].replace(",", "")) if match else None


def needed(row: Row, column: str) -> float:
    text = row.get(column, "")
    value = _number(text)
    if value is None or value <= 0:
        content = f"says {text!r}" if text else "is empty"
        raise Unscorable(f"{column} {content}: a positive number is needed")
    return value


def _engine_of(row: Row) -> str:
    first = row["framework"].split(" ")[0].lower()
    engine = _ENGINES.get(first, first)
    return _BEFORE if engine == "vllm-tpu" and row["date"] < _REWRITTEN else engine


def _run_of(name: str, row: Row) -> ServingRun:
    note, engine, chip_name = row["note"], _engine_of(row), row["chip"].lower()
    model = model_of(row)
    devices = int(needed(row, "chips")) * catalog.chip(chip_name).devices
    # Mean tokens of prompts and answers, as the note corrects the nominal ones.
    prompt, output = needed(row, "input_len"), needed(row, "output_len")
    if stated := re.search(r"\(([\d,]+) in and ([\d,]+) out", row["note"]):
        prompt, output = (float(part.replace(",", "")) for part in stated.groups())
    elif _DRAWN_LENGTHS.search(row["note"]):
        prompt, output = _DRAWN * prompt, _DRAWN * output if output > 1 else output
    weights, kv_cache = types_of(row, engine)
    layout = laid_out(chip_name, model, weights, kv_cache, _mesh_of(row, model, devices))
    wanted, limit = row["concurrency_or_rate"], None
    concurrency = _number(wanted) or inf
    if "Poisson" in wanted:
        # The limit of the time between tokens that the note has for the scenario of the row.
        name_of = row["model"].lower()
        part = "405b" if "405b" in name_of else "mixtral" if "mixtral" in name_of else "llama2"
        tight = "tight" in wanted
        kind = "interactive" if tight and part == "llama2" else "server"
        stated = re.search(rf"{part}[^;]*?{kind} [\d.]+ s/(\d+) ms", note)
        stated = stated or re.search(rf"{part}[^;]*? [\d.]+ s/(\d+) ms", note)
        limit = float(stated[1]) / 1e3 if stated else inf
        if limit == inf or (tight and kind != "interactive"):
            text = "requests arrive as fast as limits allow, which its note does not state"
            raise Unscorable(text)
    elif concurrency == inf and not re.search("inf|offline", wanted):
        raise Unscorable(f"concurrency_or_rate says {wanted!r}: no number of requests")
    room = as_float(layout.most_requests(STEP_TOKENS, prompt + output))
    parts = as_int(layout.requests_split)
    most = _MOST_REQUESTS.get(engine, _MOST_OF_OTHERS * parts)
    if stated := re.search(r"max-num-seqs (\d+)", note):
        most = int(stated[1]) * (parts if "data-parallel rank" in note else 1)
    rate, tpot_s, ttft_s = _figures_of(row, prompt, output)
    said = re.search(r"prompts = (\d+) x|\b(\d+) prompts", note)
    asked = float(said[1] or said[2]) if said else _LOOPS
    return ServingRun(
        id=name,
        document=document_of(row),
        software=row["framework"],
        engine=engine,
        chip=chip_name,
        layout=layout,
        copies=int(max(min(devices // as_int(layout.copy_devices), concurrency), 1)),
        prompt=prompt,
        output=output,
        concurrency=concurrency,
        most_requests=max(min(room * _CACHE_SHARE.get(engine, 1.0), most), 1.0),
        in_waves=bool(re.search("range ratio 1|fixed lengths|separate run", note)),
        tpot_limit_s=limit,
        output_tokens_per_s=rate,
        tpot_s=tpot_s,
        ttft_s=ttft_s,
        loops=asked / concurrency if said and said[2] else asked,
        of_prompts="separate run" in note,
        drawn=bool(_DRAWN_LENGTHS.search(note)),
        weak=bool(re.search(r"\bweak\b|guessed|check\)", f"{note} {row['input_len']}")),
    )


def _disaggregated_of(name: str, row: Row) -> ServingRun:
    """Return a run with slices for prompts and others for answers. Its collection draws lengths
    between 80 and 100 % and keeps the cache of narrow weights in fp8.
    """
    engine, chip_name, model = _engine_of(row), row["chip"].lower(), model_of(row)
    prompt, output = needed(row, "input_len"), needed(row, "output_len")
    narrow = "fp8" if row["weights_dtype"].startswith("fp") else ""
    weights, kv_cache = types_of(row | {"kv_dtype": row["kv_dtype"] or narrow}, engine)
    requests, tpot_s = needed(row, "concurrency"), needed(row, "tpot_ms") / 1e3
    ttft_s = (_number(row["ttft_ms"]) or 0) / 1e3

    def slices(part: str) -> tuple[Serving, int]:
        workers = int(needed(row, f"{part}_workers"))
        devices = int(needed(row, f"chips_{part}") / workers * catalog.chip(chip_name).devices)
        attention, tensor, experts = (
            int(needed(row, f"{part}_{way}")) for way in ("attention_dp", "tp", "ep")
        )
        attention = attention if model.moe else 1
        tensor = max(min(tensor, devices // attention), 1)
        # One way of experts next to parts of the requests counts as not stated.
        ways = None if attention > 1 and experts == 1 else min(experts, attention * tensor)
        sizes = attention, tensor, ways if model.moe else 1
        try:
            return laid_out(chip_name, model, weights, kv_cache, sizes), workers
        except Unscorable as error:
            raise Unscorable(f"{part}: {error.message}") from None

    layout, copies = slices("decode")
    prefill, workers = slices("prefill")
    whole_s = ttft_s + output * tpot_s
    return ServingRun(
        id=name,
        document=document_of(row),
        software=row["framework"],
        engine=engine,
        chip=chip_name,
        layout=layout,
        copies=copies,
        prompt=_DRAWN * prompt,
        output=_DRAWN * output if output > 1 else output,
        concurrency=requests,
        most_requests=as_float(layout.most_requests(0.0, prompt + output)),
        in_waves=True,
        tpot_limit_s=None,
        output_tokens_per_s=_number(row.get("output_tokens_per_s_about", "")),
        tpot_s=tpot_s,
        ttft_s=ttft_s or None,
        loops=_LOOPS,
        of_prompts=False,
        drawn=True,
        weak=False,
        prefill=PrefillSlices(
            layout=prefill, copies=workers, output=output, decoding=output * tpot_s / whole_s
        ),
    )


def model_of(row: Row) -> Model:
    """Return the model of a row that this project can forecast."""
    if row["disaggregated"] == "y":
        raise Unscorable("prefill and decode are on chips of their own: not forecast row by row")
    if "prefix cache" in row["note"].lower():
        raise Unscorable("most of each prompt came from a prefix cache: how much is not stated")
    if row["chip"].lower() not in catalog.chips():
        raise Unscorable(f"the chip {row['chip']} is not in the catalog")
    model = _models().get(_plain(row["model"]))
    if model is None:
        raise Unscorable(f"the shape of {row['model']} is not known here")
    return model


def _figures_of(
    row: Row, prompt: float, output: float
) -> tuple[float | None, float | None, float | None]:
    """Return output tokens/s, TPOT and TTFT in seconds."""
    columns = ("output_tokens_per_s_total", "total_tokens_per_s", "tpot_ms", "ttft_ms")
    rate, total, tpot, ttft = (_number(row[column]) for column in columns)
    if rate is None and total is not None:
        rate = total * output / (prompt + output)
    # Requests that wait for longer than they are answered: how many are in work is not known.
    if tpot and ttft and ttft > output * tpot and "separate run" not in row["note"]:
        tpot = None
    rate = None if output <= 1 else rate
    if not (rate or tpot or (ttft and output <= 1)):
        raise Unscorable("it states neither output tokens/s nor a TPOT of requests in work")
    return rate, tpot and tpot / 1e3, ttft and ttft / 1e3


def types_of(row: Row, engine: str) -> tuple[StoredType, StoredType]:
    known: dict[str, StoredType] = {
        "bf16": "bf16", "int8": "int8", "fp8": "fp8", "int4": "int4", "fp4": "fp4", "": "bf16",
    }  # fmt: skip
    names = [row[column].split(" ")[0].lower() for column in ("weights_dtype", "kv_dtype")]
    for name in names:
        if name not in known:
            raise Unscorable(f"the type {name!r} is none of {', '.join(filter(None, known))}")
    weights = known[names[0]]
    kv_cache = known[names[1]]
    if not names[1] and engine in _LATENT_8_BIT and weights in {"fp8", "fp4"}:
        kv_cache = "fp8"
    return weights, kv_cache


def _mesh_of(row: Row, model: Model, devices: int) -> tuple[int, int, int] | None:
    """Return the parts of requests, tensor and experts of a copy; None where nothing is stated."""
    tensor, experts = _number(row["tp"]) or None, _number(row["ep"])
    data = row["dp"].strip()
    if "by table" in row["tp"]:  # of one pull request: four by two up to 32 requests, then eight
        few = (_number(row["concurrency_or_rate"]) or inf) <= 32
        tensor, data = (2, "4") if few else (1, "8")
    if tensor is None:
        return None
    attention = 1
    if model.moe:
        if data == "attention dp":
            attention, tensor = int(tensor), 1
        elif data.isdigit():
            attention = max(int(data), 1)
        if "enable_attention_dp" in row["note"] and tensor > 1 and (experts or 1) > 1:
            attention, tensor = int(tensor), 1
    copy = attention * int(tensor)
    if copy > devices:
        raise Unscorable(f"attention {attention} x tensor {int(tensor)} are over {devices} devices")
    return attention, int(tensor), min(int(experts or 1), copy) if model.moe else 1


def laid_out(
    chip_name: str, model: Model, weights: StoredType, kv_cache: StoredType,
    sizes: tuple[int, int, int | None] | None,
) -> Serving:  # fmt: skip
    """Return the copy of a run on the slice with as many chips. Where no layout is stated, it has
    the fewest devices that leave a quarter of the memory for the cache.
    """
    chip = catalog.chip(chip_name)
    tries = [sizes] if sizes else [(1, n, n if model.moe else 1) for n in (1, 2, 4, 8)]
    short = ""
    for attention, tensor, experts in tries:
        chips = max(attention * tensor // chip.devices, 1)
        if not _slices(chip_name, chips):
            raise Unscorable(f"{chip_name} has no slice of {chips} chips")
        mesh = ServingMesh(attention=attention, tensor=tensor, experts=experts)
        found = None
        for text in _slices(chip_name, chips):
            topology = catalog.topology(chip, text)
            found = layouts(chip, topology, model, weights, kv_cache, mesh)
            if found is not None:
                break
        if found is not None:
            first = found.column(0)
            room = as_float(first.room(STEP_TOKENS))
            if room > (0 if sizes else first.hbm_bytes / 4):
                return first
            weights_gb = as_float(first.weights_bytes) / 1e9
            short = f": weights take {weights_gb:.1f} of {first.hbm_bytes / 1e9:.1f} GB"
    size = "x".join(map(str, filter(None, sizes or ())))
    fault = "has no room for a cache" if short else f"does not divide {model.name}"
    raise Unscorable(f"its layout {size} {fault}{short}")


def _slices(chip_name: str, chips: int) -> list[str]:
    """Return slices with as many chips or, where a chip has none so small, the next larger one."""
    chip = catalog.chip(chip_name)
    sizes = {text: catalog.topology(chip, text).chips for text in catalog.topologies(chip)[:200]}
    least = min((size for size in sizes.values() if size >= chips), default=0)
    return [text for text, size in sizes.items() if size == least]

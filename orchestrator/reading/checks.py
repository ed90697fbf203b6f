"""Checks how fields must go together, which the schema of single fields cannot say."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from orchestrator import catalog, plugins
from orchestrator.catalog.chips import Chip
from orchestrator.errors import NoSuchSlice, UnknownName
from orchestrator.network.mesh_axes import SHARED_OVER_DCN
from orchestrator.reading.instance import ResolvedSpec, default
from orchestrator.reading.schema import schema_field
from orchestrator.storage.addresses import is_address, reserved_name
from orchestrator.values.model import LatentDimensions, MixtureOfExperts
from orchestrator.values.spec import AUTO_TOPOLOGY

Check = Callable[[ResolvedSpec], None]
Fault = tuple[str, str, dict[str, Any]]  # a key of a section, a code, its fields
SHAPE_KEYS = ("heads", "kv_heads", "head_dim")
LATENT_KEYS = ("kv_rank", "nope_dim", "rope_dim", "value_dim")
# What latent attention does not have → what it is without.
UNLIKE_LATENT = {"qkv_bias": False, "qk_norm": "none", "rotary_share": 1.0}
MIXTURE_KEYS = ("experts", "top_k", "groups", "top_groups", "dense_layers", "every")
PATHS = ("run.storage", "run.evaluation.path", "experiment.start.huggingface")
PLUGINS = (
    ("run.trainer", "unknown-trainer", plugins.trainer_entry_point),
    ("cluster.backend", "unknown-backend", plugins.backend_entry_point),
    ("tracking.tracker", "unknown-tracker", plugins.tracker_entry_point),
)


def check(spec: ResolvedSpec) -> None:
    """Add every contradiction to a spec's problems."""
    for one in CHECKS:
        one(spec)


def _plugins_are_known(spec: ResolvedSpec) -> None:
    for key, code, find in PLUGINS:
        name = spec[key]
        try:
            if name is not None:
                find(name)
        except UnknownName as error:
            spec.report(key, code, name=name, known=", ".join(error.known))


def _tokens_fill_a_batch(spec: ResolvedSpec) -> None:
    batch, tokens = spec["experiment.batch"], spec["experiment.tokens"]
    if isinstance(batch, dict):
        _report(spec, "experiment", batch_faults(tokens, batch))


def batch_faults(tokens: int | None, batch: dict[str, Any]) -> Iterator[Fault]:
    """Tokens that do not fill a batch."""
    sequences, length = batch.get("sequences"), batch.get("length")
    if tokens is None or sequences is None or length is None or tokens >= sequences * length:
        return
    fields = {"tokens": tokens, "sequences": sequences, "length": length}
    yield "tokens", "tokens-below-batch", {"least": sequences * length, **fields}


def _learning_rate_falls(spec: ResolvedSpec) -> None:
    rates = (spec[f"experiment.optimizer.{key}"] for key in ("peak_lr", "end_lr"))
    _report(spec, "experiment", rate_faults(*rates))


def rate_faults(peak: float | None, end: float | None) -> Iterator[Fault]:
    """A learning rate that would rise."""
    if peak is not None and end is not None and end > peak:
        yield "optimizer.end_lr", "end-above-peak", {"end": end, "peak": peak, "lower": peak / 10}


def _data_is_consistent(spec: ResolvedSpec) -> None:
    keys = ("kind", "path", "separator")
    data = {key: spec[f"experiment.data.{key}"] for key in keys}
    _report(spec, "experiment", data_faults(spec, data))


def _evaluation_has_its_path(spec: ResolvedSpec) -> None:
    """One that trains on tokens, in any stage, is evaluated on tokens."""
    key, path = "run.evaluation.path", spec["run.evaluation.path"]
    stages = [one for one in spec["experiment.stages"] or () if isinstance(one, dict)]
    sources = [one["data"] for one in stages if isinstance(one.get("data"), dict)]
    kinds = {spec["experiment.data.kind"], *(one.get("kind") for one in sources)}
    if "tokens" in kinds and path is None and spec["run.evaluation"] is not None:
        spec.report(key, "data-path-missing")
    if "tokens" not in kinds and path is not None:
        spec.report(key, "data-path-unused")


def data_faults(spec: ResolvedSpec, data: dict[str, Any]) -> Iterator[Fault]:
    """What is wrong between the keys of a source of data."""
    kind, path, separator = data.get("kind"), data.get("path"), data.get("separator")
    if kind == "tokens" and path is None:
        yield "data.path", "data-path-missing", {}
    if kind == "synthetic" and path is not None:
        yield "data.path", "data-path-unused", {}
    if has_scheme(path) and not is_address(str(path)):
        yield "data.path", "no-such-bucket", {}
    model = spec["experiment.model"]
    vocab = catalog.model(model).vocab if isinstance(model, str) else (model or {}).get("vocab")
    if separator is not None and vocab is not None and separator >= vocab:
        fields = {"separator": separator, "vocab": vocab, "last": vocab - 1}
        yield "data.separator", "no-such-token", fields


def _report(spec: ResolvedSpec, section: str, faults: Iterator[Fault]) -> None:
    for key, code, fields in faults:
        spec.report(f"{section}.{key}", code, **fields)


def _addresses_are_of_buckets(spec: ResolvedSpec) -> None:
    """Another address would be taken for a folder of that name, on each host another."""
    for key in PATHS:
        if has_scheme(spec[key]) and not is_address(spec[key]):
            spec.report(key, "no-such-bucket")
    runs = spec["run.storage"]
    if is_address(runs or "") and (name := reserved_name(runs)):
        spec.report("run.storage", "reserved-name", name=name)


def has_scheme(path: object) -> bool:
    """Whether a value is an address of any scheme, where a path is wanted."""
    return isinstance(path, str) and "://" in path


def _remat_names_tensors_of_the_model(spec: ResolvedSpec) -> None:
    model, remat = spec["experiment.model"], spec["experiment.remat"]
    if not isinstance(remat, dict) or model is None:
        return
    shape = asdict(catalog.model(model)) if isinstance(model, str) else model
    name = model if isinstance(model, str) else model.get("name", "the model")
    if "gate" in remat and not shape.get("gated", True):
        spec.report("experiment.remat.gate", "no-such-tensor", model=name)
    if remat.get("latent", "recompute") != "recompute" and shape.get("latent") is None:
        spec.report("experiment.remat.latent", "no-latent", model=name)


def _pods_are_in_order(spec: ResolvedSpec) -> None:
    least, most = spec["resources.pods.min"], spec["resources.pods.max"]
    if None not in (least, most) and least > most:
        spec.report("resources.pods.min", "pods-order", least=least, most=most)


def _pods_share_weights_evenly(spec: ResolvedSpec) -> None:
    pods = spec["resources.pods"]
    counts = [pods["max"], pods["min"]] if _is_range(pods) else [pods]
    for axis in SHARED_OVER_DCN:
        key = f"resources.mesh.{axis}"
        ways = spec[key]
        wrong = [n for n in counts if isinstance(n, int) and isinstance(ways, int) and n % ways]
        if wrong:
            near = max(n for n in range(1, ways) if wrong[0] % n == 0)
            spec.report(key, "pods-not-divisible", ways=ways, pods=wrong[0], near=near)


def _is_range(pods: Any) -> bool:
    return isinstance(pods, dict) and {"min", "max"} <= pods.keys()


def check_topology(spec: ResolvedSpec, chip: Chip) -> None:
    """Add the problem of a slice that the chip does not have."""
    topology = spec["resources.topology"]
    try:
        if topology not in (None, AUTO_TOPOLOGY):
            catalog.topology(chip, str(topology))
    except NoSuchSlice as error:
        fields = {"topology": topology, "reason": error.reason, "legal": error.help}
        code = "gpu-cluster" if error.is_cluster else "no-such-slice"
        spec.report("resources.topology", code, **fields)


def _shape_is_consistent(spec: ResolvedSpec) -> None:
    model = "experiment.model"
    for key, code, fields in shape_faults(*(spec[f"{model}.{key}"] for key in SHAPE_KEYS)):
        spec.report(f"{model}.{key}", code, name=key, **fields)


def shape_faults(
    heads: int | None, kv_heads: int | None, head_dim: int | None
) -> list[tuple[str, str, dict[str, Any]]]:
    """What is wrong between the sizes of a model: the key, the code and the fields of each."""
    faults: list[tuple[str, str, dict[str, Any]]] = []
    if heads and kv_heads and heads % kv_heads:
        near = max(n for n in range(1, kv_heads) if heads % n == 0)
        fields = {"kv_heads": kv_heads, "heads": heads, "near": near}
        faults.append(("kv_heads", "heads-not-divisible", fields))
    if head_dim and head_dim % 2:
        fields = {"head_dim": head_dim, "even": head_dim + 1}
        faults.append(("head_dim", "head-dim-odd", fields))
    return faults


def _latent_is_consistent(spec: ResolvedSpec) -> None:
    key, model = "experiment.model.latent", spec["experiment.model"]
    if not isinstance(model, dict) or not isinstance(model.get("latent"), dict):
        return
    sizes = {name: spec[f"{key}.{name}"] for name in LATENT_KEYS}
    if None in sizes.values():
        return
    latent = LatentDimensions(**sizes)
    for name, code, fields in latent_faults(latent):
        spec.report(f"{key}.{name}", code, **fields)
    heads, key_heads, width = (model.get(name) for name in SHAPE_KEYS)
    if heads and key_heads and heads != key_heads:
        fields = {"kv_heads": key_heads, "heads": heads, "name": "kv_heads"}
        spec.report("experiment.model.kv_heads", "latent-kv-heads", **fields)
    if width and width != latent.head_dim:
        fields = {"head_dim": width, "nope": latent.nope_dim, "rope": latent.rope_dim,
                  "sum": latent.head_dim}  # fmt: skip
        spec.report("experiment.model.head_dim", "latent-head-dim", **fields)
    for name, usual in UNLIKE_LATENT.items():
        if model.get(name, usual) != usual:
            spec.report(f"experiment.model.{name}", "not-with-latent", name=name)


def latent_faults(latent: LatentDimensions) -> list[tuple[str, str, dict[str, Any]]]:
    """What is wrong with the sizes of latent attention."""
    if latent.rope_dim % 2 == 0:
        return []
    fields = {"head_dim": latent.rope_dim, "even": latent.rope_dim + 1, "name": "rope_dim"}
    return [("rope_dim", "head-dim-odd", fields)]


def _activation_has_its_gate(spec: ResolvedSpec) -> None:
    model = spec["experiment.model"]
    if not isinstance(model, dict) or model.get("activation") != "clamped_swiglu":
        return
    if not model.get("gated", True):
        spec.report("experiment.model.activation", "activation-needs-gate")


def _mixture_is_consistent(spec: ResolvedSpec) -> None:
    key, model = "experiment.model.moe", spec["experiment.model"]
    if not isinstance(model, dict) or not isinstance(model.get("moe"), dict):
        return
    sizes = {name: spec[f"{key}.{name}"] for name in MIXTURE_KEYS}
    if None in sizes.values():
        return
    for name, code, fields in mixture_faults(MixtureOfExperts(**sizes), model.get("layers")):
        spec.report(f"{key}.{name}", code, **fields)


def mixture_faults(
    moe: MixtureOfExperts, layers: int | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What is wrong between the sizes of a mixture: the key, the code and the fields of each."""
    experts, groups = moe.experts, moe.groups
    most = experts // groups * moe.top_groups
    if moe.top_k > experts:
        yield "top_k", "more-chosen", {"chosen": moe.top_k, "of": experts, "name": "experts"}
    elif experts % groups:
        near = max(n for n in range(1, groups) if experts % n == 0)
        yield "groups", "groups-not-divisible", {"groups": groups, "of": experts, "near": near}
    elif moe.top_groups > groups:
        fields: dict[str, Any] = {"chosen": moe.top_groups, "of": groups, "name": "groups"}
        yield "top_groups", "more-chosen", fields
    elif groups > 1 and moe.top_k > most:
        fields = {"chosen": moe.top_k, "of": most, "name": "experts of its groups"}
        yield "top_k", "more-chosen", fields
    if layers and moe.dense_layers + moe.every > layers:
        fields = {"dense_layers": moe.dense_layers, "every": moe.every, "layers": layers}
        yield "dense_layers", "no-mixture", fields


CHECKS: tuple[Check, ...] = (
    _plugins_are_known,
    _tokens_fill_a_batch,
    _learning_rate_falls,
    _data_is_consistent,
    _evaluation_has_its_path,
    _addresses_are_of_buckets,
    _remat_names_tensors_of_the_model,
    _pods_are_in_order,
    _pods_share_weights_evenly,
    _shape_is_consistent,
    _latent_is_consistent,
    _activation_has_its_gate,
    _mixture_is_consistent,
)


# The stages of a spec: written out, and checked. What one leaves out is as in the one before.


SECTIONS = ("batch", "optimizer", "data")
# A stage that changes one of these has a schedule of its own.
SCHEDULE = ("peak_lr", "end_lr", "warmup_steps", "decay")
Values = dict[str, Any]


def written_out(experiment: Values) -> list[Values]:
    """Every stage with all that it leaves out."""
    before: Values = {name: experiment.get(name, {}) for name in SECTIONS}
    stages = []
    for number, entry in enumerate(experiment["stages"]):
        before = _next_stage(before, entry, begins=number == 0)
        stages.append(before)
    return stages


def _next_stage(before: Values, entry: Values, *, begins: bool) -> Values:
    optimizer, data = entry.get("optimizer", {}), entry.get("data", {})
    restarts = not begins and any(key in optimizer for key in SCHEDULE)
    return {
        "tokens": entry.get("tokens"),
        "batch": before["batch"] | _batch(entry),
        "optimizer": before["optimizer"] | ({"warmup_steps": 0} if restarts else {}) | optimizer,
        "data": data if "kind" in data else before["data"] | data,
        "restarts_schedule": restarts,
    }


def _batch(entry: Values) -> Values:
    batch = entry.get("batch", {})
    length = {"length": entry["length"]} if entry.get("length") else {}
    return (batch if isinstance(batch, dict) else {"sequences": batch}) | length


def check_stages(spec: ResolvedSpec) -> None:
    """Add what is wrong with stages to the problems of a spec."""
    entries = spec["experiment.stages"]
    if not entries or not all(isinstance(one, dict) for one in entries):
        return
    stages = written_out(spec["experiment"])
    for number, (entry, stage) in enumerate(zip(entries, stages, strict=True)):
        for key, code, fields in _faults(spec, number, entry, stage, stages[number - 1]):
            spec.report(f"experiment.stages.{number}.{key}", code, **fields)
    tokens, each = spec["experiment.tokens"], [one["tokens"] for one in stages]
    if tokens and all(each) and tokens != sum(each):
        spec.report("experiment.tokens", "tokens-of-stages", tokens=tokens, sum=sum(each))


def _faults(
    spec: ResolvedSpec, number: int, entry: Values, stage: Values, before: Values
) -> Iterator[Fault]:
    yield from _size_faults(entry, stage["batch"])
    yield from batch_faults(stage["tokens"], stage["batch"])
    if "data" in entry:
        kind = stage["data"].get("kind", "synthetic")
        yield from data_faults(spec, stage["data"] | {"kind": kind})
    optimizer, earlier = stage["optimizer"], before["optimizer"]
    if "optimizer" in entry:
        yield from rate_faults(*(_or_default(optimizer, key) for key in ("peak_lr", "end_lr")))
    names = [_or_default(one, "name") for one in (optimizer, earlier)]
    if number and names[0] != names[1]:
        yield "optimizer.name", "stage-optimizer", {"name": names[0], "earlier": names[1]}


def _or_default(optimizer: Values, key: str) -> Any:
    return optimizer.get(key, default(schema_field(("experiment", "optimizer", key)) or {}))


def _size_faults(entry: Values, batch: Values) -> Iterator[Fault]:
    """Sizes of a batch that nobody says, or that two keys say."""
    given = entry.get("batch")
    if isinstance(given, dict) and None not in (given.get("length"), entry.get("length")):
        yield "length", "two-lengths", {"length": entry["length"], "other": given["length"]}
    for key, size in (("batch", "sequences"), ("length", "length")):
        if size not in batch and key not in entry:
            yield key, "stage-without-batch", {"name": key}

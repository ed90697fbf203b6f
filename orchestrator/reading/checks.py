"""Checks of fields together: a fault is a section's key, a code, the message and the hint."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from orchestrator import catalog, plugins
from orchestrator.catalog.chips import Chip
from orchestrator.errors import NoSuchSlice, UnknownName
from orchestrator.network.mesh_axes import MODEL_OVER_DCN
from orchestrator.reading.instance import SpecInstance
from orchestrator.reading.schema import default_of, schema_field
from orchestrator.storage.addresses import is_address, reserved_name
from orchestrator.values.model import LatentDimensions, MixtureOfExperts
from orchestrator.values.spec import AUTO_TOPOLOGY

Fault = tuple[str, str, str, str]
_Values = dict[str, Any]

SHAPE_KEYS = ("heads", "kv_heads", "head_dim")
_LATENT_KEYS = ("kv_rank", "nope_dim", "rope_dim", "value_dim")
_MIXTURE_KEYS = ("experts", "top_k", "groups", "top_groups", "dense_layers", "every")
_WITHOUT_LATENT = {
    "qkv_bias": False, "qk_norm": "none", "rotary_share": 1.0, "global_head_dim": None,
    "global_kv_heads": None, "global_rotary_share": None, "learned_positions": None,
    "keys_as_values": False, "value_norm": False,
}  # fmt: skip  # and its values
_PLUGINS = {"run.trainer": "trainer", "cluster.backend": "backend", "tracking.tracker": "tracker"}
_EXAMPLE_BUCKET = "for example gs://my-bucket/runs"
_NO_BUCKET = (
    "no-such-bucket",
    "is not the address of a bucket, must be a path, or gs:// or s3:// with a bucket and a prefix",
    _EXAMPLE_BUCKET,
)
_PATH_MISSING = (
    "data-path-missing",
    "is missing, must be the manifest of the token set",
    "for example path: tokens/manifest.json",
)
_PATH_UNUSED = (
    "data-path-unused",
    "is given, must be left out for synthetic data",
    "remove it, or write kind: tokens",
)


def check(spec: SpecInstance) -> None:
    for key, kind in _PLUGINS.items():
        name = spec[key]
        try:
            if name is not None:
                plugins.entry_point(kind, name)
        except UnknownName as error:
            known = ", ".join(error.known)
            own = f"a class of your own: my_package.my_module:My{kind.title()}"
            if kind == "trainer":
                own = "a module of your own that defines program: my_package.my_module"
            message = f"is {name!r}, must be a {kind} that can be found"
            spec.report(key, f"unknown-{kind}", message, f"known: {known}; or {own}", known=known)
    batch = spec["experiment.batch"]
    if isinstance(batch, dict):
        _report(spec, "experiment", _batch_faults(spec["experiment.tokens"], batch))
    rates = (spec[f"experiment.optimizer.{key}"] for key in ("peak_lr", "end_lr"))
    _report(spec, "experiment", _rate_faults(*rates))
    data = {key: spec[f"experiment.data.{key}"] for key in ("kind", "path")}
    _report(spec, "experiment", _data_faults(data))
    _check_paths(spec)
    _check_remat(spec)
    pods, least, most = (spec[f"resources.pods{key}"] for key in ("", ".min", ".max"))
    if None not in (least, most) and least > most:
        message, hint = f"is {least}, must be at most the max of {most}", f"for example min: {most}"
        spec.report("resources.pods.min", "pods-order", message, hint)
    is_range = isinstance(pods, dict) and {"min", "max"} <= pods.keys()
    counts = [pods["max"], pods["min"]] if is_range else [pods]
    for axis in MODEL_OVER_DCN:
        key = f"resources.mesh.{axis}"
        ways = spec[key]
        wrong = [n for n in counts if isinstance(n, int) and isinstance(ways, int) and n % ways]
        if wrong:
            near = max(n for n in range(1, ways) if wrong[0] % n == 0)
            message = f"is {ways}, must divide the number of pods, also the fewest: {wrong[0]}"
            spec.report(key, "pods-not-divisible", message, f"for example {near}")
    check_model(spec, "experiment.model")
    _check_stages(spec)


def _report(spec: SpecInstance, section: str, faults: Iterator[Fault]) -> None:
    for key, *fault in faults:
        spec.report(f"{section}.{key}", *fault)


def _batch_faults(tokens: int | None, batch: _Values) -> Iterator[Fault]:
    sequences, length = batch.get("sequences"), batch.get("length")
    if tokens is None or sequences is None or length is None:
        return
    if tokens < (least := sequences * length):
        wanted = f"at least one batch: {sequences:,} x {length:,} = {least:,}"
        message = f"is {tokens:,}, must be {wanted}"
        yield "tokens", "tokens-below-batch", message, f"for example tokens: {least}"


def _rate_faults(peak: float | None, end: float | None) -> Iterator[Fault]:
    if peak is not None and end is not None and end > peak:
        message = f"is {end:g}, must be at most the peak_lr of {peak:g}"
        hint = f"for example end_lr: {peak / 10:g}"
        yield "optimizer.end_lr", "end-above-peak", message, hint


def _data_faults(data: _Values) -> Iterator[Fault]:
    kind, path = data.get("kind"), data.get("path")
    if kind == "tokens" and path is None:
        yield "data.path", *_PATH_MISSING
    if kind == "synthetic" and path is not None:
        yield "data.path", *_PATH_UNUSED
    if has_scheme(path) and not is_address(str(path)):
        yield "data.path", *_NO_BUCKET


def has_scheme(path: object) -> bool:
    return isinstance(path, str) and "://" in path


def _check_paths(spec: SpecInstance) -> None:
    # A run that trains on tokens, in any stage, is evaluated on tokens.
    key, path = "run.evaluation.path", spec["run.evaluation.path"]
    stages = [stage for stage in spec["experiment.stages"] or () if isinstance(stage, dict)]
    sources = [stage["data"] for stage in stages if isinstance(stage.get("data"), dict)]
    kinds = {spec["experiment.data.kind"], *(source.get("kind") for source in sources)}
    if "tokens" in kinds and path is None and spec["run.evaluation"] is not None:
        spec.report(key, *_PATH_MISSING)
    if "tokens" not in kinds and path is not None:
        spec.report(key, *_PATH_UNUSED)
    # An address of no bucket would be taken for a folder of that name, another one on each host.
    for key in ("run.storage", "run.evaluation.path", "experiment.start.huggingface"):
        if has_scheme(spec[key]) and not is_address(spec[key]):
            spec.report(key, *_NO_BUCKET)
    runs = spec["run.storage"] or ""
    if is_address(runs) and (name := reserved_name(runs)):
        kept = "which the copies of buckets keep for this machine's own files"
        message = f"has a folder called {name}, {kept}"
        spec.report("run.storage", "reserved-name", message, _EXAMPLE_BUCKET)


def _check_remat(spec: SpecInstance) -> None:
    model, remat = spec["experiment.model"], spec["experiment.remat"]
    if not isinstance(remat, dict) or model is None:
        return
    shape = asdict(catalog.model(model)) if isinstance(model, str) else model
    name = model if isinstance(model, str) else model.get("name", "the model")
    if "gate" in remat and not shape.get("gated", True):
        message = f"is given, must be left out: the MLP of {name} is not gated"
        spec.report("experiment.remat.gate", "no-such-tensor", message, "remove it")
    if remat.get("latent", "recompute") != "recompute" and shape.get("latent") is None:
        message = f"is given, must be left out: {name} has no latent attention"
        spec.report("experiment.remat.latent", "no-latent", message, "remove it")


def check_topology(spec: SpecInstance, chip: Chip) -> None:
    topology = spec["resources.topology"]
    try:
        if topology not in (None, AUTO_TOPOLOGY):
            catalog.topology(chip, str(topology))
    except NoSuchSlice as error:
        code = "gpu-cluster" if error.is_cluster else "no-such-slice"
        message = f"is {topology}, must be a slice that exists: {error.reason}"
        if error.is_cluster:
            message = f"is {topology}, must fit into one NVLink domain: {error.reason}"
        spec.report("resources.topology", code, message, error.help, topology=topology)


def check_model(spec: SpecInstance, key: str) -> None:
    """Report what is wrong with the shape of the model under a key."""
    model = spec[key]
    sizes = [spec[f"{key}.{name}"] for name in SHAPE_KEYS]
    _report(spec, key, shape_faults(*sizes))
    if not isinstance(model, dict):
        return
    # The sizes of global layers, and an MLP next to experts.
    moe = model.get("moe")
    sizes = [model.get(name) for name in ("heads", "global_kv_heads", "global_head_dim")]
    _report(spec, key, shape_faults(*sizes, of="global_"))
    if isinstance(moe, dict) and moe.get("with_mlp"):
        if model.get("norm_placement") != "both":
            message = "must be both where a mixture has an MLP next to it"
            hint = "norm_placement: both"
            spec.report(f"{key}.norm_placement", "mlp-needs-norms", message, hint)
        if moe.get("shared_experts"):
            message = "must be left out where a mixture has an MLP next to it"
            hint = "leave it out, or with_mlp"
            spec.report(f"{key}.moe.shared_experts", "two-shared-mlps", message, hint)
    if isinstance(model.get("latent"), dict):
        latent = {name: spec[f"{key}.latent.{name}"] for name in _LATENT_KEYS}
        if None not in latent.values():
            _check_latent(spec, key, model, LatentDimensions(**latent))
    if model.get("activation") == "clamped_swiglu" and not model.get("gated", True):
        message = "is a function of gate and up, must have gated: true"
        hint = "for example gated: true"
        spec.report(f"{key}.activation", "activation-needs-gate", message, hint)
    if isinstance(moe, dict):
        mixture = {name: spec[f"{key}.moe.{name}"] for name in _MIXTURE_KEYS}
        if None not in mixture.values():
            faults = mixture_faults(MixtureOfExperts(**mixture), model.get("layers"))
            _report(spec, f"{key}.moe", faults)


def shape_faults(
    heads: int | None, kv_heads: int | None, head_dim: int | None, *, of: str = ""
) -> Iterator[Fault]:
    if heads and kv_heads and heads % kv_heads:
        near = max(n for n in range(1, kv_heads) if heads % n == 0)
        message, hint = f"is {kv_heads}, must divide the {heads} heads", f"{of}kv_heads: {near}"
        yield f"{of}kv_heads", "heads-not-divisible", message, f"for example {hint}"
    if head_dim and head_dim % 2:
        yield f"{of}head_dim", *_odd(f"{of}head_dim", head_dim)


def _odd(name: str, size: int) -> tuple[str, str, str]:
    message = f"is {size}, must be even: RoPE turns pairs"
    return "head-dim-odd", message, f"for example {name}: {size + 1}"


def latent_faults(
    latent: LatentDimensions, heads: int | None, kv_heads: int | None
) -> Iterator[Fault]:
    if latent.rope_dim % 2:
        yield "rope_dim", *_odd("rope_dim", latent.rope_dim)
    if heads and kv_heads and heads != kv_heads:
        why = "latent attention has keys and values for each"
        message = f"is {kv_heads}, must be the {heads} heads: {why}"
        yield "kv_heads", "latent-kv-heads", message, f"for example kv_heads: {heads}"


def _check_latent(spec: SpecInstance, key: str, model: _Values, latent: LatentDimensions) -> None:
    heads, kv_heads, width = (model.get(name) for name in SHAPE_KEYS)
    for name, *fault in latent_faults(latent, heads, kv_heads):
        spec.report(f"{key}.{'latent.' * (name == 'rope_dim')}{name}", *fault)
    if width and width != latent.head_dim:
        parts = f"{latent.nope_dim} + {latent.rope_dim}"
        message = f"is {width}, must be nope_dim + rope_dim: {parts}"
        hint = f"for example head_dim: {latent.head_dim}"
        spec.report(f"{key}.head_dim", "latent-head-dim", message, hint)
    for name, usual in _WITHOUT_LATENT.items():
        if model.get(name, usual) != usual:
            why = "applies to grouped-query attention only"
            message = f"{why}, must be left out with latent attention"
            hint = f"leave out {name}, or latent"
            spec.report(f"{key}.{name}", "not-with-latent", message, hint)


def mixture_faults(moe: MixtureOfExperts, layers: int | None) -> Iterator[Fault]:
    experts, groups = moe.experts, moe.groups
    in_groups = experts // groups * moe.top_groups
    if moe.top_k > experts:
        yield "top_k", *_more_chosen(moe.top_k, experts, "experts")
    elif experts % groups:
        near = max(n for n in range(1, groups) if experts % n == 0)
        message = f"is {groups}, must divide the {experts} experts"
        yield "groups", "groups-not-divisible", message, f"for example {near}"
    elif moe.top_groups > groups:
        yield "top_groups", *_more_chosen(moe.top_groups, groups, "groups")
    elif groups > 1 and moe.top_k > in_groups:
        yield "top_k", *_more_chosen(moe.top_k, in_groups, "experts of its groups")
    if layers and moe.dense_layers + moe.every > layers:
        among = f"{layers} layers with every {moe.every}"
        message = f"is {moe.dense_layers}, which leaves no mixture among {among}"
        yield "dense_layers", "no-mixture", message, "lower dense_layers or every"


def _more_chosen(chosen: int, most: int, name: str) -> tuple[str, str, str]:
    return "more-chosen", f"is {chosen}, must be at most the {most} {name}", f"for example {most}"


# The stages of a spec: written out, and checked. What one leaves out is as in the one before.

SECTIONS = ("batch", "optimizer", "data")
# A stage that changes one of these has a schedule of its own.
SCHEDULE = ("peak_lr", "end_lr", "warmup_steps", "decay")


def written_out(experiment: _Values) -> list[_Values]:
    """Return every stage with all that it leaves out."""
    stages: list[_Values] = []
    for entry in experiment["stages"]:
        before = stages[-1] if stages else {name: experiment.get(name, {}) for name in SECTIONS}
        batch, optimizer = entry.get("batch", {}), entry.get("optimizer", {})
        if not isinstance(batch, dict):
            batch = {"sequences": batch}
        if entry.get("length"):
            batch = batch | {"length": entry["length"]}
        restarts = bool(stages) and any(key in optimizer for key in SCHEDULE)
        if restarts:
            optimizer = {"warmup_steps": 0} | optimizer
        data = entry.get("data", {})
        stages.append(
            {
                "tokens": entry.get("tokens"),
                "batch": before["batch"] | batch,
                "optimizer": before["optimizer"] | optimizer,
                "data": data if "kind" in data else before["data"] | data,
                "restarts_schedule": restarts,
            }
        )
    return stages


def _check_stages(spec: SpecInstance) -> None:
    entries = spec["experiment.stages"]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return
    stages = written_out(spec["experiment"])
    usual = {
        key: default_of(schema_field("experiment", "optimizer", key))
        for key in ("name", "peak_lr", "end_lr")
    }
    for number, (entry, stage) in enumerate(zip(entries, stages, strict=True)):
        section, given = f"experiment.stages.{number}", entry.get("batch")
        if isinstance(given, dict) and None not in (given.get("length"), entry.get("length")):
            message = f"is {entry['length']:,}, and the batch's length is {given['length']:,}"
            spec.report(f"{section}.length", "two-lengths", message, "remove one of them")
        for key, size in (("batch", "sequences"), ("length", "length")):
            if size not in stage["batch"] and key not in entry:
                message = "is missing, must be in the first stage or in experiment.batch"
                hint = f"for example {key}: 4096"
                spec.report(f"{section}.{key}", "stage-without-batch", message, hint)
        _report(spec, section, _batch_faults(stage["tokens"], stage["batch"]))
        if "data" in entry:
            _report(spec, section, _data_faults({"kind": "synthetic"} | stage["data"]))
        optimizer, before = (
            usual | each["optimizer"] for each in (stage, stages[max(number - 1, 0)])
        )
        if "optimizer" in entry:
            _report(spec, section, _rate_faults(optimizer["peak_lr"], optimizer["end_lr"]))
        if optimizer["name"] != before["name"]:
            why = "a state has moments of one optimizer"
            message = f"is {optimizer['name']}, must be {before['name']} in every stage: {why}"
            spec.report(f"{section}.optimizer.name", "stage-optimizer", message, "remove it")
    tokens, each = spec["experiment.tokens"], [stage["tokens"] for stage in stages]
    if tokens and all(each) and tokens != sum(each):
        message = f"is {tokens:,}, must be the sum of all stages: {sum(each):,}"
        hint = f"leave it out, or write tokens: {sum(each)}"
        spec.report("experiment.tokens", "tokens-of-stages", message, hint)

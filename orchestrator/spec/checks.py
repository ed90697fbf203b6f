"""Spec room: what a contract of single fields cannot say: how fields must go together."""

from collections.abc import Callable

from orchestrator import catalog, trainer_registry
from orchestrator.catalog import Chip
from orchestrator.errors import NoSuchSlice, UnknownName
from orchestrator.spec.request import SpecRequest

Check = Callable[[SpecRequest], None]


def check(asked: SpecRequest) -> None:
    """Add every contradiction to a spec's problems."""
    for one in CHECKS:
        one(asked)


def _tokens_fill_a_batch(asked: SpecRequest) -> None:
    batch = asked["experiment.batch.sequences"], asked["experiment.batch.length"]
    tokens = asked["experiment.tokens"]
    if None in (*batch, tokens):
        return
    least = batch[0] * batch[1]
    if tokens < least:
        message = f"is {tokens:,}, must be at least one batch: {batch[0]:,} x {batch[1]:,}"
        asked.tell("experiment.tokens", f"{message} = {least:,}", f"for example tokens: {least}")


def _learning_rate_falls(asked: SpecRequest) -> None:
    peak, end = asked["experiment.optimizer.peak_lr"], asked["experiment.optimizer.end_lr"]
    if None not in (peak, end) and end > peak:
        message = f"is {end:g}, must be at most the peak_lr of {peak:g}"
        asked.tell("experiment.optimizer.end_lr", message, f"for example end_lr: {peak / 10:g}")


def _data_has_its_path(asked: SpecRequest) -> None:
    kind, path = asked["experiment.data.kind"], asked["experiment.data.path"]
    if kind == "tokens" and path is None:
        message = "is missing, must be the manifest of the token set"
        asked.tell("experiment.data.path", message, "for example path: tokens/manifest.json")
    if kind == "synthetic" and path is not None:
        message = "is given, must be left out for synthetic data"
        asked.tell("experiment.data.path", message, "remove it, or set kind: tokens")


def _pods_are_in_order(asked: SpecRequest) -> None:
    least, most = asked["resources.pods.min"], asked["resources.pods.max"]
    if None not in (least, most) and least > most:
        message = f"is {least}, must be at most the max of {most}"
        asked.tell("resources.pods.min", message, f"for example min: {most}")


def check_topology(asked: SpecRequest, chip: Chip) -> None:
    """Add the problem of a slice that the chip does not have."""
    topology = asked["resources.topology"]
    try:
        if topology is not None:
            catalog.topology(chip, str(topology))
    except NoSuchSlice as error:
        message = f"is {topology}, must be a slice that exists: {error.reason}"
        asked.tell("resources.topology", message, error.help)


def _shape_is_sound(asked: SpecRequest) -> None:
    model = "experiment.model"
    for key, message, hint in shape_faults(*(asked[f"{model}.{key}"] for key in SHAPE_KEYS)):
        asked.tell(f"{model}.{key}", message, hint)


SHAPE_KEYS = ("heads", "kv_heads", "head_dim")


def shape_faults(
    heads: int | None, kv_heads: int | None, head_dim: int | None
) -> list[tuple[str, str, str]]:
    """What is wrong between the sizes of a model: key, message and hint of each."""
    faults = []
    if heads and kv_heads and heads % kv_heads:
        near = max(n for n in range(1, kv_heads) if heads % n == 0)
        message = f"is {kv_heads}, must divide the {heads} heads"
        faults.append(("kv_heads", message, f"for example kv_heads: {near}"))
    if head_dim and head_dim % 2:
        message = f"is {head_dim}, must be even: RoPE turns pairs"
        faults.append(("head_dim", message, f"for example head_dim: {head_dim + 1}"))
    return faults


def _trainer_is_known(asked: SpecRequest) -> None:
    name = asked["run.trainer"]
    if name is None:
        return
    try:
        trainer_registry.find(name)
    except UnknownName as error:
        message = f"is {name!r}, must be a trainer that can be found"
        hint = f"known: {', '.join(error.known)}; or the module of your own: my_package.my_module"
        asked.tell("run.trainer", message, hint)


CHECKS: tuple[Check, ...] = (
    _tokens_fill_a_batch,
    _learning_rate_falls,
    _data_has_its_path,
    _pods_are_in_order,
    _shape_is_sound,
    _trainer_is_known,
)

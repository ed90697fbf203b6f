"""A plan as a run of MaxText, or the keys of its spec that MaxText has no words for."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.interop.maxtext.conversion import comparable, convert
from orchestrator.interop.maxtext.exported_keys import keys_of_plan, model_of_plan, treated
from orchestrator.interop.maxtext.recipe import Recipe, RecipeProblems, Setting
from orchestrator.interop.maxtext.used_keys import CHIPS
from orchestrator.network.mesh_axes import OPTIONAL_AXES, sizes
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Batch, Experiment

_ROUNDED = 1e-9
# Fields of a model that only some blocks of MaxText have, by the key that other blocks ignore.
_OF_BLOCKS = {
    "mlp_activations": "activation",
    "mlp_bias": "mlp_bias",
    "use_qk_norm": "qk_norm",
    "attention_bias": "qkv_bias",
    "attn_logits_soft_cap": "attention_cap",
    "num_experts": "moe",
}
_TRAIN = "python3 -m maxtext.trainers.pre_train.train"
_CONFIG = "src/maxtext/configs/base.yml"


@dataclass(frozen=True)
class _Unsaid:
    key: str
    value: str
    why: str
    place: str = ""

    @property
    def text(self) -> str:
        return f"{self.place + ': ' if self.place else ''}{self.key}={self.value}: {self.why}"


class NotForMaxText(SpecError):
    """All that keeps a plan from being a run of MaxText, a line each."""

    def __init__(self, unsaid: tuple[_Unsaid, ...]) -> None:
        self.unsaid = unsaid
        super().__init__("\n".join(reason.text for reason in unsaid))


class MaxTextRun(Value):
    """A run of MaxText. xpk calls the slices `device`, the ahead-of-time compiler `topology`."""

    name: str
    keys: Mapping[str, Any]
    flags: Mapping[str, bool | int | float | str]
    device: str
    topology: str
    slices: int

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(f"{key}={_text(value)}" for key, value in self.keys.items())

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(f"--{name}={_text(value)}" for name, value in self.flags.items())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return str(value)


def run_of(plan: Plan, place_of: Callable[[str], str] = lambda _: "") -> MaxTextRun:
    """Return the plan for MaxText, or raise `NotForMaxText`; `place_of` says where a key stands."""
    unsaid = tuple(_without_keys(plan))
    if not unsaid:
        # The slice as xpk calls it, and as MaxText's ahead-of-time compiler does. A name may be
        # another shape of the same size: xpk then gets the shape, which MaxText lacks.
        chip = catalog.chip(plan.chip)
        size = plan.chips // plan.pods * chip.slices.named_per_chip
        names = [theirs for theirs, known in CHIPS.items() if known == plan.chip]
        usual = str(catalog.topology(chip, f"{chip.slices.names[0]}-{size}")) == plan.topology
        run = MaxTextRun(
            name=plan.name,
            keys=keys_of_plan(plan),
            flags=plan.compiler_options,
            device=f"{names[0]}-{plan.topology if chip.torus_axes > 2 else size}",
            topology=f"{names[-1]}-{size}" if usual else "",
            slices=plan.pods,
        )
        unsaid = tuple(_lost(plan, run))
    if unsaid:
        raise NotForMaxText(tuple(replace(found, place=place_of(found.key)) for found in unsaid))
    return run


def _without_keys(plan: Plan) -> Iterator[_Unsaid]:
    """Yield what no key is about, so that nothing would come back from the keys."""
    if plan.chip not in CHIPS.values():
        known = ", ".join(dict.fromkeys(CHIPS.values()))
        yield _Unsaid("resources.chip", plan.chip, f"MaxText's chips are {known}")
    why = "MaxText has another schedule of pipelines, and other axes between slices: leave it out"
    cut = {axis: size for axis, size in sizes(plan.mesh, OPTIONAL_AXES).items() if size > 1}
    yield from (_Unsaid(f"resources.mesh.{axis}", str(size), why) for axis, size in cut.items())
    if plan.stages:
        yield _Unsaid("experiment.stages", str(len(plan.stages)), "a run of MaxText has one stage")
    if plan.data.kind != "synthetic":
        yield _Unsaid("experiment.data.kind", plan.data.kind, "MaxText reads no such token set")
    if plan.start is not None:
        key, why = "experiment.start.huggingface", "MaxText starts from its own checkpoints"
        yield _Unsaid(key, plan.start.huggingface, why)
    if plan.optimizer.name != "adamw":
        yield _Unsaid("experiment.optimizer.name", plan.optimizer.name, "only AdamW is exported")
    if plan.batch.microbatches > 1 and plan.precision.compute == "fp8":
        count = str(plan.batch.microbatches)
        yield _Unsaid("experiment.batch.microbatches", count, "MaxText has one with fp8")
    # Sizes that the plan pads or replicates so that `tensor` divides them, and MaxText does not.
    model, parts = plan.model, plan.mesh["tensor"]
    split = {"vocab": model.vocab} | ({} if model.latent else {"kv_heads": model.kv_heads})
    for name, size in split.items():
        if size % parts:
            why = f"MaxText splits {name} {size:,} into equal parts, and {parts} does not divide it"
            yield _Unsaid("resources.mesh.tensor", str(parts), why)


def _lost(plan: Plan, run: MaxTextRun) -> Iterator[_Unsaid]:
    """Yield what does not come back when the run's script is read again."""
    recipe = Recipe(
        keys={key: Setting(value, "") for key, value in run.keys.items()},
        flags={name: Setting(value, "") for name, value in run.flags.items()},
        device=run.device,
        slices=run.slices,
    )
    try:
        imported = convert(recipe).values["experiment"]
    except RecipeProblems as error:
        for refused in dict.fromkeys(error.refused):
            key = _OF_BLOCKS.get(refused, "name")
            value = str(getattr(plan.model, key))
            yield _Unsaid(f"experiment.model.{key}", value, "no such block of MaxText has it")
        return
    # What the plan trains, in the form that comes back.
    batch, libtpu = plan.batch, catalog.chip(plan.chip).libtpu
    own = {name: option.value for name, option in libtpu.options.items()} if libtpu else {}
    options = plan.compiler_options
    wanted = _leaves(
        Experiment(
            model=model_of_plan(plan),
            tokens=plan.total_steps * batch.tokens,
            batch=Batch(
                sequences=batch.sequences, length=batch.length, microbatches=batch.microbatches
            ),
            optimizer=plan.optimizer,
            precision=plan.precision,
            remat=plan.remat,
            compiler_options={k: v for k, v in options.items() if k not in own or v != own[k]},
            seed=plan.seed,
        )
    )
    got = _leaves(msgspec.convert(imported, Experiment, strict=False))
    for key in sorted(wanted.keys() | got.keys()):
        ours, theirs = wanted.get(key), got.get(key)
        is_same = ours == theirs
        if isinstance(ours, float) and isinstance(theirs, float):  # shares are rounded
            is_same = math.isclose(ours, theirs, rel_tol=_ROUNDED)
        if not is_same:
            value = "null" if ours is None else str(ours)
            yield _Unsaid(f"experiment.{key}", value, "no key of MaxText says it")


def _leaves(experiment: Experiment) -> dict[str, Any]:
    """Return each value by its key; policies by what they do to the tensors of such a model."""
    model = comparable(experiment.model)
    plain = replace(experiment, model=model, remat="")
    return _flat("", asdict(plain)) | _flat("remat", treated(experiment.remat, model))


def _flat(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {key: value}
    inner = (_flat(f"{key}.{name}" if key else name, inside) for name, inside in value.items())
    return {name: inside for part in inner for name, inside in part.items()}


def script_of(run: MaxTextRun) -> str:
    """Return the shell script that starts the run with xpk; its user sets cluster and bucket."""
    words = " \\\n".join(run.words)
    flags = " \\\n".join(run.options)
    ahead = ""
    if run.topology:  # MaxText compiles the run without chips, where it knows such slices
        slices = f"compile_topology={run.topology} compile_topology_num_slices={run.slices}"
        given = ' compile_xla_flags="$XLA_FLAGS"' if run.flags else ""
        command = f"{_TRAIN}_compile {_CONFIG} $MAXTEXT_ARGS {slices}{given}"
        ahead = f"# To compile it without chips:\n# {command}\n"
    return f"""\
#!/bin/bash
# {run.name}: {run.slices} x {run.device}, as it is planned.
# It needs CLUSTER_NAME and BASE_OUTPUT_DIR, trains on random tokens, and saves no checkpoints.
{ahead}set -eu
XLA_FLAGS="{flags}"
MAXTEXT_ARGS="\\
{words} \\
base_output_directory=${{BASE_OUTPUT_DIR}}"

xpk workload create \\
  --cluster=${{CLUSTER_NAME}} \\
  --workload={run.name} \\
  --device-type={run.device} \\
  --num-slices={run.slices} \\
  --command="export LIBTPU_INIT_ARGS='${{XLA_FLAGS}}' && \\
{_TRAIN} {_CONFIG} ${{MAXTEXT_ARGS}}"
"""

"""A plan as a run of MaxText, or the keys of its spec that MaxText has no words for."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.interop.maxtext.conversion import ImportedSpec, convert
from orchestrator.interop.maxtext.exported_keys import keys_of_plan, model_of_plan, treated
from orchestrator.interop.maxtext.recipe import Recipe, RecipeProblems, Setting
from orchestrator.interop.maxtext.shape import comparable
from orchestrator.interop.maxtext.used_keys import CHIPS
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Batch, Experiment

ROUNDED = 1e-9
# What no block of MaxText's has, by the key that its block would ignore.
OF_BLOCKS = {
    "mlp_activations": "activation",
    "mlp_bias": "mlp_bias",
    "use_qk_norm": "qk_norm",
    "attention_bias": "qkv_bias",
    "attn_logits_soft_cap": "attention_cap",
    "num_experts": "moe",
}


@dataclass(frozen=True)
class Unsaid:
    """A key of a spec that MaxText has no words for, with its place in the file."""

    key: str
    value: str
    why: str
    place: str = ""

    @property
    def text(self) -> str:
        return f"{self.place + ': ' if self.place else ''}{self.key}={self.value}: {self.why}"


class NotForMaxText(SpecError):
    """All that keeps a plan from being a run of MaxText, a line each."""

    def __init__(self, unsaid: tuple[Unsaid, ...]) -> None:
        self.unsaid = unsaid
        super().__init__("\n".join(one.text for one in unsaid))


@dataclass(frozen=True, kw_only=True)
class MaxTextRun:
    """A run of MaxText: its keys, the compiler's flags, and its slices.

    xpk calls them `device`, MaxText's ahead-of-time compiler `topology`.
    """

    name: str
    keys: Mapping[str, Any]
    flags: Mapping[str, bool | int | float | str]
    device: str
    topology: str
    slices: int

    @property
    def words(self) -> tuple[str, ...]:
        """The keys as words of a command."""
        return tuple(f"{key}={_text(value)}" for key, value in self.keys.items())

    @property
    def options(self) -> tuple[str, ...]:
        """The flags as words of LIBTPU_INIT_ARGS."""
        return tuple(f"--{name}={_text(value)}" for name, value in self.flags.items())


def run_of(plan: Plan, place_of: Callable[[str], str] = lambda _: "") -> MaxTextRun:
    """The plan as a run of MaxText; `NotForMaxText` lists the keys that it has no words for.

    `place_of` tells where a key stands.
    """
    unsaid = tuple(_not_for_maxtext(plan))
    if not unsaid:
        run = _run(plan)
        unsaid = tuple(_lost(plan, run))
    if unsaid:
        raise NotForMaxText(tuple(replace(one, place=place_of(one.key)) for one in unsaid))
    return run


def _run(plan: Plan) -> MaxTextRun:
    device, topology = _device(plan)
    return MaxTextRun(
        name=plan.name, keys=keys_of_plan(plan), flags=plan.compiler_options,
        device=device, topology=topology, slices=plan.pods,
    )  # fmt: skip


def _not_for_maxtext(plan: Plan) -> Iterator[Unsaid]:
    """What no key is about, so that nothing would come back from the keys."""
    if plan.chip not in CHIPS.values():
        known = ", ".join(dict.fromkeys(CHIPS.values()))
        yield Unsaid("resources.chip", plan.chip, f"MaxText's chips are {known}")
    if plan.stages:
        yield Unsaid("experiment.stages", str(len(plan.stages)), "a run of MaxText has one stage")
    if plan.data.kind != "synthetic":
        yield Unsaid("experiment.data.kind", plan.data.kind, "MaxText reads no such token set")
    if plan.start is not None:
        start = plan.start.huggingface
        yield Unsaid(
            "experiment.start.huggingface", start, "MaxText starts from its own checkpoints"
        )
    if plan.optimizer.name != "adamw":
        name = plan.optimizer.name
        yield Unsaid("experiment.optimizer.name", name, "AdamW alone is exported")
    if plan.batch.microbatches > 1 and plan.precision.compute == "fp8":
        count = str(plan.batch.microbatches)
        yield Unsaid("experiment.batch.microbatches", count, "MaxText has one with fp8")
    yield from _undivided(plan)


def _undivided(plan: Plan) -> Iterator[Unsaid]:
    """Sizes that the plan pads or copies so that `tensor` divides them, and MaxText does not."""
    model, parts = plan.model, plan.mesh["tensor"]
    split = {"vocab": model.vocab} | ({} if model.latent else {"kv_heads": model.kv_heads})
    for name, size in split.items():
        if size % parts:
            why = f"MaxText splits {name} {size:,} into equal parts, and {parts} does not divide it"
            yield Unsaid("resources.mesh.tensor", str(parts), why)


def _lost(plan: Plan, run: MaxTextRun) -> Iterator[Unsaid]:
    """What does not come back when the keys are read again."""
    try:
        found = convert(recipe_of(run))
    except RecipeProblems as error:
        for refused in dict.fromkeys(error.refused):
            key = OF_BLOCKS.get(refused, "name")
            value = str(getattr(plan.model, key))
            yield Unsaid(f"experiment.model.{key}", value, "no such block of MaxText has it")
        return
    wanted, got = _leaves(_planned(plan)), _leaves(_imported(found))
    for key in sorted(wanted.keys() | got.keys()):
        if not _is_same(wanted.get(key), got.get(key)):
            value = "null" if wanted.get(key) is None else str(wanted[key])
            yield Unsaid(f"experiment.{key}", value, "no key of MaxText says it")


def recipe_of(run: MaxTextRun) -> Recipe:
    """What is read from the run's script."""
    return Recipe(
        keys={key: Setting(value, "") for key, value in run.keys.items()},
        flags={name: Setting(value, "") for name, value in run.flags.items()},
        device=run.device,
        slices=run.slices,
    )


def _planned(plan: Plan) -> Experiment:
    """What the plan trains, in the form that comes back."""
    batch = plan.batch
    own = {name: one.value for name, one in _chip_options(plan).items()}
    options = plan.compiler_options
    return Experiment(
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


def _imported(found: ImportedSpec) -> Experiment:
    return msgspec.convert(found.values["experiment"], Experiment, strict=False)


def _leaves(experiment: Experiment) -> dict[str, Any]:
    """Each value by its key; policies by what they do to the tensors of such a model."""
    model = comparable(experiment.model)
    plain = replace(experiment, model=model, remat="")
    return _flat("", asdict(plain)) | _flat("remat", treated(experiment.remat, model))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; rates come back from shares, which are rounded."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=ROUNDED)
    return bool(one == other)


def _flat(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {key: value}
    inner = (_flat(f"{key}.{name}" if key else name, one) for name, one in value.items())
    return {name: one for part in inner for name, one in part.items()}


def _device(plan: Plan) -> tuple[str, str]:
    """The slice as xpk calls it, and as MaxText's ahead-of-time compiler does.

    A name may be another shape of as many chips: xpk then gets the shape, which MaxText lacks.
    """
    chip = catalog.chip(plan.chip)
    size = plan.chips // plan.pods * chip.slices.named_per_chip
    names = [theirs for theirs, known in CHIPS.items() if known == plan.chip]
    usual = str(catalog.topology(chip, f"{chip.slices.names[0]}-{size}")) == plan.topology
    of_xpk = f"{names[0]}-{plan.topology if chip.torus_axes > 2 else size}"
    return of_xpk, f"{names[-1]}-{size}" if usual else ""


def _chip_options(plan: Plan) -> Mapping[str, Any]:
    chip = catalog.chip(plan.chip)
    return chip.libtpu.options if chip.libtpu else {}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return str(value)


# A run of MaxText as the shell script that starts it with xpk.


TRAIN = "python3 -m maxtext.trainers.pre_train.train"
COMPILE = "python3 -m maxtext.trainers.pre_train.train_compile"
CONFIG = "src/maxtext/configs/base.yml"


def script_of(run: MaxTextRun) -> str:
    """The script. The cluster and the bucket are for whoever runs it to set."""
    words = " \\\n".join(run.words)
    flags = " \\\n".join(run.options)
    return f"""\
#!/bin/bash
# {run.name}: {run.slices} x {run.device}, as it is planned.
# It needs CLUSTER_NAME and BASE_OUTPUT_DIR, trains on random tokens, and saves no checkpoints.
{_ahead_of_time(run)}set -eu
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
{TRAIN} {CONFIG} ${{MAXTEXT_ARGS}}"
"""


def _ahead_of_time(run: MaxTextRun) -> str:
    """How MaxText compiles the run without chips, where it knows such slices."""
    if not run.topology:
        return ""
    slices = f"compile_topology={run.topology} compile_topology_num_slices={run.slices}"
    flags = ' compile_xla_flags="$XLA_FLAGS"' if run.flags else ""
    return f"# To compile it without chips:\n# {COMPILE} {CONFIG} $MAXTEXT_ARGS {slices}{flags}\n"

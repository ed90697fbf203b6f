"""What needs no run: load, plan, explain, prove, score, calibrate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import date

    from orchestrator.evidence.explain.formula import Explanation
    from orchestrator.evidence.score.samples import Score
    from orchestrator.interop.kubernetes import ManifestKind
    from orchestrator.interop.maxtext.conversion import ImportedSpec
    from orchestrator.interop.maxtext.exported_run import MaxTextRun
    from orchestrator.planning.diff_plans import PlanDiff
    from orchestrator.planning.odds import DeadlineOdds, Offers
    from orchestrator.proving.diff_proofs import ProofDiff
    from orchestrator.proving.verdict import ProofResult
    from orchestrator.reading.expectations import KeyHelp
    from orchestrator.run.calibrate import StoredProfile
    from orchestrator.run.progress import Progress
    from orchestrator.values.plan import Plan
    from orchestrator.values.spec import Spec
    from orchestrator.values.study import ScalingForecast, SweepForecast

SpecSource: TypeAlias = "str | Path | Spec"  # the path of a spec, or a spec that was loaded


def load(path: str | Path, overrides: Sequence[str] = ()) -> "Spec":
    """The spec in a YAML file. `overrides` are `key=value`, as after `--set`."""
    from orchestrator.reading.load import load as load_spec

    return load_spec(Path(path), tuple(overrides))


def examples() -> dict[str, str]:
    """The example specs that travel with orch, by name, each with what it is about."""
    from orchestrator.reading.examples import examples as all_examples

    return all_examples()


def create_spec(
    path: str | Path | None = None, example: str | None = None, overrides: Sequence[str] = ()
) -> Path:
    """Write the commented starter, an example, or the spec of a file as a new spec; its path.

    Without a path the file is named after the example. An existing file is never overwritten.
    """
    from orchestrator.reading.examples import create

    return create(Path(path) if path else None, example, overrides)


def schema(name: str = "spec") -> str:
    """The JSON Schema of a `spec`, a `study`, or a value that a command prints with --json."""
    from orchestrator.reading.schema import schema_text, study_schema_text
    from orchestrator.run.output_schemas import output_schema_text

    texts = {"spec": schema_text, "study": study_schema_text}
    return texts[name]() if name in texts else output_schema_text(name)


def key_help(key: str) -> "list[KeyHelp]":
    """What a key of a spec, and those below it, mean and must be."""
    from orchestrator.reading.expectations import help_about

    return help_about(key)


def is_study(path: str | Path) -> bool:
    """Whether a YAML file describes a study rather than one spec."""
    from orchestrator.reading.load import is_study as describes_study

    return describes_study(Path(path))


def plan(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    profile: str | None = None,
    stage: int | None = None,
) -> "Plan":
    """The fastest realizable plan of a spec; `SpecError` says why there is none.

    `profile` names a chip profile that `calibrate` measured: the forecast then stands on it.
    `stage` is the number of one stage, from 1: the plan is then that of the stage in its place.
    """
    return plans(spec, 1, overrides, profile=profile, stage=stage)[0]


def plans(
    spec: SpecSource,
    count: int = 6,
    overrides: Sequence[str] = (),
    *,
    profile: str | None = None,
    stage: int | None = None,
) -> "list[Plan]":
    """The plan of a spec or of one stage and its runners-up, at most `count`, fastest first."""
    from orchestrator.planning.planner import make_plans, make_stage_plans

    loaded = _loaded(spec, overrides)
    made = make_stage_plans(loaded, stage, count) if stage else make_plans(loaded, count)
    if profile is None:
        return made
    from orchestrator.planning.calibrated import with_own_profile
    from orchestrator.run.calibrate import find

    measured = find(profile).profile
    return [with_own_profile(one, measured) for one in made]


def deadline_odds(spec: SpecSource, made: "Plan | None" = None) -> "DeadlineOdds | None":
    """How likely a run of a spec that begins now ends by `run.deadline`; None without one.

    `made` is the plan of the spec, where there is one already.
    """
    from datetime import UTC, datetime

    from orchestrator.planning.odds import deadline_odds as odds
    from orchestrator.reading.offer_options import days_to_deadline

    loaded = _loaded(spec)
    deadline = loaded.run.deadline
    if deadline is None:
        return None
    today = datetime.now(UTC).date()
    return odds(made or plan(loaded), deadline, days_to_deadline(deadline, today))


def offers(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    by: "str | float | date | None" = None,
    budget: str | float | None = None,
    chips: str | Sequence[str] | None = None,
    prices: str | None = None,
) -> "Offers":
    """What one may rent for a spec: each offer with its plan, days, dollars and odds.

    `by` is a duration (`30d`, or a number of days) or a date, and `run.deadline` where it is left
    out; `budget` is dollars (`2M`, or a number).
    `chips` are names of TPUs; `prices` are `on-demand`, `reserved`, `spot`, or a YAML file.
    """
    from datetime import UTC, datetime

    from orchestrator.planning.offers import make_offers
    from orchestrator.reading.offer_options import deadline_ahead, offer_request

    loaded = _loaded(spec, overrides)
    today = datetime.now(UTC).date()
    by = deadline_ahead(loaded.run.deadline, today) if by is None else by
    wanted = offer_request(
        loaded.resources, by=by, budget=budget, chips=chips, prices=prices, today=today
    )
    return make_offers(loaded, wanted)


def diff(first: SpecSource, second: SpecSource, *, stage: int | None = None) -> "PlanDiff":
    """The difference between the plans of two specs, decision by decision and line by line.

    Where either has stages, figures are compared stage by stage and no lines; `stage` is the
    number of one stage, whose lines are compared.
    """
    from orchestrator.planning.diff_plans import diff_plans

    (one, its_plan), (other, other_plan) = (_planned(spec, stage) for spec in (first, second))
    return diff_plans((one, other), (its_plan, other_plan))


def explain(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    mfu: float = 0.4,
    stage: int | None = None,
) -> "Explanation":
    """The derivation of a spec's figures, formula by formula, beside published figures. With stages
    it is about the one with that number, or the one with most tokens.

    `mfu` is the model FLOPs utilization that the training time assumes.
    """
    from orchestrator.evidence.explain.assemble import explain
    from orchestrator.planning.stages import explained_stage

    return explain(explained_stage(_loaded(spec, overrides), stage), mfu=mfu)


def prove(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    hlo: str | Path | None = None,
    progress: "Progress | None" = None,
    stage: int | None = None,
) -> "ProofResult":
    """The compiler's verdict on the plan of a spec, from the cache where it was asked before. With
    stages it is about the one with that number; `prove_stages` gives all.

    `hlo` is a folder that keeps the compiled program's text; the plan is then compiled anew.
    """
    from orchestrator.run.submit import prove_plan

    return prove_plan(*_program(spec, overrides, stage), progress, Path(hlo) if hlo else None)


def prove_stages(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    hlo: str | Path | None = None,
    progress: "Progress | None" = None,
) -> "list[ProofResult]":
    """The compiler's verdict on every stage of a spec, in order; one where it has no stages."""
    from orchestrator.run.submit import prove_each_stage

    loaded = _loaded(spec, overrides)
    return prove_each_stage(loaded, plan(loaded), progress, Path(hlo) if hlo else None)


def prove_diff(
    first: SpecSource,
    second: SpecSource,
    *,
    progress: "Progress | None" = None,
    stage: int | None = None,
) -> "ProofDiff":
    """The compiled programs of two specs, or of one stage of each, side by side: figures, and
    seconds by source line.
    """
    from orchestrator.proving.diff_proofs import diff_proofs
    from orchestrator.run.submit import prove_plan

    programs = [_program(spec, (), stage) for spec in (first, second)]
    one, other = (prove_plan(spec, made, progress) for spec, made in programs)
    return diff_proofs(one.proof, other.proof)


def prove_less_recompute(
    spec: SpecSource,
    overrides: Sequence[str] = (),
    *,
    progress: "Progress | None" = None,
    stage: int | None = None,
) -> "list[ProofResult]":
    """Verdicts on plans that recompute less than the plan of a spec or of one stage, up to the
    first that fits.
    """
    from orchestrator.run.submit import prove_less_recompute as prove_plans

    return prove_plans(*_program(spec, overrides, stage), progress)


def known_proof(plan: "Plan") -> "ProofResult | None":
    """The proof of a plan, if the cache has it; nothing is compiled."""
    from orchestrator.proving.proof_folder import has_plan

    if not has_plan(plan):
        return None
    from orchestrator.proving.verdict import cached

    return cached(plan)


def export(
    kind: "ManifestKind", spec: SpecSource, overrides: Sequence[str] = ()
) -> "list[dict[str, Any]]":
    """The Kubernetes objects that run the plan of a spec, in the order of their creation."""
    from orchestrator.interop.kubernetes import manifests
    from orchestrator.reading.examples import spec_text

    loaded = _loaded(spec, overrides)
    return manifests(kind, loaded, plan(loaded), spec_text(loaded))


def import_maxtext(
    sources: Sequence[str | Path],
    *,
    device: str | None = None,
    slices: int | None = None,
    command: int | None = None,
) -> "ImportedSpec":
    """The spec of a MaxText run, from files (YAML, scripts) and `key=value` words, in their order.

    `device` and `slices` are the chips, such as v6e-256 and 2, where the sources do not say them;
    `command` is the number of one command of a script that trains several times.
    """
    from orchestrator.interop.maxtext.conversion import convert
    from orchestrator.interop.maxtext.recipe import read_recipe

    return convert(read_recipe([_source(one) for one in sources], command), device, slices)


def export_maxtext(spec: SpecSource, overrides: Sequence[str] = ()) -> "MaxTextRun":
    """The plan of a spec as a run of MaxText; `SpecError` lists what it has no words for."""
    from orchestrator.interop.maxtext.exported_run import run_of
    from orchestrator.reading.overrides import places

    made = plan(_loaded(spec, overrides))
    place_of = places(Path(spec), overrides) if isinstance(spec, (str, Path)) else lambda _: ""
    return run_of(made, place_of)


def _source(source: str | Path) -> tuple[str, str]:
    """The name and the text of a file, or of words."""
    if isinstance(source, str) and ("=" in source or "\n" in source):
        return "words", source
    from orchestrator.reading.nodes import read

    path = Path(source)
    return str(path), "\n".join(read(path).lines)


def score(
    runs: str | Path | None = None,
    *,
    without: Literal["document", "group", "software"] | None = None,
) -> "Score":
    """Forecasts of published runs against what the runs reached.

    `runs` is a CSV file with the columns of the project's own, which is the default. `without`
    learns the constants anew without each document, group or software, and scores what it left out.
    """
    from dataclasses import replace

    from orchestrator.evidence.score.evaluate import (
        cross_validated,
        goodput_scores,
        recovery_scores,
        with_catalog_constants,
    )

    path = Path(runs) if runs else None
    made = cross_validated(without, path) if without else with_catalog_constants(path)
    if path:
        return made
    return replace(made, goodput=goodput_scores(), recoveries=recovery_scores())


def calibrate(*, progress: "Progress | None" = None) -> "StoredProfile":
    """A new chip profile: what the devices of this machine reach. It takes a minute or two."""
    from orchestrator.run.calibrate import measure_machine

    return measure_machine(progress)


def study(
    path: str | Path, overrides: Sequence[str] = (), *, progress: "Progress | None" = None
) -> "ScalingForecast | SweepForecast":
    """The predicted scaling of a study, or what a sweep costs: every trial planned, or the reason
    why it has no plan.
    """
    from orchestrator.reading.load_study import load_study
    from orchestrator.run.studies import plan_study

    return plan_study(load_study(Path(path), tuple(overrides)), progress)


def _program(spec: SpecSource, overrides: Sequence[str], stage: int | None) -> "tuple[Spec, Plan]":
    """A spec and its plan, or one stage as a spec and its plan; they have one program."""
    from orchestrator.errors import SpecError

    loaded = _loaded(spec, overrides)
    if loaded.experiment.stages and not stage:
        raise SpecError(
            f"{loaded.name} has {len(loaded.experiment.stages)} stages, each with a program of its"
            " own: choose one with --stage N"
        )
    return _planned(loaded, stage)


def _planned(spec: SpecSource, stage: int | None) -> "tuple[Spec, Plan]":
    """A spec and its plan, or one stage as a spec and its plan in the run."""
    from orchestrator.planning.stages import stage_spec

    loaded = _loaded(spec)
    made = plan(loaded, stage=stage)
    return (stage_spec(loaded, stage) if stage else loaded), made


def _loaded(spec: SpecSource, overrides: Sequence[str] = ()) -> "Spec":
    if isinstance(spec, (str, Path)):
        return load(spec, overrides)
    if overrides:
        raise TypeError("overrides change the file of a spec: pass its path")
    return spec

"""The commands that need no chip: plan, explain, prove, score."""

from pathlib import Path
from typing import Any, Literal

import click

import orchestrator as orch
from orchestrator.cli.arguments import BRIEF, FILE, FULL, JSON, SET, SPEC, STAGE
from orchestrator.run.next_commands import spec_command, stage_option
from orchestrator.run.progress import interruptible
from orchestrator.show.progress import Display
from orchestrator.show.terminal import show, show_result


@click.command()
@SPEC
@click.argument("other", required=False, type=FILE)
@SET
@JSON
@BRIEF
@FULL
@STAGE
@click.option(
    "--alternatives", type=click.IntRange(0, 50), default=0, metavar="N",
    help="Also show N runners-up and what each one loses.",
)  # fmt: skip
@click.option("--profile", metavar="DIGEST", help="Forecast with rates that were measured.")
@click.option("--by", metavar="WHEN", help="Offers that end within 30d or 6w, or by a date.")
@click.option("--budget", metavar="DOLLARS", help="Offers that cost at most 2M, or 500k.")
@click.option("--chips", metavar="NAMES", help="Offers of these chips: v5e,v6e,v5p,tpu7x.")
@click.option("--prices", metavar="KIND", help="on-demand, reserved, spot, or a file of yours.")
@click.option("--html", type=FILE, metavar="FILE", help="Also write the offers as a page.")
@interruptible("planning")
def plan(
    spec: Path, other: Path | None, overrides: tuple[str, ...], as_json: bool, **options: Any
) -> None:  # fmt: skip
    """Find the fastest realizable plan of SPEC. It has memory, time and cost.

    With OTHER, compare both plans, line by line; --set then changes OTHER alone. With a study, plan
    every trial and show the predicted scaling; exit 2 if a trial has no plan. With --stage, plan
    one stage of a spec.

    With --by, --budget, --chips or --prices, or with resources.topology: auto, show which slices to
    rent: days, dollars and odds of each.

    \b
    Example:
      orch plan specs/llama3_70b_4pod.yaml --set resources.pods=2 --alternatives 5
      orch plan specs/llama3_70b_1pod.yaml specs/llama3_70b_4pod.yaml
      orch plan specs/studies/llama3_70b_pods.yaml
      orch plan my-h200.yaml --profile 3f9a1c07
      orch plan specs/llama3_70b_4pod.yaml --by 30d --budget 50M --chips v5p,tpu7x
    """
    from orchestrator.cli.spec_results import PlanOptions, plan_result

    result = plan_result(spec, other, overrides, PlanOptions(**options), Display())
    show_result(result, as_json=as_json)


@click.command()
@SPEC
@SET
@JSON
@STAGE
@click.option(
    "--mfu", type=click.FloatRange(0, 1, min_open=True), default=0.4, show_default=True,
    metavar="FRACTION", help="Model FLOPs utilization to assume for days.",
)  # fmt: skip
@interruptible("working it out")
def explain(
    spec: Path, overrides: tuple[str, ...], as_json: bool, mfu: float, stage: int | None
) -> None:
    """Derive the figures of SPEC, formula by formula. Published figures are shown too.

    Example: orch explain specs/llama3_405b_8pod.yaml --mfu 0.45
    """
    from orchestrator.show.explain_screen import explain_screen

    found = orch.explain(spec, overrides, mfu=mfu, stage=stage)
    following = spec_command("plan", spec, overrides, *stage_option(stage))
    show(found, lambda: explain_screen(found, following), as_json=as_json)


@click.command()
@SPEC
@click.argument("other", required=False, type=FILE)
@SET
@JSON
@BRIEF
@FULL
@STAGE
@click.option(
    "--trainer", metavar="NAME",
    help="Compile another trainer's program: package.module:build, for any JAX program.",
)  # fmt: skip
@click.option(
    "--hlo", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Keep the compiled program's text in DIR. Compiles even if a proof is cached.",
)  # fmt: skip
@click.option(
    "--html", type=FILE, metavar="FILE",
    help="Write a page: one layer's schedule in time, and a flame graph by line.",
)  # fmt: skip
@click.option("--search-remat", is_flag=True, help="Also compile policies that recompute less.")
@interruptible("proving")
def prove(
    spec: Path, other: Path | None, overrides: tuple[str, ...], as_json: bool, trainer: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Check the plan of SPEC with the real TPU compiler. It needs no TPU.

    It compiles the trainer's own step for the plan's topology, compares memory, collectives and
    FLOPs with the forecast, and shows where the compiler's schedule loses time. The result is
    cached, so the same question is answered at once. A spec with stages has a program for each;
    --stage proves one. With OTHER, both programs are shown side by side; --set and --trainer then
    change OTHER alone.

    \b
    Exit status:
      0  the plan fits, and only what is planned crosses pods
      1  there is no verdict: no compiler here, or it failed
      2  the spec has no plan
      3  the plan does not fit, or more than planned crosses pods

    \b
    Example:
      orch prove specs/llama3_70b_4pod.yaml --set experiment.remat=full
      orch prove SPEC SPEC --set experiment.compiler_options.NAME=true
      orch prove specs/tiny_2pod.yaml --trainer my_package.my_module:build
    """
    from orchestrator.cli.spec_results import ProveOptions, proof_result

    overrides = (*overrides, f"run.trainer={trainer}") if trainer else overrides
    result = proof_result(spec, other, overrides, ProveOptions(**options), Display())
    show_result(result, as_json=as_json)


@click.command()
@click.argument("runs", required=False, type=FILE, metavar="[RUNS.csv]")
@click.option(
    "--without", type=click.Choice(["document", "group", "software"]),
    help="Learn anew without each document, source and chip, or software; score what was left out.",
)  # fmt: skip
@JSON
@interruptible("scoring")
def score(
    runs: Path | None, without: Literal["document", "group", "software"] | None, as_json: bool
) -> None:
    """Compare forecasts with published runs. Each run is planned as it ran.

    RUNS.csv has the columns of the project's own file, which is the default. A row that cannot be
    planned or converted is listed with its reason and counts in no figure.

    Example: orch score my-runs.csv --without document
    """
    from orchestrator.show.report_screen import score_screen

    found = orch.score(runs, without=without)
    following = "orch score" if without else "orch score --without document"
    show(found, lambda: score_screen(found, following), as_json=as_json)


COMMANDS = (plan, explain, prove, score)

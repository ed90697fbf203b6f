"""Command line room: the commands that need no chip, no compiler and no cluster."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.proving import known_line
from orchestrator.cli.studying import is_study, plan_study
from orchestrator.cli.terminal import (
    JSON,
    SET,
    SPEC,
    interruptible,
    make_plans,
    next_command,
    say,
    say_json,
)
from orchestrator.errors import OrchError

if TYPE_CHECKING:
    from orchestrator.types.plan import Plan


@click.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
def init(path: Path) -> None:
    """Write a small commented spec to start from. An existing file is never overwritten.

    \b
    Example:
      orch init my-run.yaml
    """
    from orchestrator import spec

    text = spec.starter(path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OrchError(f"{path}: exists already; name another file") from None
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}\nNext: {next_command('plan', path, ())}")


@click.command()
@click.option("--study", "of_study", is_flag=True, help="That of a study instead.")
def schema(of_study: bool) -> None:
    """Print the JSON Schema of a spec. It is the contract, and what editors complete from.

    \b
    Example:
      orch schema > spec.schema.json
      orch schema --study > study.schema.json
    """
    from orchestrator import spec

    click.echo(spec.study_schema_text() if of_study else spec.schema_text(), nl=False)


@click.command()
@SPEC
@click.argument("other", required=False, type=click.Path(path_type=Path, dir_okay=False))
@SET
@JSON
@click.option(
    "--alternatives",
    type=click.IntRange(0, 50),
    default=0,
    metavar="N",
    help="Also show N runners-up and what each loses.",
)
@click.option(
    "--profile",
    metavar="DIGEST",
    help="Forecast on what `orch calibrate` measured on a machine of these chips.",
)
@interruptible("planning")
def plan(
    spec: Path,
    other: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    alternatives: int,
    profile: str | None,
) -> None:
    """Find the fastest realizable plan of SPEC. Memory, time and cost are forecast.

    With OTHER, hold the plans of both side by side: what differs, and what that does to each line
    of their ledgers. --set then changes OTHER alone, so that one spec can be held beside itself.

    With a study, plan every trial and show the predicted scaling; exit 2 where one cannot be
    served.

    \b
    Example:
      orch plan specs/llama3_70b_4pod.yaml
      orch plan specs/llama3_70b_4pod.yaml --set resources.pods=2 --alternatives 5
      orch plan specs/llama3_70b_1pod.yaml specs/llama3_70b_4pod.yaml
      orch plan specs/tiny_2pod.yaml specs/tiny_2pod.yaml --set resources.pods=4
      orch plan specs/studies/llama3_70b_pods.yaml
      orch plan my-h200.yaml --profile 3f9a1c07
    """
    if alternatives and (other or is_study(spec)):
        raise click.UsageError("--alternatives goes with the plan of one spec")
    if profile and (other or is_study(spec)):
        raise click.UsageError("--profile goes with the plan of one spec")
    if other:
        show_beside(spec, other, overrides, as_json=as_json)
        return
    if is_study(spec):
        plan_study(spec, overrides, as_json=as_json)
        return
    _, plans = make_plans(spec, overrides, 1 + alternatives)
    if profile:
        plans = on_profile(plans, profile)
    if as_json:
        say_json(plans if alternatives else plans[0])
        return
    from orchestrator.render import plan_screen as render
    from orchestrator.render.plan_screen import runners_up_table

    compiled = known_line(plans[0])
    runners_up = runners_up_table(plans) if alternatives else ()
    say(
        render.plan_screen(plans[0], next_command("explain", spec, overrides), compiled, runners_up)
    )


def on_profile(plans: "list[Plan]", digest: str) -> "list[Plan]":
    """The plans with their forecasts on a profile that is kept here."""
    from orchestrator import calibrate
    from orchestrator.plan.calibrated import on_its_chips

    kept = calibrate.find(digest)
    return [on_its_chips(made, kept.profile) for made in plans]


def show_beside(first: Path, second: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Two plans side by side; the overrides are the second's."""
    from orchestrator.plan.plan_diff import beside
    from orchestrator.render import plan_diff_screen as render

    before, [plan_before] = make_plans(first, (), 1)
    after, [plan_after] = make_plans(second, overrides, 1)
    found = beside((before, after), (plan_before, plan_after))
    if as_json:
        say_json(found)
    else:
        say(render.plan_diff_screen(found, next_command("plan", second, overrides)))


@click.command()
@SPEC
@SET
@JSON
@click.option(
    "--mfu",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.4,
    show_default=True,
    metavar="FRACTION",
    help="Model FLOPs utilization to assume for days.",
)
@interruptible("working it out")
def explain(spec: Path, overrides: tuple[str, ...], as_json: bool, mfu: float) -> None:
    """Work SPEC out by hand, formula by formula. Published figures stand beside it.

    \b
    Example:
      orch explain specs/llama3_70b_4pod.yaml
      orch explain specs/llama3_405b_8pod.yaml --mfu 0.45
    """
    from orchestrator import explain as answers
    from orchestrator import spec as specs
    from orchestrator.render import explain_screen as render

    sheet = answers.answer_sheet(specs.load(spec, overrides), mfu=mfu)
    if as_json:
        say_json(sheet)
        return
    say(render.explain_screen(sheet, next_command("plan", spec, overrides)))


COMMANDS = (init, schema, plan, explain)

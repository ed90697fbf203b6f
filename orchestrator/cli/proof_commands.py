"""The commands that check a spec's plan and figures: explain, prove, score."""

import shlex
from pathlib import Path
from typing import Any, Literal

import click

import orchestrator as orch
from orchestrator import cli as shared
from orchestrator.errors import OrchError, Usage, refuse_options
from orchestrator.run.progress import interruptible, spec_command, stage_option
from orchestrator.run.proofs import ProofFailed
from orchestrator.show.explain_screen import explain_screen
from orchestrator.show.machine_screens import own_score_screen
from orchestrator.show.plan_diff_screen import proof_diff_screen
from orchestrator.show.progress import Display
from orchestrator.show.proof_screen import proof_screens, search_screen
from orchestrator.show.report_screen import gpu_score_screen, score_screen
from orchestrator.show.terminal import CommandResult, echo, show, show_result
from orchestrator.values.proof import Proof


@click.command("explain")
@shared.SPEC
@shared.SET
@shared.JSON
@shared.STAGE
@click.option(
    "--mfu", type=click.FloatRange(0, 1, min_open=True), default=0.4, show_default=True,
    metavar="FRACTION", help="Model FLOPs utilization to assume for days.",
)  # fmt: skip
@interruptible("working it out")
def explain_command(
    spec: Path, overrides: tuple[str, ...], as_json: bool, mfu: float, stage: int | None
) -> None:
    """Derive the figures of SPEC, formula by formula. Published figures are shown too.

    Example: orch explain specs/llama3_405b_8pod.yaml --mfu 0.45
    """
    if orch.is_serving(spec):
        refuse_options({"--stage": stage}, "a spec with stages")
        # Few derivations are of serving.
        from orchestrator.show.serving_screen import serving_explain_screen  # noqa: PLC0415

        sheet = orch.explain_serving(spec, overrides)
        planning = spec_command("plan", spec, overrides)
        show(sheet, lambda: serving_explain_screen(sheet, planning), as_json=as_json)
        return
    found = orch.explain(spec, overrides, mfu=mfu, stage=stage)
    following = spec_command("plan", spec, overrides, *stage_option(stage))
    show(found, lambda: explain_screen(found, following), as_json=as_json)


@click.command("prove")
@shared.SPEC
@click.argument("other", required=False, type=shared.FILE)
@shared.SET
@shared.JSON
@shared.BRIEF
@shared.FULL
@shared.STAGE
@click.option(
    "--trainer", metavar="NAME",
    help="Compile another trainer's program: package.module:build, for any JAX program.",
)  # fmt: skip
@click.option(
    "--hlo", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Keep the compiled program's text in DIR. Compiles even if a proof is cached.",
)  # fmt: skip
@click.option(
    "--html", type=shared.FILE, metavar="FILE",
    help="Write a page: one layer's schedule in time, and a flame graph by line.",
)  # fmt: skip
@click.option("--search-remat", is_flag=True, help="Also compile policies that recompute less.")
@click.option(
    "--search", type=click.IntRange(1, 100), metavar="N",
    help="Compile the N best plans that the forecast cannot tell apart, and compare them.",
)  # fmt: skip
@click.option(
    "--write", type=shared.FILE, metavar="FILE",
    help="With --search: write the spec that pins the best of them.",
)  # fmt: skip
@interruptible("proving")
def prove_command(
    spec: Path, other: Path | None, overrides: tuple[str, ...], as_json: bool, trainer: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Check SPEC's plan with the real TPU or GPU compiler. It needs neither.

    It compiles the trainer's own step for the plan's topology, compares memory, collectives and
    FLOPs with the forecast, and shows where the compiler's schedule loses time. The result is
    cached, so the same question is answered at once. A spec with stages has a program for each;
    --stage proves one. One with `serve:` has prefill and decoding. With OTHER, both programs are
    shown side by side; --set and --trainer then change only OTHER. With --search N, the compiler
    decides between the N best plans: each is compiled, and the one that it schedules fastest comes
    first.

    \b
    Exit status:
      0  the plan fits, and only what is planned crosses pods
      1  without a verdict: no compiler here, or it failed
      2  the spec has no plan
      3  the plan does not fit, or more than planned crosses pods

    \b
    Example:
      orch prove specs/llama3_70b_4pod.yaml --set experiment.remat=full
      orch prove SPEC SPEC --set experiment.compiler_options.NAME=true
      orch prove specs/llama3_70b_1slice.yaml --search 6 --write best.yaml
      orch prove specs/tiny_2pod.yaml --trainer my_package.my_module:build
    """
    overrides = (*overrides, f"run.trainer={trainer}") if trainer else overrides
    hlo, html, detail, stage = (options[name] for name in ("hlo", "html", "detail", "stage"))
    pages = {"--html": html, "--search-remat": options["search_remat"]}
    progress, count, path = Display(), options["search"], options["write"]
    pages |= {"--search": count, "--write": path}
    if path and not count:
        raise Usage("--write needs --search N: it writes the plan that a search of programs finds")
    if orch.is_serving(spec):
        refused = pages | {"--stage": stage, "--trainer": trainer, "OTHER": other}
        refuse_options(refused, "the proof of a training")
        served = orch.prove_serving(spec, overrides, hlo=hlo, progress=progress)
        following = spec_command("plan", spec, overrides)
        proofs = [proved.proof for proved in served]
        result = CommandResult(
            proofs,
            lambda: proof_screens(served, None, following, detail or "usual"),
            exit_code=_exit_code(*proofs),
        )
    elif other:
        refuse_options(pages | {"--hlo": hlo, f"--{detail}": detail}, "the proof of one spec")
        changed = orch.load(other, overrides)
        diff = orch.prove_diff(spec, changed, progress=progress, stage=stage)
        names, code = (spec.stem, other.stem), _exit_code(*diff.proofs)
        result = CommandResult(diff, lambda: proof_diff_screen(diff, names), exit_code=code)
    elif count:
        refused = {"--html": html, "--search-remat": options["search_remat"], "--hlo": hlo}
        refuse_options(refused | {"--stage": stage, f"--{detail}": detail}, "a search of programs")
        if path and path.exists():  # refused before anything is compiled
            raise OrchError(f"{path}: exists already; name another file")
        search = orch.prove_search(spec, count, overrides, progress=progress)
        written = orch.write_choice(search, spec, path, overrides) if path else None
        best = () if written else (*overrides, *search.best.overrides)
        following = spec_command("plan", written or spec, best)
        result = CommandResult(search, lambda: search_screen(search, following), written=written)
    else:
        loaded, following = orch.load(spec, overrides), spec_command("submit", spec, overrides)
        others = None  # proofs of plans that recompute less
        if is_staged := shared.has_many_plans(loaded, stage):
            refuse_options(pages, shared.ONE_STAGE)
            found = orch.prove_stages(loaded, hlo=hlo, progress=progress)
        else:
            found = [orch.prove(loaded, hlo=hlo, progress=progress, stage=stage)]
            if options["search_remat"]:
                others = orch.prove_less_recompute(loaded, progress=progress, stage=stage)
        proofs = [proved.proof for proved in (*found, *(others or ()))]
        result = CommandResult(
            proofs if is_staged or others else proofs[0],
            lambda: proof_screens(found, others, following, detail or "usual"),
            exit_code=_exit_code(*(proved.proof for proved in found)),
            written=orch.write_schedule(found[0], html) if html else None,
        )
    show_result(result, as_json=as_json)


def _exit_code(*proofs: Proof) -> int:
    return 0 if all(proof.passes for proof in proofs) else ProofFailed.exit_code


@click.command("score")
@click.argument("runs", required=False, type=shared.FILE, metavar="[RUNS.csv]")
@click.option(
    "--without", type=click.Choice(["document", "group", "software"]),
    help="Learn anew without each document, source and chip, or software; score what was left out.",
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice(["training", "gpu", "serving", "disaggregated"]),
    help="Which of the project's runs, without RUNS.csv.  [default: training]",
)  # fmt: skip
@click.option("--own", is_flag=True, help="Learn from your own runs on chips, in --storage.")
@click.option("--row", metavar="RUN", help="Print your own run as a row that can be published.")
@shared.STORAGE
@shared.JSON
@interruptible("scoring")
def score_command(
    runs: Path | None, without: Literal["document", "group", "software"] | None,
    kind: str | None, own: bool, row: str | None, storage: Path, as_json: bool,
) -> None:  # fmt: skip
    """Compare forecasts with published runs. Each run is planned as it ran.

    RUNS.csv has the columns of the project's own file, which is the default, or of gpu_runs.csv,
    serving_runs.csv or serving_disaggregated_runs.csv. A row that cannot be planned or converted is
    listed with its reason and counts in no figure.

    --own keeps what your runs teach of each kind of chip, apart from the published constants:
    `orch plan --profile DIGEST` uses it. A rehearsal teaches nothing of chips.

    Example: orch score my-runs.csv --without document
    """
    if own or row:
        refuse_options({"RUNS.csv": runs, "--without": without, "--kind": kind}, "published runs")
    apart, which = kind == "disaggregated", [str(runs)] if runs else ["--kind", kind or "training"]
    other = shlex.join(["orch", "score", *which, *([] if without else ["--without", "document"])])
    if row:
        echo(orch.own_run_row(row, storage), nl=False)
    elif own:
        learned = orch.score_own(storage)
        show(learned, lambda: own_score_screen(learned), as_json=as_json)
    elif apart or kind == "serving" or (kind is None and runs and orch.is_serving(runs)):
        # Few scores are of serving.
        from orchestrator.show.serving_screen import serving_score_screen  # noqa: PLC0415

        served = orch.score_serving(runs, without=without, disaggregated=apart)
        show(served, lambda: serving_score_screen(served, other), as_json=as_json)
    elif kind == "gpu" or (kind is None and runs and orch.is_gpu(runs)):
        on_gpus = orch.score_gpus(runs, without=without)
        show(on_gpus, lambda: gpu_score_screen(on_gpus, other), as_json=as_json)
    else:
        found = orch.score(runs, without=without)
        show(found, lambda: score_screen(found, other), as_json=as_json)

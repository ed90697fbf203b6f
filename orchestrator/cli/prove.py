"""The command that asks the compiler: prove."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

import orchestrator as orch
from orchestrator.cli.display import Display
from orchestrator.cli.terminal import JSON, SET, SPEC, say, show
from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.render.next_commands import spec_command

if TYPE_CHECKING:
    from orchestrator.prove.verdict import ProofResult

NO_FIT = 3


@click.command()
@SPEC
@click.argument("other", required=False, type=click.Path(path_type=Path, dir_okay=False))
@SET
@JSON
@click.option(
    "--trainer", metavar="NAME",
    help="Compile another trainer's program: package.module:build, for any JAX program.",
)  # fmt: skip
@click.option(
    "--hlo", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Keep the compiled program's text in DIR. Compiles even if a proof is cached.",
)  # fmt: skip
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write a page: one layer's schedule in time, and a flame graph by line.",
)  # fmt: skip
@click.option(
    "--search-remat",
    is_flag=True,
    help="Also compile policies that recompute less, until one fits.",
)
@interruptible("proving")
def prove(
    spec: Path, other: Path | None, overrides: tuple[str, ...], as_json: bool, trainer: str | None,
    hlo: Path | None, html: Path | None, search_remat: bool,
) -> None:  # fmt: skip
    """Check the plan of SPEC with the real TPU compiler. It needs no TPU.

    It compiles the trainer's own step for the plan's topology, compares memory, collectives and
    FLOPs with the forecast, and shows where the compiler's schedule loses time. The result is
    cached, so the same question is answered at once. With OTHER, both programs are shown side by
    side; --set and --trainer then change OTHER alone.

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
    if trainer:
        overrides = (*overrides, f"run.trainer={trainer}")
    if other:
        if hlo or html or search_remat:
            raise click.UsageError("--hlo, --html and --search-remat go with the proof of one spec")
        show_proof_diff(spec, other, overrides, as_json=as_json)
        return
    display, loaded = Display(), orch.load(spec, overrides)
    found = orch.prove(loaded, hlo=hlo, progress=display)
    others = orch.prove_less_recompute(loaded, progress=display) if search_remat else None
    if html:
        orch.write_schedule(found, html)
    if as_json:
        proofs = [found.proof, *(one.proof for one in others or ())]
        show(proofs if others else found.proof, as_json=True)
    else:
        show_proof(found, others, spec_command("submit", spec, overrides))
    if not found.proof.passes:
        raise SystemExit(NO_FIT)


def show_proof(found: "ProofResult", others: "list[ProofResult] | None", next_command: str) -> None:
    from orchestrator.render.proof_screen import proof_screen, remat_screen

    say(proof_screen(found.plan, found.proof, found.age_s, next_command))
    if others is not None:
        say("\n", remat_screen(found.plan, [(one.plan, one.proof) for one in others]))


def show_proof_diff(
    first: Path, second: Path, overrides: tuple[str, ...], *, as_json: bool
) -> None:
    from orchestrator.render.proof_diff_screen import proof_diff_screen

    found = orch.prove_diff(first, orch.load(second, overrides), progress=Display())
    names = first.stem, second.stem
    show(found, lambda: proof_diff_screen(found, names), as_json=as_json)
    if not all(one.passes for one in found.proofs):
        raise SystemExit(NO_FIT)


COMMANDS = (prove,)

"""Own runs as evidence: what they teach, kept by its digest next to the profiles of `calibrate`."""

from collections import defaultdict
from pathlib import Path

from orchestrator.errors import JournalUnreadable, SpecError
from orchestrator.evidence.report import make_report
from orchestrator.evidence.score.own_rows import csv_text, own_row
from orchestrator.evidence.score.published_runs import SkippedRow
from orchestrator.journal.listing import find_run, list_runs
from orchestrator.journal.run_journal import Journal
from orchestrator.planning.own_runs import OWN_SCHEMA, Measured, OwnConstants, learn
from orchestrator.plugins import require
from orchestrator.run.calibrate import keep, kept, this_processor
from orchestrator.run.profile import measure_traces
from orchestrator.run.progress import RUNS
from orchestrator.storage.addresses import folder
from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.report import Report

_KIND = "own-runs"
# Parts of `expected` that a trace shows by themselves.
_TRACED = {"matmuls": "matmul", "attention": "attention", "exposed tensor": "exposed_tensor"}


class OwnScore(Value):
    """What own runs teach, for each kind of chip, type and trainer; and runs that teach nothing."""

    learned: tuple[OwnConstants, ...]
    digests: tuple[str, ...]  # of each, which names it for `orch plan --profile`
    left_out: tuple[SkippedRow, ...]


def score_own(storage: str | Path = RUNS) -> OwnScore:
    """Learn from all own runs in a storage that were measured on chips, and keep what they teach.
    A rehearsal teaches nothing of chips.
    """
    where = folder(storage)
    groups, left_out = defaultdict[tuple[str, str, str], list[Measured]](list), []
    for run in list_runs(where)[0]:
        try:
            measured = _measured(Journal(where / run.run))
        except (JournalUnreadable, SpecError) as error:
            left_out.append(SkippedRow(id=run.run, reason=str(error)))
            continue
        plan = measured[1]
        groups[plan.chip, plan.precision.compute, plan.trainer].append(measured)
    learned = tuple(learn(sorted(runs, key=lambda run: run[0])) for runs in groups.values())
    for own in learned:
        keep(_KIND, own)
    digests = tuple(map(codec.digest, learned))
    return OwnScore(learned=learned, digests=digests, left_out=tuple(left_out))


def own_run_row(run: str, storage: str | Path = RUNS) -> str:
    """Return a run as a CSV file of one row, in the format of published runs."""
    journal = find_run(folder(storage), run)
    report, plan = make_report(journal), journal.current_plan(journal.run())
    return csv_text([own_row(report, plan, this_processor())])


def find_own(prefix: str) -> OwnConstants | None:
    """Return the constants whose digest begins with a prefix, if exactly one does."""
    found = [own for digest, own in kept(_KIND, OwnConstants) if digest.startswith(prefix)]
    return found[0] if len(found) == 1 and found[0].schema == OWN_SCHEMA else None


def _measured(journal: Journal) -> Measured:
    """Return what a run teaches; an error says why it teaches nothing."""
    require("prove")
    measure_traces(journal)
    report: Report = make_report(journal)
    plan: Plan = journal.current_plan(journal.run())
    if report.rehearsal:
        raise SpecError(f"a rehearsal of {plan.chip}: it ran on this machine's CPU")
    if report.measured is None:
        raise SpecError("no step was measured after warm-up")
    if not plan.ledger_describes_trainer or plan.stage or plan.chip_profile:
        raise SpecError("its plan has stages, a chip profile, or a trainer without a ledger")
    if not plan.forecast.expected_time:
        raise SpecError(f"no run on {plan.chip} is published: publish this one (orch score --row)")
    traced = dict[str, float]()
    for line in report.profile.lines if report.profile else ():
        if kind := _TRACED.get(line.part):
            traced[kind] = traced.get(kind, 0.0) + line.measured_s
    return report.run, plan, report.measured.step_s.median, traced

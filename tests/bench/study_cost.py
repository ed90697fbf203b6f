"""What a study of many trials takes to report: its journals read, compared, drawn, listed.

    python -m tests.bench.study_cost [--trials 200] [--steps 1000]

The runs are made up and lie on the disk as real ones do. All trials share one plan, so that what is
timed is the report and not the planning.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from orchestrator import journal
from orchestrator.evidence.studies import _make_scaling_report, read_trial_runs
from orchestrator.journal.liveness import this_process
from orchestrator.show import study_screens
from orchestrator.show.pages import _scaling_page
from orchestrator.values import codec
from orchestrator.values.study import Study, Trial, TrialStart
from tests.bench.record_cost import print_looks
from tests.journals import tiny_plan, tiny_spec
from tests.reports import finished_run, timed

LIMIT_S = 10.0


def make_study(storage: Path, trials: int, steps: int) -> journal.StudyJournal:
    """A study whose every trial has run."""
    study = Study(
        name="many",
        scaling="strong",
        vary=("experiment.seed",),
        repeats=1,
        after_failure="go on",
        trials=tuple(
            Trial(number=n, settings={"experiment.seed": str(n)}, spec=tiny_spec())
            for n in range(1, trials + 1)
        ),
    )
    recorded = journal.open_study(storage, journal.StudyRequest(study=study, steps=steps), {})
    taken = [taken.step for taken in timed(0.0, range(steps), 0.25)]
    first = finished_run(storage, "first", plan=tiny_plan(), steps=taken, study=recorded.key)
    for n in range(1, trials + 1):
        begun = TrialStart(at_s=0.0, trial=n, repeat=1, run=f"trial-{n}", by=this_process())
        (recorded.trials / f"{n:06d}.json").write_bytes(codec.to_json(begun))
        shutil.copytree(first.journal.path, storage / begun.run)
    return recorded


def main() -> int:
    """Time the report of a study; 1 when it takes longer than it should."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--trials", type=int, default=200)
    asked.add_argument("--steps", type=int, default=1_000)
    wanted = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recorded = make_study(Path(folder), wanted.trials, wanted.steps)
        began_s = time.perf_counter()
        ran = read_trial_runs(recorded)
        read_s = time.perf_counter() - began_s
        report = _make_scaling_report(recorded.key, recorded.submission().study, ran)
        table = study_screens.study_report_screen(report, "")
        page = _scaling_page(report, {trial.trial: trial.predicted for trial in ran})
        all_s = time.perf_counter() - began_s
        print_looks(Path(folder), {"orch runs": ("runs",)})
    runs = f"{wanted.trials} trials of {wanted.steps:,} steps"
    sizes = f"a table of {len(table.splitlines())} lines, a page of {len(page.encode()):,} B"
    print(f"study  {runs}: read in {read_s:.2f} s, reported in {all_s:.2f} s; {sizes}")
    return int(all_s > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())

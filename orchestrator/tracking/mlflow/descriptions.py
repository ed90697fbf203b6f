"""What MLflow shows on top of an experiment and of a study: MFU, measured against predicted."""

import hashlib
from collections.abc import Iterable, Sequence

from orchestrator.formatting import counted, percent
from orchestrator.tracking.mlflow.store import NOTE, Store, StoredRun
from orchestrator.values.run import ViewLink
from orchestrator.values.study import ScalingReport, SweepReport

_MOST_ROWS = 10
_WRITTEN = "orch.description"  # a digest of what was written: somebody's own text is left alone
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # MLflow then shows runs and models
_HEAD = ("measured", "expected", "roofline", "of the roofline")


def describe(store: Store, rehearsal_tag: str, links: Sequence[ViewLink] = ()) -> None:
    """Write the description of an experiment, unless a person wrote one."""
    tags = store.experiment_tags()
    written = tags.get(NOTE, "")
    if written and tags.get(_WRITTEN) != _digest(written):
        return
    runs = [run for run in store.newest() if "mfu/median" in run.metrics]
    apart = {
        "Runs on chips": [run for run in runs if run.tags.get(rehearsal_tag) == "no"],
        "Rehearsals, on a CPU": [run for run in runs if run.tags.get(rehearsal_tag) == "yes"],
    }
    blocks = [_first_line(runs)]
    for title, shown in apart.items():
        if shown:
            rows = [
                (f"[{run.name}](#/experiments/{store.experiment}/runs/{run.id})", *_shares(run))
                for run in shown[:_MOST_ROWS]
            ]
            blocks.append(
                f"{title}, the newest {counted(len(rows), 'run')}\n\n{_table('run', rows)}"
            )
    known = links
    if not links:  # those of the text before: who records a run does not know them
        line = next((x for x in written.splitlines() if x.startswith("Comparisons: ")), "")
        pairs = (part.strip("[]) ") for part in line.partition(": ")[2].split(" · "))
        ends = (pair.partition("](") for pair in pairs)
        known = [ViewLink(name=name, url=url) for name, _, url in ends if url]
    if known:
        blocks.append("Comparisons: " + " · ".join(f"[{link.name}]({link.url})" for link in known))
    text = "\n\n".join(blocks)
    if text != written:
        store.set_experiment_tag(NOTE, text)
        store.set_experiment_tag(_WRITTEN, _digest(text))
    for name, value in _KIND.items():
        if name not in tags:
            store.set_experiment_tag(name, value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _first_line(runs: Sequence[StoredRun]) -> str:
    """Return the one line that MLflow shows while a description is folded."""
    if not runs:
        return "**MFU, measured against predicted**: no run has a measured MFU yet"
    measured, expected, roofline, _ = _shares(runs[0])
    said = f"expected {expected}, roofline {roofline}"
    return f"**MFU {measured}** ({said}) of the newest run, {runs[0].name}"


def _shares(run: StoredRun) -> tuple[str, ...]:
    names = ("mfu/median", "mfu/expected", "mfu/roofline")
    measured, expected, roofline = (run.metrics.get(name) for name in names)
    if not any(name.startswith("summary/step_time_over_") for name in run.metrics):
        expected = roofline = None  # a rehearsal whose forecast is for chips
    share = measured / roofline if measured is not None and roofline else None
    return tuple("-" if x is None else percent(x) for x in (measured, expected, roofline, share))


def _table(first: str, rows: Iterable[Sequence[str]]) -> str:
    lines = [(first, *_HEAD), ("---",) * (1 + len(_HEAD)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def study_table(report: ScalingReport | SweepReport) -> str:
    """Return MFU of each trial, measured and predicted; empty where none was measured."""
    rows = []
    for trial in report.trials if isinstance(report, ScalingReport) else ():
        if trial.measured is None or trial.predicted is None or trial.measured.mfu is None:
            continue
        mfu, found = trial.predicted.mfu, trial.measured.mfu.median
        compared = trial.not_compared is None
        shares = (mfu.expected, mfu.lower, found / mfu.lower) if compared else (None,) * 3
        shown = ("-" if share is None else percent(share) for share in (found, *shares))
        rows.append((", ".join(f"{key} {text}" for key, text in trial.settings.items()), *shown))
    return _table("MFU", rows) if rows else ""

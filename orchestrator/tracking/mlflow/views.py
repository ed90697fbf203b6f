"""The comparison views of `views.json`, in the format of the MLflow UI.

A view is a tag of an experiment. Its format is private to MLflow and may change with a release, so
MLflow's version is pinned and a browser test opens the views. Nothing else depends on them.
"""

import json
import re
import uuid
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from orchestrator.tracking.mlflow.metadata import REHEARSAL, yes_or_no
from orchestrator.tracking.mlflow.store import Store
from orchestrator.tracking.protocol import NotRecorded
from orchestrator.values.run import ViewLink

SHIPPED = Path(__file__).with_name("views.json")
TAG = "mlflow.sharedViewState."
LONGEST_TAG = 20_000
# MLflow adds a section for each group of metrics. These stay closed, below a view's own sections.
GENERATED = (
    "eval", "learning", "mfu", "perf", "plan", "predicted", "proof", "scaling", "speed",
    "summary", "sweep", "trainer",
)  # fmt: skip
# MLflow always has these, and puts them last.
BUILT_IN = ("MODEL_METRICS", "SYSTEM_METRICS")
# The page as MLflow opens it, but ordered by a metric: otherwise MLflow folds a study's runs under
# their parent.
PAGE: dict[str, Any] = {
    "orderByKey": "metrics.`planning/pods`",
    "orderByAsc": True,
    "searchFilter": "",
    "lifecycleFilter": "Active",
    "startTime": "ALL",
    "datasetsFilter": [],
    "selectedColumns": [],
    "runsExpanded": {},
    "runsPinned": [],
    "runsHidden": [],
    "runsHiddenMode": "FIRST_20_RUNS",
    "viewMaximized": False,
    "runListHidden": False,
    "isAccordionReordered": True,
    "hideEmptyCharts": True,
    "groupBy": None,
}


class Chart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics over the steps as `lines`, as `bars` of each run, or a point of each run at `x`, `y`.

    `points` shows where the lines have values. MLflow titles a point of each run by its metrics
    alone, so the section above explains it; other charts have a `title`, that of bars in two parts
    with a colon.
    """

    title: str = ""
    lines: list[str] = []
    bars: list[str] = []
    x: str | None = None
    y: str | None = None
    scale: Literal["linear", "log"] = "linear"
    points: bool = False

    @property
    def metrics(self) -> list[str]:
        return [*self.lines, *self.bars, *(name for name in (self.x, self.y) if name)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Charts side by side, under a name that says what they show."""

    name: str
    charts: list[Chart]

    @property
    def metrics(self) -> set[str]:
        return {name for chart in self.charts for name in chart.metrics}

    @property
    def is_wide(self) -> bool:
        """Whether the legend of bars side by side needs the whole width."""
        return any(len(chart.bars) > 1 for chart in self.charts)


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named list of sections, with up to `columns` charts in a row."""

    name: str
    sections: list[Section]
    columns: int = 2
    rehearsals: bool = False

    @property
    def filter(self) -> str:
        """Which runs it shows: a CPU's seconds say nothing next to chips' microseconds."""
        return f"tags.`{REHEARSAL}` = '{yes_or_no(self.rehearsals)}'"

    @property
    def key(self) -> str:
        """The view's name in links."""
        return "orch-" + re.sub("[^a-z]+", "-", self.name.lower()).strip("-")

    @property
    def charts(self) -> list[Chart]:
        return [chart for section in self.sections for chart in section.charts]


class Views(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    views: list[View]


def views() -> list[View]:
    """The views that this project ships, for runs on chips and then for rehearsals."""
    shipped = msgspec.json.decode(SHIPPED.read_bytes(), type=Views).views
    return [*shipped, *(of_rehearsals(one) for one in shipped)]


def of_rehearsals(view: View) -> View:
    """The charts for rehearsals."""
    return msgspec.structs.replace(view, name=f"{view.name} (rehearsals)", rehearsals=True)


def views_with_runs(store: Store, shipped: list[View]) -> list[View]:
    """The views that show any run."""
    kinds = {kind: bool(store.tagged(REHEARSAL, yes_or_no(kind), most=1)) for kind in (False, True)}
    return [view for view in shipped if kinds[view.rehearsals]]


def set_views(store: Store, shipped: list[View]) -> None:
    """Store the views in an experiment, in place of those of an earlier orch."""
    recorded = {kind: store.metric_names(REHEARSAL, yes_or_no(kind)) for kind in (False, True)}
    for view in shipped:
        text = json.dumps(stored_view(view, recorded[view.rehearsals]))
        if len(text) > LONGEST_TAG:
            raise NotRecorded(f"view {view.name!r}: {len(text):,} characters, over {LONGEST_TAG:,}")
        store.set_experiment_tag(TAG + view.key, text)


def links(server: str, experiment: str, shipped: list[View]) -> list[ViewLink]:
    """Where the views of an experiment open."""
    return [ViewLink(name=view.name, url=link(server, experiment, view)) for view in shipped]


def link(server: str, experiment: str, view: View) -> str:
    query = {
        "viewStateShareKey": view.key,
        "compareRunsMode": "CHART",
        "workflowType": "machine_learning",
    }
    return f"{server}/#/experiments/{experiment}/runs?{urlencode(query)}"


def stored_view(view: View, recorded: Set[str]) -> dict[str, Any]:
    """A view as MLflow's page reads it."""
    return {"name": view.name, "createdAt": 0, "state": json.dumps(state(view, recorded))}


def state(view: View, recorded: Set[str]) -> dict[str, Any]:
    """The state of the page: our sections open, below them those without data and MLflow's own."""
    keys = {one.name: identity(f"{view.name}: {one.name}") for one in view.sections}
    ordered = sorted(view.sections, key=lambda one: one.metrics.isdisjoint(recorded))
    sections = [
        section(one.name, keys[one.name], own=True, shown=not one.metrics.isdisjoint(recorded))
        | {"columns": 1 if one.is_wide else min(len(one.charts), view.columns)}
        for one in ordered
    ]
    sections += [section(name, identity(name)) for name in GENERATED + BUILT_IN]
    cards = [card(chart, keys[one.name]) for one in view.sections for chart in one.charts]
    page = PAGE | {"searchFilter": view.filter}
    return {**page, "compareRunSections": sections, "compareRunCharts": cards}


def section(name: str, key: str, *, own: bool = False, shown: bool = False) -> dict[str, Any]:
    """A section of ours or of MLflow's, open or closed."""
    return {
        "uuid": key,
        "name": name,
        "display": shown,
        "isReordered": own,
        "deleted": False,
        "isGenerated": not own,
    }


def card(chart: Chart, section_key: str) -> dict[str, Any]:
    """One chart."""
    shared = {
        "uuid": identity(f"{section_key}: {', '.join(chart.metrics)}"),
        "metricSectionId": section_key,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 20,
    }
    if chart.lines:
        # MLflow shows the title of several lines where they seem to be those of a node.
        named = {"metric": chart.title, "type": "node"}
        return shared | {
            "displayName": chart.title,
            "nodeLevelSystemMetricConfiguration": named,
            "type": "LINE",
            "metricKey": chart.lines[0],
            "selectedMetricKeys": chart.lines,
            "xAxisKey": "step",
            "scaleType": chart.scale,
            "lineSmoothness": 0,
            "displayPoints": chart.points,  # else they would hide the dashes of a second line
        }
    if chart.bars:
        # MLflow shows the title of bars where they seem to be those of a data set.
        what, _, which = chart.title.partition(": ")
        return shared | {
            "type": "BAR",
            "datasetName": what,
            "metricKey": which,
            "dataAccessKey": chart.bars[0],
            "selectedMetricKeys": chart.bars,
        }
    axes = {"xaxis": axis(chart.x), "yaxis": axis(chart.y)}
    return shared | {"type": "SCATTER", **axes}


def axis(metric: str | None) -> dict[str, Any]:
    return {"type": "METRIC", "key": metric}


def identity(name: str) -> str:
    """An id made from a name, so that storing a view again changes nothing."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"orch:{name}"))

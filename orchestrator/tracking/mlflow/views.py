"""Comparison views of `views.json`, in MLflow's private format; a browser test opens them."""

import json
import re
import uuid
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from orchestrator.tracking.destinations import NotRecorded
from orchestrator.tracking.mlflow.descriptions import describe
from orchestrator.tracking.mlflow.export import REHEARSAL, yes_or_no
from orchestrator.tracking.mlflow.store import Store
from orchestrator.values.run import ViewLink

_SHIPPED = Path(__file__).with_name("views.json")
_TAG = "mlflow.sharedViewState."
_LONGEST_TAG = 20_000
# MLflow adds a section for each group of metrics, and two last ones that it always has. These stay
# closed, below a view's own sections.
_GENERATED = (
    "eval", "learning", "mfu", "perf", "plan", "predicted", "proof", "scaling", "speed",
    "summary", "sweep", "trainer", "MODEL_METRICS", "SYSTEM_METRICS",
)  # fmt: skip
# The page as MLflow opens it, but ordered by a metric: otherwise MLflow folds a study's runs under
# their parent.
_PAGE: dict[str, Any] = {
    "orderByKey": "metrics.`plan/pods`",
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


class _Chart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    charts: list[_Chart]

    @property
    def metrics(self) -> set[str]:
        return {name for chart in self.charts for name in chart.metrics}


class _View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    sections: list[_Section]
    columns: int = 2
    rehearsals: bool = False

    @property
    def filter(self) -> str:
        """Which runs it shows: a CPU's seconds say nothing next to chips' microseconds."""
        return f"tags.`{REHEARSAL}` = '{yes_or_no(self.rehearsals)}'"

    @property
    def key(self) -> str:  # its name in links
        return "orch-" + re.sub("[^a-z]+", "-", self.name.lower()).strip("-")

    @property
    def charts(self) -> list[_Chart]:
        return [chart for section in self.sections for chart in section.charts]


def views() -> list[_View]:
    """Return the views that this project ships, for runs on chips and then for rehearsals."""
    shipped = msgspec.json.decode(_SHIPPED.read_bytes(), type=dict[str, list[_View]])["views"]
    replaced = msgspec.structs.replace
    rehearsed = []
    for view in shipped:
        # By this machine's own speed the roofline is near 1, far above what a small copy reaches.
        sections = [
            replaced(section, charts=[_with_far_roofline(chart) for chart in section.charts])
            for section in view.sections
        ]
        name = f"{view.name} (rehearsals)"
        rehearsed.append(replaced(view, name=name, rehearsals=True, sections=sections))
    return [*shipped, *rehearsed]


def _with_far_roofline(chart: _Chart) -> _Chart:
    """Return a chart whose other values a far roofline leaves legible."""
    replaced = msgspec.structs.replace
    if any(name.endswith("/roofline") for name in chart.lines):
        return replaced(chart, scale="log")
    if "mfu/roofline" in chart.bars:  # MLflow has no logarithmic bars
        bars = [name for name in chart.bars if name != "mfu/roofline"]
        return replaced(chart, bars=bars, title=chart.title.removesuffix(", roofline"))
    return chart


def views_with_runs(store: Store, shipped: list[_View]) -> list[_View]:
    kinds = {kind: bool(store.tagged(REHEARSAL, yes_or_no(kind), most=1)) for kind in (False, True)}
    return [view for view in shipped if kinds[view.rehearsals]]


def set_views(store: Store, shipped: list[_View]) -> None:
    """Store the views in an experiment, in place of those of an earlier orch."""
    recorded = {kind: store.metric_names(REHEARSAL, yes_or_no(kind)) for kind in (False, True)}
    for view in shipped:
        page = json.dumps(_state(view, recorded[view.rehearsals]))
        text = json.dumps({"name": view.name, "createdAt": 0, "state": page})
        if len(text) > _LONGEST_TAG:
            raise NotRecorded(
                f"view {view.name!r}: {len(text):,} characters, over {_LONGEST_TAG:,}"
            )
        store.set_experiment_tag(_TAG + view.key, text)
    describe(store, REHEARSAL, links("", store.experiment, views_with_runs(store, shipped)))


def links(server: str, experiment: str, shipped: list[_View]) -> list[ViewLink]:
    page = f"{server}{'/' if server else ''}#/experiments/{experiment}/runs"
    query = {"compareRunsMode": "CHART", "workflowType": "machine_learning"}
    return [
        ViewLink(name=view.name, url=f"{page}?{urlencode({'viewStateShareKey': view.key} | query)}")
        for view in shipped
    ]


def _state(view: _View, recorded: Set[str]) -> dict[str, Any]:
    # Our sections are open, then come those without data and MLflow's.
    keys = {own.name: _identity(f"{view.name}: {own.name}") for own in view.sections}
    ordered = sorted(view.sections, key=lambda own: own.metrics.isdisjoint(recorded))
    sections = []
    for own in ordered:
        shown = not own.metrics.isdisjoint(recorded)
        # The legend of bars side by side needs the whole width.
        is_wide = any(len(chart.bars) > 1 for chart in own.charts)
        columns = {"columns": 1 if is_wide else min(len(own.charts), view.columns)}
        sections.append(_section(own.name, keys[own.name], own=True, shown=shown) | columns)
    sections += [_section(name, _identity(name)) for name in _GENERATED]
    cards = [_card(chart, keys[own.name]) for own in view.sections for chart in own.charts]
    page = _PAGE | {"searchFilter": view.filter}
    return {**page, "compareRunSections": sections, "compareRunCharts": cards}


def _section(name: str, key: str, *, own: bool = False, shown: bool = False) -> dict[str, Any]:
    return {
        "uuid": key,
        "name": name,
        "display": shown,
        "isReordered": own,
        "deleted": False,
        "isGenerated": not own,
    }


def _card(chart: _Chart, section_key: str) -> dict[str, Any]:
    shared = {
        "uuid": _identity(f"{section_key}: {', '.join(chart.metrics)}"),
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
    x_axis, y_axis = ({"type": "METRIC", "key": metric} for metric in (chart.x, chart.y))
    return shared | {"type": "SCATTER", "xaxis": x_axis, "yaxis": y_axis}


def _identity(name: str) -> str:
    """Return an id made from a name, so that storing a view again changes nothing."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"orch:{name}"))

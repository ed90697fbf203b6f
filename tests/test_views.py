"""The comparison views: every metric in them is recorded, and every metric recorded is in one."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from orchestrator.tracking import NotRecorded
from orchestrator.tracking.mlflow import metrics, views
from orchestrator.tracking.mlflow.store import Store
from tests.records import destination_in, empty_database, rows, storage

__all__ = ["empty_database", "storage"]

SHIPPED = views.views()


def test_what_is_shown_is_recorded_and_the_other_way_round() -> None:
    """No chart can stay empty for a name that nobody writes, and nothing is recorded for nobody."""
    shown = {name for view in SHIPPED for chart in view.charts for name in chart.metrics}
    assert shown == set(metrics.ALL)


def test_every_chart_is_of_one_kind() -> None:
    """Lines, bars, or two axes; under words that no other charts of the view have."""
    for view in SHIPPED:
        names_ = Counter(section.name for section in view.sections)
        assert [name for name, count in names_.items() if count > 1] == []
        assert [name for name in names_ if len(name) > 38] == []  # MLflow cuts longer ones
        for chart in view.charts:
            kinds = [bool(chart.lines), bool(chart.bars), bool(chart.x and chart.y)]
            assert kinds.count(True) == 1, chart
            assert bool(chart.x) == bool(chart.y), chart


def test_the_promised_views_are_shipped() -> None:
    """By name."""
    assert {"Scaling", "Measured against predicted"} <= {view.name for view in SHIPPED}


def test_views_are_set_the_same_each_time(storage: Path) -> None:
    """They are tags of the experiment, in a text that fits, and replaced by themselves."""
    store = Store(destination_in(storage))
    views.set_views(store, SHIPPED)
    query = "SELECT key, value FROM experiment_tags ORDER BY 1"
    before = rows(storage, query)
    views.set_views(store, SHIPPED)
    assert rows(storage, query) == before
    assert [key for key, _ in before] == sorted(views.TAG + view.key for view in SHIPPED)
    for _, text in before:
        kept = json.loads(str(text))
        state = json.loads(kept["state"])
        opened = [one["uuid"] for one in state["compareRunSections"] if one["display"]]
        assert {card["metricSectionId"] for card in state["compareRunCharts"]} == set(opened)
        cards = [card["uuid"] for card in state["compareRunCharts"]]
        assert len(set(cards)) == len(cards)


def test_a_view_that_is_too_long_is_refused(storage: Path) -> None:
    """MLflow would cut it."""
    section = views.Section(name="x" * 30_000, charts=[views.Chart(bars=[metrics.LOSS])])
    long = views.View(name="long", sections=[section])
    with pytest.raises(NotRecorded, match="over 20,000"):
        views.set_views(Store(destination_in(storage)), [long])


def test_a_misspelt_key_in_the_file_is_an_error() -> None:
    """A chart that says nothing would be shown as nothing."""

    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"views": [{"name": "a", "section": []}]}', type=views.Views)

"""The comparison views: every metric in them is recorded, and every metric recorded is in one."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from orchestrator.tracking.destinations import NotRecorded
from orchestrator.tracking.mlflow import metrics, views
from orchestrator.tracking.mlflow.store import Store
from tests.records import destination_in, empty_database, finished_run, record_once, rows, storage

__all__ = ["empty_database", "storage"]

SHIPPED = views.views()


def test_what_is_shown_is_recorded_and_the_other_way_round() -> None:
    """No chart can stay empty for a name that nobody writes, and nothing is recorded for nobody."""
    shown = {name for view in SHIPPED for chart in view.charts for name in chart.metrics}
    assert shown == set(metrics._ALL)


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
            assert bool(chart.title) != bool(chart.x), chart
            assert not chart.bars or ": " in chart.title, chart


def test_the_promised_views_are_shipped() -> None:
    """By name."""
    names = [view.name for view in SHIPPED]
    assert names[0] == "At a glance"
    assert {"Scaling", "Measured against predicted"} <= set(names)
    assert [f"{name} (rehearsals)" for name in names[: len(names) // 2]] == names[len(names) // 2 :]


def test_charts_of_chips_and_of_rehearsals_are_apart() -> None:
    """Each view shows the runs of one kind, by a tag that every run and study has."""
    filters = {
        view.rehearsals: views._state(view, set(metrics._ALL))["searchFilter"] for view in SHIPPED
    }
    assert filters == {
        False: "tags.`orch.rehearsal` = 'no'", True: "tags.`orch.rehearsal` = 'yes'",
    }  # fmt: skip


def test_only_views_with_runs_have_links(storage: Path) -> None:
    record_once(finished_run(storage, "a-rehearsal", rehearsal=True))
    store = Store(destination_in(storage))
    shown = views.views_with_runs(store, SHIPPED)
    assert shown
    assert all(view.rehearsals for view in shown)


def test_a_first_look_shows_measured_expected_and_roofline_in_one_chart() -> None:
    [mfu] = SHIPPED[0].sections[0].charts
    assert mfu.lines == ["mfu/measured", "mfu/expected", "mfu/roofline"]
    card = views._card(mfu, "key")
    assert card["displayName"] == card["nodeLevelSystemMetricConfiguration"]["metric"] == mfu.title


def test_views_are_set_the_same_each_time(storage: Path) -> None:
    """They are tags of the experiment, in a text that fits, and replaced by themselves."""
    store = Store(destination_in(storage))
    views.set_views(store, SHIPPED)
    every = f"SELECT key, value FROM experiment_tags WHERE key LIKE '{views._TAG}%' ORDER BY 1"
    query = "SELECT key, value FROM experiment_tags ORDER BY 1"
    described = rows(storage, query)
    before = rows(storage, every)
    views.set_views(store, SHIPPED)
    assert rows(storage, query) == described
    assert rows(storage, every) == before
    assert [key for key, _ in before] == sorted(views._TAG + view.key for view in SHIPPED)
    for _, text in before:
        kept = json.loads(str(text))
        state = json.loads(kept["state"])
        own = [
            section["uuid"] for section in state["compareRunSections"] if not section["isGenerated"]
        ]
        assert {card["metricSectionId"] for card in state["compareRunCharts"]} == set(own)
        cards = [card["uuid"] for card in state["compareRunCharts"]]
        assert len(set(cards)) == len(cards)


def test_sections_with_data_are_open_and_come_first() -> None:
    """An empty one would be a large box above charts that have something to show."""
    for recorded in (set(metrics._OF_STEPS), {metrics._MEDIAN_MFU, *metrics._OF_STUDIES}):
        for view in SHIPPED:
            own = {section.name: bool(section.metrics & recorded) for section in view.sections}
            stored = views._state(view, recorded)["compareRunSections"]
            opened = [chart["display"] for chart in stored]
            assert opened == sorted(opened, reverse=True)
            assert {chart["name"] for chart in stored if chart["display"]} == {
                name for name, has_data in own.items() if has_data
            }


def test_bars_have_a_title_in_words() -> None:
    """MLflow would title them by the names of their metrics; as bars of a data set they keep it."""
    bars = views._Chart(title="MFU: median, expected", bars=["mfu/median", "mfu/expected"])
    card = views._card(bars, "key")
    assert (card["datasetName"], card["metricKey"]) == ("MFU", "median, expected")
    assert (card["dataAccessKey"], card["selectedMetricKeys"]) == ("mfu/median", bars.bars)


def test_a_view_that_is_too_long_is_refused(storage: Path) -> None:
    """MLflow would cut it."""
    section = views._Section(name="x" * 30_000, charts=[views._Chart(bars=[metrics.LOSS])])
    long = views._View(name="long", sections=[section])
    with pytest.raises(NotRecorded, match="over 20,000"):
        views.set_views(Store(destination_in(storage)), [long])


def test_a_misspelt_key_in_the_file_is_an_error() -> None:
    """A chart that says nothing would be shown as nothing."""

    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'[{"name": "a", "section": []}]', type=list[views._View])

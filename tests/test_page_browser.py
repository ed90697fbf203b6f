"""Pages as a browser shows them: nothing complains, nothing runs out of the page, all is drawn."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.evidence.studies import _make_scaling_report, read_trial_runs
from orchestrator.show.pages import _run_page, _scaling_page
from orchestrator.values.goodput import Outlook, Uncertain
from tests.browser import MISSING, Browser, browser, chromium
from tests.journals import tiny_plan
from tests.reports import finished_study, preempted_run
from tests.test_page import shown
from tests.test_study import study_of

WIDTHS = {"phone": 390, "desktop": 1280}
SCHEMES = {"light": False, "dark": True}
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PAPER = "getComputedStyle(document.body).backgroundColor"
# What is drawn, and has a size: bars, curves, dots.
DRAWN = """['.bar rect', '.curve', '.dot'].map(name => [...document.querySelectorAll(name)].filter(
    one => { const at = one.getBoundingClientRect(); return at.width + at.height > 1 }).length)"""
SMALLEST = """Math.min(...[...document.querySelectorAll('text, p, td, li, small')].filter(
    one => one.textContent.trim()).map(one => parseFloat(getComputedStyle(one).fontSize)))"""
# Tables that are wider than what shows them; those of many columns may be moved sideways.
CUT_TABLES = """[...document.querySelectorAll('main .scroll')].filter(
    one => !one.closest('details') && one.querySelectorAll('th').length < 8
        && one.scrollWidth > one.clientWidth).map(
    one => one.textContent.slice(0, 80))"""
CUT_FIGURES = """[...document.querySelectorAll('.figure > *')].filter(
    one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"""
FORMULAS = """[...document.querySelectorAll('details')].map(
    one => one.querySelector('table').checkVisibility({contentVisibilityAuto: true})
        && one.getBoundingClientRect().height > 60)"""

A4 = (688, 1017)  # in CSS pixels, within margins of 14 mm
CUT = """[...document.querySelectorAll('svg.plot, svg.bar')].filter(one => {
    for (let at = one; at; at = at.parentElement)
        if (getComputedStyle(at).breakInside === 'avoid') return false
    return true }).map(one => one.getAttribute('aria-label'))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a real run, of a rehearsal, and of a study, as files."""
    folder = tmp_path_factory.mktemp("pages")
    run, steps = preempted_run()
    small = replace(run, rehearsal=True, rehearses=tiny_plan().digest)
    recorded = finished_study(folder / "runs", study_of(1, 2, 4), lambda *_: 0.5, steps=4)
    ran = read_trial_runs(recorded)
    report = _make_scaling_report(recorded.key, recorded.submission().study, ran)
    texts = {
        "run": _run_page(**shown(run, steps)),
        "rehearsal": _run_page(**shown(small, steps, rehearsed=tiny_plan())),
        "study": _scaling_page(report, {trial.trial: trial.predicted for trial in ran}),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """One browser for all pages."""
    with browser() as running:
        yield running


@pytest.mark.skipif(chromium() is None, reason=MISSING)
@pytest.mark.parametrize("name", ["run", "rehearsal", "study"])
def test_a_page_is_shown_whole(name: str, pages: dict[str, Path], chrome: Browser) -> None:
    """At phone and desktop width, light and dark: no console error, nothing beyond the page's edge,
    bars, curves and dots with a size, text that can be read.
    """
    papers = set()
    for width, pixels in WIDTHS.items():
        for scheme, is_dark in SCHEMES.items():
            page = chrome.page()
            page.size(pixels, 900, dark=is_dark)
            page.open(pages[name].as_uri())
            page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
            assert page.errors == []
            assert page.value(WIDE) <= 0, (width, scheme)
            bars, curves, dots = page.value(DRAWN)
            assert min(bars, curves) > 1
            assert dots > 2
            assert page.value(SMALLEST) >= 11
            assert page.value(CUT_TABLES) == []
            papers.add((scheme, page.value(PAPER)))
            if "PICTURES" in os.environ:
                page.picture(Path(os.environ["PICTURES"]) / f"{name}-{width}-{scheme}.png")
    assert len(papers) == len(SCHEMES)
    assert len({paper for _, paper in papers}) == len(SCHEMES)


@pytest.mark.skipif(chromium() is None, reason=MISSING)
@pytest.mark.parametrize("pixels", [1400, 1100, 800])
def test_no_figure_of_a_running_run_is_cut(pixels: int, tmp_path: Path, chrome: Browser) -> None:
    """Not the longest either: what is left, in minutes."""
    run, steps = preempted_run()
    report = shown(run, steps)["reading"].report
    left = Uncertain(value=3.6 / 1440, low=2.9 / 1440, high=12.5 / 1440)
    one = Uncertain(value=1.0, low=1.0, high=1.0)
    outlook = Outlook(
        steps_left=5, step_s=one, goodput=one, days_left=left, ends_at_s=one, dollars_so_far=None,
        dollars_left=None, deadline_at_s=1.0, odds=0.9,
    )  # fmt: skip
    file = tmp_path / "page.html"
    file.write_text(_run_page(**shown(run, steps, report=replace(report, outlook=outlook))))
    page = chrome.page()
    page.size(pixels, 900)
    page.open(file.as_uri())
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    assert "3.6 minutes" in page.value("document.querySelector('.figures').textContent")
    assert page.value(CUT_FIGURES) == []
    assert page.value(WIDE) <= 0


@pytest.mark.skipif(chromium() is None, reason=MISSING)
@pytest.mark.parametrize("name", ["run", "rehearsal", "study"])
def test_a_page_prints_light_and_whole(name: str, pages: dict[str, Path], chrome: Browser) -> None:
    """On A4, from a browser that is dark: white paper, nothing beyond its edge, no drawing that may
    be cut by the end of a sheet, and no sheet that is left empty before one.
    """
    page = chrome.page()
    page.size(*A4, dark=True)
    page.print_media()
    page.open(pages[name].as_uri())
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    assert page.value(PAPER) == "rgb(255, 255, 255)"
    assert page.value(WIDE) <= 0
    assert page.value(CUT) == []
    assert all(page.value(FORMULAS))
    long = float(page.value("document.documentElement.scrollHeight"))
    assert page.sheets() <= long / A4[1] * 1.6 + 1

"""Pages: one file that needs nothing else, true in every place, safe whatever a run is called."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import UndefinedError

from orchestrator.evidence.report import RunReading
from orchestrator.journal.steps import counted_steps
from orchestrator.processes import resource
from orchestrator.show.charts import over_steps, thinned
from orchestrator.show.drawings import (
    Axis,
    Bar,
    BarChart,
    BarPart,
    Mark,
    _environment,
    filled,
)
from orchestrator.show.pages import _run_page
from orchestrator.tracking.mlflow.store import run_link
from orchestrator.values.report import Report
from orchestrator.values.run import Run, TrackedRun
from tests.conftest import RunOrch
from tests.journals import reason, table_of, tiny_plan
from tests.reports import Steps, compare, finished_run, preempted_run, timed

PLAN = tiny_plan()
VOID = {"meta", "link", "br", "img"}


def shown(run: Run, steps: Steps, **changes: object) -> dict[str, Any]:
    """What the page of a run is made from."""
    tables = {number: table_of(taken) for number, taken in steps.items()}
    report = changes.pop("report", None) or compare(run, PLAN, steps)
    assert isinstance(report, Report)
    reading = RunReading(run, report, counted_steps(tables), tables)
    return {"reading": reading, "plan": PLAN, **changes}


def page(**changes: object) -> str:
    """The page of a real run of two attempts."""
    run, steps = preempted_run()
    return _run_page(**shown(replace(run, **changes), steps))  # type: ignore[arg-type]


def test_a_far_roofline_does_not_flatten_the_measured_mfu() -> None:
    """The axis of MFU ends at what was measured and expected, with the band of the expected one."""
    run, steps = preempted_run()
    reading = shown(run, steps)["reading"]
    mfu = replace(PLAN.forecast.mfu, lower=0.9, expected=0.041, low=0.03, high=0.05)
    plan = replace(PLAN, forecast=replace(PLAN.forecast, mfu=mfu))
    table = replace(reading.steps, mfu=reading.steps.mfu * 0.037 / 0.4)
    plot = over_steps(plan, reading.report, table)[0]
    assert plot.y_name == "MFU"
    assert 0.05 < plot.y.high < 0.06
    assert [curve.kind for curve in plot.curves].count("lower") == 0
    assert ("expected", (0.0, 0.03, 0.05)) in [(band.kind, band.points[0]) for band in plot.bands]
    near = replace(plan, forecast=replace(PLAN.forecast, mfu=replace(mfu, lower=0.09)))
    plot = over_steps(near, reading.report, table)[0]
    assert [curve.kind for curve in plot.curves].count("lower") == 1


def test_a_wide_interval_does_not_flatten_the_bars() -> None:
    """A band that ends far beyond all bars is cut at the end of the axis."""
    bars = [Bar(name="matmul", kind="matmul", segments=(BarPart(name="all", value=2.0),))]
    far = Mark(name="expected", kind="expected", value=4.0, low=2.0, high=1000.0)
    chart = BarChart(bars=bars, show=str, marks=[far])
    [(_, _, width, _)] = chart.placed(bars[0])
    assert float(width.rstrip("%")) > 25
    assert float(chart.at(2.0).rstrip("%")) + float(chart.width(2.0, 1000.0).rstrip("%")) <= 100
    near = BarChart(bars=bars, show=str, marks=[replace(far, high=5.0)])
    assert float(near.at(5.0).rstrip("%")) < 100


def test_a_page_links_to_its_mlflow_run() -> None:
    database = TrackedRun(tracker="mlflow", uri="sqlite:////runs/mlflow.db", run_id="abc")
    assert run_link(database) == "http://127.0.0.1:5080/#/runs/abc"
    server = replace(database, uri="https://mlflow.example/")
    assert run_link(server) == "https://mlflow.example/#/runs/abc"
    assert run_link(replace(database, tracker="files")) is None
    run, steps = preempted_run()
    linked = replace(run, tracking=database)
    text = _run_page(**shown(linked, steps))
    assert '<a href="http://127.0.0.1:5080/#/runs/abc">abc</a>' in text


class Reader(HTMLParser):
    """Reads a page as a browser does: what is open, what is shown, what it asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.asked: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.asked += [str(value) for name, value in attrs if name in {"src", "href", "onload"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def read(text: str) -> Reader:
    """A page, read to its end."""
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


# --- the file


def test_a_page_is_whole_and_asks_for_nothing() -> None:
    """Every element is closed; no script, no font, no picture comes from elsewhere."""
    found = read(page())
    assert found.asked == []
    assert not {"script", "link", "img", "iframe"} & set(found.seen)
    assert "@import" not in page()
    assert "url(" not in page()
    assert {"svg", "table", "details"} <= set(found.seen)


def test_a_page_is_the_same_twice() -> None:
    """It is a function of what it is given."""
    assert page() == page()


def test_ten_thousand_steps_stay_a_small_page() -> None:
    """Curves are thinned: the page does not grow with the run."""
    run, steps = preempted_run()
    long = {**steps, 2: timed(100.0, range(5, 10_000), 0.5)}
    assert len(_run_page(**shown(run, long)).encode()) < 200_000


@pytest.mark.parametrize(
    "path", sorted(resource("dashboards").glob("*.html")), ids=lambda path: path.name
)
def test_no_template_fetches_anything(path: Path) -> None:
    """A page needs no network, and no template switches escaping off."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script .*src|<link|@import", text)
    assert ("<script" in text) == (path.name == "watch.html")  # the one page that is served
    assert not re.search(r"\| *safe|autoescape", text)


def test_a_template_without_a_value_is_an_error() -> None:
    """A page never shows a hole."""
    with pytest.raises(UndefinedError, match="verdict"):
        filled("page.html", title="it")


# --- what it says


def test_text_of_a_run_is_never_markup() -> None:
    """Errors and environments come from outside: they are shown, and do nothing."""
    hostile = "<script>alert(1)</script>\"&' onload=x"
    run, steps = preempted_run()
    first, second = run.attempts
    run = replace(
        run,
        run=hostile,
        state="failed",
        reason=reason(hostile),
        environment={hostile: hostile},
        attempts=(replace(first, error=hostile), second),
    )
    found = read(_run_page(**shown(run, steps)))
    assert "script" not in found.seen
    assert found.asked == []
    assert "".join(found.text).count(hostile) >= 5


def test_values_in_charts_and_attributes_are_escaped() -> None:
    """A name with markup is text in every place of a chart."""
    hostile = '<b onload="x">&'
    parts = (BarPart(name=hostile, value=1.0), BarPart(name="b", value=2.0))
    chart = BarChart(bars=[Bar(name=hostile, kind="hbm", segments=parts)], show=str)
    macros = _environment().get_template("charts.html").module
    drawn = macros.bar_chart(chart)  # type: ignore[attr-defined]
    assert hostile not in drawn
    assert 'aria-label="&lt;b onload=&#34;x&#34;&gt;&amp;: 3.0"' in drawn
    assert "".join(read(drawn).text).count(hostile) == 3


def test_a_real_run_stands_beside_its_forecast() -> None:
    """The verdict has the distance; the measured step is a mark across the ledger's bars."""
    text = page()
    assert "outside the 80 % interval" in text
    assert 'class="band expected"' in text
    assert 'class="dot expected"' in text
    scales = text[text.index("Time per step") : text.index("Over steps")]
    assert 'class="mark measured"' in scales
    assert "this run" in scales
    assert 'class="rehearsal"' not in text


def test_memory_is_forecast_compiled_and_measured() -> None:
    """What the devices said is a bar of its own; where they did not say, the page does."""
    run, steps = preempted_run()
    silent = report_words(_run_page(**shown(run, steps)))
    assert "The devices did not report their memory" in silent
    first = replace(steps[2][0], step=replace(steps[2][0].step, peak_hbm_bytes=5 << 30))
    text = _run_page(**shown(run, {**steps, 2: [first, *steps[2][1:]]}))
    assert "did not report their memory" not in text
    block = text[text.index("Memory per device") : text.index("Where the time went")]
    assert 'aria-label="measured: 5.00 GiB"' in block


def test_a_rehearsal_is_never_drawn_beside_chips() -> None:
    """It says that it is one; no mark and no dot of it lies on a scale of chips."""
    run, steps = preempted_run()
    small = replace(run, rehearsal=True, rehearses=PLAN.digest)
    text = _run_page(**shown(small, steps, rehearsed=PLAN))
    assert "A rehearsal: a small copy" in text
    assert "compared with no forecast" in text
    scales = text[text.index("Time per step") : text.index("Over steps")]
    assert 'class="mark measured"' not in scales
    assert "this run" not in scales
    assert "times the lower bound" not in text


def test_a_rehearsal_is_held_against_its_own_machine() -> None:
    """With a forecast on measured ceilings: there it stands beside it, and never beside chips."""
    run, steps = preempted_run()
    here = replace(PLAN, chip_profile="0" * 64)
    small = replace(run, rehearsal=True, rehearses=PLAN.digest)
    report = compare(small, here, steps)
    text = _run_page(**shown(small, steps, report=report, plan=here, rehearsed=PLAN))
    assert "this machine's chip profile" in report_words(text)
    chips = text[text.index("The plan, on v5e chips") : text.index("Over steps")]
    assert 'class="mark measured"' in text[text.index("Time per step") : text.index("The plan, on")]
    assert 'class="mark measured"' not in chips
    assert "this run" not in chips


def test_what_the_compiler_allows_stands_beside_the_plan_for_chips_alone() -> None:
    """Nothing limits a rehearsal's devices: its page says so, and its report has no limit."""
    run, steps = preempted_run()
    small = shown(replace(run, rehearsal=True, rehearses=PLAN.digest), steps, rehearsed=PLAN)
    assert small["reading"].report.memory.hbm_bytes is None
    text = _run_page(**small)
    block = text[text.index("Memory per device") : text.index("Where the time went")]
    here, chips = block.split("The plan, on v5e chips")
    assert "Emulated devices have no limit" in here
    assert "compiler limit" not in here
    assert "compiler limit" in chips
    assert (
        shown(run, steps)["reading"].report.memory.hbm_bytes == PLAN.forecast.hbm_bytes_per_device
    )


def report_words(text: str) -> str:
    """What a page says, without its markup."""
    return "".join(read(text).text)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_run_that_has_hardly_begun_has_a_page(count: int) -> None:
    """Without an attempt, with no step, with one that warms up, with one after it."""
    run, steps = preempted_run()
    taken = {1: steps[1][:count]}
    begun = replace(run, state="running", ended_at_s=None, attempts=run.attempts[:1])
    found = read(_run_page(**shown(begun, taken)))
    assert ("No step was measured" in "".join(found.text)) == (count < 2)
    read(_run_page(**shown(replace(begun, attempts=()), {})))


# --- its drawings


def test_ticks_of_steps_are_whole_numbers() -> None:
    assert Axis(0.0, 2.0, whole=True).ticks() == [0.0, 1.0, 2.0]
    assert Axis(0.0, 7.0, whole=True).ticks() == [0.0, 2.0, 4.0, 6.0]
    assert Axis(0.0, 300.0, whole=True).ticks() == Axis(0.0, 300.0).ticks()


def test_an_axis_shows_round_numbers_within_it() -> None:
    """1, 2, 2.5 or 5 times a power of ten; on a logarithmic axis decades, divided where few."""
    assert Axis(0.0, 0.26).ticks() == [0.0, 0.1, 0.2]
    assert Axis(0.0, 1_000.0).ticks(4) == [0, 250, 500, 750, 1_000]
    assert Axis(0.5, 2e6, log=True).ticks(10) == [10.0**n for n in range(7)]
    assert Axis(60.0, 2e3, log=True).ticks() == [100.0, 200.0, 500.0, 1_000.0, 2_000.0]
    assert Axis(0.0, 0.15).ticks() == pytest.approx([0.0, 0.05, 0.1, 0.15])
    linear, log = Axis(2.0, 4.0), Axis(1.0, 100.0, log=True)
    assert [linear(value) for value in (1, 2, 3, 4, 5)] == [0, 0, 0.5, 1, 1]
    assert log(10) == 0.5


def test_thinning_keeps_the_extremes() -> None:
    """A spike of one step among thousands is still seen."""
    x, y = np.arange(5_000.0), np.ones(5_000)
    y[1_234] = 9.0
    kept = thinned(x, y)
    assert len(kept) <= 240
    assert max(high for *_, high in kept) == 9.0
    assert thinned(x[:3], y[:3]) == [(at, 1.0, 1.0, 1.0) for at in (0.0, 1.0, 2.0)]


# --- the command


def test_report_writes_a_page_and_says_where(orch: RunOrch, tmp_path: Path) -> None:
    """In the run's directory, or where it is asked for; --json prints the report instead."""
    steps = [taken.step for taken in timed(0.0, range(8), 0.5)]
    finished_run(tmp_path, "it", plan=PLAN, steps=steps)
    done = orch("report", "it", "--storage", str(tmp_path))
    assert done.returncode == 0, done.stderr
    *verdict, place, following = done.stdout.splitlines()
    assert verdict[0].startswith("it: Succeeded: 8 of 8 steps. A step took 500 ms, ")
    assert max(len(line) for line in verdict if "--storage" not in line) <= 80
    assert place == f"wrote {tmp_path / 'it' / 'report.html'}"
    assert following == f"Next: open file://{tmp_path}/it/report.html"
    read((tmp_path / "it" / "report.html").read_text(encoding="utf-8"))
    elsewhere = tmp_path / "page.html"
    orch("report", "it", "--storage", str(tmp_path), "-o", str(elsewhere))
    assert elsewhere.read_text() == (tmp_path / "it" / "report.html").read_text()
    assert '"run": "it"' in orch("report", "it", "--storage", str(tmp_path), "--json").stdout


def test_a_page_that_cannot_be_written_is_one_message(orch: RunOrch, tmp_path: Path) -> None:
    """With the place, the reason, and what to do."""
    finished_run(
        tmp_path, "it", plan=PLAN, steps=[taken.step for taken in timed(0.0, range(3), 0.5)]
    )
    gone = tmp_path / "nowhere" / "page.html"
    done = orch("report", "it", "--storage", str(tmp_path), "-o", str(gone))
    assert done.returncode == 1
    why = "cannot be written: No such file or directory"
    assert done.stderr == f"error: {gone}: {why}\nNext: orch doctor\n"

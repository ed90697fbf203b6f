"""`orch ui` as a person meets it: its links opened in a real browser; then nothing is left."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.browser import MISSING, Browser, Page, browser, chromium
from tests.clusters import eventually
from tests.conftest import ROOT, RunOrch
from tests.records import empty_database, finished_run, record_once, storage

__all__ = ["empty_database", "storage"]

LIMIT_S = 300  # a server is many imports, on a machine that does other work too
VIEWS = ("At a glance (rehearsals)", "Measured against predicted (rehearsals)")
DRAWN = "document.querySelectorAll('.js-plotly-plot .main-svg').length"
# MLflow opens a panel of its own at the first visit, over half of the page.
ASSISTANT = "document.body.innerText.includes('Ask questions about your')"
# Each chart of Plotly's knows what it has drawn: points of lines and of scatters, bars.
POINTS = """[...document.querySelectorAll('.js-plotly-plot')].map(plot => (plot.data || []).reduce(
    (sum, trace) => sum + (trace.x || []).filter(one => one !== null).length, 0))"""


@pytest.mark.skipif(chromium() is None, reason=MISSING)
def test_the_comparisons_open_with_data(storage: Path) -> None:
    """Runs of 1, 2 and 4 pods: each promised view opens from its link, its charts drawn, and Ctrl-C
    leaves no process.
    """
    for pods in (1, 2, 4):
        record_once(finished_run(storage, f"tiny-{pods}pod", steps=30, pods=pods, rehearsal=True))
    with shown(storage) as (process, links), browser() as chrome:
        for name, page in drawn(chrome, links):
            text = str(page.value("document.body.innerText"))
            assert name in text
            assert not page.value(ASSISTANT)
            assert all(f"tiny-{pods}pod" in text for pods in (1, 2, 4))
            page.picture(Path(os.environ.get("PICTURES", storage)) / f"{name}.png")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    eventually(lambda: not serving(storage), 30)


def drawn(chrome: Browser, links: dict[str, str]) -> Iterator[tuple[str, Page]]:
    """Each promised view by its name, opened from its link, when its charts have data."""
    page = chrome.page()
    page.size(1600, 1300)
    for name in VIEWS:
        page.open("about:blank")
        page.open(links[name])
        page.wait("document.body.innerText.length > 0", LIMIT_S)
        page.wait(f"{DRAWN} >= 3", LIMIT_S)
        page.wait(f"({POINTS}).filter(count => count >= 3).length >= 3", LIMIT_S)
        yield name, page


@contextmanager
def shown(storage: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`orch ui` when it has printed its links, by the name of their view."""
    command = [str(Path(sys.executable).with_name("orch")), "ui", "--storage", str(storage)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        links: dict[str, str] = {}
        try:
            for line in process.stdout:
                if match := re.fullmatch(r"    (\S.*?) +(http://127\.0\.0\.1:\S+)\n", line):
                    links[match[1]] = match[2]
                if line.startswith("Ctrl-C"):
                    break
            yield process, links
        finally:
            process.kill()


def serving(storage: Path) -> list[str]:
    """The command lines of processes that serve what is recorded there."""
    planned = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "mlflow" in " ".join(words) and any(str(storage) in word for word in words):
            planned.append(" ".join(words))
    return planned


def test_there_is_nothing_to_show_before_something_is_recorded(
    orch_process: RunOrch, tmp_path: Path
) -> None:
    """It says so at once, and what to do."""
    done = orch_process("ui", "--storage", str(tmp_path))
    assert done.returncode == 1
    assert f"nothing is recorded of the runs in {tmp_path}\nNext: orch sync" in done.stderr

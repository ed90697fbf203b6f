"""A real browser for tests: headless Chromium, spoken to over a pipe, so that no driver is needed.

Chromium comes from the system's packages (Debian: apt-get install chromium). CHROMIUM names
another one.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
    "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--mute-audio",
)  # fmt: skip
MISSING = "no Chromium is here: apt-get install chromium, or name one in CHROMIUM"


def chromium() -> str | None:
    """The browser's program; None where there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab: opened, looked at, asked."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        self._dark, self._media = False, ""

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        return self._browser.ask(method, self._session, **parameters)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """As a window of that size, light or dark."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self._dark = dark
        self._emulate()

    def print_media(self) -> None:
        """As on paper, whatever else was said: features of before stay."""
        self._media = "print"
        self._emulate()

    def sheets(self) -> int:
        """On how many sheets of paper it is printed."""
        answer = self.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(answer["data"])))

    def _emulate(self) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=self._media, features=[scheme])

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, expression: str, limit_s: float = 120) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + limit_s
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, f"not within {limit_s} s: {expression}"
            time.sleep(0.5)
        return found

    def picture(self, path: Path) -> None:
        """What the window shows."""
        answer = self.ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


class Browser:
    """A running Chromium. Answers and events come over one pipe, each ended by a zero byte."""

    def __init__(self, sends: int, reads: int) -> None:
        self._sends, self._reads = sends, reads
        self._number, self._rest = 0, b""
        self.pages: dict[str, Page] = {}

    def page(self) -> Page:
        """A new tab, whose console errors are kept."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.ask(f"{domain}.enable")
        return page

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        said: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            said["sessionId"] = session
        os.write(self._sends, json.dumps(said).encode() + b"\0")
        while True:
            heard = self._heard()
            if heard.get("id") == self._number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                result: dict[str, Any] = heard["result"]
                return result
            self._note(heard)

    def _heard(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._reads, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(text)
        return heard

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what a page complains of."""
        page = self.pages.get(event.get("sessionId", ""))
        if page is None:
            return
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            page.errors.append(str(params["exceptionDetails"].get("exception", params)))
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
            page.errors.append(" ".join(str(arg.get("value", arg)) for arg in params["args"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            page.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium with an empty profile, gone when this is left."""
    program = chromium()
    assert program, MISSING
    hears, sends = os.pipe()
    reads, says = os.pipe()
    # It reads file 3 and writes file 4: `sh` puts our ends there.
    script = f'exec 3<&{hears} 4>&{says}; exec "$@"'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(hears, says),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (hears, says):
            os.close(end)
        try:
            yield Browser(sends, reads)
        finally:
            for end in (sends, reads):
                os.close(end)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

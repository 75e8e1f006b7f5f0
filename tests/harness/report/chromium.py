"""A headless Chromium, driven over its DevTools protocol: enough to open a page, press keys and read what is there.

Nothing is installed: where the browser or the websocket client is missing, `missing()` says which.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip
SECONDS = 120
"""How long one answer may take."""


def missing() -> str | None:
    """Why no browser can be driven here, if so."""
    if not _browser():
        return "there is no chromium: apt-get install chromium"
    if importlib.util.find_spec("websocket") is None:
        return "there is no websocket client: pip install websocket-client"
    return None


def _browser() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Tab:
    """One open page."""

    def __init__(self, address: str):
        import websocket

        self._socket = websocket.create_connection(address, timeout=SECONDS, suppress_origin=True)
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What the page did, as the protocol tells it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict[str, Any]:
        """One command and its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and wait until it is there."""
        for url in ("about:blank", path.resolve().as_uri() + fragment):  # else another fragment of one page loads nothing
            self.events.clear()
            self.call("Page.navigate", url=url)
            while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
                self.events.append(json.loads(self._socket.recv()))

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key on what has the focus: a letter, or `Enter` or `Tab`."""
        code, text = {"Enter": (13, "\r"), "Tab": (9, ""), " ": (32, " ")}.get(key, (ord(key.upper()[0]), key))
        about = {"key": key, "windowsVirtualKeyCode": code, "code": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def resize(self, width: int, height: int = 900) -> None:
        """The size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        """What the reader prefers: `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


@contextlib.contextmanager
def tab() -> Iterator[Tab]:
    """A browser of one's own with one tab."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [_browser(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        browser = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
        try:
            told = (re.search(r"DevTools listening on (\S+)", line) for line in browser.stderr)
            opened = Tab(next(found[1] for found in told if found))
            yield opened
            opened.close()
        finally:
            browser.kill()
            browser.wait()
            browser.stderr.close()

"""A headless Chromium, controlled with the DevTools protocol over two pipes; uses only the standard library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.waiting import eventually

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
HOW = "no Chromium: install the package chromium (Debian, Ubuntu), or set CHROMIUM to the path of one"
_DEADLINE_S = 180.0
#: Moves the pipes to the descriptors that Chromium expects, 3 to read and 4 to write, and then executes Chromium.
_LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"


def chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A page in a browser process."""

    def __init__(self, executable: str, directory: Path, *, width: int = 1280, height: int = 900) -> None:
        read_theirs, self._write = os.pipe()
        self._read, write_theirs = os.pipe()
        self._buffer = b""
        self._next_id = 0
        self._session: str | None = None
        #: Errors that the page logged or threw, and the URLs that it requested.
        self.errors: list[str] = []
        self.requested: list[str] = []
        arguments = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage"),
            *("--remote-debugging-pipe", f"--user-data-dir={directory}", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--disable-extensions", "about:blank"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(read_theirs), str(write_theirs), executable, *arguments],
            pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._write)
        try:
            # Chromium ends when its pipe is closed.
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: Mapping[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            detail = parameters["exceptionDetails"]
            self.errors.append(str(detail.get("exception", {}).get("description", detail["text"])))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])

    # -- the page ---------------------------------------------------------------------------------------------------

    def resize(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Set the size of the window, and the colour scheme that the user prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Open a URL."""
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def until(self, expression: str, deadline_s: float = _DEADLINE_S) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        return eventually(
            lambda: self.js(f"(() => {{ try {{ return {expression} }} catch (error) {{ return null }} }})()"),
            expression,
            within_s=deadline_s,
            every_s=0.1,
            shows=lambda: self.js("document.body.innerText")[:2000],
        )

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send an event ``mousePressed``, ``mouseMoved``, ``mouseReleased`` or ``mouseWheel`` at a point of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the whole page, or only of the visible part."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

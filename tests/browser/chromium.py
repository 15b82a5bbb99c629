"""Headless Chromium, driven by the DevTools protocol over two pipes.

A pipe needs neither a port nor a client library. Chromium reads messages from file descriptor 3 and
writes them to 4; each message is JSON and ends with a NUL.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

MISSING: Final = "Chromium is not installed (Debian, Ubuntu: apt-get install chromium)"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_QUIET: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--no-default-browser-check", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio"),
)
_ANSWER_S: Final = 60.0
_STOP_S: Final = 10.0
_ABOVE: Final = 10  # above the two descriptors that Chromium uses
_TROUBLE: Final = frozenset({"error", "warning", "assert"})

Message = dict[str, Any]


def installed() -> str | None:
    """Return the path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class BrowserError(Exception):
    """Chromium exited, did not answer in time, or returned an error."""


@dataclass(kw_only=True)
class Heard:
    """The requests and the console messages of a page while it was watched."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """The page's console: errors, warnings, exceptions, violations of its content policy."""


class Chromium:
    """A Chromium with one tab, as a context manager that closes it."""

    def __init__(self, folder: Path) -> None:
        """Start Chromium; its profile and its log go into `folder`."""
        program = installed()
        if program is None:
            raise BrowserError(MISSING)
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()
        self._log = folder / "chromium.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("bash", "-c", 'exec "${@:3}" 3<&"$1" 4>&"$2"', "bash"),
                    *(str(theirs_in), str(theirs_out), program, *_QUIET),
                    *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"),
                    "about:blank",
                ],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._unread = b""
        self._events: list[Message] = []
        self._session: str | None = None
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop Chromium; kill it where it does not exit by itself."""
        self._session = None
        with suppress(BrowserError):
            self._send("Browser.close")
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def show(
        self, *, width: int, height: int = 900, scheme: str = "light", media: str = "screen"
    ) -> None:
        """Set the tab's size, its color scheme (light or dark), and its medium (screen
        or print).
        """
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.ask(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def open(self, page: Path) -> Heard:
        """Load a page from its file, wait until it is loaded, and return what it did meanwhile."""
        self._events.clear()
        answer = self.ask("Page.navigate", url=page.as_uri())
        if "errorText" in answer:
            raise BrowserError(f"{page}: {answer['errorText']}")
        self._until(lambda event: event["method"] == "Page.loadEventFired")
        # All pending events come before the answer to this.
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return _heard(self._events)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page; promises are awaited."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """Return the whole page as PNG, including the parts beyond the tab."""
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def printed(self) -> bytes:
        """Return the page as PDF, as it is printed."""
        answer = self.ask("Page.printToPDF", preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    def ask(self, method: str, **parameters: Any) -> Message:
        """Call a method of the protocol and return its result."""
        number = self._send(method, **parameters)
        deadline = time.monotonic() + _ANSWER_S
        while True:
            message = self._receive(deadline)
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self._events.append(message)

    def _attach(self) -> None:
        tabs = self.ask("Target.getTargets")["targetInfos"]
        tab = next(each for each in tabs if each["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def _until(self, is_it: Callable[[Message], bool]) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while not any(map(is_it, self._events)):
            message = self._receive(deadline)
            if "method" in message:
                self._events.append(message)

    def _send(self, method: str, **parameters: Any) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        unsent = json.dumps(message).encode() + b"\0"
        try:
            while unsent:
                unsent = unsent[os.write(self._out, unsent) :]
        except BrokenPipeError:
            raise BrowserError(f"Chromium ended: {self._said()}") from None
        return self._number

    def _receive(self, deadline: float) -> Message:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BrowserError(f"Chromium did not answer within {_ANSWER_S} s: {self._said()}")
            read = os.read(self._in, 1 << 16)
            if not read:
                raise BrowserError(f"Chromium ended: {self._said()}")
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-2_000:]


def _pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors have numbers that Chromium does not use."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _heard(events: list[Message]) -> Heard:
    heard = Heard()
    for event in events:
        given = event["params"]
        match event["method"]:
            case "Network.requestWillBeSent":
                heard.requests.append(given["request"]["url"])
            case "Log.entryAdded" if given["entry"]["level"] in _TROUBLE:
                heard.complaints.append(given["entry"]["text"])
            case "Runtime.consoleAPICalled" if given["type"] in _TROUBLE:
                heard.complaints.append(str(given["args"]))
            case "Runtime.exceptionThrown":
                heard.complaints.append(given["exceptionDetails"]["text"])
    return heard

"""A headless Chromium that opens pages from disk and is used as by a person: for tests and benchmarks of the report.

    with Browser() as browser:
        page = browser.open(file)
        page.click("#tab-graphs")
        page.value("document.title")

Commands go through the browser's own protocol over two pipes, so nothing beside the browser is needed. Everything the
page logs, throws or asks a network for is kept.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
          "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
          "--disable-extensions", "--remote-debugging-pipe")  # fmt: skip
_LOCAL = ("file:", "blob:", "data:", "about:", "chrome:", "devtools:")


class Browser:
    """One browser process with a profile of its own."""

    def __init__(self, patience: float = 120.0) -> None:
        assert CHROMIUM is not None
        self.patience = patience
        self.events: list[dict[str, Any]] = []
        self._number = 0
        self._rest = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        # The browser reads commands from 3 and answers on 4: the shell moves the pipes there, from where they cannot
        # be in each other's way.
        theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 20) for each in (commands, answers)]
        script = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in (commands, answers, *theirs):
            os.close(each)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Send a command and wait for its answer; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self.patience
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, end: float) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(
        self, file: Path | str, view: str = "", *, width: int = 1280, height: int = 860, dark: bool = False
    ) -> "Page":
        """A page of its own for a file on disk, or for an address, loaded and drawn for the first time; `view`:
        "#graphs", say."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.look(width, height, dark)
        page.send("Page.navigate", url=(file if isinstance(file, str) else file.as_uri()) + view)
        page.wait("document.readyState === 'complete' && performance.getEntriesByType('paint').length > 0")
        return page


class Page:
    """One page: what it shows, and what somebody who uses it can do."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def close(self) -> None:
        self.browser.send("Target.closeTarget", targetId=self.target)

    def send(self, method: str, **parameters: Any) -> Any:
        return self.browser.send(method, self.session, **parameters)

    def look(self, width: int, height: int, dark: bool = False) -> None:
        """Choose the size of the window and the colours that the system prefers."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression yields in the page, a promise's answer included."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", expression))
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"never became true: {condition}")
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of an element, scrolled to if need be."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'center'}})")
        spot = self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({element}.getBoundingClientRect())"
        )
        self.click_at(*spot)

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, text: str = "") -> None:
        """One key: `Tab`, `Enter`, `ArrowRight` or a letter with its text."""
        code = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r", " ": " "}.get(key, text)
        parameters = {"key": key, "windowsVirtualKeyCode": code.get(key, 0), "text": text} if text else {
            "key": key, "windowsVirtualKeyCode": code.get(key, 0)}  # fmt: skip
        self.send("Input.dispatchKeyEvent", type="keyDown", **parameters)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code.get(key, 0))

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def spoken(self) -> list[tuple[str, str]]:
        """(role, name) of everything a screen reader finds."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        seen = (node for node in nodes if not node.get("ignored"))
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in seen]

    def _happened(self, method: str) -> list[dict[str, Any]]:
        self.value("0")  # whatever happened before this is here with its answer
        mine = (event for event in self.browser.events if event.get("sessionId") == self.session)
        return [event["params"] for event in mine if event["method"] == method]

    def errors(self) -> list[str]:
        """What the page threw, and what the console shows as errors or warnings."""
        thrown = [each["exceptionDetails"]["text"] for each in self._happened("Runtime.exceptionThrown")]
        said = [str(each["args"]) for each in self._happened("Runtime.consoleAPICalled")
                if each["type"] in ("error", "warning", "assert")]  # fmt: skip
        logged = [each["entry"]["text"] for each in self._happened("Log.entryAdded")
                  if each["entry"]["level"] in ("error", "warning")]  # fmt: skip
        return thrown + said + logged

    def requests(self) -> list[str]:
        """Every address that was asked for beyond the disk."""
        asked = [each["request"]["url"] for each in self._happened("Network.requestWillBeSent")]
        return [address for address in asked if not address.startswith(_LOCAL)]

    def first_paint(self) -> float:
        """Milliseconds from the start of loading to the first content on the screen."""
        name = "first-contentful-paint"
        return float(self.value(f"performance.getEntriesByName('{name}')[0].startTime"))

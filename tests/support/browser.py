"""Chromium without a window, driven over a pipe by its debugging protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.waiting import WAIT_SECONDS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_KEYS = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "Tab": 9}


class Browser:
    """A context with one page."""

    def __init__(self, profile: Path, *, dark: bool = False) -> None:
        self._profile, self._dark = profile, dark
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session = ""
        self.requested: list[str] = []  # addresses
        self.complaints: list[str] = []  # what the console says is wrong

    def __enter__(self) -> Browser:
        assert CHROMIUM
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def give() -> None:  # as descriptors 3 and 4; first away from them, for they may be taken
            high = [os.dup2(each, number) for each, number in ((theirs_in, 103), (theirs_out, 104))]
            for each, number in zip(high, (3, 4), strict=True):
                os.dup2(each, number)

        self._process = subprocess.Popen(
            [
                CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={self._profile}",
                "--window-size=1100,700",
                *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if self._dark else []),
            ],
            preexec_fn=give, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")
        if self._dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            self.command("Emulation.setEmulatedMedia", features=features)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_SECONDS
        while b"\0" not in self._buffer:
            assert time.monotonic() < deadline, "the browser says nothing"
            if select.select([self._in], [], [], 0.5)[0]:
                self._buffer += os.read(self._in, 1 << 16)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))

    def open(self, url: str) -> None:
        self.command("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < deadline, f"in vain: {expression}\n{self.value('document.body.innerText')}"
            time.sleep(0.05)

    def type(self, text: str) -> None:
        self.command("Input.insertText", text=text)

    def press(self, key: str) -> None:
        given = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", **given, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", **given)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

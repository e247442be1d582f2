"""Chromium without a window, spoken to through pipes: what it logs, measures and draws of a page."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome")
OVERFLOWING = """
[...document.querySelectorAll('WITHIN')].filter(each => {
  if (each.closest('SCROLLED') && !each.matches('SCROLLED')) return false;
  const box = each.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(each => each.tagName + '.' + (each.className.baseVal ?? each.className) + ' ' + each.textContent.slice(0, 40))
"""
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")


def found():
    """The path of Chromium; ends the process, with what installs it, where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    return path or sys.exit("tests of pages need Chromium; run: apt-get install -y chromium")


class Browser:
    """A browser with one page. Use it as a context manager."""

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs, self._out = os.pipe()
        self._in, other = os.pipe()
        # It reads commands from descriptor 3 and writes answers to 4.
        command = [found(), *_OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"]
        script = f'exec "$@" 3<&{theirs} 4>&{other}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=(theirs, other), stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(other)
        self._buffer, self._number, self._session = b"", 0, None
        self.logged = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=60)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def show(self, path, *, width, scheme):
        """Load a file in a window of a width, light or dark; `logged` then has what it complained of or asked for."""
        self.logged = []
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._call("Page.navigate", url=f"file://{os.path.abspath(path)}")
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script):
        """The value of an expression on the page; of a promise, what it brings."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def overflowing(self, within="body *", scrolled=".scroll, pre"):
        """What lies outside of the window, but for what can be scrolled."""
        return self.evaluate(OVERFLOWING.replace("WITHIN", within).replace("SCROLLED", scrolled))

    def picture(self, path, *, height=None):
        """Write what the page looks like, from its top to its end or to some height, as PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def _call(self, method, **arguments):
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self):
        while b"\0" not in self._buffer:
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message)
        return message

    def _note(self, message):
        """Keep what a page should not do: log, throw, or ask for another file."""
        method, given = message.get("method"), message.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.logged.append(given)
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(("file:", "data:")):
            self.logged.append(given["request"]["url"])


if __name__ == "__main__":
    print(found())

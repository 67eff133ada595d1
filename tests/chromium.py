"""A page in a real, headless Chromium, driven through its DevTools."""

import asyncio
import json
import shutil
import subprocess
import time
from base64 import b64decode
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
OPTIONS += [
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--mute-audio",
]


@dataclass
class Page:
    """One page; `requests` are the addresses that it asked for, `errors` what went wrong on it."""

    runner: asyncio.Runner
    socket: aiohttp.ClientWebSocketResponse
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _calls: int = 0

    def open(self, url):
        """Go to an address; it has not loaded yet."""
        self._call("Page.navigate", url=url)

    def read(self, expression):
        """Return the value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=60):
        """Return the value of an expression as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (value := self.read(expression)):
            if time.monotonic() > deadline:
                text = self.read("document.body.innerText")[-2000:]
                raise AssertionError(
                    f"not within {seconds} s: {expression}\n{self.errors}\n{text}"
                )
            self._listen(0.2)
        return value

    def screenshot(self, file):
        """Write what the window shows."""
        file.write_bytes(b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method, **parameters):
        self._calls += 1
        return self.runner.run(self._answer(self._calls, method, parameters))

    async def _answer(self, number, method, parameters):
        await self.socket.send_str(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
        while True:
            message = json.loads((await self.socket.receive(timeout=300)).data)
            if message.get("id") == number:
                if "navigated" in message.get("error", {}).get("message", ""):
                    return {"result": {}}  # the page led to another one meanwhile
                assert "error" not in message, message["error"]
                return message["result"]
            self._note(message)

    def _listen(self, seconds):
        async def listen():
            async with asyncio.timeout(seconds):
                while True:
                    self._note(json.loads((await self.socket.receive()).data))

        try:
            self.runner.run(listen())
        except TimeoutError:
            return

    def _note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])


@contextmanager
def chromium_page(profile, width=1600, height=1000):
    """Start a browser with a profile of its own, yield its page, and end the browser."""
    assert PROGRAM, "there is no Chromium"
    command = [PROGRAM, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [*command, f"--window-size={width},{height}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with asyncio.Runner() as runner:
            session, page = runner.run(
                _connect(profile / "DevToolsActivePort", process, runner)
            )
            try:
                for domain in ("Page", "Runtime", "Network", "Log"):
                    page._call(f"{domain}.enable")
                yield page
            finally:
                runner.run(page.socket.close())
                runner.run(session.close())
    finally:
        process.terminate()
        process.wait(timeout=20)


async def _connect(port_file, process, runner):
    async with asyncio.timeout(60):
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert process.poll() is None, f"Chromium ended with {process.returncode}"
            await asyncio.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        session = aiohttp.ClientSession()
        async with session.get(f"http://127.0.0.1:{port}/json") as answer:
            targets = await answer.json()
        address = next(
            each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page"
        )
        socket = await session.ws_connect(address, max_msg_size=0)
    return session, Page(runner, socket)

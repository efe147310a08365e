"""A real Chromium without a window, driven over its DevTools protocol, and all that it asked for and complained of."""

import asyncio
import json
import shutil
import subprocess
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp

PATIENCE_S = 30.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--remote-debugging-port=0",
)


def installed() -> str | None:
    """Path of a Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One page: commands, and what happened on it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future] = {}
        self.session: str | None = None
        self.asked: list[str] = []
        """Addresses of every request."""
        self.complaints: list[str] = []
        """Console errors and warnings, exceptions, violations of the policy."""
        self._reader = asyncio.ensure_future(self._read())

    async def send(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        async with asyncio.timeout(PATIENCE_S):
            return await answer

    async def run(self, expression):
        """Evaluate an expression on the page and wait for what it promises."""
        found = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def text(self):
        """The page as the browser holds it now, read without running a script."""
        root = (await self.send("DOM.getDocument", depth=0))["root"]["nodeId"]
        return (await self.send("DOM.getOuterHTML", nodeId=root))["outerHTML"]

    async def open(self, address):
        """Go there and wait until it has loaded."""
        self._loaded = asyncio.get_running_loop().create_future()
        await self.send("Page.navigate", url=address)
        async with asyncio.timeout(PATIENCE_S):
            await self._loaded

    def hosts(self):
        return {urlsplit(address).netloc for address in self.asked}

    async def close(self):
        self._reader.cancel()
        await self._socket.close()

    async def _read(self):
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]))
                else:
                    answer.set_result(told["result"])
            else:
                self._note(told["method"], told["params"])

    def _note(self, method, told):
        if method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning", "assert"}:
            self.complaints.append(str(told["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(told["entry"]["text"])
        elif method == "Page.loadEventFired" and not self._loaded.done():
            self._loaded.set_result(None)


def start(profile):
    """Start a browser; return its process and the address that drives it."""
    process = subprocess.Popen(
        [installed(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if line.startswith("DevTools listening on "):
            return process, line.split(" on ")[1].strip()
    raise AssertionError(f"Chromium ended with {process.wait()}")


@asynccontextmanager
async def tab(address, *, scripts=True, language="en-US"):
    """Open an empty page of a started browser, in a context of its own."""
    async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
        one = Tab(socket)
        context = (await one.send("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
        target = (await one.send("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        one.session = (await one.send("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "DOM"):
            await one.send(f"{domain}.enable")
        await one.send("Network.setExtraHTTPHeaders", headers={"Accept-Language": language})
        if not scripts:
            await one.send("Emulation.setScriptExecutionDisabled", value=True)
        try:
            yield one
        finally:
            await one.close()

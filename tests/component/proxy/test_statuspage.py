"""The status page in a real browser, from a real proxy that serves requests."""

import asyncio
import contextlib
import json
import subprocess

import browser
import pytest
from clients import chat
from engines import healthy

from proxy.admin import Admin
from proxy.settings import Address

pytestmark = pytest.mark.skipif(browser.installed() is None, reason="there is no Chromium on this machine")
LOOPS = ("uvloop",)

_CHANGED = """
new Promise((done) => {
  const charts = document.getElementById("charts"), tables = document.getElementById("tables");
  const cell = () => [...tables.querySelectorAll("tr")].find((row) => row.cells[0].textContent === "short");
  const look = () => CONDITION && (seen.disconnect(), done(true));
  const seen = new MutationObserver(look);
  seen.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  look();
})
"""
_INKS = """
(() => {
  const canvas = document.querySelectorAll("canvas")[2];
  const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const inks = new Set();
  for (let at = 0; at < bytes.length; at += 4) inks.add(bytes.slice(at, at + 3).join());
  return [...inks];
})()
"""
"""Every colour on the chart of what runs."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """One browser for all tests."""
    process, address = browser.start(tmp_path_factory.mktemp("profile"))
    yield address
    process.terminate()
    with process.stderr, contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    process.kill()
    process.wait()


class Page:
    """A proxy with a page that looks again at once, and requests that went through it."""

    def __init__(self, proxy, engine):
        self.proxy, self.engine = proxy, engine

    async def request(self):
        client = await self.proxy.client()
        before = len(self.proxy.finished)
        assert (await client.post(chat(stream=True))).status == 200
        await self.proxy.ended(before)
        self.proxy.app.lately.sample()


@pytest.fixture
async def page(start):
    """Everything behind a page."""
    engine, proxy = await start(healthy, why={"scheduling.drop_factor": "nobody is to be dropped in a test"})
    app = proxy.app
    admin = Admin(Address("127.0.0.1", 0), app.metrics, app.status, app.explanations, app.lately, refresh_s=0.05)
    made = Page(proxy, engine)
    made.host = str(await admin.start())
    await made.request()
    yield made
    await admin.close()


@pytest.mark.parametrize(
    ("language", "words"), [("en-US", "Last limit moves"), ("zh-CN,zh;q=0.9", "最近的并发上限变动")]
)
async def test_it_stands_without_a_script_in_both_languages(page, chromium, language, words):
    async with browser.tab(chromium, scripts=False, language=language) as tab:
        await tab.open(f"http://{page.host}/")
        text = await tab.text()
        assert words in text
        assert "engine0" in text
        assert "nobody is to be dropped in a test" in text
        assert "<canvas" not in text
        assert (tab.complaints, tab.hosts()) == ([], {page.host})


@pytest.mark.parametrize(("query", "label"), [("?lang=en", "running"), ("?lang=zh", "运行")])
async def test_with_a_script_it_draws_and_follows_what_happens(page, chromium, query, label):
    async with browser.tab(chromium) as tab:
        await tab.open(f"http://{page.host}/{query}")
        await tab.run(_CHANGED.replace("CONDITION", "charts.querySelectorAll('canvas').length === 6"))
        assert await tab.run("document.getElementById('charts').hidden") is False
        assert label in await tab.run("document.getElementById('charts').textContent")
        samples = await tab.run("Number(document.getElementById('charts').dataset.samples)")
        waiting = asyncio.ensure_future(
            tab.run(
                _CHANGED.replace(
                    "CONDITION", f"cell().cells[5].textContent === '2' && charts.dataset.samples > {samples}"
                )
            )
        )
        await page.request()
        assert await waiting is True
        assert (tab.complaints, tab.hosts()) == ([], {page.host})
        paths = {address.partition(page.host)[2] for address in tab.asked}
        assert {f"/{query}", "/history.json", "/assets/status.js", "/assets/uPlot.iife.min.js"} <= paths


async def test_the_lines_are_really_drawn_in_light_and_in_dark(page, chromium):
    lately = page.proxy.app.lately
    begun = lately._clock()
    for step in range(1, 100):
        lately._clock = lambda at=begun + 5.0 * step: at
        lately.sample()
    for scheme, ink in (("light", "217,119,6"), ("dark", "242,177,85")):
        async with browser.tab(chromium) as tab:
            await tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            await tab.open(f"http://{page.host}/")
            await tab.run(_CHANGED.replace("CONDITION", "charts.querySelectorAll('canvas').length === 6"))
            assert ink in await tab.run(f"new Promise((done) => requestAnimationFrame(() => done({_INKS})))")


async def test_it_says_so_when_the_proxy_is_gone(start, chromium):
    _engine, proxy = await start(healthy)
    app = proxy.app
    admin = Admin(Address("127.0.0.1", 0), app.metrics, app.status, None, app.lately, refresh_s=0.05)
    host = str(await admin.start())
    async with browser.tab(chromium) as tab:
        await tab.open(f"http://{host}/")
        await tab.run(_CHANGED.replace("CONDITION", "!charts.hidden"))
        assert await tab.run("document.getElementById('stale').hidden") is True
        await admin.close()
        assert await tab.run(_CHANGED.replace("CONDITION", "!document.getElementById('stale').hidden")) is True
        assert "engine0" in await tab.run("document.getElementById('tables').textContent")


async def test_the_policy_keeps_what_was_smuggled_in_from_running(page, chromium):
    async with browser.tab(chromium) as tab:
        await tab.open(f"http://{page.host}/")
        await tab.run(
            "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
            " document.body.append(s); })()"
        )
        assert await tab.run("window.ran === undefined") is True
        assert any("Content Security Policy" in complaint for complaint in tab.complaints)


async def test_each_rejection_leads_to_its_explanation(page, chromium):
    client = await page.proxy.client()
    before = len(page.proxy.finished)
    page.proxy.app.corridor.draining = True
    assert (await client.post(chat(), X_Request_Id="a b&c")).status == 503
    await page.proxy.ended(before)
    async with browser.tab(chromium, scripts=False) as tab:
        await tab.open(f"http://{page.host}/")
        link = (await tab.text()).split('href="explain.json?id=')[1].split('"')[0]
        await tab.open(f"http://{page.host}/explain.json?id={link}")
        told = (await tab.text()).split("<pre>")[1].split("</pre>")[0]
        assert json.loads(told)["outcome"] == "draining"

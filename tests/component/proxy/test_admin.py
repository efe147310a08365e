"""The admin listener on a real socket."""

import asyncio
import json
import re

import aiohttp
import pytest
from clients import chat
from conftest import running, settings_for
from engines import Engine, healthy
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from proxy.admin import Admin
from proxy.backends import Backends
from proxy.lately import Lately
from proxy.metrics.whole import Metrics
from proxy.policy.dispatch import Dispatcher
from proxy.settings import Address, Settings
from proxy.status import Status
from proxy.statuspage import ASSETS

SETTINGS = Settings.model_validate({"backends": [{"url": "http://127.0.0.1:1", "name": "npu"}]})
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


class Proxy:
    """Everything behind an admin listener, without a data path."""

    def __init__(self):
        self.dispatcher = Dispatcher(SETTINGS.to_scheduling(), SETTINGS.to_backend_limits())
        self.backends = Backends(SETTINGS, lambda _name, _up: None)
        parts = {"snapshot": lambda: self.dispatcher.snapshot(0.0), "backends": self.backends}
        self.metrics = Metrics(SETTINGS, **parts)
        self.status = Status(SETTINGS, **parts)
        self.lately = Lately(parts["snapshot"], self.backends.views)
        self.admin = Admin(Address("127.0.0.1", 0), self.metrics, self.status, None, self.lately)


@pytest.fixture
async def proxy():
    """A started admin listener."""
    made = Proxy()
    made.address = await made.admin.start()
    async with aiohttp.ClientSession(f"http://{made.address}") as made.session:
        yield made
    await made.admin.close()
    await made.backends.close()


async def get(proxy, path, **headers):
    async with proxy.session.get(path, headers=headers) as answer:
        return answer.status, answer.headers, await answer.text()


async def test_metrics_are_served_as_text_and_as_openmetrics(proxy):
    for accept, reader in (("text/plain", read_text), (OPENMETRICS, read_openmetrics)):
        status, headers, text = await get(proxy, "/metrics", Accept=accept)
        names = {family.name for family in reader(text)}
        assert status == 200
        assert headers["Content-Type"].startswith(accept.split(";")[0])
        assert {"lanewise_requests", "lanewise_queue_depth", "lanewise_build_info", "process_cpu_seconds"} <= names


async def test_a_scrape_lets_the_loop_run_between_families(proxy):
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    families = [family async for family in _rendered(proxy)]
    counting.cancel()
    assert turns >= len(families) > 40


async def _rendered(proxy):
    from proxy.metrics.exposition import render

    async for text in render(proxy.metrics.families(), ""):
        yield text


async def test_it_is_alive_whatever_the_backends_do(proxy):
    status, _, text = await get(proxy, "/livez")
    assert (status, json.loads(text)) == (200, {"live": True})


async def test_it_is_not_ready_until_a_backend_answers(proxy):
    status, _, text = await get(proxy, "/readyz")
    assert (status, json.loads(text)) == (503, {"ready": False, "reason": "no backend answers"})


async def test_it_is_not_ready_while_it_drains(proxy):
    proxy.dispatcher.drain(0.0)
    status, _, text = await get(proxy, "/readyz")
    assert (status, json.loads(text)["reason"]) == (503, "draining")


async def test_the_status_is_one_json_document(proxy):
    status, headers, text = await get(proxy, "/status.json")
    document = json.loads(text)
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert document["config"] == SETTINGS.hash
    assert [of["name"] for of in document["backends"]] == ["npu"]


async def test_the_page_is_made_in_the_language_that_is_asked_for(proxy):
    for path, accepted, language in (("/", "", "en"), ("/", "zh-CN", "zh"), ("/?lang=en", "zh-CN", "en")):
        status, headers, text = await get(proxy, path, **{"Accept-Language": accepted})
        assert (status, headers["Vary"]) == (200, "Accept-Language")
        assert headers["Content-Type"].startswith("text/html")
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
        assert f'<html lang="{language}"' in text
        assert "<table>" in text


async def test_the_files_of_the_page_are_served_with_their_types(proxy):
    for name, kind in ASSETS.items():
        status, headers, text = await get(proxy, f"/assets/{name}")
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert text


async def test_the_last_minutes_are_one_json_document(proxy):
    proxy.lately.sample()
    status, _, text = await get(proxy, "/history.json")
    document = json.loads(text)
    assert status == 200
    assert len(document["at"]) == 1
    assert {len(column) for column in document["series"].values()} == {1}


@pytest.mark.parametrize("path", ["/v1/models", "/metrics/", "/../etc/passwd", "/docs", "/assets/", "/assets/words.py"])
async def test_there_is_nothing_else(proxy, path):
    status, _, _ = await get(proxy, path)
    assert status == 404


async def test_it_cannot_be_written_to(proxy):
    async with proxy.session.post("/status.json", data=b"x") as answer:
        assert answer.status == 405


async def test_a_port_in_use_is_an_error_and_leaves_nothing_open(proxy):
    again = Admin(proxy.address, proxy.metrics, proxy.status)
    with pytest.raises(OSError, match="address already in use"):
        await again.start()
    await again.close()


async def test_the_lag_of_the_loop_is_measured(proxy):
    proxy.metrics.lag.start()
    async with asyncio.timeout(5):
        while not proxy.metrics.lag.histogram.count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    proxy.metrics.lag.stop()
    assert proxy.metrics.lag.histogram.total >= 0


async def test_a_request_through_the_whole_proxy_feeds_every_part_of_its_time(start):
    _engine, proxy = await start(healthy, metrics={"models": ["tiny"]})
    client = await proxy.client()
    assert (await client.post(chat(stream=True))).status == 200
    await proxy.ended()
    async with aiohttp.ClientSession() as session, session.get(f"http://{proxy.app.admin_listen}/metrics") as answer:
        samples = dict(line.rsplit(" ", 1) for line in (await answer.text()).splitlines() if line[0] != "#")
    labels = 'lane="short",model="tiny"'
    counted = [
        f'lanewise_requests_total{{{labels},outcome="ok"}}',
        'lanewise_queue_wait_seconds_count{lane="short",outcome="dispatched"}',
        f"lanewise_time_to_first_token_seconds_count{{{labels}}}",
        'lanewise_upstream_time_to_first_token_seconds_count{backend="engine0",lane="short"}',
        f"lanewise_time_per_output_token_seconds_count{{{labels}}}",
        f"lanewise_request_duration_seconds_count{{{labels}}}",
        "lanewise_overhead_seconds_count",
        'lanewise_deadline_outcomes_total{lane="short",outcome="on_time"}',
        'lanewise_slo_good_total{lane="short"}',
    ]
    assert {name: samples[name] for name in counted} == dict.fromkeys(counted, "1.0")


async def test_every_metric_of_a_whole_proxy_is_documented(start, root, tmp_path):
    recorder = {"enabled": True, "directory": str(tmp_path)}
    _engine, proxy = await start(healthy, recorder=recorder, tenants={"by": "address"}, installments={"mode": "auto"})
    client = await proxy.client()
    assert (await client.post(chat())).status == 200
    await proxy.ended()
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in proxy.app.metrics.families()
        if family.name.startswith("lanewise_")
    }
    documented = re.findall(r"^\| `(lanewise_\w+)` \| [a-z]+ \|", (root / "docs/metrics.md").read_text(), re.MULTILINE)
    assert len(shown) > 70
    assert shown - set(documented) == set()
    assert len(documented) == len(set(documented))


async def test_a_model_whose_name_is_no_text_breaks_no_page_and_no_markup():
    odd = "\ud800\r\n<script>"
    async with Engine(healthy, models=(odd, "tiny")) as engine, running(settings_for(engine)) as proxy:
        answers = {}
        async with aiohttp.ClientSession() as session:
            for path in ("/metrics", "/status.json", "/", "/readyz"):
                async with session.get(f"http://{proxy.app.admin_listen}{path}") as answer:
                    answers[path] = (answer.status, await answer.text())
    assert [status for status, _ in answers.values()] == [200] * 4
    assert json.loads(answers["/status.json"][1])["backends"][0]["models"][0]["name"] == odd
    assert "<script>" not in answers["/"][1]

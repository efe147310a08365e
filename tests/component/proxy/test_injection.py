"""Whatever clients and engines call things, a label stays a label, a line a line, and a document readable."""

import json

import aiohttp
from clients import chat, request
from engines import healthy
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

LOOPS = ("uvloop",)
ODD = (
    'a"b',
    "a\nlanewise_requests_total 1e9",
    'x"} 1\nevil{a="b',
    "back\\slash\\n",
    "\u2028line\u2029",
    "\x1b[31mred\x07",
    "模型",
    "\U0001f600",
    "a\x00b",
    "<script>alert(1)</script>",
    "${jndi:ldap://x}",
    "%s %(asctime)s {0}",
)


async def page(proxy, path, **fields):
    url = f"http://{proxy.app.admin_listen}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=fields) as answer:
        return await answer.text()


def samples(text, read=read_text):
    return [sample for family in read(text) for sample in family.samples]


async def test_names_that_clients_make_up_are_no_labels_and_no_lines(start, log, log_form):
    _engine, proxy = await start(
        healthy, access_log=True, trusted_networks=["127.0.0.0/8"], tenants={"by": "header", "told_apart": 4}
    )
    client = await proxy.client()
    for odd in ODD:
        fields = {"x-tenant-id": odd.encode("ascii", "ignore").translate(None, bytes(range(32))).decode() or "x"}
        client.send(request(chat(model=odd, user=odd), **fields))
        assert (await client.answer()).status in {200, 404}
    text = await page(proxy, "/metrics")
    seen = samples(text)
    assert {sample.labels["model"] for sample in seen if "model" in sample.labels} == {"other"}
    tenants = {sample.labels["tenant"] for sample in seen if "tenant" in sample.labels}
    assert len(tenants) <= 5
    assert all(label == "other" or label.startswith("t-") for label in tenants)
    assert not any(sample.name == "evil" or sample.value == 1e9 for sample in seen)
    written = log()
    lines = [line for line in written.splitlines() if "request ended" in line]
    assert len(lines) == len(ODD)
    assert all(line.isprintable() for line in written.split("\n"))
    if log_form == "json":
        assert all(json.loads(line)["event"] for line in written.split("\n") if line)


async def test_ids_that_clients_make_up_stay_one_value_in_every_place(start, log, log_form):
    _engine, proxy = await start(healthy, access_log=True)
    client = await proxy.client()
    ids = ['a"b', "x} 1 evil{a=b", "back\\slash", "<b>", "%s{0}", "'; drop", "i" * 256, "é", "j" * 257]
    for one in ids:
        client.send(request(chat(), **{"X-Request-Id": one}))
        await client.answer()
    kept = [ended.request_id for ended in proxy.finished]
    assert kept[:7] == ids[:7]
    assert all(one not in kept for one in ids[7:])  # what is no header text, or too long, is replaced
    text = await page(proxy, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert any(sample.exemplar for sample in samples(text, read_openmetrics))
    assert "<b>" not in await page(proxy, "/")
    assert json.loads(await page(proxy, "/status.json"))["lanes"]
    written = log()
    lines = [line for line in written.split("\n") if "request ended" in line]
    assert len(lines) == len(ids)
    if log_form == "json":
        assert [json.loads(line)["request_id"] for line in lines] == kept


async def test_names_that_the_operator_gives_are_escaped_as_labels(start):
    engine, proxy = await start(healthy)
    backend = {"url": engine.url, "name": "engine0", "models": list(ODD)}
    settings = type(proxy.app.settings).model_validate(
        proxy.app.settings.model_dump(mode="json") | {"backends": [backend]}
    )
    await proxy.app.change_to(settings)
    for read, accept in ((read_text, "text/plain"), (read_openmetrics, "application/openmetrics-text; version=1.0.0")):
        seen = samples(await page(proxy, "/metrics", Accept=accept), read)
        models = {sample.labels["model"] for sample in seen if sample.name == "lanewise_requests_total"}
        assert models >= {odd for odd in ODD if "\n" not in odd or read is read_text}


async def test_names_that_an_engine_gives_break_no_page(start):
    engine, proxy = await start(healthy)
    engine.models = ODD
    proxy.app.backends._watched["engine0"].models_at = None
    await proxy.app.backends.probe("engine0")
    told = json.loads(await page(proxy, "/status.json"))
    assert [backend["name"] for backend in told["backends"]] == ["engine0"]
    html = await page(proxy, "/")
    assert "<script>alert(1)" not in html
    assert samples(await page(proxy, "/metrics"))


async def test_of_a_key_that_stands_there_twice_no_reading_passes_the_ceiling(start):
    engine, proxy = await start(healthy, lanes={"short": {"output": {"ceiling": 10}}})
    client = await proxy.client()
    body = b'{"model":"tiny","max_tokens":%d,"messages":[{"role":"user","content":"hi"}],"max_tokens":%d}'
    for pair in ((1, 999), (999, 1), (999, 999)):
        client.send(request(body % pair))
        assert (await client.answer()).status in {200, 400}
    for seen in engine.requests:
        pairs = json.loads(seen.body, object_pairs_hook=list)
        caps = [value for key, value in pairs if key == "max_tokens"]
        assert caps[-1] <= 10  # the last counts: so read vLLM's parser and ours


async def test_a_number_that_is_too_large_for_a_machine_goes_on_as_it_was_written(start):
    engine, proxy = await start(healthy, lanes={"short": {"output": {"ceiling": 10}}})
    client = await proxy.client()
    number = b"123456789012345678901234567890"
    client.send(request(b'{"model":"tiny","max_tokens":99,"messages":[],"seed":%b}' % number))
    assert (await client.answer()).status == 200
    assert number in engine.requests[0].body
    assert engine.requests[0].json["max_tokens"] == 10

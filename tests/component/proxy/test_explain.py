"""Every decision about a request can be explained: with its answer, afterwards, from its record, and beforehand."""

import asyncio
import json
import pickle
from pathlib import Path

import aiohttp
import pytest
from clients import chat, request
from conftest import until
from engines import gated, healthy

from proxy import cli
from proxy.lengths import SCHEMA, write_lengths
from proxy.policy.length import LengthEstimator
from proxy.settings import load
from proxy.wire.facts import TextCensus
from proxy.wire.trace import Record, encode

ASK = {"x-lanewise-explain": "1"}
OWN = {"trusted_networks": ["127.0.0.0/8"]}
ONE = {"concurrency": 1, "adaptive": {"enabled": False}}


def words(got):
    return dict(word.split("=", 1) for word in got.header("x-lanewise-explain").split("; "))


async def told(proxy, request_id, status=200):
    url = f"http://{proxy.app.admin_listen}/explain.json"
    async with aiohttp.ClientSession() as session, session.get(url, params={"id": request_id}) as answer:
        assert answer.status == status
        return await answer.json()


async def test_an_answer_says_what_was_decided_when_a_trusted_client_asks(start):
    output = {"short": {"output": {"ceiling": 10}}}
    engine, proxy = await start(healthy, lanes=output, scheduling={"drop_factor": 1}, **OWN)
    got = await (await proxy.client()).post(chat(max_tokens=500), **ASK)
    said = words(got)
    wanted = {
        "lane": "short",
        "backend": "engine0",
        "cap": "0/32",
        "budget": "0/2048",
        "max_tokens": "500->10(ceiling)",
        "mode": "enforce",
        "deadline_ms": "1000",
    }
    assert {key: said[key] for key in wanted} == wanted
    assert said["why"] == "the only one that is up and serves the model"
    assert int(said["estimate"]) == sum(int(one.split(":")[1]) for one in said["classes"].split(","))
    assert int(said["wait_ms"]) >= 0
    assert said["config"] == proxy.app.settings.hash
    assert engine.requests[0].header("x-lanewise-explain") is None


@pytest.mark.parametrize(
    ("sections", "headers", "answered"),
    [
        ({}, ASK, False),
        (OWN, {}, False),
        (OWN, {"x-lanewise-explain": "0"}, False),
        ({"explain": {"header": "all"}}, ASK, True),
        ({**OWN, "explain": {"header": "off"}}, ASK, False),
    ],
)
async def test_only_who_may_know_is_told(start, sections, headers, answered):
    _engine, proxy = await start(healthy, **sections)
    got = await (await proxy.client()).post(chat(), **headers)
    assert (got.header("x-lanewise-explain") is not None) is answered


async def test_a_refusal_is_explained_with_its_answer_and_afterwards(start):
    gate = asyncio.Event()
    queue = {"requests": 1}
    _engine, proxy = await start(gated(gate), scheduling=ONE, lanes={"short": {"queue": queue}}, **OWN)
    first, second, third = [await proxy.client() for _ in range(3)]
    first.send(request(chat()))
    await until(lambda: proxy.held()[0] == 1)
    second.send(request(chat()))
    await until(lambda: proxy.held()[2] == 1)
    got = await third.post(chat(), **{"x-request-id": "refused-one"}, **ASK)
    assert (got.status, words(got)["reason"]) == (429, "queue_full")
    said = await told(proxy, "refused-one")
    assert (said["outcome"], said["reason"], said["status"]) == ("rejected", "queue_full", 429)
    assert "1 requests wait and at most 1 may" in said["detail"]
    assert said["backend"]["name"] is None
    url = f"http://{proxy.app.admin_listen}/"
    async with aiohttp.ClientSession() as session, session.get(url) as page:
        assert 'href="explain.json?id=refused-one"' in await page.text()
    gate.set()
    await first.answer()
    await second.answer()


async def test_a_finished_request_is_explained_by_its_id(start):
    _engine, _other, proxy = await start(healthy, healthy)
    client = await proxy.client()
    await client.post(chat(stream=True), **{"x-request-id": "seen/one"})
    await proxy.ended(0)
    said = await told(proxy, "seen/one")
    assert (said["outcome"], said["lane"]["name"], said["attempts"], said["parts"]) == ("ok", "short", 1, 0)
    assert said["estimate"]["actual"] == 7
    assert {one["name"] for one in said["backend"]["stood"]} == {"engine0", "engine1"}
    assert said["backend"]["why"] == "least outstanding work of 2"
    assert said["times_s"]["first_token"] > 0
    assert proxy.finished[0].body == b""  # decisions are kept, texts are not
    lost = await told(proxy, "never-seen", 404)
    assert [one["request_id"] for one in lost["recent"]] == ["seen/one"]


async def test_only_the_last_ones_are_kept_and_none_where_none_are_wanted(start):
    _engine, proxy = await start(healthy, explain={"keep": 2})
    client = await proxy.client()
    for name in "abc":
        await client.post(chat(), **{"x-request-id": name})
    await proxy.ended(2)
    assert [one["request_id"] for one in (await told(proxy, "a", 404))["recent"]] == ["c", "b"]
    proxy.app.explanations.configure(proxy.app.settings.model_copy(update={"explain": _none(proxy)}))
    await client.post(chat(), **{"x-request-id": "d"})
    assert (await proxy.ended(3)).standing is None
    assert (await told(proxy, "d", 404))["recent"] == []


def _none(proxy):
    return proxy.app.settings.explain.model_copy(update={"keep": 0})


async def test_the_command_explains_a_request_of_a_running_proxy(start, capsys):
    _engine, proxy = await start(healthy)
    admin = str(proxy.app.admin_listen)
    assert await asyncio.to_thread(cli.main, ("explain", "asked", "--admin", admin)) == 1
    assert "keeps no request 'asked'; it keeps none yet" in capsys.readouterr().err
    await (await proxy.client()).post(chat(max_tokens=9), **{"x-request-id": "asked"})
    await proxy.ended(0)
    assert await asyncio.to_thread(cli.main, ("explain", "asked", "--admin", admin)) == 0
    out = capsys.readouterr().out
    assert "lane       short: " in out
    assert "backend    engine0: the only one that is up" in out
    assert "output     9 asked for, left as it is; 3 made" in out
    assert out.splitlines()[-1] == "ended      ok, status 200"
    assert await asyncio.to_thread(cli.main, ("explain", "lost", "--admin", admin)) == 1
    assert "keeps no request 'lost'; the last ones are asked" in capsys.readouterr().err


def test_a_recorded_request_is_explained_as_far_as_it_was_recorded(tmp_path: Path, capsys):
    record = Record(
        1764500000.0, "old", "chat", "m", "long", "expired", reason="queue_timeout", status=429,
        prompt_tokens_estimated=9000, queue_s=5.2, output_cap=100, would="queue", would_wait_s=0.5, config="4c1f",
        tenant="batch", priority="low",
    )  # fmt: skip
    (tmp_path / "trace-1.jsonl").write_bytes(b"".join(encode(one) + b"\n" for one in (record,)))
    arguments = ("explain", "old", "--record", str(tmp_path))
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "wait       5.20 s" in out
    assert out.startswith("request old, 2025-11-30T10:53:20.000000Z, chat")
    assert "sender     tenant batch, priority 1" in out
    assert "deadline   not recorded: give configuration 4c1f, which it began under, with --config" in out
    assert out.splitlines()[-1] == "ended      expired queue_timeout, status 429"
    assert cli.main((*arguments, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["estimate"]["tokens"] == 9000
    assert cli.main(("explain", "new", "--record", str(tmp_path))) == 1
    assert cli.main(("explain", "old", "--record", str(tmp_path / "none.jsonl"))) == 2


def test_the_deadline_of_a_recorded_request_is_that_of_the_configuration_it_began_under(tmp_path: Path, capsys):
    file = tmp_path / "a.yaml"
    file.write_text("backends: [http://a:1]\nlanes: {long: {ttft_slo: 7s}}\n")
    record = Record(1764500000.0, "old", "chat", "m", "long", "ok", config=load(file).settings.hash)
    (tmp_path / "trace-1.jsonl").write_bytes(encode(record) + b"\n")
    assert cli.main(("explain", "old", "--record", str(tmp_path), "--config", str(file))) == 0
    assert "deadline   first token 7 s after arrival" in capsys.readouterr().out


def test_a_dry_run_tells_the_concurrency_of_the_backends(dry, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("backends: [{url: 'http://a:1', concurrency: 8}, {url: 'http://b:1', concurrency: 6}]\n")
    _code, told = dry(chat(), "--config", str(file), backend=None)
    assert told["backend"]["cap"] == 8


@pytest.fixture
def dry(tmp_path, capsys):
    """What would be decided about a body."""

    def run(document, *arguments, backend="http://a:1"):
        path = tmp_path / "body.json"
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        engine = () if backend is None else ("--backend", backend)
        code = cli.main(("explain", *engine, "--body", str(path), "--json", *arguments))
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return run


def test_what_would_be_decided_about_a_body_needs_no_engine(dry):
    code, said = dry(chat("word " * 20_000, max_tokens=9000), "--set", "lanes.long.output.ceiling=512")
    assert (code, said["lane"]["name"], said["outcome"]) == (0, "long", None)
    assert (said["output"]["asked"], said["output"]["sent"], said["output"]["rule"]) == (9000, 512, "ceiling")
    assert said["estimate"]["by_class"]["latin"] > 20_000
    assert said["parts"] > 5
    assert said["deadline"]["first_token_s"] == 5.0


@pytest.mark.parametrize(
    ("document", "arguments", "status", "reason"),
    [
        (chat("word " * 20_000), ("--context", "4096"), 400, "too_long"),
        (b"{broken", (), 400, "invalid"),
        (chat("x" * 3000), ("--set", "limits.body=1KiB"), 413, "invalid"),
        ({**chat(), "max_tokens": -1}, (), 400, "invalid"),
    ],
)
def test_a_body_that_would_be_refused_says_why(dry, document, arguments, status, reason):
    code, said = dry(document, *arguments)
    assert (code, said["status"], said["reason"]) == (0, status, reason)
    assert said["detail"]


def test_a_dry_run_knows_the_endpoints_by_name_and_by_path(dry):
    assert dry({"model": "m", "prompt": [1] * 3000}, "--endpoint", "completions")[1]["estimate"]["exact"]
    assert dry({"model": "m", "input": "a"}, "--endpoint", "/v1/embeddings")[1]["endpoint"] == "embeddings"
    assert dry({}, "--endpoint", "/v1/models") == (2, None)


def test_the_command_wants_an_id_or_a_body(capsys):
    assert cli.main(("explain",)) == 2
    assert "REQUEST_ID or --body" in capsys.readouterr().err
    assert cli.main(("explain", "--body", "/nonexistent.json", "--backend", "http://a:1")) == 2


def test_a_dry_run_uses_what_a_proxy_has_learned_here(dry, tmp_path):
    learned = LengthEstimator()
    for _ in range(50):
        learned.learn("tiny", TextCensus(latin=4000), 1000, 3000)
    state = tmp_path / "state"
    write_lengths(state / "lengths-9100.json", {"schema": SCHEMA, "models": learned.state()})
    document = chat("x " * 2000)
    plain = dry(document)[1]["estimate"]["tokens"]
    assert dry(document, "--set", f"state_dir={state}")[1]["estimate"]["tokens"] > 2 * plain
    (state / "lengths-9100.json").write_text("{")
    assert dry(document, "--set", f"state_dir={state}")[1]["estimate"]["tokens"] == plain


@pytest.mark.parametrize("mode", ["enforce", "observe", "passthrough"])
async def test_what_is_kept_does_not_grow_with_what_a_client_sends(start, mode):
    _engine, proxy = await start(healthy, mode=mode)
    names = {"model": "m" * 200_000, "cache_salt": "s" * 200_000, "user": "u" * 200_000}
    await (await proxy.client()).post({**chat("x" * 200_000), **names})
    await proxy.ended()
    (kept,) = proxy.app.explanations._kept
    assert len(pickle.dumps(kept)) < 10_000
    assert max(len(model or "") for model in (*proxy.app._contexts, *proxy.app._choices, "")) <= 1024

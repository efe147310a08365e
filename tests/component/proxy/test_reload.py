"""Another configuration under a proxy that serves: what follows at once, what is refused, what is remembered."""

import asyncio
import itertools
import json
import logging
import os
from contextlib import asynccontextmanager

import aiohttp
import pytest
import yaml
from clients import Client, chat, request
from conftest import Running, until
from engines import Engine, chat_answer, chat_chunk, chat_events, gated, healthy, wants_usage

from proxy import app
from proxy.control import ControlError, give
from proxy.exchange import Exchange
from proxy.history import Entry, History
from proxy.policy.outcome import Outcome
from proxy.settings import load

RELOADS = 200
CLIENTS = 6


def document(*engines, **sections):
    """What the file says: fixed concurrency, no deadlines, quiet probes."""
    plain = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [{"url": engine.url, "name": f"engine{n}"} for n, engine in enumerate(engines)],
        "scheduling": {"drop_factor": "never", "adaptive": {"enabled": False}},
        "probes": {"scrape_metrics": False, "interval": "1h"},
    }
    return merged(plain, sections)


def merged(plain, sections):
    return {
        **plain,
        **{
            key: {**plain[key], **value} if isinstance(plain.get(key), dict) else value
            for key, value in sections.items()
        },
    }


class Served(Running):
    """A proxy that was started from a file."""

    def __init__(self, application, path):
        super().__init__(application)
        self.path = path

    def write(self, what):
        self.path.write_text(what if isinstance(what, str) else yaml.safe_dump(what))

    async def reload(self, what):
        self.write(what)
        return await self.app.reloader.reload()

    async def metrics(self):
        lines = (await self.get("/metrics")).splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.removeprefix("lanewise_"): float(value) for name, value in samples}

    async def status(self):
        return json.loads(await self.get("/status.json"))

    async def get(self, where):
        url = f"http://{self.app.admin_listen}{where}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()


@asynccontextmanager
async def serving(path, what):
    path.write_text(yaml.safe_dump(what))
    loaded = load(path)
    application = app.build(loaded.settings, loaded, lambda: load(path))
    await application.start()
    proxy = Served(application, path)
    application.corridor._rooms.account._observers += (proxy,)
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lanewise.yaml"


# ---------------------------------------------------------------- under load


async def dripping(received, peer):
    """Stream one event per turn of the loop, so that every reload meets streams in all their phases."""
    if not received.json.get("stream"):
        await asyncio.sleep(0)
        peer.answer(chat_answer())
        return
    peer.stream_head()
    for item in chat_events(("a", "b", "c", "d"), usage=wants_usage(received)):
        await asyncio.sleep(0)
        peer.chunk(item)
    peer.send(b"0\r\n\r\n")


STREAMED = b"".join(chat_events(("a", "b", "c", "d")))


async def talk(port, stop, failures, served):
    """Send one request after the other, streams and others, until told to stop."""
    client = await Client.open(port)
    try:
        for number in itertools.count():
            if stop.is_set():
                return
            streams = number % 3 != 0
            got = await client.post(chat("x" * (40 if number % 5 else 20_000), stream=streams))
            expected = STREAMED if streams else chat_answer()
            if got.status != 200 or not got.whole or got.body != expected:
                failures.append((got.status, got.body[:200]))
            served[0] += 1
    finally:
        await client.close()


def variants(first, second):
    """Yield configurations that differ from one to the next; None stands for a broken file."""
    both = [{"url": first.url, "name": "engine0"}, {"url": second.url, "name": "engine1"}]
    renamed = [{"url": first.url, "name": "first"}, {"url": second.url, "name": "second"}]
    swapped = [{"url": second.url, "name": "engine0"}, {"url": first.url, "name": "engine1"}]
    broken = ["backends: [", "scheduling: {concurrency: many}\n", "nonsense: 1\n", ""]
    for number in itertools.count():
        yield {"scheduling": {"concurrency": 1 + number % 4}}
        yield broken[number % len(broken)]
        yield {"backends": both, "lanes": {"short": {"max_prompt_tokens": 1000 + number}}}
        yield {"backends": both, "scheduling": {"prefill_budget_tokens": 2000 + number}}
        yield {"backends": both[1:], "lanes": {"long": {"output": {"ceiling": 100 + number}}}}
        yield {"mode": ("observe", "passthrough")[number % 2]}
        yield {"backends": both, "mode": "observe", "scheduling": {"concurrency": 2}}
        yield {"backends": renamed, "timeouts": {"idle_connection": f"{1 + number % 3}s"}}
        yield {"backends": swapped, "scheduling": {"drop_factor": "never", "lane_order": "deadline"}}
        yield {"installments": ("off", "auto")[number % 2], "limits": {"body": f"{40 + number}MiB"}}


@pytest.mark.slow
async def test_two_hundred_reloads_under_load_fail_nobody_and_leave_nothing_held(path):
    async with Engine(dripping) as first, Engine(dripping) as second, serving(path, document(first)) as proxy:
        stop, failures, served = asyncio.Event(), [], [0]
        clients = [asyncio.ensure_future(talk(proxy.port, stop, failures, served)) for _ in range(CLIENTS)]
        done = broken = 0
        for variant in itertools.islice(variants(first, second), RELOADS):
            generation, sha, before = proxy.app.in_force.generation, proxy.app.in_force.sha, served[0]
            if isinstance(variant, str):
                report = await proxy.reload(variant)
                assert not report.done
                assert (proxy.app.in_force.generation, proxy.app.in_force.sha) == (generation, sha)
                broken += 1
            else:
                report = await proxy.reload(document(first, **variant))
                assert report.done, report.sentences
                done += 1
            assert report.config == proxy.app.in_force.sha
            await until(lambda before=before: served[0] > before)
        stop.set()
        await asyncio.gather(*clients)
        assert failures == []
        assert (done, broken) == (RELOADS * 9 // 10, RELOADS // 10)
        assert served[0] >= RELOADS
        assert {exchange.outcome for exchange in proxy.finished} == {Outcome.OK}
        assert proxy.held() == (0, 0, 0)
        assert proxy.app.admission.live == 0
        metrics = await proxy.metrics()
        held = ("inflight_requests", "prefill_budget_used", "inflight_tokens", "queue_depth", "queue_tokens{")
        assert [name for name, value in metrics.items() if name.startswith(held) and value] == []
        assert metrics["config_generation"] == proxy.app.in_force.generation > RELOADS // 2
        shas = {exchange.config for exchange in proxy.finished}
        assert len(shas) > 20


async def test_a_stream_goes_on_undisturbed_while_everything_around_it_changes(path):
    gate = asyncio.Event()

    async def script(received, peer):
        peer.stream_head()
        peer.chunk(chat_chunk("a"))
        await gate.wait()
        for item in chat_events(usage=wants_usage(received)):
            peer.chunk(item)
        peer.send(b"0\r\n\r\n")

    async with Engine(script) as old, Engine(healthy) as new, serving(path, document(old)) as proxy:
        client = await proxy.client()
        client.send(request(chat(stream=True)))
        await client.head()
        began_under = proxy.app.in_force.sha
        report = await proxy.reload(document(new, backends=[{"url": new.url, "name": "new"}]))
        assert report.changed == [
            f"backends[engine0]: {old.url} -> none",
            f"backends[new]: none -> {new.url}",
        ]
        other = await proxy.client()
        assert (await other.post(chat())).status == 200
        assert len(new.requests) == 1
        gate.set()
        got = type("Got", (), {"wire": b"", "body": b"", "pieces": []})()
        while await client.chunk(got):
            pass
        assert got.body == chat_chunk("a") + b"".join(chat_events())
        stream = next(exchange for exchange in [await proxy.ended(1), *proxy.finished] if exchange.streams)
        assert (stream.backend, stream.config, stream.outcome) == ("engine0", began_under, Outcome.OK)
        assert proxy.held() == (0, 0, 0)
        seen = await proxy.metrics()
        assert [name for name in seen if 'backend="engine0"' in name] == []


async def test_who_waits_goes_as_soon_as_a_reload_makes_room(path):
    gate = asyncio.Event()
    one = {"concurrency": 1}
    async with Engine(gated(gate)) as engine, serving(path, document(engine, scheduling=one)) as proxy:
        clients = [await proxy.client() for _ in range(2)]
        for client in clients:
            client.send(request(chat()))
        await until(lambda: proxy.held()[2] == 1)
        await proxy.reload(document(engine, scheduling={"concurrency": 2}))
        await engine.request(1)
        assert proxy.held()[2] == 0
        gate.set()
        assert [(await client.answer()).status for client in clients] == [200, 200]


async def test_a_request_is_explained_by_what_it_began_under(path):
    was = {"lanes": {"short": {"ttft_slo": "2s", "max_prompt_tokens": 1000}}, "scheduling": {"drop_factor": 1}}
    now = {"lanes": {"short": {"ttft_slo": "3s", "max_prompt_tokens": 900}}, "scheduling": {"drop_factor": 5}}
    async with Engine(healthy) as engine, serving(path, document(engine, **was)) as proxy:
        client = await proxy.client()
        before = (await client.post(chat())).header("x-request-id")
        await proxy.reload(document(engine, **now))
        after = (await client.post(chat())).header("x-request-id")
        told = [json.loads(await proxy.get(f"/explain.json?id={one}")) for one in (before, after)]
        assert [one["deadline"]["first_token_s"] for one in told] == [2.0, 3.0]
        assert [one["deadline"]["dropped_s"] for one in told] == [2.0, 15.0]
        assert ["at most 1000" in told[0]["lane"]["why"], "at most 900" in told[1]["lane"]["why"]] == [True, True]


async def test_limits_and_policies_follow_at_once(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        client = await proxy.client()
        await proxy.reload(
            document(
                engine,
                limits={"body": "1KiB"},
                lanes={"short": {"queue": {"bytes": "1MiB"}, "output": {"ceiling": 7}}},
                request_id_header="x-own-id",
            )
        )
        got = await client.post(chat(max_tokens=100), X_Own_Id="mine")
        assert got.header("x-lanewise-max-tokens-clamped") == "100->7"
        assert got.header("x-own-id") == "mine"
        assert (await client.post(chat("x" * 2000))).status == 413


async def test_a_new_backend_that_does_not_answer_yet_is_said_and_gets_nothing(path, unused_tcp_port):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        absent = {"url": f"http://127.0.0.1:{unused_tcp_port}", "name": "absent"}
        there = {"url": engine.url, "name": "engine0"}
        report = await proxy.reload(document(engine, backends=[absent, there]))
        assert report.done
        assert report.warnings == ["backend absent does not answer yet: cannot connect: Connection refused"]
        client = await proxy.client()
        for _ in range(3):
            assert (await client.post(chat())).status == 200
        assert {exchange.backend for exchange in proxy.finished} == {"engine0"}


# ---------------------------------------------------------------- refusals


async def test_a_broken_file_changes_nothing_and_says_which_key(path, caplog):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        before = proxy.app.in_force.sha
        good = await proxy.metrics()
        with caplog.at_level(logging.ERROR, logger="lanewise"):
            report = await proxy.reload(document(engine, scheduling={"concurency": 3}))
        assert (report.done, report.config, report.generation) == (False, before, 1)
        assert '"scheduling.concurency"; did you mean "concurrency"?' in report.sentences[0]
        assert 'unknown key "scheduling.concurency"' in caplog.text
        seen = await proxy.metrics()
        assert (good["config_last_reload_success"], seen["config_last_reload_success"]) == (1, 0)
        assert seen["config_last_reload_timestamp_seconds"] >= good["config_last_reload_timestamp_seconds"]
        (info,) = (name for name in seen if name.startswith("config_info{"))
        assert f'sha="{before}"' in info
        assert (seen["config_generation"], seen[info]) == (1, 1)
        assert (await proxy.status())["reload"]["said"] == report.sentences
        assert (await (await proxy.client()).post(chat())).status == 200
        mended = await proxy.reload(document(engine, scheduling={"concurrency": 3}))
        seen = await proxy.metrics()
        assert (mended.generation, seen["config_last_reload_success"], seen["config_generation"]) == (2, 1, 2)


async def test_what_needs_a_restart_is_named_and_nothing_else_changes_either(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        report = await proxy.reload(
            document(engine, listen="127.0.0.1:1", recorder={"directory": "x"}, scheduling={"concurrency": 3})
        )
        assert not report.done
        assert report.sentences == [
            "listen: 127.0.0.1:0 -> 127.0.0.1:1: needs a restart; nothing was changed",
            "recorder.directory: lanewise-trace -> x: needs a restart; nothing was changed",
        ]
        assert proxy.app.settings.scheduling.concurrency == 32


async def test_several_changes_at_once_are_said_and_under_strict_refused(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        two = {"scheduling": {"concurrency": 3}, "lanes": {"short": {"ttft_slo": "2s"}}}
        report = await proxy.reload(document(engine, **two))
        assert report.done
        assert report.warnings[0].startswith(
            "2 scheduling parameters change at once (lanes.short.ttft_slo, scheduling.concurrency)"
        )
        assert (await proxy.status())["reload"]["said"] == report.warnings
        report = await proxy.reload(document(engine, one_change="strict"))
        assert not report.done
        assert report.sentences[-1] == "one_change: strict refuses it; nothing was changed"
        assert (await proxy.reload(document(engine, **two, one_change="strict"))).done
        one = merged(two, {"scheduling": {"concurrency": 4}})
        assert (await proxy.reload(document(engine, **one, one_change="strict"))).warnings == []


async def test_a_file_that_says_the_same_changes_nothing_but_its_reasons(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        report = await proxy.reload(document(engine, why={"scheduling.drop_factor": "a test"}))
        assert (report.done, report.generation, report.changed) == (True, 1, [])
        assert proxy.app.in_force.settings.why == {"scheduling.drop_factor": "a test"}


async def test_a_proxy_that_was_not_started_from_anything_has_nothing_to_reload(start):
    _engine, proxy = await start(healthy)
    report = await proxy.app.reloader.reload()
    assert (report.done, len(report.sentences)) == (False, 1)


async def test_while_it_drains_nothing_changes(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        proxy.app.corridor.draining = True
        report = await proxy.reload(document(engine, scheduling={"concurrency": 3}))
        assert report.sentences == ["the proxy shuts down; nothing was changed"]


# ---------------------------------------------------------------- back, and what was judged


async def test_rollback_returns_to_the_one_before_and_again_further_back(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        configurations = [document(engine, scheduling={"concurrency": concurrency}) for concurrency in (32, 3, 4)]
        shas = [(await proxy.reload(one)).config for one in configurations]
        report = await proxy.app.reloader.rollback("p99 doubled")
        assert (report.config, proxy.app.settings.scheduling.concurrency) == (shas[1], 3)
        assert report.changed == ["scheduling.concurrency: 4 -> 3"]
        assert f"configuration {shas[2]} is judged bad: p99 doubled" in report.sentences
        assert (await proxy.app.reloader.rollback("")).config == shas[0]
        report = await proxy.app.reloader.rollback("")
        assert (report.done, report.config, report.generation) == (False, shas[0], 5)
        assert proxy.app.admission.snapshot().backends[0].concurrency == 32


async def test_what_was_judged_bad_is_not_taken_again_without_a_word(path):
    async with Engine(healthy) as engine, serving(path, document(engine, one_change="strict")) as proxy:
        bad = document(engine, one_change="strict", scheduling={"concurrency": 3})
        assert (await proxy.reload(bad)).done
        await proxy.app.reloader.rollback("slow")
        report = await proxy.reload(bad)
        assert not report.done
        assert "was judged bad (slow)" in report.sentences[0]


async def test_going_on_from_what_was_judged_bad_is_refused_until_it_is_judged_well(path):
    async with Engine(healthy) as engine, serving(path, document(engine, one_change="strict")) as proxy:
        reloader = proxy.app.reloader
        third = document(engine, one_change="strict", scheduling={"concurrency": 3})
        fourth = document(engine, one_change="strict", scheduling={"concurrency": 4})
        assert (await proxy.reload(third)).done
        assert (await reloader.judge("bad", "tail grew")).done
        assert (await proxy.status())["reload"]["verdict"] == "bad"
        report = await proxy.reload(fourth)
        assert not report.done
        assert "goes on from configuration" in report.sentences[0]
        assert "judged bad (tail grew)" in report.sentences[0]
        assert (await reloader.judge("keep", "")).done
        assert (await proxy.reload(fourth)).done


async def test_rollback_keeps_the_reason_that_was_given_before(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        await proxy.reload(document(engine, scheduling={"concurrency": 3}))
        await proxy.app.reloader.judge("bad", "too many 429")
        report = await proxy.app.reloader.rollback("")
        assert report.sentences[1].endswith("is judged bad: too many 429")


async def test_going_back_by_the_file_needs_no_words(path):
    async with Engine(healthy) as engine, serving(path, document(engine, one_change="strict")) as proxy:
        await proxy.reload(document(engine, one_change="strict", scheduling={"concurrency": 3}))
        await proxy.app.reloader.judge("bad", "")
        report = await proxy.reload(document(engine, one_change="strict"))
        assert (report.done, report.warnings) == (True, [])


async def test_the_last_good_configuration_is_found_again_after_a_restart(path, tmp_path, caplog):
    async with Engine(healthy) as engine:
        state = str(tmp_path / "state")
        plain, changed = document(engine, state_dir=state), document(engine, state_dir=state, scheduling={"ageing": 3})
        plain["probes"]["api_key"] = changed["probes"]["api_key"] = "hidden-key"
        async with serving(path, plain) as proxy:
            first = proxy.app.in_force.sha
            port = proxy.app.admin_listen.port
            assert (await proxy.reload(changed)).done
        written = tmp_path / "state" / f"history-{port}.json"
        assert "hidden-key" not in written.read_text()
        # The port of a test is one of chance: give the next process the history of this one.
        async with serving(path, changed) as proxy:
            written.replace(tmp_path / "state" / f"history-{proxy.app.admin_listen.port}.json")
            await proxy.app.reloader.begin(load(path), proxy.app._history_file())
            report = await proxy.app.reloader.rollback("slow after all")
            assert (report.done, report.config) == (True, first)
            assert proxy.app.settings.probes.api_key.get_secret_value() == "hidden-key"
            in_force = tmp_path / "state" / f"in-force-{proxy.app.admin_listen.port}.yaml"
            assert load(in_force).settings.scheduling.ageing == 10.0
            with caplog.at_level(logging.WARNING, logger="lanewise"):
                await proxy.app.reloader.begin(load(path), proxy.app._history_file())
            assert "was judged bad (slow after all)" in caplog.text


async def test_what_another_version_wrote_is_read_as_it_means_today_and_the_rest_is_said(path, tmp_path, caplog):
    async with Engine(healthy) as engine:
        plain = document(engine, state_dir=str(tmp_path))
        async with serving(path, plain) as proxy:
            old = yaml.safe_dump({**plain, "scheduling": {**plain["scheduling"], "ageing": 3}})
            history = History([Entry("0123456789ab", old, 1.0), Entry("ba9876543210", "a_key_of_tomorrow: 1\n", 2.0)])
            proxy.app._history_file().write(history)
            with caplog.at_level(logging.WARNING, logger="lanewise"):
                await proxy.app.reloader.begin(load(path), proxy.app._history_file())
            assert "configuration ba9876543210 can be returned to no more" in caplog.text
            assert (await proxy.app.reloader.rollback("")).changed == ["scheduling.ageing: 10.0 -> 3.0"]


async def test_a_history_that_is_no_history_costs_only_the_memory(path, tmp_path, caplog):
    async with Engine(healthy) as engine, serving(path, document(engine, state_dir=str(tmp_path))) as proxy:
        proxy.app._history_file().path.write_text("{")
        with caplog.at_level(logging.WARNING, logger="lanewise"):
            await proxy.app.reloader.begin(load(path), proxy.app._history_file())
        assert "a new one begins" in caplog.text
        assert (await proxy.app.reloader.rollback("")).done is False


async def test_a_state_directory_that_cannot_be_used_costs_only_the_memory(path, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    async with Engine(healthy) as engine:
        with caplog.at_level(logging.WARNING, logger="lanewise"):
            async with serving(path, document(engine, state_dir=str(tmp_path / "file" / "below"))) as proxy:
                changed = document(engine, state_dir=str(tmp_path / "file" / "below"), scheduling={"concurrency": 3})
                assert (await proxy.reload(changed)).done
                assert (await proxy.app.reloader.rollback("")).done
        assert "kept in memory" in caplog.text


# ---------------------------------------------------------------- orders


async def test_orders_come_over_the_socket_of_the_machine(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        port = proxy.app.admin_listen.port

        async def order(**what):
            return await asyncio.to_thread(give, port, what, 5.0)

        proxy.write(document(engine, scheduling={"concurrency": 3}))
        reply = await order(do="reload")
        assert (reply["done"], reply["generation"]) == (True, 2)
        assert reply["changed"] == ["scheduling.concurrency: 32 -> 3"]
        assert (await order(do="verdict", verdict="keep", reason="better"))["sentences"] == [
            f"configuration {reply['config']} is judged keep: better"
        ]
        assert (await order(do="rollback"))["changed"] == ["scheduling.concurrency: 3 -> 32"]
        for wrong in ({}, {"do": "dance"}, {"do": "verdict", "verdict": "so-so"}, {"do": ["reload"]}):
            assert (await order(**wrong))["done"] is False


async def test_an_order_whose_bytes_are_no_text_is_answered(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        port, odd = proxy.app.admin_listen.port, os.fsdecode(b"\xff")
        reply = await asyncio.to_thread(give, port, {"do": "drain_backend", "backend": odd}, 5.0)
        assert reply["done"] is False
        assert reply["sentences"][0].startswith(f'no backend is called "{odd}"')
        assert (await asyncio.to_thread(give, port, {"do": "verdict", "verdict": "keep", "reason": odd}, 5.0))["done"]


async def test_the_admin_listener_takes_no_orders(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        async with aiohttp.ClientSession() as session:
            for where in ("/reload", "/rollback", "/status.json", "/metrics"):
                async with session.post(f"http://{proxy.app.admin_listen}{where}") as answer:
                    assert answer.status in {404, 405}
        assert proxy.app.in_force.generation == 1


async def test_another_user_is_not_obeyed(path, monkeypatch):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        monkeypatch.setattr("proxy.control._user", lambda _socket: 4711)
        reply = await asyncio.to_thread(give, proxy.app.admin_listen.port, {"do": "rollback"}, 5.0)
        assert reply == {"done": False, "sentences": ["user 4711 may not give orders to this proxy"]}


async def test_a_proxy_that_is_gone_takes_no_orders(path):
    async with Engine(healthy) as engine, serving(path, document(engine)) as proxy:
        port = proxy.app.admin_listen.port
    with pytest.raises(ControlError, match=f"port {port} takes orders here"):
        await asyncio.to_thread(give, port, {"do": "reload"}, 5.0)


async def test_records_carry_the_configuration_that_each_request_began_under(path, tmp_path):
    recorder = {"enabled": True, "directory": str(tmp_path / "trace")}
    async with Engine(healthy) as engine, serving(path, document(engine, recorder=recorder)) as proxy:
        client = await proxy.client()
        shas = [proxy.app.in_force.sha]
        await client.post(chat())
        changed = document(engine, recorder=recorder, scheduling={"concurrency": 3})
        shas.append((await proxy.reload(changed)).config)
        await client.post(chat())
        await proxy.ended(1)
    [file] = (tmp_path / "trace").glob("trace-*.jsonl")
    assert [json.loads(line)["config"] for line in file.read_text().splitlines()] == shas


def test_an_exchange_that_knows_no_configuration_says_so():
    assert Exchange("r", 0.0, 0.0).config is None

"""`lanewise serve --workers`: several processes on one port that keep one set of limits."""

import asyncio
import json
import os
import signal

import aiohttp
import pytest
import yaml

LIMIT, WORKERS = 8, 4


@pytest.fixture
def fleet(server, address, until, tmp_path):
    """Four workers in front of an engine that counts what is in flight."""
    engine, listen = address(), address()
    config = tmp_path / "lanewise.yaml"
    document = {
        "listen": listen,
        "admin": "127.0.0.1:0",
        "backends": [{"url": f"http://{engine}", "name": "card"}],
        "scheduling": {"concurrency": LIMIT, "drop_factor": "never", "adaptive": {"enabled": False}},
        "estimate": {"remember": False},
        "state_dir": str(tmp_path / "state"),
    }
    config.write_text(yaml.safe_dump(document))
    counted = server("tools.acceptance.leases_engine", "--listen", engine, "--limit", LIMIT, "--speed", 4)
    with counted:
        until(f"http://{engine}/health", 200)
        with server("proxy", "serve", "--config", config, "--workers", WORKERS) as one:
            admin = one.says("limits shared through their supervisor's store").split()[-1]
            until(f"http://{admin}/readyz", 200)
            yield one, engine, listen, admin, config, document


async def send(listen, clients, each):
    """Let so many clients send one request after the other; each on a new connection, for another worker."""
    body = {"model": "tiny", "prompt": [1] * 20, "max_tokens": 10, "ignore_eos": True, "stream": True}

    async def client():
        for _ in range(each):
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"http://{listen}/v1/completions", json=body) as answer,
            ):
                assert b"[DONE]" in await answer.read()

    await asyncio.gather(*(client() for _ in range(clients)))


def documents(get, admin):
    return json.loads(get(f"http://{admin}/status.json")[1])


def wait_for(condition, get, admin):
    for _ in range(600):
        found = documents(get, admin)
        if condition(found):
            return found
        signal.sigtimedwait([], 0.1)  # the only sign is the next answer
    raise AssertionError(found)


def all_joined(document):
    return all(
        row["up"] and (row["sharing"]["state"], row["sharing"]["proxies"]) == ("joined", WORKERS)
        for row in document["workers"]
    )


def test_four_workers_keep_one_limit_and_a_dead_one_comes_back(fleet, get, call):
    one, engine, listen, admin, config, document = fleet
    before = wait_for(all_joined, get, admin)
    get(f"http://{engine}/count")
    asyncio.run(send(listen, 30, 5))
    count = json.loads(get(f"http://{engine}/count")[1])
    assert (count["peak"], count["over"], count["in_flight"]) == (LIMIT, [], 0)
    served = documents(get, admin)
    assert sum(lane["granted_on_time"] for lane in served["lanes"]) == 150

    victim = before["workers"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    after = wait_for(lambda found: all_joined(found) and found["workers"][1]["pid"] != victim, get, admin)
    assert [row["restarts"] for row in after["workers"]] == [0, 1, 0, 0]

    config.write_text(yaml.safe_dump(document | {"one_change": "strict"}))
    reloaded = call("proxy", "reload", "--admin", admin)
    assert reloaded.code == 0, reloaded.err
    configs = {row["config"] for row in documents(get, admin)["workers"]}
    assert not configs & {row["config"] for row in after["workers"]}
    assert one.stop() == 0
    assert get(f"http://{admin}/livez") is None


def test_a_worker_that_cannot_start_ends_all(server, address, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    arguments = ["serve", "--backend", "http://127.0.0.1:1", "--listen", address(), "--admin", "127.0.0.1:0"]
    with server("proxy", *arguments, "--record", blocked, "--workers", 2) as one:
        one.says("before it was ready")
        assert one.process.wait(60) == 1


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--workers", "0"], 2, "write a number from 1 to 64"),
        (["--workers", "2", "--set", "share=1/3"], 1, "set sharing.store"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(call, flags, code, words):
    done = call("proxy", "serve", "--backend", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", *flags)
    assert done.code == code
    assert words in done.err

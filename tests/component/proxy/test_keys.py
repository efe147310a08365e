"""API keys on a whole proxy: who gets in, what the engine gets, and that no key is ever shown."""

import asyncio
import json
import logging
from hashlib import sha256

import aiohttp
import pytest
from clients import chat, request
from conftest import running, settings_for
from engines import Engine, healthy

from proxy import app, cli
from proxy.policy.outcome import Outcome, Reason
from proxy.settings import ConfigurationError, Loaded, Settings, show
from proxy.settings.tree import leaves

LOOPS = ("uvloop",)
CLIENT, SEARCH, ADMIN = "sk-client-0123456789", "sk-search-0123456789", "sk-admin-0123456789"
ENGINE = "engine-key-0123456789"
BATCH = "sk-batch-0123456789"


def written(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def keys(tmp_path):
    digest = sha256(BATCH.encode()).hexdigest()
    return {"keys_file": written(tmp_path / "keys", f"{CLIENT}\n{SEARCH} search\nsha256:{digest} batch\n")}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("fields", [bearer(CLIENT), {"x-api-key": CLIENT}, {"Authorization": f"bEARER  {SEARCH} "}])
async def test_a_known_key_gets_in_by_either_header(start, keys, fields):
    engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    assert (await client.post(chat(), **fields)).status == 200
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "fields", [{}, bearer(CLIENT + "0"), bearer(""), {"x-api-key": "?"}, {"Authorization": f"Basic {CLIENT}"}]
)
async def test_without_a_known_key_the_answer_is_401_in_the_words_of_openai(start, keys, fields):
    engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    got = await client.post(chat(), **fields)
    assert (got.status, got.header("www-authenticate")) == (401, "Bearer")
    assert got.header("x-lanewise-reason") == "unauthorized"
    error = got.json["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert "send one as Authorization: Bearer KEY, or as x-api-key" in error["message"]
    ended = await proxy.ended()
    assert (ended.outcome, ended.reason) == (Outcome.INVALID, Reason.UNAUTHORIZED)
    assert engine.requests == []


async def test_the_401_of_messages_is_in_the_words_of_anthropic(start, keys):
    _engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    got = await client.post(chat(max_tokens=1), "/v1/messages", **{"x-api-key": "sk-wrong-0123456789"})
    assert got.status == 401
    assert got.json["type"] == "error"
    assert got.json["error"]["type"] == "authentication_error"


async def test_a_stranger_is_refused_before_its_body_is_read(start, keys):
    _engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client.send(f"{head}Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n".encode())
    assert (await client.answer()).status == 401
    assert (await proxy.ended()).request_bytes == 0


async def test_after_a_401_the_connection_serves_whoever_has_a_key(start, keys):
    _engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    assert [(await client.post(chat(), **fields)).status for fields in ({}, bearer(CLIENT))] == [401, 200]


async def test_every_path_needs_a_key_and_unknown_paths_stay_unknown(start, keys):
    _engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    statuses = {path: (await client.get(path)).status for path in ("/v1/models", "/health", "/version", "/metrics")}
    assert statuses == {"/v1/models": 401, "/health": 401, "/version": 401, "/metrics": 404}


async def test_two_keys_in_one_request_are_refused(start, keys):
    engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    client.send(request(chat(), **{"x-api-key": CLIENT, "X-Api-Key": "other"}))
    got = await client.answer()
    assert (got.status, got.json["error"]["message"]) == (400, "there is more than one x-api-key header; send one")
    assert engine.requests == []


async def test_a_key_names_its_tenant(start, keys):
    _engine, proxy = await start(healthy, auth=keys, tenants={"by": "key"})
    client = await proxy.client()
    for key in (SEARCH, BATCH, CLIENT):
        assert (await client.post(chat(), **bearer(key))).status == 200
    labels = [(await proxy.ended(n)).tenant for n in range(3)]
    assert labels[:2] == ["search", "batch"]
    assert labels[2].startswith("t-")


async def test_tenants_that_mean_nothing_are_told_at_the_start(start, keys, caplog):
    await start(healthy, auth=keys)
    assert "tenants.by: off, so the tenants beside the keys mean nothing" in caplog.text


async def test_without_keys_nobody_is_asked(start):
    engine, proxy = await start(healthy)
    client = await proxy.client()
    assert (await client.post(chat(), **bearer("anything"))).status == 200
    assert engine.requests[0].header("authorization") == "Bearer anything"


async def test_keys_may_come_from_the_environment(start, monkeypatch):
    monkeypatch.setenv("CLIENT_KEYS", f"{CLIENT},{SEARCH} search")
    _engine, proxy = await start(healthy, auth={"keys_env": "CLIENT_KEYS"})
    client = await proxy.client()
    assert [(await client.post(chat(), **bearer(key))).status for key in (SEARCH, BATCH)] == [200, 401]


async def test_the_engine_gets_its_own_key_instead_of_the_clients(start, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_KEY", ENGINE)
    engine, proxy = await start(healthy, auth=keys)
    url = engine.url
    settings = proxy.app.settings.model_dump(mode="json") | {
        "backends": [{"url": url, "name": "engine0", "api_key_env": "ENGINE_KEY"}]
    }
    await proxy.app.change_to(Settings.model_validate(settings))
    client = await proxy.client()
    for fields in (bearer(CLIENT), {"x-api-key": CLIENT}):
        assert (await client.post(chat(), **fields)).status == 200
    for seen in engine.requests:
        assert [value for name, value in seen.headers if name == "authorization"] == [f"Bearer {ENGINE}"]
        assert seen.header("x-api-key") is None
        assert CLIENT.encode() not in seen.raw


async def test_probes_bring_the_engines_own_key(start, tmp_path):
    path = written(tmp_path / "engine", ENGINE)
    probes = []

    engine, proxy = await start(healthy)
    engine.probed = lambda peer, seen: (probes.append(seen), peer.answer(b"{}"))
    settings = proxy.app.settings.model_dump(mode="json") | {
        "backends": [{"url": engine.url, "name": "engine0", "api_key_file": path}]
    }
    await proxy.app.change_to(Settings.model_validate(settings))
    await proxy.app.backends.probe("engine0")
    assert {seen.header("authorization") for seen in probes} == {f"Bearer {ENGINE}"}


async def test_a_renewed_file_counts_from_the_next_reload_on(start, keys, tmp_path):
    _engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    assert (await client.post(chat(), **bearer(CLIENT))).status == 200
    written(tmp_path / "keys", f"{SEARCH}\n")
    renewed, _ = await proxy.app.renew()
    assert renewed == ("auth.keys_file",)
    assert [(await client.post(chat(), **bearer(key))).status for key in (CLIENT, SEARCH)] == [401, 200]
    assert (await proxy.app.renew())[0] == ()


async def test_a_file_that_broke_changes_nothing(start, keys, tmp_path):
    _engine, proxy = await start(healthy, auth=keys)
    client = await proxy.client()
    (tmp_path / "keys").chmod(0o644)
    with pytest.raises(ConfigurationError, match="everybody on this machine may read"):
        await proxy.app.renew()
    with pytest.raises(ConfigurationError, match="everybody on this machine may read"):
        await proxy.app.change_to(proxy.app.settings)
    assert [(await client.post(chat(), **fields)).status for fields in (bearer(CLIENT), {})] == [200, 401]


async def fetch(proxy, path, **options):
    url = f"http://{proxy.app.admin_listen}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, **options) as answer:
        return answer.status, await answer.text(), answer.headers


async def test_the_admin_listener_wants_its_key_but_for_whether_it_lives(start, tmp_path):
    path = written(tmp_path / "admin", f"{ADMIN}\n")
    _engine, proxy = await start(healthy, auth={"admin_key_file": path})
    for page in ("/metrics", "/status.json", "/", "/config.json", "/history.json", "/explain.json?id=x", "/nowhere"):
        status, text, fields = await fetch(proxy, page)
        assert (status, fields["WWW-Authenticate"]) == (401, 'Basic realm="lanewise", charset="UTF-8"'), page
        assert "lanes" not in text
    assert [(await fetch(proxy, page))[0] for page in ("/livez", "/readyz")] == [200, 200]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (bearer(ADMIN), 200),
        ({"Authorization": aiohttp.encode_basic_auth("anybody", ADMIN)}, 200),
        (bearer(ADMIN + "0"), 401),
        ({"Authorization": aiohttp.encode_basic_auth("anybody", "wrong")}, 401),
        ({"Authorization": "Basic !!!"}, 401),
        ({"Authorization": "Basic"}, 401),
        ({"Authorization": ""}, 401),
        ({"X-Api-Key": ADMIN}, 401),
    ],
)
async def test_the_key_of_the_admin_listener_is_a_bearer_token_or_a_password(start, tmp_path, fields, status):
    path = written(tmp_path / "admin", f"{ADMIN}\n")
    _engine, proxy = await start(healthy, auth={"admin_key_file": path})
    assert (await fetch(proxy, "/status.json", headers=fields))[0] == status


async def test_the_keys_of_clients_open_no_admin_page(start, keys, tmp_path):
    path = written(tmp_path / "admin", f"{ADMIN}\n")
    _engine, proxy = await start(healthy, auth={**keys, "admin_key_file": path})
    assert (await fetch(proxy, "/status.json", headers=bearer(CLIENT)))[0] == 401
    client = await proxy.client()
    assert (await client.post(chat(), **bearer(ADMIN))).status == 401


async def test_no_key_is_in_anything_that_is_shown_or_written(start, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ENGINE_KEY", ENGINE)
    digest = sha256(BATCH.encode()).hexdigest()
    auth = {
        "keys_file": written(tmp_path / "keys", f"{CLIENT}\n{SEARCH} search\nsha256:{digest} batch\n"),
        "admin_key_file": written(tmp_path / "admin", ADMIN),
    }
    engine, proxy = await start(
        healthy,
        auth=auth,
        tenants={"by": "key"},
        explain={"header": "all"},
        access_log=True,
        log_client=True,
        state_dir=str(tmp_path / "state"),
        recorder={"enabled": True, "directory": str(tmp_path / "trace")},
    )
    settings = proxy.app.settings.model_dump(mode="json") | {
        "backends": [{"url": engine.url, "name": "engine0", "api_key_env": "ENGINE_KEY"}]
    }
    await proxy.app.change_to(Settings.model_validate(settings))
    client = await proxy.client()
    answers = b""
    for key in (CLIENT, SEARCH, BATCH, "sk-unknown-0123456789"):
        client.send(request(chat(), **bearer(key), **{"X-Request-Id": "mine", "x-lanewise-explain": "1"}))
        got = await client.answer()
        answers += repr(got.headers).encode() + got.body
    pages = ("/metrics", "/status.json", "/", "/config.json", "/history.json", "/explain.json?id=mine", "/explain.json")
    for page in pages:
        status, text, _ = await fetch(proxy, page, headers=bearer(ADMIN))
        assert status in {200, 404}
        answers += text.encode()
    assert b'lanewise_api_keys{of="clients"} 3.0' in answers
    assert b'lanewise_rejections_total{lane="none",reason="unauthorized"} 1.0' in answers
    await proxy.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != tmp_path]
    assert files
    seen = answers + caplog.text.encode() + b"".join(path.read_bytes() for path in files)
    loaded = Loaded(proxy.app.settings, dict.fromkeys(leaves(Settings), "default"), None)
    seen += (show.resolved(loaded) + show.minimal(loaded) + str(show.as_document(loaded, resolved=True))).encode()
    seen += repr((proxy.app, proxy.app.credentials, proxy.app.settings, proxy.app.corridor._limits)).encode()
    everything = (CLIENT, SEARCH, BATCH, ADMIN, ENGINE, "sk-unknown-0123456789")
    assert [key for key in everything if key.encode() in seen] == []
    assert [key for key in everything if sha256(key.encode()).hexdigest().encode() in seen] == []


# ---------------------------------------------------------------- the commands, and a reload


@pytest.fixture
def command(capsys):
    """Runs a command beside the proxy: its exit code, and what it printed."""

    async def run(*arguments):
        code = await asyncio.to_thread(cli.main, list(arguments))
        return code, capsys.readouterr()

    return run


async def test_commands_send_the_admin_key_that_the_settings_name(start, tmp_path, command, monkeypatch):
    path = written(tmp_path / "admin", f"# of the admins\n{ADMIN}  # rotate in May\n")
    _engine, proxy = await start(healthy, auth={"admin_key_file": path})
    where = ("--admin", str(proxy.app.admin_listen))
    named = ("--set", f"auth.admin_key_file={path}")
    for arguments in (("status", "--json"), ("doctor", "--json", "--apart", "1ms")):
        code, printed = await command(*arguments, *where, *named)
        assert code in {0, 3}, printed.err
        assert json.loads(printed.out)
    assert (await command("explain", "nobody", *where, *named))[1].err.endswith(
        "none has ended since its start, or explain.keep is 0\n"
    )
    assert (await command("healthcheck", *where))[0] == 0
    code, printed = await command("status", *where)
    told = f"lanewise: the admin listener at {where[1]} wants a key: name it with auth.admin_key_file or _env\n"
    assert (code, printed.err) == (1, told)
    monkeypatch.setenv("MY_KEY", "sk-wrong-0123456789")
    code, printed = await command("status", *where, "--set", "auth.admin_key_env=MY_KEY")
    assert (code, printed.err) == (1, f"lanewise: the admin listener at {where[1]} wants another key\n")


async def test_validate_reads_what_a_configuration_names(tmp_path, command, keys):
    backend = ("--backend", "http://127.0.0.1:1")
    good = await command("validate", *backend, "--set", f"auth.keys_file={keys['keys_file']}")
    assert good[0] == 0
    assert "tenants.by: off, so the tenants beside the keys mean nothing" in good[1].err
    missing = tmp_path / "missing"
    code, printed = await command("validate", *backend, "--json", "--set", f"auth.keys_file={missing}")
    assert code == 2
    problem = f"auth.keys_file: {missing} cannot be read: No such file or directory"
    assert json.loads(printed.out)["problems"] == [problem]
    assert printed.err == f"lanewise: {problem}\n"


async def test_a_reload_that_changes_no_key_says_which_files_it_read_anew(keys, tmp_path, start):
    async with Engine(healthy) as engine:
        settings = settings_for(engine, auth=keys)
        loaded = Loaded(settings, dict.fromkeys(leaves(Settings), "default"), None)
        async with running(settings, loaded=loaded, read=lambda: loaded) as proxy:
            report = await proxy.app.reloader.reload()
            assert report.sentences == [f"nothing differs from configuration {settings.hash}"]
            written(tmp_path / "keys", f"{CLIENT}\n")
            report = await proxy.app.reloader.reload()
            told = f"nothing differs from configuration {settings.hash}; read anew: auth.keys_file"
            assert (report.done, report.sentences) == (True, [told])
            written(tmp_path / "keys", "short\n")
            report = await proxy.app.reloader.reload()
            assert (report.done, proxy.app.in_force.tried_well) == (False, False)
            assert report.sentences == [
                f"{tmp_path / 'keys'}:1: a key has at least 16 characters; `openssl rand -hex 24` makes a good one"
            ]
            client = await proxy.client()
            assert (await client.post(chat(), **bearer(CLIENT))).status == 200


async def test_a_proxy_does_not_start_on_keys_that_cannot_be_used(tmp_path):
    settings = Settings.model_validate(
        {"backends": ["http://127.0.0.1:1"], "auth": {"keys_file": str(tmp_path / "missing")}}
    )
    with pytest.raises(ConfigurationError, match="cannot be read"):
        app.build(settings)

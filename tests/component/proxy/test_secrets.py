"""Keys, their digests, salts and texts are in nothing that lanewise writes or shows, with everything switched on."""

import logging
from hashlib import sha256

import aiohttp
from clients import chat, request
from engines import healthy

KEYS = ("sk-named-secret", "sk-unknown-secret", "sk-third-secret")
SALT = "salt-of-the-tenants"
TEXT = "the-text-of-a-prompt"
PAGES = ("/metrics", "/status.json", "/", "/config.json", "/history.json", "/explain.json", "/explain.json?id=mine")


async def test_no_secret_leaves_the_process_but_to_the_engine(start, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    digest = sha256(KEYS[0].encode()).hexdigest()
    engine, proxy = await start(
        healthy,
        state_dir=str(tmp_path / "state"),
        recorder={"enabled": True, "directory": str(tmp_path / "trace")},
        tenants={"by": "key", "salt": SALT, "named": [{"name": "acme", "keys": [digest], "tokens_per_minute": 1}]},
        repeats={"duplicates": "reject"},
        explain={"header": "all"},
        probes={"api_key": "sk-probes-secret"},
    )
    client = await proxy.client()
    answers = b""
    for key in (KEYS[0], *KEYS):
        body = {**chat(TEXT), "cache_salt": "salt-of-the-cache", "user": "user-secret"}
        fields = {"Authorization": f"Bearer {key}", "X-Request-Id": "mine", "x-lanewise-explain": "1"}
        client.send(request(body, **fields))
        got = await client.answer()
        answers += repr(got.headers).encode() + got.body
    assert (got.status, len(proxy.finished)) == (200, 4)
    assert engine.requests[0].header("authorization") == f"Bearer {KEYS[0]}"
    async with aiohttp.ClientSession() as session:
        for page in PAGES:
            async with session.get(f"http://{proxy.app.admin_listen}{page}") as answer:
                assert answer.status in {200, 404}
                answers += await answer.read()
    await proxy.close()
    written = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name.partition("-")[0] for name in written} == {"history", "in", "lengths", "salt", "trace"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "state").iterdir())
    seen = b"".join(written.values()) + answers + caplog.text.encode() + repr(proxy.app).encode()
    secrets = (*KEYS, SALT, TEXT, "sk-probes-secret", "salt-of-the-cache", "user-secret")
    assert [one for one in secrets if one.encode() in seen] == []
    digests = [sha256(key.encode()).hexdigest().encode() for key in KEYS]
    outside = answers + caplog.text.encode() + b"".join(written[name] for name in written if name.startswith("trace"))
    assert [one for one in digests if one in outside] == []
    assert [one for one in digests[1:] if one in seen] == []

"""The operations cases on who reaches what: logs, secrets, routes, deadlines, names and addresses."""

import asyncio
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.faults import upstream, wire
from tests.faults.bodies import RECORDED
from tests.faults.case import case
from tests.faults.lifecycle import scripted
from tests.faults.operations import _in_namespace, _need_namespace, exit_of
from tests.faults.station import INJECT, POOL, ROOT, Options, Station, eventually, lanewise, spawn, start, trace_rows
from tests.faults.upstream import Connection, Seen, Upstream
from tests.faults.wire import chat

_ODD = "a\r\nERROR forged line\x1b[31m\u2028\u2029\u0085\x00b"


@case(
    "OPS-12",
    "CR, LF, ESC and U+2028 in model, user, path and request id",
    {"raw_control_characters": [], "forged_lines": 0, "trace_lines_whole": True, "traceback": False},
    why="one event, one line; what could steer a terminal or a reader is escaped",
)
async def _log_lines() -> dict[str, Any]:
    async with start(RECORDED) as station:
        await station.ask(chat(model=_ODD, user=_ODD))
        await station.ask(chat(user=_ODD))
        await station.ask(path="/v1/%0d%0aERROR%20forged%1b[31m", method="GET")
        await station.ask(chat(), headers=("X-Request-Id: a\x1b[31mb\x85",))
        await wire.talk(station.port, b"GET /\x1b[31m\r HTTP/1.1\r\nHost: t\r\n\r\n", quiet=0.3)
        station.upstream.script = upstream.raw(b"HTTP/1.1 500 a\x1b[31m\r\ncontent-length: 9\r\n\r\nERROR\r\nb\x1b")
        await station.ask(chat())
        rows = await trace_rows(station, 2)
        log = station.log
        page = (await station.page("/metrics")).answer.body.decode()
    steering = [c for c in log + page if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029")]
    return {
        "raw_control_characters": sorted({hex(ord(c)) for c in steering}),
        "forged_lines": sum(line.startswith("ERROR forged") for line in (log + page).splitlines()),
        "trace_lines_whole": len(rows) >= 2,
        "traceback": "Traceback" in log,
    }


_CANARY = "canary-7f3a9"


@case(
    "OPS-13",
    "a secret in Authorization, api-key, Cookie and the query, in requests that go well and that go wrong",
    {"found_in": [], "reached_upstream": True, "places": 7},
    why="it reaches the engine, and no log, trace, metric, status page or error body",
)
async def _secrets() -> dict[str, Any]:
    secret = (
        f"Authorization: Bearer {_CANARY}",
        f"api-key: {_CANARY}",
        f"x-api-key: {_CANARY}",
        f"Cookie: s={_CANARY}",
    )
    bodies: list[bytes] = []
    async with start(RECORDED) as station:
        # what goes well, what has no route, what is no JSON
        paths = ("/v1/chat/completions", f"/v1/chat/completions?api-key={_CANARY}", f"/nowhere?key={_CANARY}")
        bodies += [(await station.ask(chat(), path=path, headers=secret)).received for path in paths]
        bodies.append((await station.ask(body=b"{", headers=secret)).received)
        reached = any(_CANARY in ",".join(seen.all("authorization")) for seen in station.upstream.requests)
        await wire.talk(station.port, f"GET / HTTP/1.1\r\nAuthorization: {_CANARY}\x01\r\n\r\n".encode(), quiet=0.3)
        station.upstream.script = upstream.raw(b"nonsense")
        bodies.append((await station.ask(chat(), headers=secret)).received)
        station.upstream.script = upstream.raw(b"HTTP/1.1 401 no\r\ncontent-length: 0\r\n\r\n")
        bodies.append((await station.ask(chat(), headers=secret)).received)
        await station.upstream.stop()
        bodies.append((await station.ask(chat(), headers=secret)).received)
        await trace_rows(station, 4)
        places = {
            "log": station.log,
            "metrics": (await station.page("/metrics")).received.decode("latin-1"),
            "status": (await station.page("/status.json")).received.decode("latin-1"),
            "configuration": (await station.page("/config.json")).received.decode("latin-1"),
            "explanations": (await station.page("/explain.json?id=nowhere")).received.decode("latin-1"),
            "traces": "".join(file.read_text("utf-8") for file in (station.folder / "trace").glob("*")),
            "answers": b"".join(bodies).decode("latin-1"),
        }
    found = [name for name, text in places.items() if _CANARY in text]
    return {"found_in": found, "reached_upstream": reached, "places": len(places)}


@case(
    "OPS-14",
    "a client that names a backend in X-Backend, X-Upstream-Url and Host",
    {"status": 200, "other_contacted": 0, "upstream": 1, "passed_on": []},
)
async def _names_backend() -> dict[str, Any]:
    async with Upstream() as other, POOL.borrow() as station:
        first = len(station.upstream.requests)
        wanted = (
            f"X-Backend: {other.url}",
            f"X-Upstream-Url: {other.url}",
            f"X-Forwarded-Host: 127.0.0.1:{other.port}",
        )
        talk = await station.ask(chat(), headers=wanted)
        seen = station.upstream.requests[first:]
        names = {name.decode().lower() for one in seen for name, _ in one.fields}
        return {
            "status": talk.answer.status,
            "other_contacted": len(other.connections),
            "upstream": len(seen),
            "passed_on": sorted(names & {"x-backend", "x-upstream-url"}),
        }


async def _refused_paths(paths: list[str]) -> dict[str, Any]:
    async with POOL.borrow() as station:
        first = len(station.upstream.seen)
        statuses = {}
        for path in paths:
            for method in ("GET", "POST"):
                body = {} if method == "POST" else None
                statuses[f"{method} {path}"] = (await station.ask(body, path=path, method=method)).answer.status
        reached = len(station.upstream.seen) - first
    return {"not_404": {path: status for path, status in statuses.items() if status != 404}, "upstream": reached}


_OWN = [
    "/metrics",
    "/admin",
    "/debug",
    "/status.json",
    "/config.json",
    "/explain.json",
    "/livez",
    "/readyz",
    "/",
    "/debug/pprof",
    "/admin/reload",
    "/config",
]
_ENGINE = [
    *("/load_lora_adapter", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/is_sleeping"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/metrics", "/docs", "/openapi.json", "/redoc", "/start_profile"),
    *("/stop_profile", "/collective_rpc", "/server_info", "/scale_elastic_ep", "/pause", "/resume", "/abort_requests"),
    *("/update_weights", "/init_weight_transfer", "/load", "/invocations", "/inference/v1/generate", "/tokenizer_info"),
]


@case("OPS-15", "the paths of our own admin listener, on the data port", {"not_404": {}, "upstream": 0})
async def _own_paths() -> dict[str, Any]:
    return await _refused_paths(_OWN)


@case("OPS-16", f"{len(_ENGINE)} administration paths of the engine", {"not_404": {}, "upstream": 0})
async def _engine_paths() -> dict[str, Any]:
    return await _refused_paths(_ENGINE)


_SLOW_CLIENTS = 500


@case(
    "OPS-17",
    f"{_SLOW_CLIENTS} clients that send one byte of a head in each half second",
    {
        "closed": _SLOW_CLIENTS,
        "seconds": {"at_most": 5.0},
        "others": {"each": 200, "count": 5},
    },
    why="closed by the deadline for a head (3 s here, 20 s in production), and others are served meanwhile",
    alone=True,
)
async def _slow_heads() -> dict[str, Any]:
    async with start() as station:

        async def slow() -> float | None:
            client = await station.connect()
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nX-A: ")
            began = asyncio.get_running_loop().time()
            while not client.talk.closed and asyncio.get_running_loop().time() - began < 7:
                await client.read_some(0.5)
                client.send(b"a")
            took = asyncio.get_running_loop().time() - began
            client.reset()
            return took if client.talk.closed else None

        everyone = asyncio.gather(*(slow() for _ in range(_SLOW_CLIENTS)))
        await asyncio.sleep(1.0)
        others = [(await station.ask(chat())).answer.status for _ in range(5)]
        took = await everyone
    closed = [seconds for seconds in took if seconds is not None]
    return {"closed": len(closed), "seconds": round(max(closed, default=99.0), 2), "others": others}


@case(
    "OPS-18",
    "5 bytes of a body of 1000, then silence",
    {
        "status": {"one_of": [408, 0]},
        "first_byte_s": {"at_least": 2.0, "at_most": 4.5},
        "connection": {"one_of": ["close", None]},
        "closed": True,
        "upstream": 0,
    },
    why="408 by the deadline for a body (3 s here, 30 s in production); closed once the client had time to read it",
)
async def _slow_body() -> dict[str, Any]:
    async with POOL.borrow() as station:
        first = len(station.upstream.requests)
        client = await station.connect()
        client.send(wire.request(body=b"x" * 1000)[:-995])
        talk = await client.read_quiet(12.0)
        return talk.as_row() | {
            "first_byte_s": talk.first_byte_s and round(talk.first_byte_s, 2),
            "connection": talk.answer.header("connection"),
            "upstream": len(station.upstream.requests) - first,
        }


def _hosts(text: str) -> Options:
    """Give the process a hosts file of its own, which the case can change while it runs."""
    return Options(prefix=_in_namespace("mount --bind hosts /etc/hosts"), before=lambda: _write_hosts(Path(), text))


def _write_hosts(folder: Path, text: str) -> None:
    (folder / "hosts").write_text(text, "utf-8")


async def _asked(station: Station, at: Upstream) -> int:
    """Ask once; return how many requests that upstream has seen."""
    await station.ask(chat())
    return len(at.requests)


_NAMED = {"names": {"refresh": "300ms"}, "probes": {"interval": "300ms", "scrape_metrics": False}}


@case(
    "OPS-20",
    "the name of a backend gets another address",
    {"at_first": {"at_least": 1}, "after_change": {"at_least": 1}, "failed": 0},
    why="the name is looked up again (every 0.3 s here), and idle connections to the old address end",
)
async def _moved() -> dict[str, Any]:
    await _need_namespace()
    async with Upstream() as old, Upstream(port=old.port, host="127.0.0.2") as new:
        url = f"http://engine.test:{old.port}"
        async with start(_NAMED, options=_hosts("127.0.0.1 engine.test\n"), backends=[url]) as station:
            await station.ask(chat())
            at_first = len(old.requests)
            _write_hosts(station.folder, "127.0.0.2 engine.test\n")
            await asyncio.sleep(0.8)
            moved = await eventually(lambda: _asked(station, new), bool, 5.0)
            outcomes = await station.outcomes()
    failed = sum(count for name, count in outcomes.items() if name != "ok")
    return {"at_first": at_first, "after_change": moved, "failed": failed}


@case(
    "OPS-21",
    "the name of a backend cannot be resolved for a while",
    {"at_first": 200, "statuses": {"each": 200, "count": 10}},
    why="the last good address stays in use",
)
async def _unresolved() -> dict[str, Any]:
    await _need_namespace()
    async with Upstream() as engine:
        url = f"http://engine.test:{engine.port}"
        async with start(_NAMED, options=_hosts("127.0.0.1 engine.test\n"), backends=[url]) as station:
            at_first = (await station.ask(chat())).answer.status
            _write_hosts(station.folder, "# nothing\n")
            await asyncio.sleep(0.8)
            statuses = []
            for _ in range(10):
                statuses.append((await station.ask(chat(), 3.0)).answer.status)
                await asyncio.sleep(0.2)
    return {"at_first": at_first, "statuses": statuses}


@case("OPS-22", "http_proxy in the environment", {"status": 200, "elsewhere": 0, "upstream": 1})
async def _environment() -> dict[str, Any]:
    async with Upstream() as elsewhere:
        names = ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
        async with start(options=Options(dict.fromkeys(names, elsewhere.url) | {"no_proxy": ""})) as station:
            talk = await station.ask(chat())
            seen = len(station.upstream.requests)
        return {"status": talk.answer.status, "elsewhere": len(elsewhere.connections), "upstream": seen}


@case("OPS-23", "a .netrc that knows the backend", {"status": 200, "authorization": []})
async def _netrc() -> dict[str, Any]:
    def write() -> None:
        Path(".netrc").write_text(
            "machine 127.0.0.1 login someone password secret\ndefault login a password b\n", "utf-8"
        )
        Path(".netrc").chmod(0o600)

    async with start(options=Options({"HOME": ".", "NETRC": ".netrc"}, before=write)) as station:
        talk = await station.ask(chat())
        found = [value for seen in station.upstream.seen for value in seen.all("authorization")]
    return {"status": talk.answer.status, "authorization": found}


@case(
    "OPS-24",
    "an engine that redirects elsewhere",
    {"status": {"one_of": [302, 307, 502]}, "elsewhere": 0},
    why="passed or refused, never followed",
)
async def _redirect() -> dict[str, Any]:
    async with Upstream() as elsewhere:

        async def away(seen: Seen, connection: Connection) -> None:
            location = f"location: {elsewhere.url}/v1/chat/completions\r\n".encode()
            await connection.answer(b"", "307 Temporary Redirect", extra=location)

        async with scripted(away) as station:
            talk = await station.ask(chat(), headers=("Authorization: Bearer secret",))
        return {"status": talk.answer.status, "elsewhere": len(elsewhere.connections)}


_SAFE_AIOHTTP = "3.14.3"


@case(
    "OPS-26",
    "the floor of aiohttp, as pip would resolve it",
    {
        "floor_allows": {"3.8.0": False, "3.13.3": False, "3.14.2": False, _SAFE_AIOHTTP: True},
        "installed_allowed": True,
    },
    why="an audit tool without advisory data finds nothing in aiohttp 3.8.0, so the floor itself is checked",
)
async def _floor() -> dict[str, Any]:
    import aiohttp

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (wanted,) = (Requirement(text) for text in project["dependencies"] if Requirement(text).name == "aiohttp")
    return {
        "floor_allows": {
            version: version in wanted.specifier for version in ("3.8.0", "3.13.3", "3.14.2", _SAFE_AIOHTTP)
        },
        "installed_allowed": aiohttp.__version__ in wanted.specifier,
    }


@case(
    "OPS-27",
    "aiohttp without its C parser (AIOHTTP_NO_EXTENSIONS=1)",
    {"exit": 1, "words": {"matches": r"C extensions"}},
    why="the lenient pure-Python parser is refused",
)
async def _pure_parser() -> dict[str, Any]:
    async with Upstream() as engine, start() as station:
        command = lanewise("serve", "--backend", engine.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        env = {"PYTHONPATH": f"{INJECT}:{ROOT}", "AIOHTTP_NO_EXTENSIONS": "1"}
        return await exit_of(spawn(command, station.folder, Options(env)), 30.0)

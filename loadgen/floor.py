"""`lanewise-load floor`: what the link itself costs, before anything is blamed on an engine.

Three floors on the same path: a TCP connection (with TLS where the target has it), an HTTP round trip on an open
connection, and a request of one token. Directly and through the proxy, so that their shares are separate numbers. One
request at a time: nothing queues.
"""

import http.client
import json as jsonlib
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

from loadgen.client import Target, read_target, tls_of
from loadgen.failure import Exit, StopError, UsageError
from loadgen.flags import Switch, named
from loadgen.preflight import api_key, guard, host_facts, versions
from loadgen.premises import FLOOR_SCHEMA
from loadgen.report import console, seconds

TIMEOUT_S = 30.0
_KINDS = {
    "tcp": "TCP connection",
    "tls": "TLS handshake",
    "http": "HTTP round trip",
    "one_token": "one token",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the engine."""

    name: str
    """direct or proxy."""
    target: Target
    tls: ssl.SSLContext | None
    headers: dict[str, str]


def floor(
    *,
    target: str,
    proxy: str | None = None,
    count: int = 100,
    out: Path | None = None,
    model: str | None = None,
    api_key_file: Path | None = None,
    insecure: Switch = False,
    allow_targets: Annotated[tuple[str, ...], named("allow-target", negative="")] = (),
    yes_production: Switch = False,
    json: Switch = False,
) -> int:
    """Measure the link's own latencies: TCP connection, HTTP round trip, one token; directly and through the proxy.

    Parameters
    ----------
    target
        Base URL of the engine, http://HOST:PORT.
    proxy
        Base URL of lanewise in front of it.
    count
        Measurements of each kind, one after the other.
    out
        File for the result; `replay --floor FILE` keeps it with a run.
    model
        Model to ask for; None: the first one listed.
    api_key_file
        File with the API key; else the environment variable LANEWISE_API_KEY.
    insecure
        Take whatever certificate an https target shows.
    allow_targets
        Hosts beside loopback that may be asked.
    yes_production
        Ask the target wherever it is.
    json
        Print one JSON document.
    """
    if count < 1:
        raise UsageError(f"--count {count}: must be at least 1")
    key = api_key(api_key_file)
    paths = []
    for name, url in (("direct", target), ("proxy", proxy)):
        if url is not None:
            at = read_target(url)
            guard(at, allow_targets, yes_production=yes_production)
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            paths.append(Way(name, at, tls_of(at, insecure=insecure), headers))
    document = measure(paths, count, model)
    text = jsonlib.dumps(document, allow_nan=False)
    if out is not None:
        try:
            out.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None
    if json:
        sys.stdout.write(text + "\n")
    else:
        print_floor(document, console())
    return Exit.DONE


def measure(paths: list[Way], count: int, model: str | None) -> dict[str, Any]:
    """Measure every path and return the document.

    Raises:
        StopError: a path does not answer, or not as an engine does.
    """
    found = {path.name: _measure_path(path, count, model) for path in paths}
    document: dict[str, Any] = {
        "schema": FLOOR_SCHEMA,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "count": count,
        "paths": found,
        "host": host_facts(),
        "versions": versions(),
    }
    if len(found) > 1:
        one, two = found["direct"], found["proxy"]
        document["proxy_adds_p50_s"] = {
            kind: two[kind]["p50_s"] - one[kind]["p50_s"] for kind in _KINDS if kind in one and kind in two
        }
    return document


def _measure_path(path: Way, count: int, model: str | None) -> dict[str, Any]:
    try:
        asked = model or _first_model(path)
        connects = [_connect(path) for _ in range(count)]
        found: dict[str, Any] = {"url": path.target.url, "tcp": _digest([tcp for tcp, _ in connects])}
        if path.tls is not None:
            found["tls"] = _digest([tls for _, tls in connects])
        connection = _open(path)
        try:
            found["http"] = _digest([_get(connection, path) for _ in range(count)])
            found["one_token"] = _digest([_one_token(connection, path, asked, number) for number in range(count)])
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise StopError(
            f"{path.name} path: {path.target.url} does not answer: {str(error) or type(error).__name__}"
        ) from None
    return found


def _digest(values: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(values, (0.5, 0.99), method="inverted_cdf")
    return {"n": len(values), "p50_s": float(p50), "p99_s": float(p99), "max_s": max(values)}


def _connect(path: Way) -> tuple[float, float]:
    """Return seconds of the TCP connection, and of the TLS handshake on it (0 without)."""
    began = time.perf_counter()
    with socket.create_connection((path.target.host, path.target.port), TIMEOUT_S) as link:
        connected = time.perf_counter()
        if path.tls is None:
            return connected - began, 0.0
        with path.tls.wrap_socket(link, server_hostname=path.target.host):
            return connected - began, time.perf_counter() - connected


def _open(path: Way) -> http.client.HTTPConnection:
    host, port = path.target.host, path.target.port
    if path.tls is not None:
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=path.tls)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _first_model(path: Way) -> str:
    connection = _open(path)
    try:
        connection.request("GET", f"{path.target.prefix}/v1/models", headers=path.headers)
        answer = connection.getresponse()
        body = answer.read()
        _expect(path, answer, "/v1/models", body)
        return str(jsonlib.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise StopError(f"{path.target.url}/v1/models lists no model; name one with --model") from None
    finally:
        connection.close()


def _get(connection: http.client.HTTPConnection, path: Way) -> float:
    began = time.perf_counter()
    connection.request("GET", f"{path.target.prefix}/v1/models", headers=path.headers)
    answer = connection.getresponse()
    body = answer.read()
    took = time.perf_counter() - began
    _expect(path, answer, "/v1/models", body)
    return took


def _one_token(connection: http.client.HTTPConnection, path: Way, model: str, number: int) -> float:
    """Ask for one token, with a prompt unlike the one before; seconds to the whole answer."""
    body = jsonlib.dumps({"model": model, "prompt": f"{number} {time.time_ns()} hello", "max_tokens": 1})
    headers = path.headers | {"Content-Type": "application/json"}
    began = time.perf_counter()
    connection.request("POST", f"{path.target.prefix}/v1/completions", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    took = time.perf_counter() - began
    _expect(path, answer, "/v1/completions", text)
    return took


def _expect(path: Way, answer: http.client.HTTPResponse, what: str, body: bytes) -> None:
    if answer.status != http.HTTPStatus.OK:
        said = " ".join(body[:200].decode("utf-8", "replace").split())
        raise StopError(f"{path.name} path: {path.target.url}{what} answers with status {answer.status}: {said}")


def print_floor(document: dict[str, Any], out: Console) -> None:
    """Print medians and tails of every path."""
    table = Table(title=f"link floor, {document['count']} of each", title_justify="left")
    table.add_column("")
    for name, path in document["paths"].items():
        table.add_column(f"{name}  {urlsplit(path['url']).netloc}\np50 / p99", justify="right")
    adds = document.get("proxy_adds_p50_s", {})
    if adds:
        table.add_column("the proxy adds\np50", justify="right")
    for kind, label in _KINDS.items():
        if any(kind in path for path in document["paths"].values()):
            cells = [_cell(path.get(kind)) for path in document["paths"].values()]
            table.add_row(label, *cells, *([seconds(adds[kind]) if kind in adds else ""] if adds else []))
    out.print(table)
    if document["count"] < 500:
        out.print(f"p99 of {document['count']} is among the largest few; read it as rough", style="yellow")


def _cell(digest: dict[str, float] | None) -> str:
    return "" if digest is None else f"{seconds(digest['p50_s'])} / {seconds(digest['p99_s'])}"

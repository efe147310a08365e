"""The client cases. What real client libraries show their users needs these libraries, and they are not part of the
development environment: those rows are not run. What goes over the wire is observed nevertheless, with curl."""

import asyncio
import importlib.util
import shutil
from typing import Any

from tests.faults import upstream
from tests.faults.admission import SHORT_QUEUE, fill, leave, refusal
from tests.faults.case import NotRunError, case
from tests.faults.lifecycle import scripted, shown, streamed
from tests.faults.upstream import Connection, Seen, event, piece
from tests.faults.wire import chat

_LIBRARIES = ("openai", "anthropic", "langchain_openai", "llama_index", "litellm")
_RAISES = {"raises_in": {"contains": "openai"}}


def _libraries() -> str:
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    return ", ".join([*missing, "openai for JavaScript, anthropic for JavaScript, ai-sdk"])


async def _curl(port: int, body: str, path: str = "/v1/chat/completions") -> dict[str, Any]:
    """What curl makes of it: its exit code, the status and the last line of the body."""
    if shutil.which("curl") is None:
        return {}
    url = f"http://127.0.0.1:{port}{path}"
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "-N", "-w", "\n%{http_code}", "-H", "Content-Type: application/json", "-d", body, url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    text, _, status = out.decode("utf-8", "replace").rpartition("\n")
    return {"curl_exit": process.returncode, "curl_status": status, "tail": text[-160:], "said": err.decode()[:120]}


@case("CLI-00", "the OpenAI, Anthropic and other libraries against 429", _RAISES, why="attempts and gaps as measured")
async def _attempts() -> dict[str, Any]:
    async with scripted(upstream.silent, SHORT_QUEUE) as station:
        clients = await fill(station)
        talk = await station.ask(chat())
        await leave(station, clients)
    raise NotRunError(_libraries(), {"on_the_wire": refusal(talk.answer)})


async def _error_first(seen: Seen, connection: Connection) -> None:
    await connection.answer(b'{"error":{"message":"broken"}}', "500 Internal Server Error")


async def _error_later(seen: Seen, connection: Connection) -> None:
    await connection.head()
    await connection.chunk(piece("Hello"))
    connection.close()


@case("CLI-01", "a stream that fails before its first byte", _RAISES, why="a real status, not 200")
async def _before() -> dict[str, Any]:
    async with scripted(_error_first) as station:
        told = await _curl(station.port, '{"model":"m","messages":[],"stream":true}')
    raise NotRunError(_libraries(), told)


@case("CLI-02", "a chat stream that fails after its first byte", _RAISES, why="an error event, then an unclean close")
async def _after() -> dict[str, Any]:
    async with scripted(_error_later) as station:
        told = await _curl(station.port, '{"model":"m","messages":[],"stream":true}')
    raise NotRunError(_libraries(), told)


@case(
    "CLI-03",
    "a stream on /v1/messages that fails after its first byte",
    _RAISES,
    why="event: error, in its own dialect",
)
async def _messages() -> dict[str, Any]:
    async def script(seen: Seen, connection: Connection) -> None:
        await connection.head()
        start = event({"type": "message_start", "message": {"usage": {"input_tokens": 3}}})
        await connection.chunk(b"event: message_start\n" + start)
        connection.close()

    async with scripted(script) as station:
        body = '{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"stream":true}'
        told = await _curl(station.port, body, "/v1/messages")
    raise NotRunError(_libraries(), told)


@case("CLI-04", "comments as keep-alive in a long prefill", _RAISES, why="taken by all streaming clients")
async def _comments() -> dict[str, Any]:
    async def script(seen: Seen, connection: Connection) -> None:
        await connection.head()
        for _ in range(3):
            await connection.chunk(b": ping\n\n")
            await asyncio.sleep(0.05)
        for item in upstream.chat_events():
            await connection.chunk(item)
        await connection.send(b"0\r\n\r\n")

    got = shown(await streamed(script))
    raise NotRunError(_libraries(), {key: got[key] for key in ("status", "complete", "outcomes")})

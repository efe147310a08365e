"""A server that costs next to nothing: every completion is one prepared answer, written in one go.

`python -m tools.acceptance.generator_answers TOKENS` prints its port and serves until it is ended. What a client can
take in is then the client's limit alone.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"mock","object":"model","max_model_len":131072}]}'
_EVENT = (
    'data: {"id":"c-1","object":"text_completion","created":1,"model":"mock","choices":[{"index":0,"text":" the",'
    '"logprobs":null,"finish_reason":%s}]}\n\n'
)
_USAGE = (
    'data: {"id":"c-1","object":"text_completion","created":1,"model":"mock","choices":[],"usage":{"prompt_tokens":64,'
    '"completion_tokens":%d,"total_tokens":%d}}\n\n'
)


def framed(event: str) -> bytes:
    """Return one event as one HTTP chunk."""
    data = event.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(tokens: int) -> bytes:
    """Return a whole answer of this many token chunks, usage and `[DONE]` after them."""
    events = [
        *[_EVENT % "null"] * (tokens - 1),
        _EVENT % '"length"',
        _USAGE % (tokens, tokens + 64),
        "data: [DONE]\n\n",
    ]
    return _HEAD + b"".join(map(framed, events)) + b"0\r\n\r\n"


class Answering(asyncio.Protocol):
    """One connection. A request that is not for a completion gets the list of models."""

    def __init__(self, prepared: bytes) -> None:
        self._prepared = prepared
        self._data = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; called by the event loop."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer when a request is whole; called by the event loop."""
        assert self._transport is not None
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._data, 0, end)
        if len(self._data) < end + 4 + (int(length[1]) if length else 0):
            return
        listed = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_MODELS)
        self._transport.write(self._prepared if self._data.startswith(b"POST") else listed + _MODELS)
        self._data = b""


async def _serve(tokens: int) -> None:
    prepared = answer(tokens)
    server = await asyncio.get_running_loop().create_server(lambda: Answering(prepared), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))

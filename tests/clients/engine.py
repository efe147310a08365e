"""The engine behind the proxy: it does what the name of the model asks for, in the dialect of the path."""

import asyncio
import json
from typing import Any

from tests.clients.environment import JAVASCRIPT, PYTHON
from tests.faults import upstream
from tests.faults.upstream import DONE, Connection, Seen, event, piece, usage_event, wants_usage

LIBRARIES = (*PYTHON, *JAVASCRIPT)
CASES = (
    *("plain", "stream", "tools", "refused", "comments", "slow", "cut", "failed", "full", "down"),
)  # fmt: skip
FIRST_BYTE_S = 6.0
"""Time to the first byte of the slow case: longer than what httpx waits by itself (5 s)."""
ARGUMENTS = '{"city":"Oslo"}'
_MODELS = json.dumps(
    {
        "object": "list",
        "data": [
            {"id": f"{library}.{case}", "object": "model", "max_model_len": 100_000}
            for library in LIBRARIES
            for case in CASES
        ],
    }
).encode()


async def probes(seen: Seen, connection: Connection) -> None:
    """Answer the proxy's own polls: every library has a model of its own for every case."""
    await (connection.answer(_MODELS) if seen.path.startswith("/v1/models") else upstream.healthy(seen, connection))


async def serve(seen: Seen, connection: Connection) -> None:
    """Do what the model's name asks for."""
    document = seen.document
    case = str(document.get("model", "") if isinstance(document, dict) else "").partition(".")[2]
    dialect = _Anthropic() if seen.path == "/v1/messages" else _OpenAI(usage=wants_usage(seen))
    if case == "refused":
        await connection.answer(dialect.refusal(), "400 Bad Request")
    elif case == "failed":
        await connection.answer(b"broken inside", "500 Internal Server Error", "text/plain")
    elif not seen.streams:
        await connection.answer(dialect.whole())
    else:
        await _stream(case, dialect, connection)


async def _stream(case: str, dialect: "_OpenAI | _Anthropic", connection: Connection) -> None:
    if case == "slow":
        await asyncio.sleep(FIRST_BYTE_S)
    await connection.head()
    if case == "comments":
        for _ in range(3):
            await connection.chunk(b": keep-alive\n\n")
            await asyncio.sleep(0.05)
    events = dialect.tool() if case == "tools" else dialect.words()
    for item in events[: len(events) // 2] if case == "cut" else events:
        await connection.chunk(item)
    if case == "cut":
        connection.close()
        return
    await connection.send(b"0\r\n\r\n")


class _OpenAI:
    """Chat completions as vLLM streams them."""

    def __init__(self, *, usage: bool) -> None:
        self._end = [*([usage_event(7, 3)] if usage else []), DONE]

    def whole(self) -> bytes:
        return upstream.chat_answer()

    def refusal(self) -> bytes:
        error = {"message": "temperature must be at most 2", "type": "BadRequestError", "param": None, "code": 400}
        return json.dumps({"error": error}).encode()

    def words(self) -> list[bytes]:
        return [piece(None, role=True), *(piece(f" w{number}") for number in range(3)), piece(None, "stop"), *self._end]

    def tool(self) -> list[bytes]:
        begin = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
        halves = [{"index": 0, "function": {"arguments": text}} for text in (ARGUMENTS[:7], ARGUMENTS[7:])]
        calls = [self._delta({"tool_calls": [call]}) for call in (begin, *halves)]
        return [piece(None, role=True), *calls, piece(None, "tool_calls"), *self._end]

    @staticmethod
    def _delta(delta: dict[str, Any]) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return event({"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


class _Anthropic:
    """Messages as vLLM streams them."""

    def whole(self) -> bytes:
        return json.dumps(self._message([{"type": "text", "text": "Hello"}], "end_turn")).encode()

    def refusal(self) -> bytes:
        error = {"type": "invalid_request_error", "message": "temperature must be at most 2"}
        return json.dumps({"type": "error", "error": error}).encode()

    def words(self) -> list[bytes]:
        deltas = [{"type": "text_delta", "text": f" w{number}"} for number in range(3)]
        return self._stream({"type": "text", "text": ""}, deltas, "end_turn")

    def tool(self) -> list[bytes]:
        deltas = [{"type": "input_json_delta", "partial_json": text} for text in (ARGUMENTS[:7], ARGUMENTS[7:])]
        block = {"type": "tool_use", "id": "toolu-1", "name": "get_weather", "input": {}}
        return self._stream(block, deltas, "tool_use")

    @staticmethod
    def _message(content: list[Any], reason: str | None) -> dict[str, Any]:
        usage = {"input_tokens": 7, "output_tokens": 3}
        about = {"id": "msg-1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
        return {**about, "content": content, "stop_reason": reason, "usage": usage}

    def _stream(self, block: dict[str, Any], deltas: list[dict[str, Any]], reason: str) -> list[bytes]:
        documents: list[dict[str, Any]] = [
            {"type": "message_start", "message": self._message([], None)},
            {"type": "content_block_start", "index": 0, "content_block": block},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": {"output_tokens": 3},
            },
            {"type": "message_stop"},
        ]
        return [f"event: {document['type']}\n".encode() + event(document) for document in documents]

"""Reading the event stream of one answer: what kind each event is, and when it came.

The definitions are those of docs/latencies.md: a token chunk has non-empty text in any channel; role-only chunks, empty
strings, usage, comments and `[DONE]` are none. This reader is the load generator's own, apart from the proxy's: an
instrument must not share the faults of what it measures.
"""

import re
from enum import StrEnum
from typing import Any

import orjson


class Kind(StrEnum):
    """What one data event is; the letters of `Result.kinds`."""

    CONTENT = "c"
    """Non-empty `content` or `text`."""
    REASONING = "r"
    """Non-empty `reasoning`."""
    REASONING_CONTENT = "R"
    """Non-empty `reasoning_content`."""
    TOOL = "t"
    """Non-empty `tool_calls`, or `function_call`."""
    EMPTY = "e"
    """`content` is the empty string and there is no `role`; or empty `text`."""
    OTHER = "o"
    """A choice without any of these: the role chunk, a bare finish."""


_CONTENT = Kind.CONTENT
"""Looked up once: reading a member off its class runs Python code on 3.11."""
TOKEN_KINDS = frozenset({Kind.CONTENT, Kind.REASONING, Kind.REASONING_CONTENT, Kind.TOOL})
_OPENINGS = (b'"content":"', b'"text":"', b'"content": "', b'"text": "')
_REST_OF_STRING = re.compile(rb'(?:[^"\\]|\\.)*', re.DOTALL)
_QUOTE = ord('"')
_NEVER = b"\x00"
LONGEST_EVENT = 16 * 1024 * 1024


class EventReader:
    """Takes the body of one answer as it arrives and keeps what was learned from it. Never raises on bad bytes."""

    __slots__ = (
        "_after",
        "_after_end",
        "_before",
        "_before_length",
        "_least",
        "_least_end",
        "_tail",
        "cached_tokens",
        "chunks",
        "completion_tokens",
        "counts",
        "done",
        "error",
        "error_code",
        "finish",
        "first_content_ns",
        "first_ns",
        "kinds",
        "last_ns",
        "prompt_tokens",
        "times_ns",
    )

    def __init__(self) -> None:
        self._tail = b""
        self._before = self._after = self._after_end = _NEVER
        self._before_length = self._least = self._least_end = 0
        self.times_ns: list[int] = []
        """Arrival of each data event that has a choice."""
        self.kinds: list[str] = []
        self.counts: list[int] = []
        """Completion tokens so far, one per event that carried usage beside its choice."""
        self.chunks = 0
        """Token chunks so far."""
        self.first_ns = 0
        """First token chunk; 0: none yet."""
        self.first_content_ns = 0
        self.last_ns = 0
        self.finish: str | None = None
        self.completion_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.done = False
        """`[DONE]` came."""
        self.error: str | None = None
        """Message of an error event inside the stream."""
        self.error_code: str | None = None

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take body bytes that arrived at `now_ns`."""
        if self._is_one_like_before(data):
            self.chunks += 1
            self.times_ns.append(now_ns)
            self.kinds.append(_CONTENT)
            self.last_ns = now_ns
            return
        if self._tail:
            data = self._tail + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(b"\n\n")
        self._tail = events.pop()
        plain = 0
        for event in events:
            if (
                len(event) > self._least
                and event.startswith(self._before)
                and event.endswith(self._after)
                and event[self._before_length] != _QUOTE
            ):
                plain += 1
            elif event:
                if plain:
                    self._tokens(plain, _CONTENT, now_ns)
                    plain = 0
                self._read(event, now_ns)
        if plain:
            self._tokens(plain, _CONTENT, now_ns)
        if len(self._tail) > LONGEST_EVENT:
            self.error, self._tail = f"an event of the stream is longer than {LONGEST_EVENT} bytes", b""

    def _is_one_like_before(self, data: bytes) -> bool:
        """Whether it is exactly one event that differs from the one learned in its text alone: most reads are."""
        return (
            data.startswith(self._before)
            and data.endswith(self._after_end)
            and len(data) > self._least_end
            and data[self._before_length] != _QUOTE
            and not self._tail
            and data.count(b"\n\n") == 1
            and b"\r" not in data
        )

    def _tokens(self, count: int, kind: Kind, now_ns: int) -> None:
        """Take token chunks that came in one read, and so at one time."""
        self.chunks += count
        self.times_ns.extend([now_ns] * count)
        self.kinds.extend([kind] * count)
        self.last_ns = now_ns
        if not self.first_ns:
            self.first_ns = now_ns
        if not self.first_content_ns and kind in _ANSWER:
            self.first_content_ns = now_ns

    def _read(self, event: bytes, now_ns: int) -> None:
        payload = b"\n".join(line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:"))
        if payload == b"[DONE]":
            self.done = True
        elif payload:
            self._document(event, payload, now_ns)

    def _document(self, event: bytes, payload: bytes, now_ns: int) -> None:
        try:
            document = orjson.loads(payload)
        except ValueError:
            self.error = self.error or "an event of the stream is not JSON"
            return
        if not isinstance(document, dict):
            self.error = self.error or "an event of the stream is not a JSON object"
        elif "error" in document:
            self.error, self.error_code = error_of(document)
        else:
            self._chunk(event, document, now_ns)

    def _chunk(self, event: bytes, document: dict[str, Any], now_ns: int) -> None:
        usage = document.get("usage")
        choices = document.get("choices")
        if isinstance(usage, dict):
            self._usage(usage)
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        choice = choices[0]
        kind = kind_of(choice)
        if kind in TOKEN_KINDS:
            self._tokens(1, kind, now_ns)
        else:
            self.times_ns.append(now_ns)
            self.kinds.append(kind)
        if isinstance(usage, dict) and self.completion_tokens is not None:
            self.counts.append(self.completion_tokens)
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"]
        elif kind is Kind.CONTENT and not isinstance(usage, dict):
            self._learn(event)

    def _usage(self, usage: dict[str, Any]) -> None:
        self.completion_tokens = _count(usage.get("completion_tokens"), self.completion_tokens)
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)

    def _learn(self, event: bytes) -> None:
        """Remember what surrounds the text of a plain token event: the next one that looks the same is the same."""
        if event.count(b"\n"):
            return
        for opening in _OPENINGS:
            at = event.find(opening)
            if at >= 0:
                begin = at + len(opening)
                end = _string_end(event, begin)
                self._before, self._after = event[:begin], event[end:]
                self._after_end = self._after + b"\n\n"
                self._before_length = begin
                self._least = begin + len(self._after)
                self._least_end = begin + len(self._after_end)
                return


_ANSWER = frozenset({Kind.CONTENT, Kind.TOOL})


def kind_of(choice: dict[str, Any]) -> Kind:
    """Classify one choice of a stream chunk, chat or completions."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        if text:
            return Kind.CONTENT
        return Kind.EMPTY if text == "" else Kind.OTHER
    if delta.get("content"):
        return Kind.CONTENT
    if delta.get("reasoning"):
        return Kind.REASONING
    if delta.get("reasoning_content"):
        return Kind.REASONING_CONTENT
    if delta.get("tool_calls") or delta.get("function_call"):
        return Kind.TOOL
    return Kind.EMPTY if delta.get("content") == "" and "role" not in delta else Kind.OTHER


def error_of(document: dict[str, Any]) -> tuple[str, str | None]:
    """Return message and code of an error body in any of the usual shapes."""
    error = document.get("error", document)
    if not isinstance(error, dict):
        return str(error)[:500], None
    code = error.get("code") or error.get("type")
    return str(error.get("message", error))[:500], None if code is None else str(code)[:100]


def _string_end(event: bytes, begin: int) -> int:
    match = _REST_OF_STRING.match(event, begin)
    return match.end() if match else begin


def _count(value: Any, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

"""Reading beside a stream (server-sent events), and taking the one event out that only we asked for."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from proxy.wire.errors import ErrorSeen, error_in
from proxy.wire.facts import Endpoint
from proxy.wire.usage import Usage, merge_usage, read_usage

MAX_EVENT_BYTES: Final = 1 << 20
"""An event longer than this is not kept: it is counted as unparsed."""
_HEAD_BYTES: Final = 256
_MAX_USAGE_EVENT_BYTES: Final = 1 << 16

# Two line ends in a row, each LF, CRLF or CR; the two bytes of one CRLF are not two line ends.
_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
"""The same, for cutting: a CR that ends the data may be the first half of a CRLF."""

_CHAT_START: Final = b"data: {"
# A chat event with none of these is a token and nothing else. Inside a JSON string a quote is escaped, so none of them
# can be hidden by text; text that happens to hold `{}` or `""` only costs a closer look.
_CHAT_MARKS: Final = (
    b'finish_reason":"',
    b'finish_reason": "',
    b'"usage":',
    b'"error"',
    b'""',
    b"{}",
    b"{ }",
    b'content":null}',
    b'content": null}',
)
# The text of a chat event, when it is plain.
_CHAT_TEXT: Final = re.compile(rb'"(?:content|text|reasoning|reasoning_content)": ?"([^"\\]++)"')
_LEARN_AT_MOST: Final = 16
_RESPONSES_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_TOKEN_KEYS: Final = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal")
_BLOCK_KEYS: Final = ("text", "thinking", "partial_json")


class StreamScanner:
    """Reads the events of one answer as its bytes pass by. It never raises and keeps at most one event.

    Attributes:
        tokens: token events so far. A token event has non-empty content, reasoning, tool calls or text; role-only,
            empty and usage-only events, comments and `[DONE]` are none. An event may hold several tokens.
        usage: the engine's counts, from the last event that had them.
        finish_reason: the last one seen, in the engine's own word (`length`, `max_tokens`, `completed` …).
        error: the first error inside the stream.
        done: the dialect's terminal marker came: `[DONE]`, `response.completed` and its kin, `message_stop`.
        unparsed: events that could not be read: broken JSON, or longer than `MAX_EVENT_BYTES`.
    """

    __slots__ = ("_after", "_before", "_chat", "_chunk_end", "_endpoint", "_held", "_huge", "_learned", "done", "error",
                 "finish_reason", "tokens", "unparsed", "usage")  # fmt: skip

    def __init__(self, endpoint: Endpoint) -> None:
        self.tokens = 0
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.error: ErrorSeen | None = None
        self.done = False
        self.unparsed = 0
        self._endpoint = endpoint
        self._chat = endpoint not in {Endpoint.RESPONSES, Endpoint.MESSAGES}
        self._held = bytearray()
        self._huge: bytes | None = None
        # What every byte before and after the text of the last plain token event was; for named events, the name line.
        self._before = b""
        self._after = b""
        self._chunk_end = b""  # `_after` to the end of its chunk
        self._learned = 0

    @property
    def complete(self) -> bool:
        """Whether the stream ended properly for its dialect: a finish, the terminal marker, and no error."""
        return self.done and self.finish_reason is not None and self.error is None

    @property
    def prefilled(self) -> bool:
        """Whether the engine has shown that its prefill is over: a token event, or an end without one."""
        return self.tokens > 0 or self.finish_reason is not None or self.error is not None or self.done

    @property
    def steady(self) -> bool:
        """Whether `feed_chunk` can tell the next read: none of an event is held, and a token is known."""
        return self._chunk_end != b"" and not self._held

    def feed_chunk(self, wire: bytes) -> int:
        """Count a read that is one whole chunk with one more token event in it: what a chat streams most of the time.

        Only while `steady`. This is most of what lanewise does per token, so it looks at the framing and the event in
        one go: the size line that fits the length of the read, what stood around the text of the last token, and text
        that neither ends its string nor its line.

        Args:
            wire: a read that begins where a chunk begins, with the chunk framing it came with.

        Returns:
            Bytes of the event; 0 when the read is anything else, and nothing was counted.
        """
        line = _size_line(len(wire))
        if line is None or not wire.startswith(line):
            return 0
        start = len(line)
        before, chunk_end = self._before, self._chunk_end
        if not (wire.startswith(before, start) and wire.endswith(chunk_end)):
            return 0
        text, end = start + len(before), len(wire) - len(chunk_end)
        if text >= end or wire.find(b'"', text) != end or wire.find(b"\n", text, end) >= 0:
            return 0
        if wire.find(b"\r", text, end) >= 0:
            return 0
        self.tokens += 1
        return len(wire) - start - 2

    def feed(self, data: bytes) -> int:
        """Read the next bytes, without chunk framing, cut anywhere.

        Returns:
            How many token events ended in them.
        """
        before = self.tokens
        if self._held or not data.endswith(b"\n\n") or data.endswith(b"\n\n\n") or b"\r" in data:
            self._take(data)
            return self.tokens - before
        events = data[:-2].split(b"\n\n")
        if not before or not self._all_tokens(data, events):
            for event in events:
                self._event_ended(event)
        return self.tokens - before

    def end(self) -> None:
        """Read what is left when the stream is over: a last event without its blank line still counts."""
        rest = bytes(self._held)
        self._held.clear()
        if self._huge is not None:
            self._event_ended(rest)
        elif rest:  # what is cut may look like a token: it is parsed
            self._look(rest)

    def _all_tokens(self, data: bytes, events: list[bytes]) -> bool:
        """Count a read of whole token events, the steady state, without looking into them; False: look."""
        for event in events:
            if not self._like_last(event):
                break
        else:
            self.tokens += len(events)
            return True
        if not self._plain_events(data, len(events)):
            return False
        self.tokens += len(events)
        self._learn(events[-1])
        return True

    def _like_last(self, event: bytes) -> bool:
        """Whether the event is the last plain token event but for its text."""
        if self._chat:
            before, after = self._before, self._after
            return len(event) > len(before) + len(after) > 0 and event.startswith(before) and event.endswith(after)
        return self._before != b"" and event.startswith(self._before) and _plain_delta(event)

    def _plain_events(self, data: bytes, events: int) -> bool:
        if not self._chat:
            return events == data.count(self._before or b"\n") and _plain_delta(data)
        starts = data.startswith(_CHAT_START) and (events == 1 or data.count(b"\n\n" + _CHAT_START) == events - 1)
        return starts and _plain(data)

    def _learn(self, event: bytes) -> None:
        if self._learned >= _LEARN_AT_MOST:
            return
        self._learned += 1
        if not self._chat:
            line, end, _ = event.partition(b"\n")
            self._before = line + end if line.endswith(b"delta") else b""
        elif text := _CHAT_TEXT.search(event):
            self._before, self._after = event[: text.start(1)], event[text.end(1) :]
            self._chunk_end = self._after + b"\n\n\r\n"

    def _take(self, data: bytes) -> None:
        held = self._held
        search_from = max(0, len(held) - 3)
        if held:
            held += data
        buffer = held or data
        start = 0
        while blank := _BLANK_LINE.search(buffer, search_from):
            self._event_ended(bytes(buffer[start : blank.start()]))
            start = search_from = blank.end()
        self._keep(buffer, start)

    def _keep(self, buffer: bytes | bytearray, start: int) -> None:
        if buffer is self._held:
            del self._held[:start]
        else:
            self._held += buffer[start:]
        if len(self._held) > MAX_EVENT_BYTES:
            if self._huge is None:
                self._huge = bytes(self._held[:_HEAD_BYTES])
            del self._held[:-3]  # enough to see a blank line that is cut

    def _event_ended(self, event: bytes) -> None:
        if self._huge is not None:
            head, self._huge = self._huge, None
            self._too_long(head)
        elif self.tokens and (self._like_last(event) or (self._chat and _plain_event(event))):
            self.tokens += 1
        else:
            before = self.tokens
            self._look(event)
            if self.tokens > before and _plain(event) and b"\r" not in event:
                self._learn(event)

    def _too_long(self, head: bytes) -> None:
        """Judge an event that was not kept by its first bytes, so that neither first token nor end goes unseen."""
        self.unparsed += 1
        name, data = _fields(head)
        if self._chat:
            self.tokens += bool(data)
        elif name.endswith("delta"):
            self.tokens += 1
        elif name in _RESPONSES_ENDS:
            self.done = True
            self.finish_reason = name.removeprefix("response.")

    def _look(self, event: bytes) -> None:
        name, data = _fields(event)
        if not data:
            return
        if data.strip() == b"[DONE]":
            self.done = self.done or self._chat
            return
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict):
            self._read(name, document)
        else:
            self.unparsed += 1

    def _read(self, name: str, document: Mapping[str, object]) -> None:
        if self.error is None:
            self.error = error_in(document)
        kind = document.get("type")
        name = kind if isinstance(kind, str) else name
        if self._endpoint is Endpoint.RESPONSES:
            self._read_responses(name, document)
        elif self._endpoint is Endpoint.MESSAGES:
            self._read_messages(name, document)
        else:
            self._read_chat(document)

    def _read_chat(self, document: Mapping[str, object]) -> None:
        self.usage = merge_usage(self.usage, read_usage(document.get("usage")))
        choices = document.get("choices")
        token = False
        for choice in _mappings(choices):
            delta = choice.get("delta")
            token = token or bool(choice.get("text")) or _any(delta, _TOKEN_KEYS)
            self._finish(choice.get("finish_reason"))
        self.tokens += token

    def _read_responses(self, name: str, document: Mapping[str, object]) -> None:
        if name.endswith(".delta"):
            self.tokens += bool(document.get("delta"))
            return
        response = document.get("response")
        if name not in _RESPONSES_ENDS or not isinstance(response, dict):
            return
        self.done = True
        self.usage = merge_usage(self.usage, read_usage(response.get("usage")))
        self._finish(responses_finish(response) or name.removeprefix("response."))
        if self.error is None:
            self.error = error_in(response)
        if self.error is None and name == "response.failed":
            self.error = ErrorSeen("the engine ended the response as failed")

    def _read_messages(self, name: str, document: Mapping[str, object]) -> None:
        if name == "content_block_delta":
            self.tokens += _any(document.get("delta"), _BLOCK_KEYS)
        elif name == "message_start":
            message = document.get("message")
            if isinstance(message, dict):
                self.usage = merge_usage(self.usage, read_usage(message.get("usage")))
        elif name == "message_delta":
            self.usage = merge_usage(self.usage, read_usage(document.get("usage")))
            delta = document.get("delta")
            if isinstance(delta, dict):
                self._finish(delta.get("stop_reason"))
        elif name == "message_stop":
            self.done = True

    def _finish(self, reason: object) -> None:
        if isinstance(reason, str) and reason:
            self.finish_reason = reason[:100]


class UsageRemover:
    """Passes a stream of chat or completions through and takes out its one usage-only event.

    Only for streams whose usage the proxy asked for and the client did not. An event that is not whole yet is held
    back, since it could be the one; nothing is held any more once it was found.

    Attributes:
        removed: whether the event was found and taken out.
    """

    __slots__ = ("_held", "_pass", "removed")

    def __init__(self) -> None:
        self.removed = False
        self._held = bytearray()
        self._pass = False  # inside an event too long to be the one

    @property
    def holding(self) -> bool:
        """Whether the next bytes cannot be told by themselves: something is held back."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, cut anywhere.

        Returns:
            What may go on to the client now, possibly nothing.
        """
        if self.removed:
            return data
        if not self._held and not self._pass and data.endswith(b"\n\n") and b'"usage"' not in data:
            return data
        return self._sift(data)

    def end(self) -> bytes:
        """Return what is still held when the stream is over."""
        rest = bytes(self._held)
        self._held.clear()
        return b"" if not self.removed and _usage_only(rest) else rest

    def _sift(self, data: bytes) -> bytes:
        held = self._held
        search_from = max(0, len(held) - 3)
        held += data
        out: list[bytes] = []
        start = 0
        while not self.removed and (blank := EVENT_END.search(held, search_from)):
            event = bytes(held[start : blank.end()])
            start = search_from = blank.end()
            if self._pass or not _usage_only(event):
                out.append(event)
            else:
                self.removed = True
            self._pass = False
        del held[:start]
        out.append(self._let_go())
        return b"".join(out)

    def _let_go(self) -> bytes:
        held = self._held
        if self.removed:
            keep = 0
        elif self._pass or len(held) > _MAX_USAGE_EVENT_BYTES:
            self._pass, keep = True, 3  # enough to see a blank line that is cut
        else:
            return b""
        cut = max(0, len(held) - keep)
        gone = bytes(held[:cut])
        del held[:cut]
        return gone


def responses_finish(response: Mapping[str, object]) -> str | None:
    """Return why a `/v1/responses` answer ended: the reason it is incomplete, else its status."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    for word in (reason, response.get("status")):
        if isinstance(word, str) and word:
            return word
    return None


@lru_cache(maxsize=4096)
def _size_line(wire: int) -> bytes | None:
    """Return the size line of the one chunk that takes this many bytes with its framing; None: no chunk does."""
    for digits in range(1, 9):
        payload = wire - digits - 4
        if payload > 0 and len(f"{payload:x}") == digits:
            return b"%x\r\n" % payload
    return None


def _plain(data: bytes) -> bool:
    for mark in _CHAT_MARKS:  # noqa: SIM110 - any() with a generator takes twice as long
        if mark in data:
            return False
    return True


def _plain_delta(data: bytes) -> bool:
    return b'""' not in data and b'"signature' not in data


def _plain_event(event: bytes) -> bool:
    return event.startswith(_CHAT_START) and _plain(event)


def _fields(event: bytes) -> tuple[str, bytes]:
    """Return the event's name and its data lines joined by LF."""
    if event.startswith(_CHAT_START) and b"\n" not in event and b"\r" not in event:
        return "", event[6:]
    name = ""
    data: list[bytes] = []
    for line in event.removeprefix(b"\xef\xbb\xbf").splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.strip().decode("utf-8", "replace")
    return name, b"\n".join(data)


def _usage_only(event: bytes) -> bool:
    if b'"usage"' not in event or b'"choices"' not in event:
        return False
    try:
        document = json.loads(_fields(event)[1])
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("choices") == [] and bool(document.get("usage"))


def _mappings(value: object) -> Iterable[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def _any(fields: object, keys: Iterable[str]) -> bool:
    return isinstance(fields, dict) and any(fields.get(key) for key in keys)

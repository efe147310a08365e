"""One request in flight: the stamps it collects and how it ended."""

from collections.abc import Callable
from itertools import repeat
from operator import sub
from typing import Any
from zlib import crc32

import orjson

from loadgen.answers import repeats_itself, streamed_text
from loadgen.client import Call
from loadgen.events import EventReader, error_of
from loadgen.plan import Shot
from loadgen.result import LoadOutcome, Result

LONGEST_ERROR_BODY = 64 * 1024


class Timeline:
    """Turns `perf_counter_ns` stamps into seconds of the plan and back."""

    __slots__ = ("_speed", "start_ns")

    def __init__(self, start_ns: int, speed: float) -> None:
        self.start_ns = start_ns
        self._speed = speed

    def seconds(self, stamp_ns: int) -> float | None:
        """Return seconds of the plan after its start; None for a stamp that was never set (0)."""
        return round((stamp_ns - self.start_ns) * self._speed / 1e9, 6) if stamp_ns else None

    def due_ns(self, due_s: float) -> int:
        """Return the stamp at which something of the plan is due."""
        return self.start_ns + round(due_s / self._speed * 1e9)

    def event_deltas(self, times_ns: list[int], origin_ns: int) -> tuple[int, ...]:
        """Return microseconds of the plan from `origin_ns` to the first time and from each to the next."""
        factor = self._speed / 1000
        if times_ns and times_ns[0] == times_ns[-1]:  # all in one read
            return (int((times_ns[0] - origin_ns) * factor + 0.5), *repeat(0, len(times_ns) - 1))
        offsets = [int((time - origin_ns) * factor + 0.5) for time in times_ns]
        return (*offsets[:1], *map(sub, offsets[1:], offsets))


class Flight:
    """Hears what comes back for one request (`client.Receiver`) and ends exactly once."""

    __slots__ = (
        "_body",
        "_on_end",
        "_rejects",
        "_streams",
        "body_bytes",
        "body_crc32",
        "call",
        "connected_ns",
        "detail",
        "end_ns",
        "head_ns",
        "heard_ns",
        "kept",
        "outcome",
        "patience",
        "reader",
        "reason",
        "reconnects",
        "retry_after",
        "sent_ns",
        "shot",
        "started_ns",
        "status",
    )

    def __init__(self, shot: Shot, rejects: frozenset[int], on_end: Callable[["Flight"], None]) -> None:
        self.shot = shot
        self.reader = EventReader()
        self.call: Call | None = None
        self.patience: Any = None
        """Timer of the client's patience, while it runs."""
        self.started_ns = self.connected_ns = self.sent_ns = self.head_ns = self.end_ns = 0
        self.heard_ns = 0
        """Last body bytes."""
        self.status: int | None = None
        self.outcome: LoadOutcome | None = None
        self.reason: str | None = None
        self.detail: str | None = None
        self.retry_after: float | None = None
        self.reconnects = 0
        self.body_bytes = self.body_crc32 = 0
        self.kept: list[bytes] | None = None
        """The stream as it came, where its text is to be looked at."""
        self._rejects = rejects
        self._on_end = on_end
        self._streams = False
        self._body = b""

    def on_connected(self, now_ns: int) -> None:
        """Stamp a new connection."""
        self.connected_ns = now_ns

    def on_sent(self, now_ns: int) -> None:
        """Stamp the send; a second one after a reconnect keeps the first stamp."""
        self.sent_ns = self.sent_ns or now_ns
        self.connected_ns = self.connected_ns or now_ns

    def on_reconnect(self) -> None:
        """Count a kept-alive connection that turned out closed."""
        self.reconnects += 1

    def on_head(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None:
        """Stamp the head and find out what kind of answer follows."""
        self.head_ns, self.status = now_ns, status
        self._streams = status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if status in self._rejects:
            self.retry_after = _retry_after(headers)

    def on_body(self, data: bytes, now_ns: int) -> None:
        """Read on."""
        self.body_bytes += len(data)
        self.body_crc32 = crc32(data, self.body_crc32)
        if self._streams:
            self.heard_ns = now_ns
            if self.kept is not None:
                self.kept.append(data)
            self.reader.feed(data, now_ns)
            if self.patience is not None and self.reader.first_ns:
                self.patience.cancel()
                self.patience = None
        elif len(self._body) < LONGEST_ERROR_BODY:
            self._body += data

    def on_complete(self, now_ns: int) -> None:
        """End as the answer says."""
        reader = self.reader
        if not self._streams:
            self._refused(now_ns)
        elif reader.error is not None:
            self.end(LoadOutcome.ERROR, now_ns, reader.error_code or "stream", reader.error)
        elif reader.finish is None:
            self.end(LoadOutcome.TRUNCATED, now_ns, "no_finish", "the stream ended without a finish reason")
        else:
            self.end(LoadOutcome.OK, now_ns)

    def on_broken(self, reason: str, detail: str, now_ns: int) -> None:
        """End in the middle of things."""
        if self.status is not None and not self._streams:
            self._refused(now_ns)
        elif self.reader.error is not None:
            self.end(LoadOutcome.ERROR, now_ns, self.reader.error_code or "stream", self.reader.error)
        elif self._streams and self.reader.finish is None:
            self.end(LoadOutcome.TRUNCATED, now_ns, reason, detail)
        elif reason == "connect_timeout":
            self.end(LoadOutcome.TIMEOUT, now_ns, reason, detail)
        else:
            self.end(LoadOutcome.ERROR, now_ns, reason, detail)

    def give_up(self, outcome: LoadOutcome, reason: str, now_ns: int) -> None:
        """End it from our side and close its connection."""
        if self.outcome is None:
            if self.call is not None:
                self.call.cancel()
            self.end(outcome, now_ns, reason)

    def end(self, outcome: LoadOutcome, now_ns: int, reason: str | None = None, detail: str | None = None) -> None:
        """Set the outcome; a second call changes nothing."""
        if self.outcome is not None:
            return
        self.outcome, self.end_ns, self.reason, self.detail = outcome, now_ns, reason, detail
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None
        self._on_end(self)

    def _refused(self, now_ns: int) -> None:
        code, message = _error_body(self._body)
        if self.status in self._rejects:
            self.end(LoadOutcome.REJECTED, now_ns, code, message)
        elif self.status == 200:
            self.end(LoadOutcome.ERROR, now_ns, "no_stream", "answered 200 without an event stream")
        else:
            self.end(LoadOutcome.ERROR, now_ns, code or f"http_{self.status}", message)

    def result(self, line: Timeline) -> Result:
        """Return what goes into the journal."""
        shot, reader = self.shot, self.reader
        chunks = reader.chunks
        from_usage = reader.completion_tokens is not None
        kinds = "".join(reader.kinds)
        return Result(
            index=shot.index,
            row=shot.row,
            source=shot.source,
            lane=shot.lane,
            prompt_tokens=shot.prompt_tokens,
            output_tokens=shot.output_tokens,
            due=round(shot.due_s, 6),
            outcome=self.outcome or LoadOutcome.CANCELLED,
            started=line.seconds(self.started_ns),
            sent=line.seconds(self.sent_ns),
            connected=line.seconds(self.connected_ns),
            head=line.seconds(self.head_ns),
            first=line.seconds(reader.first_ns),
            first_content=line.seconds(reader.first_content_ns),
            last=line.seconds(reader.last_ns),
            end=line.seconds(self.end_ns),
            tokens=reader.completion_tokens if from_usage else chunks if self._streams else None,
            tokens_from=("usage" if from_usage else "chunks") if self._streams else None,
            chunks=chunks,
            status=self.status,
            finish=reader.finish,
            usage_prompt=reader.prompt_tokens,
            cached_tokens=reader.cached_tokens,
            retry_after=self.retry_after,
            reason=self.reason,
            detail=self.detail,
            repeats=None if self.kept is None else repeats_itself(streamed_text(b"".join(self.kept))),
            reconnects=self.reconnects,
            body_bytes=self.body_bytes,
            body_crc32=self.body_crc32 if self.body_bytes else None,
            events=line.event_deltas(reader.times_ns, self.sent_ns),
            kinds=kinds if kinds.strip("c") else None,
            counts=tuple(reader.counts) if len(reader.counts) == len(kinds) > 0 else None,
        )


def unsent(shot: Shot) -> Result:
    """Return the journal line of a shot that the run was stopped before."""
    return Result(
        index=shot.index,
        row=shot.row,
        source=shot.source,
        lane=shot.lane,
        prompt_tokens=shot.prompt_tokens,
        output_tokens=shot.output_tokens,
        due=round(shot.due_s, 6),
        outcome=LoadOutcome.CANCELLED,
        reason="unsent",
    )


def _retry_after(headers: dict[bytes, bytes]) -> float | None:
    for name, unit in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        try:
            return float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
    return None


def _error_body(body: bytes) -> tuple[str | None, str | None]:
    try:
        document = orjson.loads(body)
    except ValueError:
        return None, body[:200].decode("utf-8", "replace") or None
    if not isinstance(document, dict):
        return None, None
    message, code = error_of(document)
    return code, message

"""The log: one event, one line, as text or JSON; written by a thread, so that a slow reader of stderr holds nobody up.

A line about a request has words of closed sets, numbers and the request id: never text of a prompt or an answer, never
a key. What an engine says in an error may quote the prompt, so it is not repeated either.
"""

import contextlib
import copy
import json
import logging
import queue
import sys
import threading
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

import orjson

from proxy.exchange import Exchange
from proxy.policy.outcome import Outcome
from proxy.settings import Settings

Format = Literal["text", "json"]

_log = logging.getLogger("lanewise")

QUEUED = 10_000
"""Lines that may wait for stderr; more are left out, and their number is told."""
GOODBYE_S = 2.0
"""How long the last lines may take when the process ends."""
PROBLEMS = 20
"""Lines about failed requests in any `PROBLEMS_S`; more are counted in the next line."""
PROBLEMS_S = 10.0
_PROBLEMS = frozenset({Outcome.BACKEND_ERROR.value, Outcome.BACKEND_TIMEOUT.value, Outcome.TRUNCATED.value})
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def without_words(error: BaseException) -> str:
    """Return a traceback as text, without what the errors say: they may quote a request. Of OSError that stays."""
    said = f": {error}" if isinstance(error, OSError) else ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    earlier = "" if before is None else f"{without_words(before)}\n\nand then:\n\n"
    return f"{earlier}Traceback (most recent call last):\n{frames}{type(error).__qualname__}{said}"


class TextLines(logging.Formatter):
    """Lines for people: time, level, message, then the fields as `key=value`. Control characters are escaped."""

    def __init__(self, fmt: str = "%(asctime)s %(levelname)s %(message)s") -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        """Write one event (logging)."""
        own = copy.copy(record)
        own.exc_text = None  # another handler may have left its own wording there
        return super().format(own)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Write the message and its fields (logging)."""
        text = super().formatMessage(record)
        for key, value in fields_of(record).items():
            text += f" {key}={_quoted(value)}"
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - logging's own name
        """Write where it happened, not what it says (logging)."""
        return "" if ei[1] is None else without_words(ei[1])


class JsonLines(logging.Formatter):
    """Lines for programs: `at` (UTC), `level`, `event`, the fields, and `traceback` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one JSON object (logging)."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = without_words(record.exc_info[1])
        text = orjson.dumps(_encodable(line), default=str).decode()
        # JSON allows line separators and other control characters inside text; readers of lines and terminals do not.
        return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a line was given (`extra={"fields": {…}}`)."""
    found: dict[str, Any] = getattr(record, "fields", {})
    return found


class Writer(logging.Handler):
    """Formats each line at once, and lets a thread write it.

    Args:
        stream: where to.
        most: lines that may wait; more are left out, and their number is told.
    """

    def __init__(self, stream: TextIO, most: int = QUEUED) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        self._left_out = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over without waiting (logging)."""
        try:
            if self._left_out:
                text = f"{self._left_out} lines of this log were left out: nobody read it"
                told = logging.LogRecord("lanewise", logging.WARNING, "", 0, text, None, None)
                self._lines.put_nowait(self.format(told))
                self._left_out = 0
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._left_out += 1
        except Exception:  # noqa: BLE001 - a line that cannot be written ends nothing
            self.handleError(record)

    def close(self) -> None:
        """Write what waits, within a bounded time (logging)."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=GOODBYE_S)
            self._thread.join(GOODBYE_S)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # stderr is gone or closed: serving goes on
                self._stream.write(f"{line}\n")
                if self._lines.empty():
                    self._stream.flush()


def formatter(kind: Format) -> logging.Formatter:
    """Return how lines are written."""
    return JsonLines() if kind == "json" else TextLines()


def set_up(kind: Format, stream: TextIO | None = None) -> Writer | None:
    """Write the log to stderr, unless somebody has set it up already.

    Args:
        kind: how lines are written.
        stream: where to instead.

    Returns:
        What writes the lines, closed when the process ends; None: somebody else does.
    """
    root = logging.getLogger()
    if root.handlers:
        return None
    writer = Writer(stream or sys.stderr)
    writer.setFormatter(formatter(kind))
    root.addHandler(writer)
    root.setLevel(logging.INFO)
    return writer


class RequestLog:
    """Observer that tells the log of requests that an engine failed, and of every request where that is wanted.

    Args:
        settings: says whether it is.
    """

    def __init__(self, settings: Settings) -> None:
        self._all = settings.access_log
        self._begun = float("-inf")
        self._told = 0
        self._more = 0

    def configure(self, settings: Settings) -> None:
        """Follow other settings."""
        self._all = settings.access_log

    def observe(self, exchange: Exchange) -> None:
        """Tell of one finished request, or not."""
        outcome = exchange.outcome
        failed = outcome is not None and outcome._value_ in _PROBLEMS
        if self._all:
            _log.log(
                logging.WARNING if failed else logging.INFO, "request ended", extra={"fields": request_fields(exchange)}
            )
        elif failed and self._may_tell(exchange.ended or exchange.arrived):
            fields = request_fields(exchange)
            if self._more:
                fields["more_since"], self._more = self._more, 0
            _log.warning("request failed", extra={"fields": fields})

    def _may_tell(self, now: float) -> bool:
        if now >= self._begun + PROBLEMS_S:
            self._begun, self._told = now, 0
        self._told += 1
        if self._told > PROBLEMS:
            self._more += 1
            return False
        return True


def request_fields(exchange: Exchange) -> dict[str, Any]:
    """Return what the log says of a finished request; what is not known is left out."""
    outcome = None if exchange.outcome is None else exchange.outcome.value
    found: dict[str, Any] = {
        "request_id": exchange.request_id,
        "endpoint": exchange.endpoint.value,
        "lane": exchange.lane,
        "tenant": exchange.tenant,
        "client": exchange.client,
        "outcome": outcome,
        "reason": None if exchange.reason is None else exchange.reason.value,
        "phase": None if exchange.phase is None else exchange.phase.value,
        "status": exchange.status,
        "backend": exchange.backend,
        "attempts": exchange.attempts or None,
        "upstream_status": exchange.upstream_status,
        "upstream_error": None if exchange.upstream_error is None else exchange.upstream_error.value,
        "queue_s": _rounded(exchange.queue_s),
        "ttft_s": _rounded(exchange.ttft_s),
        "total_s": _rounded(exchange.total_s),
        "prompt_tokens": exchange.prompt_tokens or exchange.prompt_tokens_estimated,
        "output_tokens": exchange.output_tokens,
        "detail": None if outcome == Outcome.INVALID.value else exchange.own_detail or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _quoted(value: Any) -> str:
    text = str(value)
    if text.isalnum():
        return text
    return orjson.dumps(_encodable(text)).decode() if not text or set(text) & set(' "=') else text


def _encodable(value: Any) -> Any:
    """Return the same without lone surrogates, which JSON cannot carry."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return {key: _encodable(one) for key, one in value.items()} if isinstance(value, dict) else value

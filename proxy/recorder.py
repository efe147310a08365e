"""The trace: an observer that turns finished exchanges into lines, and one thread that writes them.

The event loop only puts a record into a bounded queue. A full queue or a full disk costs records, which are counted;
it never costs a request.
"""

import asyncio
import logging
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import orjson

from proxy.exchange import Exchange, record_fields
from proxy.policy.reuse import PrefixReuse
from proxy.settings import Settings
from proxy.wire import trace
from proxy.wire.facts import Facts
from proxy.wire.prefix import prefix_chain

_log = logging.getLogger("lanewise")

FLUSH_EVERY_S = 1.0
QUEUE_BYTES = 64 * 2**20
"""Prompt text that may wait for its hashes. Text is held only until the writer has come to it."""
GATHER_S = 0.1
"""The writer lets records gather this long: waking it for each one costs the event loop more than the record, and many
in a row find its code and data in the processor's caches."""
_WRITE_BYTES = 256 * 2**10
_LINES_IN_A_ROW = 8
_LONG = 16 * 2**10
"""The writer lets the event loop in after so many lines, and after each with a prompt of so many characters."""
_COMPLAIN_EVERY_S = 60.0
_NAME = re.compile(r"trace-\d{8}T\d{6}Z-\d{6}\.jsonl")


class Dropped(StrEnum):
    """Why a record was lost; the metric label."""

    QUEUE_FULL = "queue_full"
    DISK_ERROR = "disk_error"
    FAULT = "fault"
    """Of ours: the log says what."""


@dataclass(slots=True)
class Counts:
    """What became of the records."""

    written: int = 0
    dropped: dict[Dropped, int] = field(default_factory=lambda: dict.fromkeys(Dropped, 0))


class RecorderError(Exception):
    """The recorder cannot start; the text says why."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """When a trace file is full, and what is kept."""

    rotate_bytes: int
    rotate_s: float
    keep_files: int
    keep_bytes: int


class TraceFiles:
    """Files `trace-<UTC stamp>-<number>.jsonl` in one directory: rotated by size and age, the oldest removed.

    Lines are written whole or not at all: what a failed write left of a batch is cut off again.

    Args:
        directory: exists and can be written.
        limits: rotation and retention.
        write: `os.write`, or what stands in for it.
    """

    def __init__(self, directory: Path, limits: FileLimits, write: Callable[[int, bytes], int] = os.write) -> None:
        self._directory = directory
        self._limits = limits
        self._write = write
        self._file: int | None = None
        self._size = 0
        self._opened = 0.0
        self._number = 0

    def append(self, lines: bytes, now: float, wall: float) -> None:
        """Write complete lines.

        Args:
            lines: one or more lines, each with its newline.
            now: monotonic seconds, for the age of the file.
            wall: Unix seconds, for its name.

        Raises:
            OSError: nothing of `lines` was written.
        """
        if self._file is not None and self._is_full(len(lines), now):
            self.close()
        file = self._file if self._file is not None else self._open(now, wall)
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[self._write(file, bytes(rest)) :]
        except OSError:
            os.ftruncate(file, self._size)
            raise
        self._size += len(lines)

    def rotate_if_old(self, now: float) -> None:
        """Close a file that has reached its age, so that a quiet proxy still hands over its trace."""
        if self._file is not None and self._size and now - self._opened >= self._limits.rotate_s:
            self.close()

    def close(self) -> None:
        """Close the current file, written through to the disk; the next append starts a new one."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def _is_full(self, more: int, now: float) -> bool:
        limits = self._limits
        return self._size > 0 and (self._size + more > limits.rotate_bytes or now - self._opened >= limits.rotate_s)

    def _open(self, now: float, wall: float) -> int:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        while True:
            self._number += 1
            name = f"trace-{stamp}-{self._number:06d}.jsonl"
            try:
                self._file = os.open(self._directory / name, flags, 0o640)
            except FileExistsError:
                continue
            break
        self._size, self._opened = 0, now
        self._remove_old(name)
        return self._file

    def _remove_old(self, current: str) -> None:
        files = sorted(entry for entry in self._directory.iterdir() if _NAME.fullmatch(entry.name))
        sizes = {entry: entry.stat().st_size for entry in files}
        total = sum(sizes.values())
        count = len(files)
        for entry in files:
            if count <= self._limits.keep_files and total <= self._limits.keep_bytes:
                return
            if entry.name != current:
                entry.unlink(missing_ok=True)
                count -= 1
                total -= sizes[entry]


@dataclass(slots=True)
class _Waiting:
    exchange: Exchange
    facts: Facts | None
    """Its own, with the text of the prompt: others let go of that."""
    body: bytes | None
    """To be recorded as text; None: it is not."""
    size: int


@dataclass(slots=True)
class _Prompt:
    exchange: Exchange
    facts: Facts
    """With its text."""
    size: int


class Recorder:
    """Observer of finished exchanges that writes the trace.

    Args:
        settings: the whole configuration; its hash goes into every record.
        files: where lines go.
        salt: secret of this installation, for the prefix hashes.
        flush_every_s: a crash loses at most what came since the last flush.
    """

    def __init__(
        self, settings: Settings, files: TraceFiles, salt: bytes, flush_every_s: float = FLUSH_EVERY_S
    ) -> None:
        chosen = settings.recorder
        self._flush_every_s = flush_every_s
        self._files = files
        self._salt = salt
        self._block_tokens = chosen.block_tokens
        self._text = chosen.text
        self._config = settings.hash
        self._most = chosen.queue_records
        self._queue: deque[_Waiting | _Prompt] = deque()
        self._asleep = False
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._put = 0
        self._put_bytes = 0
        self._taken = 0
        self._taken_bytes = 0
        self.counts = Counts()
        self.reuse = PrefixReuse()
        """How much of the prompts repeats; the writer counts, others only read."""
        self._complained: float | None = None
        self._thread = threading.Thread(target=self._write_all, name="lanewise recorder", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Return how many records wait for the writer."""
        return self._put - self._taken

    def observe(self, exchange: Exchange) -> None:
        """Queue the record of one finished request; drop and count it when too many wait."""
        facts = exchange.facts
        blocks = facts.blocks if facts is not None else ()
        size = sum(map(len, blocks)) + (len(exchange.body) if self._text else 0)
        full = self.waiting >= self._most
        if full or (size and self._put_bytes - self._taken_bytes + size > QUEUE_BYTES):
            self.counts.dropped[Dropped.QUEUE_FULL] += 1
            return
        self._put += 1
        self._put_bytes += size
        self._queue.append(_Waiting(exchange, facts, exchange.body if self._text else None, size))
        if self._asleep:
            self._asleep = False
            self._wake.set()

    def take_prompt(self, exchange: Exchange) -> None:
        """Take the prompt of a stream that begins, for its hashes: its text need not be kept for as long as it runs.

        The writer comes to it before it comes to the record, which finds the hashes in the exchange.
        """
        facts = exchange.facts
        if facts is None or not facts.blocks:
            return
        size = sum(map(len, facts.blocks))
        if self._put_bytes - self._taken_bytes + size > QUEUE_BYTES:
            return  # its record will bring it, if there is room by then
        self._put_bytes += size
        exchange.facts = facts._replace(blocks=())
        self._queue.append(_Prompt(exchange, facts, size))

    async def close(self) -> None:
        """Write what waits, and end the writer."""
        self._ending.set()
        self._wake.set()
        await asyncio.to_thread(self._thread.join, 10.0)

    def _write_all(self) -> None:
        """Body of the writer thread."""
        lines: list[bytes] = []
        size = 0
        flushed = time.monotonic()
        while True:
            ending = self._ending.is_set()
            taken = 0
            while self._queue and size < _WRITE_BYTES:
                waiting = self._queue.popleft()
                if isinstance(waiting, _Prompt):
                    self._hash(waiting)
                    continue
                line = self._worded(waiting)
                lines += line
                size += sum(map(len, line))
                taken += 1
                if taken % _LINES_IN_A_ROW == 0 or waiting.size >= _LONG:
                    time.sleep(0)
            if ending or size >= _WRITE_BYTES or time.monotonic() >= flushed + self._flush_every_s:
                self._flush(lines)
                lines, size, flushed = [], 0, time.monotonic()
            if self._queue:
                continue
            if ending:
                self._end()
                return
            if taken:
                self._ending.wait(GATHER_S)
            else:
                self._sleep()

    def _sleep(self) -> None:
        """Wait for the next record, or until something may have to be flushed."""
        self._wake.clear()
        self._asleep = True
        if not self._queue and not self._ending.is_set():
            self._wake.wait(max(GATHER_S, self._flush_every_s))
        self._asleep = False

    def _worded(self, waiting: _Waiting) -> tuple[bytes, ...]:
        """Return the line of a record; none where a fault of ours keeps it from being made, and the writer goes on."""
        self._taken += 1
        self._taken_bytes += waiting.size
        try:
            return (self._line(waiting),)
        except Exception:  # noqa: BLE001 - one record is lost, and the log says so
            self.counts.dropped[Dropped.FAULT] += 1
            _log.exception("the record of request %s cannot be made", waiting.exchange.request_id)
            return ()

    def _line(self, waiting: _Waiting) -> bytes:
        exchange, facts = waiting.exchange, waiting.facts
        chain = exchange.hash_ids
        if facts is not None and facts.blocks:
            chain = self._chain(facts)
        if chain is not None:
            self.reuse.note(chain)
        fields = record_fields(
            exchange,
            block_tokens=None if chain is None else self._block_tokens,
            hash_ids=chain or (),
            config=self._config,
            text=None if waiting.body is None else waiting.body.decode("utf-8", "replace"),
        )
        document = trace.document(fields)
        try:
            return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # a lone surrogate
            return trace.to_line(document) + b"\n"

    def _hash(self, prompt: "_Prompt") -> None:
        self._taken_bytes += prompt.size
        try:
            prompt.exchange.hash_ids = self._chain(prompt.facts)
        except Exception:  # noqa: BLE001 - its record goes without hashes
            _log.exception("the prompt of request %s cannot be hashed", prompt.exchange.request_id)

    def _chain(self, facts: Facts) -> tuple[str, ...]:
        return prefix_chain(
            facts.blocks,
            salt=self._salt,
            scope=(facts.model or "", facts.cache_salt or ""),
            block_tokens=self._block_tokens,
            token_ids=facts.prompt_tokens is not None,
        )

    def _flush(self, lines: list[bytes]) -> None:
        now = time.monotonic()
        try:
            if lines:
                self._files.append(b"".join(lines), now, time.time())
                self.counts.written += len(lines)
            self._files.rotate_if_old(now)
        except OSError as error:
            self.counts.dropped[Dropped.DISK_ERROR] += len(lines)
            self._complain(error, now)

    def _end(self) -> None:
        try:
            self._files.close()
        except OSError as error:
            self._complain(error, time.monotonic())

    def _complain(self, error: OSError, now: float) -> None:
        if self._complained is None or now - self._complained >= _COMPLAIN_EVERY_S:
            self._complained = now
            lost = self.counts.dropped[Dropped.DISK_ERROR]
            _log.error("the trace cannot be written: %s (%d records lost so far)", error.strerror or error, lost)


def start(settings: Settings) -> Recorder | None:
    """Start the recorder if the configuration asks for one.

    Returns:
        The recorder with its thread running, or None when it is switched off.

    Raises:
        RecorderError: the directory or the salt file cannot be used.
    """
    chosen = settings.recorder
    if not chosen.enabled:
        return None
    try:
        chosen.directory.mkdir(parents=True, exist_ok=True)
        if not os.access(chosen.directory, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise RecorderError(f"recorder.directory {chosen.directory}: {error.strerror}") from None
    limits = FileLimits(chosen.rotate_size, chosen.rotate_age, chosen.keep_files, chosen.keep_size)
    return Recorder(settings, TraceFiles(chosen.directory, limits), _salt(settings))


def _salt(settings: Settings) -> bytes:
    chosen = settings.recorder
    if chosen.salt is not None:
        return chosen.salt.get_secret_value().encode()
    path = chosen.salt_file or chosen.directory / "salt"
    try:
        return read_or_make_salt(path)
    except OSError as error:
        raise RecorderError(f"recorder.salt_file {path}: {error.strerror}") from None


def read_or_make_salt(path: Path) -> bytes:
    """Return the salt in a file; a missing file is made, readable by its owner alone.

    Raises:
        RecorderError: the file is empty.
        OSError: it can neither be read nor made.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        salt = path.read_bytes().strip()
        if not salt:
            raise RecorderError(f"recorder.salt_file {path} is empty; remove it and a new one is made") from None
        return salt
    with os.fdopen(file, "wb") as opened:
        salt = secrets.token_hex(32).encode()
        opened.write(salt + b"\n")
    return salt

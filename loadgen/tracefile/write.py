"""Rows as lines of a trace file, in the formats that others read. Pure.

What a format has no place for is counted by `Losses`, so that a conversion says what is lost. Block ids are cut to 53
bits where they are written as JSON numbers, which every reader can hold.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import orjson

from loadgen.tracefile import azure, bailian, mooncake
from loadgen.tracefile.row import Row
from proxy.wire import trace

ID_BITS = 53
_ID_MASK = (1 << ID_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Losses:
    """What the written format had no place for."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, what: str) -> None:
        """Count one row that lost something."""
        self.counts[what] += 1

    def sentences(self) -> list[str]:
        """Return one sentence for each kind of loss."""
        return [f"{what}: {number} requests" for what, number in sorted(self.counts.items())]


@dataclass(slots=True)
class Writer:
    """Turns rows into lines of one format.

    Args:
        zero_ns: what is subtracted from each time, for formats that count from their start.
        losses: where what is lost is counted.
    """

    zero_ns: int
    losses: Losses
    _fresh: "count[int]" = field(default_factory=count)

    def header(self, name: str) -> str | None:
        """Return the line before the first row, for formats that have one."""
        return azure.HEADER if name == "azure" else None

    def line(self, name: str, row: Row) -> str:
        """Return a row as a line, without its end."""
        return _LINES[name](self, row)

    def azure(self, row: Row) -> str:
        """TIMESTAMP with 100 ns digits, ContextTokens, GeneratedTokens."""
        self._forget(row, blocks=True, chat=True)
        ticks = (row.t_ns + 50) // 100
        moment = _EPOCH + timedelta(seconds=ticks // 10_000_000)
        if row.t_ns % 100:
            self.losses.add("times finer than 100 ns")
        stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{ticks % 10_000_000:07d}"
        return f"{stamp},{row.prompt_tokens},{row.output_tokens}"

    def mooncake(self, row: Row) -> str:
        """Milliseconds from the start, ids of 512-token blocks."""
        self._forget(row, chat=True)
        return _json(
            {
                "timestamp": _number(row.t_ns - self.zero_ns, 1_000_000),
                "input_length": row.prompt_tokens,
                "output_length": row.output_tokens,
                "hash_ids": self._ids(row, mooncake.BLOCK_TOKENS),
            }
        )

    def bailian(self, row: Row) -> str:
        """Seconds from the start, conversations, ids of 16-token blocks."""
        self._forget(row)
        return _json(
            {
                "chat_id": row.chat if row.chat >= 0 else _distinct("chat", row.source, row.number),
                "parent_chat_id": row.parent,
                "timestamp": _number(row.t_ns - self.zero_ns, 1_000_000_000),
                "input_length": row.prompt_tokens,
                "output_length": row.output_tokens,
                "type": "text",
                "turn": row.turn,
                "hash_ids": self._ids(row, bailian.BLOCK_TOKENS),
            }
        )

    def lanewise(self, row: Row) -> str:
        """Write a record of a request that went well."""
        self._forget(row, chat=True)
        if row.t_ns % 1000:
            self.losses.add("times finer than 1 µs")
        record = trace.Record(
            arrived_s=row.t_ns / 1e9,
            request_id=f"row-{row.source}-{row.number}",
            endpoint="completions" if row.body is None else "chat",
            model=None,
            lane=None,
            outcome="ok",
            stream=True,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            block_tokens=row.block_tokens or None,
            hash_ids=tuple(f"{block:016x}" for block in row.blocks),
        )
        return trace.encode(record).decode()

    def _forget(self, row: Row, *, blocks: bool = False, chat: bool = False) -> None:
        if blocks and row.blocks:
            self.losses.add("shared prefixes (block ids)")
        if chat and row.parent >= 0:
            self.losses.add("which turn follows which")

    def _ids(self, row: Row, block_tokens: int) -> list[int]:
        """Return exactly one id for each block of this size.

        Whole blocks are put together or divided, so that prompts share as many of the new blocks as they did of the
        old ones; where the recorded ids do not cover the prompt, numbers stand in that occur nowhere else.
        """
        wanted = -(-row.prompt_tokens // block_tokens)
        found = regrouped(row, block_tokens)[:wanted]
        if row.blocks and len(found) < wanted:
            self.losses.add("ids of the last blocks, which were not recorded")
        return found + [
            _distinct("filled", row.source, row.number, next(self._fresh)) for _ in range(wanted - len(found))
        ]


_LINES: dict[str, Callable[[Writer, Row], str]] = {
    "azure": Writer.azure,
    "mooncake": Writer.mooncake,
    "bailian": Writer.bailian,
    "lanewise": Writer.lanewise,
}
WRITTEN = tuple(_LINES)


def regrouped(row: Row, block_tokens: int) -> list[int]:
    """Return ids for blocks of another size: equal where, and only where, the prompts shared that much."""
    blocks, size = row.blocks, row.block_tokens
    if size == block_tokens:
        return [block if block <= _ID_MASK else _distinct("wide", block) for block in blocks]
    if not size:
        return []
    if block_tokens % size == 0:
        step = block_tokens // size
        return [_distinct("joined", *blocks[at : at + step]) for at in range(0, len(blocks), step)]
    if size % block_tokens == 0:
        return [_distinct("divided", block, part) for block in blocks for part in range(size // block_tokens)]
    # Neither fits into the other: what lies within the shared whole blocks is shared, the rest is not.
    covered = len(blocks) * size // block_tokens
    return [_distinct("cut", at, *blocks[: -(-(at + 1) * block_tokens // size)]) for at in range(covered)]


def _distinct(*parts: str | int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") & _ID_MASK


def _number(t_ns: int, unit_ns: int) -> int | float:
    whole, rest = divmod(t_ns, unit_ns)
    return whole if not rest else t_ns / unit_ns


def _json(document: dict[str, object]) -> str:
    return orjson.dumps(document).decode()


def retimed(name: str, line: str, t_ns: int, zero_ns: int) -> str | None:
    """Return a line with another time and everything else as it was; None for a format that cannot say it.

    Args:
        name: format of the line.
        line: one request.
        t_ns: its new time, on the clock of the file.
        zero_ns: what a format that counts from its start has as 0.
    """
    if name == "azure":
        stamp = Writer(0, Losses()).azure(Row(1, t_ns, 1, 1)).partition(",")[0]
        return stamp + line[line.index(",") :]
    unit_ns = {"mooncake": 1_000_000, "bailian": 1_000_000_000}.get(name)
    if unit_ns is None and name != "lanewise":
        return None
    # The standard library, since a recorded text may hold a lone surrogate.
    document = json.loads(line)
    if unit_ns is None:
        document["arrived_s"] = round(t_ns / 1e9, 6)
    else:
        document["timestamp"] = _number(t_ns - zero_ns, unit_ns)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))

"""Pieces of a page: numbers, ages, tables. Whatever comes in is escaped, except where a function says HTML."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def text(value: Any) -> str:
    """Return any value as HTML text."""
    return escape(str(value))


def alarming(value: Any) -> str:
    """Return a value that wants to be seen, as HTML."""
    return f'<span class="full">{text(value)}</span>'


def with_meaning(word: Any, meaning: str) -> str:
    """Return a word and, smaller, what it means, as HTML."""
    return text(word) + (f' <span class="quiet">{text(meaning)}</span>' if meaning else "")


def table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """Return a table.

    Args:
        columns: head, and whether the cells are numbers.
        rows: cells, as HTML.
    """
    marks = [' class="n"' if numeric else "" for _, numeric in columns]
    head = "".join(f"<th{mark}>{text(name)}</th>" for (name, _), mark in zip(columns, marks, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{mark}>{cell}</td>' for cell, mark in zip(row, marks, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def of_limit(value: float, limit: float | None) -> str:
    """Return a value beside its limit; at the limit it wants to be seen."""
    if limit is None:
        return number(value)
    both = f"{number(value)} / {number(limit)}"
    return alarming(both) if value >= limit else both


def number(value: float | None) -> str:
    """Return a count; - for None."""
    return "-" if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share of one as per cent; - for None."""
    return "-" if value is None else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """Return a measured time, in the unit that suits it; - for None."""
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else age(seconds)


def age(seconds: float | None) -> str:
    """Return how long something has been so; - for None."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

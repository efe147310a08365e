"""Trace record v1: one line of JSON per finished request. Lengths, times and salted hashes; no text.

docs/trace-format.md describes every field, and what may change within a version.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

SCHEMA = "lanewise.trace/1"


class TraceError(ValueError):
    """A line is no trace record; the text is one sentence for people: where, which field, what is allowed."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request as the proxy saw it. Times are seconds; absent values are None and are left out of the line."""

    arrived_s: float
    """Arrival on the wall clock (Unix seconds): the only wall-clock value; all others are durations from it."""
    request_id: str
    endpoint: str
    model: str | None
    lane: str | None
    outcome: str
    reason: str | None = None
    phase: str | None = None
    status: int | None = None
    """HTTP status sent to the client; None when it left before one was sent."""
    stream: bool = False
    sequences: int = 1
    prompt_tokens_estimated: int | None = None
    prompt_tokens: int | None = None
    """From the engine's `usage`."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    """From the engine's `usage`; else the number of token events (then `output_source` is "events")."""
    output_source: str | None = None
    output_cap: int | None = None
    """What the client asked for."""
    output_cap_sent: int | None = None
    """What the engine was asked for, when a cap of ours changed it."""
    finish_reason: str | None = None
    backend: str | None = None
    attempts: int = 0
    parts: int | None = None
    """Parts of its prompt that were sent before the request itself; None: it went whole."""
    queue_s: float | None = None
    """Arrival to dispatch."""
    first_token_s: float | None = None
    """Arrival to the first token event."""
    last_token_s: float | None = None
    end_s: float | None = None
    """Arrival to the last byte, or to whatever ended it."""
    request_bytes: int = 0
    response_bytes: int = 0
    block_tokens: int | None = None
    """Size of one hashed prefix block, in (estimated) tokens."""
    hash_ids: tuple[str, ...] = ()
    """Salted chain hashes of the prompt's prefix blocks: equal ids are equal prefixes."""
    config: str | None = None
    """Hash of the configuration in force."""
    mode: str | None = None
    """`observe` or `passthrough`, when the request was not scheduled; None: `enforce`."""
    would: str | None = None
    """What would have been done with it, under `observe`."""
    would_wait_s: float | None = None
    """How long it would have waited then."""
    would_cap: int | None = None
    """Output cap that the engine would have been asked for."""
    tenant: str | None = None
    """Label of who sent it: a name of the configuration or a salted hash; never a key."""
    priority: str | None = None
    """`high` or `low`; None: the normal class."""
    text: str | None = None
    """The request body, only when the operator asked for it."""


def encode(record: Record) -> bytes:
    """Write a record as one line of JSON, without the newline.

    Fields that are None or empty are left out; the schema comes first. Seconds are rounded to the microsecond. A time
    that is no finite number is left out too, so that every line can be read anywhere.
    """
    return to_line(document({name: getattr(record, name) for name in _NAMES}))


def document(values: Mapping[str, object]) -> dict[str, object]:
    """Return what one line says, from the fields of a record in their order; see `encode`."""
    found: dict[str, object] = {"schema": SCHEMA}
    for name, value in values.items():
        kind = type(value)
        if kind is float:
            if math.isfinite(value):  # type: ignore[arg-type]
                found[name] = round(value, 6)  # type: ignore[call-overload]
        elif value is not None and (kind is not tuple or value):
            found[name] = value
    return found


def to_line(document: Mapping[str, object]) -> bytes:
    """Write a document as one line, whatever its strings hold."""
    # A lone surrogate, which UTF-8 cannot hold, becomes the JSON escape it came from.
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def decode(line: bytes | str, where: str = "") -> Record:
    """Read one line.

    Fields that this version does not know are ignored: a later v1 writer may add some.

    Args:
        line: one line of a trace, with or without its newline.
        where: file and line number, for the sentence of the error.

    Raises:
        TraceError: it is no JSON object, of another schema, or a field is missing or of the wrong kind.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise _error(where, "this is no JSON; a trace has one JSON object per line") from None
    if not isinstance(document, Mapping):
        raise _error(where, "this is no JSON object; a trace has one JSON object per line")
    if (schema := document.get("schema")) != SCHEMA:
        raise _error(where, f"schema is {_shown(schema)}; allowed is {SCHEMA!r}")
    values: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        value = document.get(name)
        if value is not None:
            values[name] = _checked(name, kind, value, where)
        elif name in _REQUIRED:
            raise _error(where, f"{name} is missing; it must be {kind.words}")
        elif name in _NO_DEFAULT:
            values[name] = None
    return Record(**values)


@dataclass(frozen=True, slots=True)
class _Kind:
    words: str
    fits: Callable[[Any], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_COUNT: Final = _Kind("a whole number, 0 or more", _is_int)
_SECONDS: Final = _Kind("a number of seconds", _is_number)
_WORD: Final = _Kind("a string", lambda value: isinstance(value, str))
_BOOL: Final = _Kind("true or false", lambda value: isinstance(value, bool))
_WORDS: Final = _Kind("a list of strings", _is_words)

_BY_TYPE: Final[Mapping[object, _Kind]] = {
    float: _SECONDS,
    float | None: _SECONDS,
    int: _COUNT,
    int | None: _COUNT,
    str: _WORD,
    str | None: _WORD,
    bool: _BOOL,
    tuple[str, ...]: _WORDS,
}
_FIELDS: Final = fields(Record)
_NAMES: Final = tuple(field.name for field in _FIELDS)
_KINDS: Final = {field.name: _BY_TYPE[field.type] for field in _FIELDS}
_NO_DEFAULT: Final = frozenset(field.name for field in _FIELDS if field.default is MISSING)
_REQUIRED: Final = _NO_DEFAULT - {"model", "lane"}


def _checked(name: str, kind: _Kind, value: object, where: str) -> object:
    if not kind.fits(value):
        raise _error(where, f"{name} is {_shown(value)}; allowed is {kind.words}")
    return tuple(value) if isinstance(value, list) else value


def _shown(value: object) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _error(where: str, sentence: str) -> TraceError:
    return TraceError(f"{where}: {sentence}" if where else sentence)

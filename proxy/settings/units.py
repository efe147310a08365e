"""Values with a unit as an operator writes them: durations, sizes, counts, addresses.

A bare number is refused where its unit would be a guess. Every parser accepts its own formatter's output, so that a
printed configuration can be read back.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, GetJsonSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_SECONDS = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_COUNTS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d{1,18}(?:\.\d{1,12})?)\s*([A-Za-z]*)\s*", re.ASCII)

UNLIMITED = "unlimited"


def parse_duration(value: Any) -> float:
    """Read a duration such as `"500ms"`, `"1s"`, `"2m"`.

    Returns:
        Seconds.

    Raises:
        ValueError: no unit, an unknown unit, or not a number.
    """
    hint = 'write a number with a unit, for example "500ms", "1s" or "2m" (units: us, ms, s, m, h, d)'
    return float(_with_unit(value, _SECONDS, "a duration", hint))


def format_duration(seconds: float) -> str:
    """Write seconds with the largest unit that keeps the number whole, else seconds or smaller."""
    exact = Decimal(repr(seconds))
    for unit in ("d", "h", "m", "s", "ms", "us"):
        scaled = exact / _SECONDS[unit]
        if scaled >= 1 and scaled == scaled.to_integral_value():
            return f"{int(scaled)}{unit}"
    unit = "s" if exact >= 1 or not exact else "ms" if exact >= _SECONDS["ms"] else "us"
    return f"{(exact / _SECONDS[unit]).normalize():f}{unit}"


def parse_size(value: Any) -> int:
    """Read a size such as `"64MiB"`.

    Returns:
        Bytes.

    Raises:
        ValueError: no unit, an unknown unit, not a number, or a fraction of a byte.
    """
    hint = 'write a number with a unit, for example "64MiB" (units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)'
    return _whole(_with_unit(value, _BYTES, "a size", hint), "bytes")


def format_size(size: int) -> str:
    """Write bytes with the largest binary unit that divides them."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def parse_count(value: Any) -> int:
    """Read a count such as `2048`, `"32k"` (32,000) or `"32K"` (32,768), as vLLM's own flags are read.

    Raises:
        ValueError: not a whole number, or an unknown suffix.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    hint = 'write a whole number, for example 2048, "32k" (32,000) or "32K" (32,768)'
    return _whole(_with_unit(value, _COUNTS, "a count", hint), "of them")


def parse_optional_count(value: Any) -> int | None:
    """Read a count, or `unlimited` (also null) for none."""
    if value is None or value == UNLIMITED:
        return None
    try:
        return parse_count(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "{UNLIMITED}"') from None


def _with_unit(value: Any, units: Mapping[str, int | Decimal], what: str, hint: str) -> Decimal:
    matched = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        bare = isinstance(value, int | float) and not isinstance(value, bool)
        raise ValueError(f"{what} needs a unit: {hint}" if bare and "" not in units else f"not {what}: {hint}")
    number, unit = matched.groups()
    if unit not in units:
        problem = f"unknown unit {unit!r}" if unit else f"{what} needs a unit"
        raise ValueError(f"{problem}: {hint}")
    return Decimal(number) * units[unit]


def _whole(number: Decimal, what: str) -> int:
    if number != number.to_integral_value():
        raise ValueError(f"not a whole number {what}")
    return int(number)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host (name, IPv4 or IPv6) and a port; port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")

    @classmethod
    def parse(cls, value: Any) -> "Address":
        """Read `HOST:PORT` or `[IPV6]:PORT`.

        Raises:
            ValueError: anything else.
        """
        if isinstance(value, Address):
            return value
        hint = 'write HOST:PORT, for example "127.0.0.1:8080" or "[::1]:8080"'
        if not isinstance(value, str):
            raise ValueError(f"not an address: {hint}")  # noqa: TRY004 - pydantic reports ValueError, not TypeError
        host, _, port = value.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if (":" in host and not bracketed) or not (port.isascii() and port.isdecimal()) or not host.strip("[] "):
            raise ValueError(f"not an address: {hint}")
        if int(port) > 65535:
            raise ValueError(f"port {port} does not exist: the highest is 65535")
        return cls(host.strip("[]"), int(port))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "format": "host:port", "examples": ["127.0.0.1:8080"]}


def parse_backend_url(value: Any) -> str:
    """Read the base URL of an engine: scheme, host and port, nothing else.

    Returns:
        Scheme, host and port, the port always written.

    Raises:
        ValueError: another scheme, no host, a path, a query, or credentials inside the URL.
    """
    hint = 'write the base URL of the engine, for example "http://127.0.0.1:8000"'
    if not isinstance(value, str):
        raise ValueError(f"not a URL: {hint}")  # noqa: TRY004 - pydantic reports ValueError, not TypeError
    try:
        parts = urlsplit(value.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL ({error}): {hint}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"not an http:// or https:// URL: {hint}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"credentials do not belong in the URL: {hint}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"a path does not belong here, lanewise adds it per request: {hint}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def _text_schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]})


def _count_schema(*, optional: bool = False) -> WithJsonSchema:
    kinds: list[dict[str, Any]] = [{"type": "integer"}, {"type": "string", "examples": ["32k"]}]
    return WithJsonSchema({"anyOf": [*kinds, {"type": "null"}] if optional else kinds})


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    _text_schema("500ms"),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str, when_used="json"),
    _text_schema("64MiB"),
]
Count = Annotated[int, BeforeValidator(parse_count), _count_schema()]
OptionalCount = Annotated[
    int | None,
    BeforeValidator(parse_optional_count),
    PlainSerializer(lambda value: UNLIMITED if value is None else value, when_used="json"),
    _count_schema(optional=True),
]

"""Counting text by script class, at C speed: bytes of UTF-8 are mapped to classes and the classes counted."""

from typing import Final

from proxy.wire.facts import TextCensus

RUN_CHARS: Final = 64
"""A run of base64 or hexadecimal characters counts as one from this length on."""

_LATIN, _DIGIT, _SYMBOL, _CJK, _OTHER, _WIDE = b"ldscow"
_REST_OF_CHARACTER: Final = ord("x")


def _class_of(byte: int) -> int:
    if byte < 0x80:
        character = chr(byte)
        if character.isdigit():
            return _DIGIT
        return _LATIN if character.isalpha() or character.isspace() or not character.isprintable() else _SYMBOL
    if byte < 0xC0:
        return _REST_OF_CHARACTER
    if byte >= 0xF0:
        return _WIDE
    # First bytes E3 to ED are U+3000 to U+D7FF: Chinese, kana, Hangul (and Yi). EF is mostly full-width punctuation.
    return _CJK if 0xE3 <= byte <= 0xED or byte == 0xEF else _OTHER


_CLASSES: Final = bytes(map(_class_of, range(256)))
_COMMON: Final = bytes(byte for byte in range(256) if _CLASSES[byte] in (_LATIN, _REST_OF_CHARACTER))
"""What is left out at once: most of every text, so that the rest is counted in no time."""
_BASE64: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")
_RUNS: Final = bytes(ord("b") if byte in _BASE64 else ord(" ") for byte in range(256))
_RUN: Final = b"b" * RUN_CHARS


def take_census(text: str, *, media_parts: int = 0, messages: int = 0) -> TextCensus:
    """Count the characters of a text by class.

    A character beyond the basic plane (emoji, rare Chinese) counts as two of `other`: vocabularies spell most of them
    in two tokens or three, and other scripts in half a token per letter. Linear, without a Python loop over characters:
    about 0.1 ms for 100 KB.

    Args:
        text: any string, lone surrogates included.
        media_parts: goes into the census as it is.
        messages: the same.
    """
    data = text.encode("utf-8", "surrogatepass")
    rare = data.translate(_CLASSES, _COMMON)
    digits = rare.count(_DIGIT)
    symbols = rare.count(_SYMBOL)
    cjk = other = 0
    if digits + symbols < len(rare):
        cjk = rare.count(_CJK)
        other = len(rare) - digits - symbols - cjk + rare.count(_WIDE)
    latin = len(text) - len(rare)
    base64 = 0
    for start, end in _long_runs(data) if digits else ():
        run = data[start:end].translate(_CLASSES, _COMMON)
        run_digits = run.count(_DIGIT)
        run_latin = end - start - len(run)
        if run_digits and run_latin:  # rulers of dashes and long words are none
            base64 += end - start
            digits -= run_digits
            symbols -= len(run) - run_digits
            latin -= run_latin
    return TextCensus(latin, digits, symbols, cjk, other, base64, media_parts, messages)


def add(one: TextCensus, two: TextCensus, times: int = 1) -> TextCensus:
    """Return the census of `one` followed by `times` copies of `two`."""
    return TextCensus(
        one.latin + two.latin * times,
        one.digits + two.digits * times,
        one.symbols + two.symbols * times,
        one.cjk + two.cjk * times,
        one.other + two.other * times,
        one.base64 + two.base64 * times,
        one.media_parts + two.media_parts * times,
        one.messages + two.messages * times,
    )


def _long_runs(data: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    if len(data) < RUN_CHARS:
        return found
    runs = data.translate(_RUNS)
    start = runs.find(_RUN)
    while start >= 0:
        end = runs.find(b" ", start)
        end = len(runs) if end < 0 else end
        found.append((start, end))
        start = runs.find(_RUN, end)
    return found

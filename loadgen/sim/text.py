"""Text and tokens of the simulated engine: a fixed, reversible tokenisation and deterministic pseudo-text.

The tokens are of no real model. What matters is that they are exact: `decode(encode(text)) == text` for every text,
a prefix of the text is (but for its last token) a prefix of the tokens, and lengths are of the usual size: about four
characters a token in English, about one and a half in Chinese. Equal tokens give equal block hashes, so that the prefix
cache works over HTTP as it does in an engine.
"""

import hashlib
import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

# The characters that make up most of everyday Chinese text; two in a row are one token.
_COMMON_CJK = "".join(
    dict.fromkeys(
        "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"
        "用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实"
        "日军者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政"
        "美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员"
        "解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反受目太量再感建务做接必场件"
        "计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难且权思王象"
        "完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运"
    )
)
_LETTERS = " abcdefghijklmnopqrstuvwxyz"
_PIECES = re.compile(rf"[a-z ]{{1,4}}|[A-Z][a-z ]{{0,2}}|[0-9]{{1,3}}|[{_COMMON_CJK}]{{2}}|.", re.DOTALL)
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")

ENDOFTEXT, IM_START, EOS = 0, 1, 2
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Strings of letters and spaces that are shorter than the index, the empty one included.
_SHORTER = (0, 1, 1 + 27, 1 + 27 + 27**2, 1 + 27 + 27**2 + 27**3, 1 + 27 + 27**2 + 27**3 + 27**4)
# Token ids, one range per kind of piece. UTF-16 code units are the fallback that makes every text encodable.
_LOWER = 16
_CAPITAL = _LOWER + _SHORTER[5] - 1
_DIGITS = _CAPITAL + 26 * _SHORTER[3]
_PAIRS = _DIGITS + 10 + 100 + 1000
_UNITS = _PAIRS + len(_COMMON_CJK) ** 2
VOCABULARY = _UNITS + 0x10000
"""Number of token ids; an id at or above it is refused as an engine refuses it."""


def encode(text: str) -> list[int]:
    """Return the token ids of `text`."""
    if not text.isascii() and max(text) > "\uffff":
        text = _ASTRAL.sub(_as_surrogates, text)
    return [_id_of(piece) for piece in _PIECES.findall(text)]


def decode(ids: Iterable[int]) -> str:
    """Return the text of `ids`.

    Raises:
        ValueError: an id is negative or not below `VOCABULARY`.
    """
    text = "".join(map(_piece_of, ids))
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode_chat(turns: Iterable[tuple[str, str]], *, answer: bool = True) -> list[int]:
    """Return the token ids of a conversation in a ChatML-like template.

    Args:
        turns: (role, text) of every message in order.
        answer: end with the opening of the assistant's turn (`add_generation_prompt`).
    """
    ids: list[int] = []
    for role, text in turns:
        ids += (IM_START, *encode(f"{role}\n{text}"), EOS, *encode("\n"))
    if answer:
        ids += (IM_START, *encode("assistant\n"))
    return ids


def fingerprint(ids: Sequence[int]) -> int:
    """Return 64 bits that tell this prompt from others."""
    return int.from_bytes(hashlib.blake2b(array("I", ids), digest_size=8).digest(), "big")


def block_hashes(ids: Sequence[int], block_tokens: int, salt: str = "") -> tuple[int, ...]:
    """Return the chained hashes of the whole blocks of a prompt: equal hashes are equal prefixes under equal salts."""
    chain: list[int] = []
    raw = array("I", ids).tobytes()
    width = array("I").itemsize * block_tokens
    parent = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    for start in range(0, len(raw) - width + 1, width):
        parent = hashlib.blake2b(parent + raw[start : start + width], digest_size=8).digest()
        chain.append(int.from_bytes(parent, "big"))
    return tuple(chain)


@lru_cache(maxsize=1 << 16)
def _id_of(piece: str) -> int:
    first = piece[0]
    if first in _LETTERS:
        return _LOWER + _SHORTER[len(piece)] - 1 + _in_letters(piece)
    if "A" <= first <= "Z":
        tail = piece[1:]
        return _CAPITAL + (ord(first) - 65) * _SHORTER[3] + _SHORTER[len(tail)] + _in_letters(tail)
    if "0" <= first <= "9":
        return _DIGITS + (0, 10, 110)[len(piece) - 1] + int(piece)
    if len(piece) == 2:
        return _PAIRS + _COMMON_CJK.index(first) * len(_COMMON_CJK) + _COMMON_CJK.index(piece[1])
    return _UNITS + ord(first)


@lru_cache(maxsize=1 << 16)
def _piece_of(token: int) -> str:
    if not 0 <= token < VOCABULARY:
        raise ValueError(f"Token id {token} is out of vocabulary")
    if token < _LOWER:
        return _SPECIAL[token] if token < len(_SPECIAL) else f"<|reserved_{token}|>"
    if token < _CAPITAL:
        return _letters(token - _LOWER + 1)
    if token < _DIGITS:
        capital, tail = divmod(token - _CAPITAL, _SHORTER[3])
        return chr(65 + capital) + _letters(tail)
    if token < _PAIRS:
        return _digits(token - _DIGITS)
    if token < _UNITS:
        one, two = divmod(token - _PAIRS, len(_COMMON_CJK))
        return _COMMON_CJK[one] + _COMMON_CJK[two]
    return chr(token - _UNITS)


def _in_letters(piece: str) -> int:
    number = 0
    for char in piece:
        number = number * 27 + (0 if char == " " else ord(char) - 96)
    return number


def _letters(rank: int) -> str:
    """Return the string of letters with `rank` others before it in order of length, then alphabet."""
    length = bisect_right(_SHORTER, rank) - 1
    number, piece = rank - _SHORTER[length], ""
    for _ in range(length):
        number, place = divmod(number, 27)
        piece = _LETTERS[place] + piece
    return piece


def _digits(rank: int) -> str:
    length = 1 if rank < 10 else 2 if rank < 110 else 3
    return f"{rank - (0, 10, 110)[length - 1]:0{length}d}"


def _as_surrogates(match: re.Match[str]) -> str:
    code = ord(match[0]) - 0x10000
    return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))


class Spoken(NamedTuple):
    """One token of an answer."""

    id: int
    text: str


# Every word is four characters of one lower-case piece: an answer that is sent back as a prompt has as many tokens.
_ANSWERS = (
    " the and for not you all can her was one our out day get has him his how man new now old"
    " see two way who its did yes may use any set run let end ask try own why put say she too"
    " few big far off add cut top low due bit row key map log job net bus car sea sun air sky"
    " tea cup box pen ink art law war joy aim age arm bed boy cat dog ear eye fan fig gas gym"
    " hat ice jam kit leg lip mix oak oil pan pot ray rib sum tax tie toy van wax web yet zoo"
    "encementtionnessableingsallyisedwardshipsterhoodlikesomelessfoldicaliousanceular"
)
_WORDS = tuple(Spoken(encode(word)[0], word) for word in map("".join, zip(*[iter(_ANSWERS)] * 4, strict=True)))
_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1
"""Knuth's MMIX generator: one multiplication a token."""


class Voice:
    """The endless pseudo-text of one answer: the same seed speaks the same words."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ 0x9E3779B97F4A7C15) & _MASK

    def next(self) -> Spoken:
        """Return the next token."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return _WORDS[(self._state >> 33) % len(_WORDS)]


def seed_of(*parts: object) -> int:
    """Return 64 bits that depend on all parts and on nothing else, the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def natural_length(seed: int) -> int:
    """Return how many tokens an answer takes when nothing cuts it, its end-of-sequence token included.

    Lognormal with median 140 and sigma 0.9, so a mean near 210: the mean output of the public Azure conversation
    trace is 211 tokens. Never below 16.
    """
    first, second = seed >> 32, seed & 0xFFFFFFFF
    normal = math.sqrt(-2 * math.log((first + 1) / 2**32)) * math.cos(2 * math.pi * second / 2**32)
    return max(16, round(140 * math.exp(0.9 * normal)))

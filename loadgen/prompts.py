"""Request bodies of an exact prompt length, unlike those of any other pass, alike where the trace says so. Pure.

A prompt is a row of blocks. Each block starts with a few tokens that are drawn from the pass's salt and the block's
identity, and goes on with a slice of a fixed text: equal (salt, identity) gives equal tokens in every process, and any
other identity differs within its first tokens, so that an engine's prefix cache sees exactly the sharing that was
recorded and none from an earlier pass. Tokens and words have one width in bytes, which makes a prompt of 24,000 tokens
one copy instead of 24,000 steps.
"""

import hashlib
from dataclasses import dataclass, field

import orjson

from loadgen.options import Endpoint
from loadgen.plan import Shot

POOL_TOKENS = 1 << 16
HEAD_TOKENS = 6
"""Tokens at the start of a block that carry its identity: 10 bits each."""
LOWEST_ID = 1000
ALPHABET = 1024
"""Token ids 1000 … 2023: in every vocabulary of 2024 or more, none of them a special token in common ones."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How text turns into tokens at this engine, for the chat endpoint."""

    tokens_per_word: float = 1.0
    template_tokens: float = 0.0
    """Tokens that the chat template adds."""
    source: str = "assumed"
    """`tokenize` when the engine's /tokenize was asked."""

    def words(self, tokens: int) -> int:
        """Return how many words make a prompt of this length, at least 1."""
        return max(1, round((tokens - self.template_tokens) / self.tokens_per_word))


@dataclass(frozen=True, slots=True)
class Asking:
    """What is the same in every body of a run."""

    endpoint: Endpoint
    model: str
    salt: str
    calibration: Calibration = field(default_factory=Calibration)


class Prompts:
    """Builds the body of a shot when it is about to be sent."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        words = _ids() if asking.endpoint is Endpoint.COMPLETIONS else _words()
        self._alphabet = words
        self._width = len(words[0])
        self._pool = _pool(words)
        self._start = _opening(asking)
        self._key = hashlib.sha256(asking.salt.encode()).digest()

    def body(self, shot: Shot) -> bytes:
        """Return the JSON body that asks for exactly this many prompt and output tokens."""
        asked = b'%s,"max_tokens":%d,"min_tokens":%d}' % (_FIXED, shot.output_tokens, shot.output_tokens)
        if self._asking.endpoint is Endpoint.COMPLETIONS:
            return b"%s[%s]%s" % (self._start, self.text(shot)[:-1], asked)
        return b'%s"%s"}]%s' % (self._start, self.text(shot), asked)

    def sample(self, units: int) -> str:
        """Return this many words (or ids) that no shot has: for measuring how text becomes tokens."""
        return self._block(b"sample", units).decode()

    def text(self, shot: Shot) -> bytes:
        """Return the prompt alone: comma-ended token ids, or words that each start with a space."""
        if not shot.blocks:
            return self._block(b"row %d" % shot.index, self._units(shot.prompt_tokens))
        size, parts, done = shot.block_tokens, [], 0
        for block in shot.blocks:
            upto = min(done + size, shot.prompt_tokens)
            units = self._units(upto) - self._units(done) if done else self._units(upto)
            parts.append(self._block(b"block %d" % block, units))
            done = upto
        return b"".join(parts)

    def _units(self, tokens: int) -> int:
        """Words (or ids) that make this many tokens from the start of the prompt."""
        if self._asking.endpoint is Endpoint.COMPLETIONS:
            return tokens
        return self._asking.calibration.words(tokens)

    def _block(self, identity: bytes, units: int) -> bytes:
        seed = int.from_bytes(hashlib.blake2b(identity, key=self._key, digest_size=10).digest(), "big")
        head = [self._alphabet[seed >> shift & (ALPHABET - 1)] for shift in range(0, HEAD_TOKENS * 10, 10)]
        if units <= HEAD_TOKENS:
            return b"".join(head[:units])
        return b"".join(head) + self._slice(seed >> 60, units - HEAD_TOKENS)

    def _slice(self, seed: int, units: int) -> bytes:
        begin = seed % POOL_TOKENS
        end = begin + units
        if end <= POOL_TOKENS:
            return self._pool[begin * self._width : end * self._width]
        whole, rest = divmod(end - POOL_TOKENS, POOL_TOKENS)
        return self._pool[begin * self._width :] + self._pool * whole + self._pool[: rest * self._width]


_FIXED = b',"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"temperature":0'


def _opening(asking: Asking) -> bytes:
    model = b'{"model":' + orjson.dumps(asking.model)
    if asking.endpoint is Endpoint.COMPLETIONS:
        return model + b',"prompt":'
    return model + b',"messages":[{"role":"user","content":'


def _ids() -> list[bytes]:
    return [b"%d," % (LOWEST_ID + index) for index in range(ALPHABET)]


def _words() -> list[bytes]:
    """Return 1024 words of one width; pairs of short syllables, so that no word list has to be shipped."""
    onsets, vowels = "bdfghjklmnprstvw", "aeio"
    syllables = [onset + vowel for onset in onsets for vowel in vowels]
    return [f" {first}{second}".encode() for first in syllables for second in syllables[:16]]


def _pool(words: list[bytes]) -> bytes:
    """A fixed sequence of words; every process makes the same one."""
    stream = hashlib.shake_128(b"lanewise prompt pool").digest(2 * POOL_TOKENS)
    return b"".join(words[(stream[at] << 8 | stream[at + 1]) & (ALPHABET - 1)] for at in range(0, 2 * POOL_TOKENS, 2))

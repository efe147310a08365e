"""Request bodies of an exact prompt length, unlike those of any other pass, alike where the trace says so. Pure.

A prompt is a row of blocks. Each block starts with a few tokens that are drawn from the pass's salt and the block's
identity, and goes on with a slice of a fixed text: equal (salt, identity) gives equal tokens in every process, and any
other identity differs within its first tokens, so that an engine's prefix cache sees exactly the sharing that was
recorded and none from an earlier pass. Tokens and words have one width in bytes, which makes a prompt of 24,000 tokens
one copy instead of 24,000 steps.
"""

import hashlib
import math
from dataclasses import dataclass, field

import orjson

from loadgen.alignment import Calibration
from loadgen.options import Endpoint
from loadgen.plan import Shot

__all__ = ["Asking", "Calibration", "Prompts"]

POOL_TOKENS = 1 << 16
HEAD_BITS = 60
"""Identity of a block, carried by its first tokens: 6 ids of 10 bits each, or 9 words of 7."""
LOWEST_ID = 1000
ALPHABET = 1024
"""Token ids 1000 … 2023: in every vocabulary of 2024 or more, none of them a special token in common ones."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What is the same in every body of a run."""

    endpoint: Endpoint
    model: str
    salt: str
    calibration: Calibration = field(default_factory=Calibration)
    cache_salt: bool = False
    """Recorded bodies get a `cache_salt` of this pass."""


class Prompts:
    """Builds the body of a shot when it is about to be sent."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        if asking.endpoint is Endpoint.COMPLETIONS:
            words = _ids()
        else:
            words = [f" {word}".encode() for word in asking.calibration.alphabet]
        self._alphabet = words
        self._bits = len(words).bit_length() - 1
        self._heads = math.ceil(HEAD_BITS / self._bits)
        self._width = len(words[0])
        self._pool = _pool(words)
        self._start = _opening(asking)
        self._key = hashlib.sha256(asking.salt.encode()).digest()

    def body(self, shot: Shot) -> bytes:
        """Return the JSON body: the recorded one, or one of exactly this many prompt and output tokens."""
        if shot.body is not None:
            return self._recorded(shot, shot.body)
        asked = b'%s,"max_tokens":%d,"min_tokens":%d}' % (_FIXED, shot.output_tokens, shot.output_tokens)
        if self._asking.endpoint is Endpoint.COMPLETIONS:
            return b"%s[%s]%s" % (self._start, self.text(shot)[:-1], asked)
        return b'%s"%s"}]%s' % (self._start, self.text(shot), asked)

    def _recorded(self, shot: Shot, body: bytes) -> bytes:
        """Return a recorded body as it came; what holds messages alone is completed with what was recorded beside."""
        if body.startswith(b'"'):
            lengths = b'"max_tokens":%d,"min_tokens":%d' % (shot.output_tokens, shot.output_tokens)
            body = b'{"model":%s,%s%s,%s}' % (orjson.dumps(self._asking.model), body, _FIXED, lengths)
        return _salted(body, self._asking.salt) if self._asking.cache_salt else body

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
        bits, mask = self._bits, len(self._alphabet) - 1
        head = [self._alphabet[seed >> shift & mask] for shift in range(0, self._heads * bits, bits)]
        if units <= self._heads:
            return b"".join(head[:units])
        return b"".join(head) + self._slice(seed >> HEAD_BITS, units - self._heads)

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


def _pool(words: list[bytes]) -> bytes:
    """A fixed sequence of words; every process makes the same one."""
    stream = hashlib.shake_128(b"lanewise prompt pool").digest(2 * POOL_TOKENS)
    mask = len(words) - 1
    return b"".join(words[(stream[at] << 8 | stream[at + 1]) & mask] for at in range(0, 2 * POOL_TOKENS, 2))


def _salted(body: bytes, salt: str) -> bytes:
    """Add a `cache_salt` at the end of an object; what one that is there kept apart stays apart."""
    mine = salt
    if b'"cache_salt"' in body:
        found = orjson.loads(body).get("cache_salt")
        mine = f"{salt}-{found}" if isinstance(found, str) else salt
    return b'%s,"cache_salt":%s}' % (body.rstrip()[:-1].rstrip(), orjson.dumps(mine))

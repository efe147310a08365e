"""What one sequence answers: how many tokens, which text, and why it ends. Decided when the request comes."""

from collections.abc import Callable, Iterator

from loadgen.sim.http_requests import Sampling
from loadgen.sim.text import EOS, Spoken, Voice, encode, natural_length, seed_of

_WORD = 4
"""Characters of every pseudo-word (`text.Voice`)."""


class Speech:
    """The answer of one sequence, token by token.

    Attributes:
        length: tokens it takes, the end-of-sequence token included.
        finish_reason: `length` when the cap cut it, else `stop`.
        stop_reason: the stop string or stop token id that ended it, else None.
    """

    __slots__ = ("_left", "_said", "_words", "finish_reason", "length", "stop_reason")

    def __init__(
        self, words: Callable[[], Spoken], length: int, characters: int | None, stop_reason: str | int | None = None
    ) -> None:
        self._words = words
        self._said = 0
        self._left = characters
        self.length = length
        self.finish_reason = "length" if characters is None else "stop"
        self.stop_reason = stop_reason

    def next(self) -> Spoken:
        """Return the next token; text behind the end of the answer is empty."""
        self._said += 1
        if self._left is None:
            return self._words()
        if self._left == 0 and self._said == self.length and self.stop_reason is None:
            return Spoken(EOS, "")
        word = self._words()
        kept = word.text[: self._left]
        self._left -= len(kept)
        return Spoken(word.id, kept)


def speech_for(sampling: Sampling, prompt: object, index: int, server_seed: int) -> Speech:
    """Decide the answer of one sequence.

    Args:
        sampling: what the request asks.
        prompt: whatever tells this prompt from others.
        index: which of the request's `n` sequences.
        server_seed: the same for all requests of a server.
    """
    seed = seed_of(server_seed, sampling.seed, prompt, index)
    if sampling.ends_at_once and not sampling.forced and sampling.floor == 0:
        return Speech(Voice(seed).next, 1, 0)
    if sampling.json_object:
        return _object(sampling.cap)
    natural = sampling.cap + 1 if sampling.forced else max(natural_length(seed), sampling.floor + 1)
    length = min(natural, sampling.cap)
    if sampling.stops or sampling.stop_tokens:
        stopped = _stopped(sampling, seed, length)
        if stopped is not None:
            return stopped
    return Speech(Voice(seed).next, length, (length - 1) * _WORD if natural <= sampling.cap else None)


def _stopped(sampling: Sampling, seed: int, length: int) -> Speech | None:
    """Return the answer as its first stop string or token ends it; None when it meets none."""
    voice = Voice(seed)
    words = [voice.next() for _ in range(length)]
    ends = [*_by_text(sampling, words), *_by_token(sampling, words)]
    if not ends:
        return None
    tokens, characters, reason = min(ends, key=lambda end: end[:2])
    return Speech(Voice(seed).next, tokens, characters, reason)


def _by_text(sampling: Sampling, words: list[Spoken]) -> Iterator[tuple[int, int, str | int]]:
    spoken = "".join(word.text for word in words)
    for stop in sampling.stops:
        where = spoken.find(stop, sampling.floor * _WORD)
        if where >= 0:
            yield -(-(where + len(stop)) // _WORD), where, stop


def _by_token(sampling: Sampling, words: list[Spoken]) -> Iterator[tuple[int, int, str | int]]:
    for place, word in enumerate(words):
        if place >= sampling.floor and word.id in sampling.stop_tokens:
            yield place + 1, place * _WORD, word.id
            return


def _object(cap: int) -> Speech:
    """Return the shortest JSON object, for a request that asks for one."""
    pieces = iter((*(Spoken(encode(char)[0], char) for char in "{}"), Spoken(EOS, "")))
    return Speech(lambda: next(pieces), min(cap, 3), 2 if cap >= 3 else None)

"""Text of an exact number of tokens, found out by asking the engine's own tokenizer.

Prompts for the chat endpoint are rows of short words. If every word is one token to the engine, a prompt of n words is
n tokens and what the chat template adds. Words of three letters that everybody uses are single tokens in the usual
vocabularies; whether they are in this one is asked, not believed, and checked at several lengths. Where too few of them
are, text is as long as a line fitted through two lengths says, and the error that was measured is stated.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import islice

_THREE_LETTERS = (
    "the and for not you all can her was one our out day get has him his how man new now old see two way who its "
    "did yes may use any set run let end ask try own why put say she too few big far off add cut top low due bit "
    "row key map log job net bus car sea sun air sky tea cup box pen ink art law war joy aim age arm bed boy cat "
    "dog ear eye fan fig gas gym hat ice jam kit leg lip mix oak oil pan pot ray rib sum tax tie toy van wax web "
    "yet zoo act ago are bad bag bar but buy cow cry dad dry eat egg fat fit fix fly fun got gun guy had hit hot "
    "ill inn led lie lot mad met mom mud nor nut odd pay per pet pie pig red rid rob sad sat shy sir sit six son "
    "ten tip won win wet"
)
WORDS = tuple(_THREE_LETTERS.split())
"""Three letters each, so that every one has the same width."""
WANTED = 128
"""Words in an alphabet; a power of two, so that a few bits choose one."""
FEWEST = 32
REPEATED = 16
GIVE_UP_AFTER = 48
"""Words after which a vocabulary that has hardly any of them is not asked further."""
CHECKED_WORDS = (1, 40, 333, 1501, 6007)

CountTokens = Callable[[str], Awaitable[int | None]]
"""Tokens of a conversation of one user message with this text, template included; None: the engine cannot say."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How text turns into tokens at this engine, for the chat endpoint."""

    tokens_per_word: float = 1.0
    template_tokens: float = 0.0
    """Tokens that the chat template adds."""
    source: str = "assumed"
    """`aligned`: each word is a token. `tokenize`: a line through two lengths. `assumed`: the engine could not say."""
    alphabet: tuple[str, ...] = WORDS[:WANTED]
    """A power of two of words of one width."""
    worst_error_tokens: int | None = None
    """Largest difference found between asked and counted; None: not measured."""

    def words(self, tokens: int) -> int:
        """Return how many words make a prompt of this length, at least 1."""
        return max(1, round((tokens - self.template_tokens) / self.tokens_per_word))

    def tokens(self, words: int) -> int:
        """Return how long a prompt of so many words is meant to be."""
        return round(self.template_tokens + self.tokens_per_word * words)


async def align(count: CountTokens, text: Callable[[Calibration, int], str]) -> Calibration:
    """Find out how text turns into tokens, with as few questions as it takes.

    Args:
        count: asks the engine.
        text: makes a text of so many words of a calibration's alphabet, as prompts are made.
    """
    first = await _fitted(count, text, Calibration())
    if first is None:
        return Calibration()
    if first.source != "aligned":
        alphabet = await _single(count)
        again = await _fitted(count, text, Calibration(alphabet=alphabet)) if alphabet else None
        first = again or first
    return await _checked(count, text, first)


async def _fitted(
    count: CountTokens, text: Callable[[Calibration, int], str], asked: Calibration
) -> Calibration | None:
    """Two lengths give a line: tokens = template + tokens_per_word * words."""
    few, many = 64, 1088
    low, high = await count(text(asked, few)), await count(text(asked, many))
    if low is None or high is None or high <= low:
        return None
    slope = (high - low) / (many - few)
    source = "aligned" if slope == 1 else "tokenize"
    return replace(asked, tokens_per_word=slope, template_tokens=low - slope * few, source=source)


async def _single(count: CountTokens) -> tuple[str, ...]:
    """Return a power of two of words that are one token each wherever they stand; none when they are too few."""
    found: list[str] = []
    for tried, word in enumerate(WORDS):
        if tried == GIVE_UP_AFTER and len(found) < tried // 8:
            return ()
        once, often = await count(f" {word}"), await count(f" {word}" * (1 + REPEATED))
        if once is not None and often is not None and often - once == REPEATED:
            found.append(word)
        if len(found) == WANTED:
            break
    size = WANTED
    while size > len(found):
        size //= 2
    return tuple(islice(found, size)) if size >= FEWEST else ()


async def _checked(count: CountTokens, text: Callable[[Calibration, int], str], found: Calibration) -> Calibration:
    errors = []
    for words in CHECKED_WORDS:
        counted = await count(text(found, words))
        if counted is not None:
            errors.append(abs(counted - found.tokens(words)))
    if not errors:
        return found
    worst = max(errors)
    source = "tokenize" if found.source == "aligned" and worst else found.source
    return replace(found, source=source, worst_error_tokens=worst)

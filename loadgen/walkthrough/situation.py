"""Which of the four situations this is, from what was measured and told. Pure."""

from dataclasses import dataclass
from enum import StrEnum

BORDER_TOKENS = 2048
LONG_SHARE = 0.2
MANY = 32


class Situation(StrEnum):
    """What an operator calls it; each has a preset of that name."""

    LONG_CONTEXT = "long context"
    HIGH_CONCURRENCY = "high concurrency"
    SINGLE_CARD = "single card"
    SEVERAL_CARDS = "several cards"

    @property
    def preset(self) -> str:
        """File of the preset, beside `config/`."""
        return f"config/presets/{self.value.replace(' ', '-')}.yaml"


@dataclass(frozen=True, slots=True)
class Named:
    """A situation and why it is that one."""

    situation: Situation
    why: str


def name_situation(*, long_share: float, concurrency: int | None, cards: int | None) -> Named:
    """Name the situation.

    Args:
        long_share: share of prompts longer than 2048 tokens.
        concurrency: the last step before the knee; None: not found.
        cards: cards of the engine; None: not known, taken as one.
    """
    if cards is not None and cards > 1:
        return Named(Situation.SEVERAL_CARDS, f"the engine has {cards} cards")
    if long_share >= LONG_SHARE:
        return Named(Situation.LONG_CONTEXT, f"{long_share:.0%} of the prompts are longer than {BORDER_TOKENS} tokens")
    if concurrency is not None and concurrency >= MANY:
        return Named(Situation.HIGH_CONCURRENCY, f"it takes {concurrency} requests at once inside the SLO")
    told = "one card" if cards == 1 else "one card, as nothing else was told"
    return Named(Situation.SINGLE_CARD, f"{told}, short prompts, fewer than {MANY} requests at once")

"""The configuration in force: which one, since when, and how the last attempt to change it ended."""

import time
from dataclasses import dataclass, field

from proxy.settings import Settings
from proxy.settings.change import changes


@dataclass(slots=True)
class InForce:
    """Shared by whoever applies a configuration and whoever shows it; only the former writes."""

    settings: Settings
    generation: int = 1
    """Rises with each change that was applied."""
    since: float = field(default_factory=time.time)
    """Unix seconds."""
    tried_at: float = field(default_factory=time.time)
    """When it was last tried to change it, Unix seconds; at first, the start."""
    tried_well: bool = True
    """How that ended."""
    said: tuple[str, ...] = ()
    """What was said about it: why it failed, or what is doubtful about a change that was made."""
    changed: tuple[str, ...] = ()
    """What the last change that was applied changed, `key: before -> after`; nothing since the start."""
    verdict: str | None = None
    """What an operator judged of it: `keep` or `bad`."""
    _hashed: tuple[Settings, str] | None = None

    @property
    def sha(self) -> str:
        """Its hash, which takes a millisecond to make: once for each configuration."""
        if self._hashed is None or self._hashed[0] is not self.settings:
            self._hashed = self.settings, self.settings.hash
        return self._hashed[1]

    def take(self, settings: Settings, said: tuple[str, ...]) -> None:
        """Put another configuration in force, now."""
        self.changed = tuple(map(str, changes(self.settings, settings)))
        self.settings = settings
        self.generation += 1
        self.since = self.tried_at = time.time()
        self.tried_well, self.said = True, said

    def fail(self, said: tuple[str, ...]) -> None:
        """Take note of a change that was not made."""
        self.tried_at = time.time()
        self.tried_well, self.said = False, said

"""What differs from the defaults in the configuration in force, as the status document shows it. Secrets are hidden."""

from typing import Any

from proxy.inforce import InForce
from proxy.settings.show import defaults, values

_LEFT_OUT = frozenset({"why", "backends"})
"""Reasons are for people; engines stand in the document in full."""


class ShownSettings:
    """Works it out once for each configuration."""

    def __init__(self) -> None:
        self._sha: str | None = None
        self._shown: dict[str, Any] = {}

    def of(self, in_force: InForce) -> dict[str, Any]:
        """Return values by dotted key; a preset stands with the keys that it brings."""
        if self._sha != in_force.sha:
            plain = defaults()
            self._sha = in_force.sha
            self._shown = {
                key: value
                for key, value in values(in_force.settings.without_key_digests).items()
                if key not in _LEFT_OUT and value != plain[key]
            }
        return self._shown

"""One backend as it is watched: what is known of it, and who is told."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.backends.describing import BackendView, PrefixCaching
from proxy.policy.entry import Entry, Ramp
from proxy.policy.health import Health, State

_log = logging.getLogger("lanewise")


@dataclass(slots=True, eq=False)
class Watched:
    """Mutable state of one backend; only `Backends` touches it."""

    view: BackendView
    health: Health
    probed_at: float | None = None
    scraped_at: float | None = None
    models_at: float | None = None
    caching: PrefixCaching | None = None
    """Told last."""
    introduced: bool = True
    """Others know of it: what happens to it is told."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    """For the end of its state."""

    @property
    def entry(self) -> Entry:
        """How it comes back."""
        health = self.health
        if health.state is State.HALF_OPEN:
            return Entry(trial=True)
        if health.state is State.SLOW_START:
            return Entry(ramp=Ramp(health.since, health.due_at - health.since))
        return Entry()

    def stop(self) -> None:
        """Watch it no more."""
        for handle in (self.task, self.timer):
            if handle is not None:
                handle.cancel()
        self.task = self.timer = None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A backend of a configuration to come, probed once."""

    watched: Watched

    @property
    def name(self) -> str:
        """Its name."""
        return self.watched.view.name

    @property
    def up(self) -> bool:
        """Whether it answered."""
        return self.watched.health.state.usable

    @property
    def error(self) -> str | None:
        """What was wrong with its probe."""
        return self.watched.view.error


def silent(_name: str, _what: Any) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told what about a backend, by its name."""

    entry: Callable[[str, Entry], None] = silent
    """How it comes back, before it is told that it is up."""
    drained: Callable[[str, bool], None] = silent
    """An order to give it nothing new, or the end of that order."""


_SENTENCES = {
    State.UP: "backend %s is up",
    State.SLOW_START: "backend %s is back, and gets its full share little by little",
    State.HALF_OPEN: "backend %s is tried again, one request at a time",
}


def say(watched: Watched, before: State) -> None:
    """Say in the log that a backend has left a state for the one it is in."""
    name, state = watched.view.name, watched.health.state
    if state is State.DOWN:
        _log.warning("backend %s is down: %s", name, watched.view.error)
    elif state is State.TRIPPED:
        seconds = watched.health.due_at - watched.health.since
        _log.warning("backend %s is left alone for %g s: requests fail there (%s)", name, seconds, watched.view.fault)
    elif before is not State.SLOW_START:
        _log.info(_SENTENCES[state], name)

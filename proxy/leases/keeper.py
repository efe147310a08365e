"""Keeps this proxy in its group: the heartbeat, the requests between two heartbeats, and what is said about them."""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from prometheus_client.metrics_core import Metric

from proxy import tasks
from proxy.admission import Admission
from proxy.leases.store import Store, StoreError
from proxy.metrics.leases import lease_families
from proxy.metrics.series import OVERHEAD, Histogram
from proxy.policy.leases.member import Member, State
from proxy.settings import Settings

_log = logging.getLogger("lanewise")
_TOLD_AGAIN_S = 0.1
_SAID_EVERY_S = 60.0
"""How often the log says again that the store does not answer."""


class Keeper:
    """The shell around a `Member`: store, clock and Dispatcher.

    Args:
        settings: group, times and static share.
        store: where the group keeps its leases.
        admission: its Dispatcher follows the leases.

    Attributes:
        member: what is decided.
        latency: of the answers of the store, seconds.
        error: why the last request came to nothing; "" when it was answered.
    """

    def __init__(self, settings: Settings, store: Store, admission: Admission) -> None:
        chosen = settings.sharing
        self._group = chosen.group
        self._store = store
        self._admission = admission
        self._timeout_s = chosen.timeout
        self.member = Member(secrets.token_hex(8), settings.share, chosen.lease, chosen.recovery)
        self.latency = Histogram(OVERHEAD)
        self.error = ""
        self.requests = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stirred = asyncio.Event()
        self._sleeps_until = 0.0
        self._told_state: State | None = None
        self._said_at = -_SAID_EVERY_S

    async def start(self) -> None:
        """Join the group, or begin with the static share; then keep in touch in the background."""
        await self._beat()
        self._admission.on_change = self._changed
        self._tasks = [
            tasks.spawn(self._keep(), "leases"),
            tasks.spawn(self._store.listen(self._woken), "what others give back"),
        ]

    async def close(self) -> None:
        """Give everything back, if the store can be reached."""
        self._admission.on_change = None
        left = set(self._tasks)
        while left:  # the client of the store may take a cancellation for a time-out of its own: then it is told again
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_TOLD_AGAIN_S)
        self._tasks = []
        with suppress(StoreError):
            await self._store.sync(self.member.leave())
        await self._store.close()

    def configure(self, settings: Settings) -> None:
        """Take another static share."""
        self.member.share = settings.share

    def document(self) -> dict[str, Any]:
        """Return where this proxy stands, ready for JSON."""
        member, now = self.member, time.monotonic()
        return {
            "by": "leases",
            "share": f"1/{member.proxies}",
            "group": self._group,
            "state": member.state.value,
            "up": member.up,
            "proxies": member.members,
            "fallbacks": member.fallbacks,
            "error": self.error,
            "places": [
                {"place": name, "held": list(terms.held), "of": list(terms.bound), "elsewhere": terms.elsewhere}
                for name, terms in member.terms(now).items()
            ],
        }

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        return lease_families(self.member, self.latency, self.member.terms(time.monotonic()))

    def _woken(self) -> None:
        """Ask again at once for what was lacking."""
        self.member.woken()
        self._changed()

    def _changed(self) -> None:
        """Wake the task when it should ask earlier than it meant to; called after each event of the Dispatcher."""
        stirred = self._admission.dispatcher.lease_stirred()
        if stirred and self.member.due(time.monotonic(), stirred) < self._sleeps_until:
            self._stirred.set()

    async def _keep(self) -> None:
        while True:
            now = time.monotonic()
            if self.member.check(now):
                self._follow(now)
            self._stirred.clear()
            due = self.member.due(now, self._admission.dispatcher.lease_stirred())
            if due <= now:
                await self._beat()
                continue
            self._sleeps_until = due
            with suppress(TimeoutError):
                async with asyncio.timeout(due - now):
                    await self._stirred.wait()
            self._sleeps_until = 0.0

    async def _beat(self) -> None:
        """Ask the store once, and follow what it says."""
        dispatcher, member = self._admission.dispatcher, self.member
        began = time.monotonic()
        request = member.ask(began, dispatcher.lease_uses())
        self._follow(began)
        self.requests += 1
        try:
            reply = await self._store.sync(request)
            now = time.monotonic()
            member.told(now, reply)
            self.error = ""
        except StoreError as error:
            now = time.monotonic()
            self.error = str(error)
            member.failed(now)
        except (KeyError, TypeError, ValueError) as error:  # somebody else's words under our key
            now = time.monotonic()
            self.error = f"the store's answer cannot be read: {type(error).__name__}: {error}"
            member.failed(now)
        self.latency.observe(now - began)
        self._follow(now)

    def _follow(self, now: float) -> None:
        """Let the Dispatcher follow, and say what has changed."""
        admission = self._admission
        admission.apply(admission.dispatcher.set_leases(now, self.member.terms(now)))
        self._say(now)

    def _say(self, now: float) -> None:
        member = self.member
        if member.state is not self._told_state:
            self._told_state = member.state
            if member.state is State.DEGRADED:
                self._said_at = -_SAID_EVERY_S
            else:
                _log.info(
                    "shared limits: %s group %s, %d proxies in all", member.state.value, self._group, member.members
                )
        if member.state is State.DEGRADED and self.error and now >= self._said_at + _SAID_EVERY_S:
            self._said_at = now
            _log.warning(
                "shared limits: the store is lost (%s); this proxy keeps to 1/%d of every limit until it is back",
                self.error, member.proxies,
            )  # fmt: skip

"""Which room carries out an order from a shell: the backends, or the configuration."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from proxy.backends import Backends, BackendView, State
from proxy.control import Order, Reply
from proxy.policy.snapshot import BackendSnapshot, Snapshot

_log = logging.getLogger("lanewise")


class Orders:
    """Takes orders of `proxy.control` and hands each to whom it concerns.

    Args:
        backends: the watched engines.
        snapshot: what the Dispatcher holds now.
        otherwise: carries out every order that is not about backends.
    """

    def __init__(
        self,
        backends: Backends,
        snapshot: Callable[[], Snapshot],
        otherwise: Callable[[Order], Awaitable[Reply]],
    ) -> None:
        self._backends = backends
        self._snapshot = snapshot
        self._otherwise = otherwise

    async def obey(self, order: Order) -> Reply:
        """Carry out an order."""
        verb = order.get("do")
        if verb == "list_backends":
            held = {of.name: of for of in self._snapshot().backends}
            return self._reply(*(_sentence(view, held[view.name]) for view in self._backends.views()), done=True)
        if verb in ("drain_backend", "resume_backend"):
            return self._drain(str(order.get("backend") or ""), drained=verb == "drain_backend")
        return await self._otherwise(order)

    def _drain(self, name: str, *, drained: bool) -> Reply:
        names = [view.name for view in self._backends.views()]
        if name not in names:
            return self._reply(f'no backend is called "{name}"; there are {", ".join(names)}', done=False)
        changed = self._backends.drain(name, drained=drained)
        sentence = (self._drained if drained else self._resumed)(name, changed=changed)
        if changed:
            _log.info("by order: %s", sentence)
        warnings = [f"{why}: requests wait or are refused"] if (why := self._backends.why_none) else []
        return self._reply(sentence, done=True, warnings=warnings)

    def _drained(self, name: str, *, changed: bool) -> str:
        if not changed:
            return f"backend {name} is drained already"
        left = next((of.requests for of in self._snapshot().backends if of.name == name), 0)
        return f"backend {name} gets nothing new; {left} request{'' if left == 1 else 's'} to finish there"

    def _resumed(self, name: str, *, changed: bool) -> str:
        return f"backend {name} serves again" if changed else f"backend {name} is not drained"

    def _reply(self, *sentences: str, done: bool, warnings: list[str] | None = None) -> Reply:
        held = {of.name: of for of in self._snapshot().backends}
        return {
            "done": done,
            "sentences": list(sentences),
            "warnings": warnings or [],
            "backends": [_line(view, held[view.name]) for view in self._backends.views()],
        }


def _sentence(view: BackendView, held: BackendSnapshot) -> str:
    why = view.fault if view.state is State.TRIPPED else None if view.state.answers else view.error
    return f"{view.name}: {view.word}, {held.in_flight}/{held.allowed} in flight" + ("" if why is None else f"; {why}")


def _line(view: BackendView, held: BackendSnapshot) -> dict[str, Any]:
    return {
        "name": view.name,
        "url": view.url,
        "state": view.word,
        "drained": view.drained,
        "requests": held.requests,
        "in_flight": held.in_flight,
        "allowed": held.allowed,
        "concurrency": held.concurrency,
        "probe_error": view.error,
        "last_fault": view.fault,
    }

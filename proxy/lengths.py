"""Prompt lengths, the shell: what was learned survives a restart, and a length near a border can be asked for.

The estimate itself is `policy.length`; `Classification` owns it.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from proxy import tasks
from proxy.attempt import Engines, NotSentError, Outgoing, UnansweredError
from proxy.classification import Classification
from proxy.exchange import Exchange
from proxy.history import read_document, replace_file
from proxy.policy.length import LengthEstimator
from proxy.policy.ticket import Ticket
from proxy.settings.estimate import Estimate
from proxy.wire import parts
from proxy.wire.facts import Endpoint, Facts
from proxy.wire.splice import NotAnObjectError

_log = logging.getLogger("lanewise")

SCHEMA: Final = "lanewise.lengths/1"
WRITE_EVERY_S: Final = 60.0
"""What was learned in this time is lost when the process is killed."""
_ASKABLE: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
"""Endpoints whose prompt `/tokenize` takes as it is."""


class LengthMemory:
    """Keeps what was learned of prompt lengths in a file of the state directory.

    Args:
        estimator: learns.
        path: the file; None: nothing is kept.
        clock: wall-clock seconds, for the file.
    """

    def __init__(self, estimator: LengthEstimator, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._estimator = estimator
        self._clock = clock
        self._written: Mapping[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._complained = False

    async def begin(self) -> None:
        """Take what an earlier process has learned, and keep writing from now on.

        A file that cannot be used is said and left aside: the start values are good enough to begin with.
        """
        if self.path is None:
            return
        try:
            state = await asyncio.to_thread(read_lengths, self.path)
        except (OSError, ValueError) as error:
            _log.warning("prompt lengths learned before cannot be read from %s (%s): learning anew", self.path, error)
        else:
            known = self._estimator.restore(state)
            if known:
                _log.info("prompt lengths of %d models are known from %s", known, self.path)
        self._written = self._estimator.state()
        self._task = tasks.spawn(self._keep_writing(), "lengths")

    async def write(self) -> None:
        """Write what was learned, if that is more than what was written."""
        state = self._estimator.state()
        if self.path is None or state == self._written:
            return
        document = {"schema": SCHEMA, "written": round(self._clock(), 3), "models": state}
        try:
            await asyncio.to_thread(write_lengths, self.path, document)
        except OSError as error:
            if not self._complained:
                _log.warning("prompt lengths cannot be written to %s: %s", self.path, error.strerror or error)
            self._complained = True
        else:
            self._written, self._complained = state, False

    async def close(self) -> None:
        """Write once more, and stop."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            await self.write()

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self.write()


def read_lengths(path: Path) -> Mapping[str, Any]:
    """Return what `write_lengths` wrote; nothing when the file is not there.

    Raises:
        OSError: it cannot be read.
        ValueError: it is something else, or of another version.
    """
    document = read_document(path)
    if document is None:
        return {}
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    models = document.get("models")
    if not isinstance(models, dict):
        raise ValueError("it has no models")  # noqa: TRY004 - a fault of the file, not of the caller
    return models


def write_lengths(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")


class Asked(StrEnum):
    """What became of a question for an exact length; the metric label."""

    EXACT = "exact"
    MOVED = "moved"
    """Exact, and the request went into another lane than the estimate said."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """The engine has no `/tokenize`, or did not take this prompt."""
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    """As many as allowed were asked for already."""


class ExactLengths:
    """Asks engines how long a prompt is whose estimate is near the border of the lanes.

    Whatever goes wrong, the estimate stands; nothing here ends a request.

    Args:
        settings: whether, how near, how long.
        engines: sends the question.
        up_for: names of the backends that are up and serve a model.
        classification: knows the lanes.
    """

    def __init__(
        self,
        settings: Estimate,
        engines: Engines,
        up_for: Callable[[str | None], Iterable[str]],
        classification: Classification,
    ) -> None:
        self.settings = settings
        self.asked: Counter[Asked] = Counter()
        self._engines = engines
        self._up_for = up_for
        self._classification = classification
        self._running = 0
        self._turn = 0

    def __repr__(self) -> str:
        return f"<ExactLengths {self.settings.tokenize}, {self._running} asked for>"

    def wants(self, ticket: Ticket, facts: Facts | None) -> bool:
        """Return whether the exact length of a prompt could change its lane, and can be asked for."""
        if self.settings.tokenize == "off" or ticket.at_once or facts is None:
            return False
        border = self._classification.lanes[0].max_prompt_tokens
        return (
            border is not None
            and abs(ticket.prompt_tokens - border) <= self.settings.near * border
            and facts.endpoint in _ASKABLE
            and facts.prompts == 1
            and facts.prompt_tokens is None
            and facts.truncate_prompt_tokens is None
            and not facts.partial_census
            and not facts.kv_transfer
        )

    async def refine(self, exchange: Exchange, ticket: Ticket, outgoing: Outgoing) -> Ticket:
        """Return the ticket with its exact length and the lane that belongs to it, where an engine says it in time.

        Args:
            exchange: the request, classified.
            ticket: what would ask to run; `wants` said that its length matters.
            outgoing: its own request: identity and trace fields go with the question.
        """
        began = time.monotonic()
        if self._running >= self.settings.at_once:
            self.asked[Asked.BUSY] += 1
            return ticket
        self._running += 1
        try:
            count = await self._ask(exchange, ticket, outgoing)
        finally:
            self._running -= 1
            exchange.tokenize_s += time.monotonic() - began
        if isinstance(count, Asked):
            self.asked[count] += 1
            return ticket
        lane = self._classification.lane_of(count)
        self.asked[Asked.EXACT if lane == ticket.lane else Asked.MOVED] += 1
        exchange.lane = self._classification.lanes[lane].name
        exchange.ticket = ticket._replace(lane=lane, prompt_tokens=max(1, count))
        return exchange.ticket

    async def _ask(self, exchange: Exchange, ticket: Ticket, outgoing: Outgoing) -> int | Asked:
        names = list(self._up_for(ticket.model))
        if not names:
            return Asked.UNREACHABLE
        self._turn += 1
        name, patience_s = names[self._turn % len(names)], self.settings.timeout
        try:
            body = parts.tokenize_body(exchange.endpoint, exchange.body)
            question = replace(outgoing, method="POST", path=parts.TOKENIZE_PATH, body=body)
            async with asyncio.timeout(patience_s):
                answer = await self._engines.ask(name, question, f"len-{exchange.request_id}", patience_s)
        except TimeoutError:
            return Asked.TIMEOUT
        except (NotSentError, UnansweredError):
            return Asked.UNREACHABLE
        except NotAnObjectError:
            return Asked.REFUSED
        found = parts.read_tokenized(answer.body) if answer.status == 200 else None
        return Asked.REFUSED if found is None else found.ids.count

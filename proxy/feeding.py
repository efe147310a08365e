"""Installments, the shell: which requests are split, and how one part is sent and judged.

The Dispatcher decides when a part goes, how long it is and where (`policy/installments.py`). Here its token ids are
found before the request asks to run, and each part is sent as a small request of our own. Nothing that happens to a
part ends the client's request: at worst the rest goes whole, and the engine answers that. docs/installments.md explains
it to operators.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from proxy.admission import Admission, Turn
from proxy.attempt import Engines, NotSentError, Outgoing, UnansweredError
from proxy.backends import Backends
from proxy.classification import Classification
from proxy.exchange import Exchange
from proxy.policy.evidence import PartClock, found_by_counter
from proxy.policy.ticket import Grant, Ticket
from proxy.upstream.call import Answer
from proxy.wire import headers, parts
from proxy.wire.facts import Facts
from proxy.wire.parts import PromptIds, ToldUsage
from proxy.wire.splice import NotAnObjectError

TOKENIZE_S: Final = 1.0
"""For the ids of a prompt, waiting included; then it goes whole. vLLM takes about 40 ms for 12,000 tokens."""
TOKENIZE_AT_ONCE: Final = 4
"""Prompts that are tokenised at the same time: engines do it one after the other anyway."""
PART_S: Final = 60.0
"""For the answer of one part; then the rest goes whole, with the patience of its lane."""
ASK_AGAIN_S: Final = 60.0
"""How long an engine that has no `/tokenize` is not asked."""
_NOT_THERE: Final = frozenset({401, 403, 404, 405, 501})
_SAYS_NOTHING: Final = frozenset({429, 503})
"""An engine that is busy refuses parts as it refuses everything."""


@dataclass(slots=True)
class SplitPrompt:
    """A prompt whose token ids are known, on its way through its parts."""

    ids: PromptIds
    copied: bytes
    """Members of the client's body that every part repeats."""
    done: int = 0
    """Tokens that ended parts have covered on the backend that has them."""
    hits: float | None = None
    """The engine's counter of cache hits at the end of the last part."""
    clock: PartClock = field(default_factory=PartClock)

    def restart(self) -> None:
        """Begin anew, perhaps on another engine."""
        self.done, self.hits, self.clock = 0, None, PartClock()


class Feeding:
    """Prepares requests to be split, and sends their parts.

    Args:
        engines: sends requests of our own.
        admission: knows which backends are fed in parts.
        backends: knows which engines are up, and what they say of themselves.
        classification: knows the lanes.
        ranks: how many data-parallel engines stand behind the one address of a backend, each with a prefix cache of
            its own; one where it is not known.
    """

    def __init__(
        self,
        engines: Engines,
        admission: Admission,
        backends: Backends,
        classification: Classification,
        ranks: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._engines = engines
        self._admission = admission
        self._backends = backends
        self._classification = classification
        self._tokenizing = asyncio.Semaphore(TOKENIZE_AT_ONCE)
        self._ask_again: dict[str, float] = {}
        self._turn = 0
        self._ranks = ranks
        self._ranks_used: Counter[str] = Counter()

    def would_split(self, ticket: Ticket) -> bool:
        """Return whether the token ids of a prompt are going to be found, because it would go in parts."""
        return ticket.splittable and self._admission.dispatcher.would_feed(time.monotonic(), ticket)

    async def prepare(
        self, exchange: Exchange, ticket: Ticket, document: Mapping[str, Any], outgoing: Outgoing
    ) -> tuple[Ticket, SplitPrompt | None]:
        """Find the token ids of a prompt that would be split; its length is exact from then on.

        Args:
            exchange: the request, classified.
            ticket: what would ask to run.
            document: its body, decoded.
            outgoing: its own request: identity and trace fields go with the parts as well.

        Returns:
            The ticket that asks to run, and the ids; None when it goes whole.
        """
        if not ticket.splittable:
            return ticket, None
        split = None
        began = time.monotonic()
        if self._admission.dispatcher.would_feed(began, ticket):
            split = await self._split(exchange, ticket, document, outgoing)
            exchange.tokenize_s = time.monotonic() - began
        if split is None:
            ticket = exchange.ticket = ticket.whole()
            return ticket, None
        lane = self._classification.lane_of(split.ids.count)
        exchange.lane = self._classification.lanes[lane].name
        ticket = exchange.ticket = ticket._replace(
            lane=lane,
            prompt_tokens=split.ids.count,
            body_bytes=ticket.body_bytes + len(split.ids),
        )
        return ticket, split

    async def feed(self, exchange: Exchange, split: SplitPrompt, grant: Grant, turn: Turn, outgoing: Outgoing) -> None:
        """Send the part that was granted and tell the Dispatcher how it went.

        Args:
            exchange: the request.
            split: its ids.
            grant: not a final one.
            turn: its way through the Dispatcher.
            outgoing: its own request.

        Raises:
            EndedError: the time to drain is over.
        """
        if grant.part == 0:
            split.restart()
            exchange.told = None
            outgoing.rank = self._rank(grant.backend, outgoing)
        exchange.parts += 1
        name = parts.part_id(exchange.request_id, grant.part)
        body = parts.part_body(split.ids, grant.upto_tokens, split.copied, name)
        part = replace(outgoing, method="POST", path=parts.PARTS_PATH, body=body)
        running, grants = self._admission.dispatcher.busy(grant.backend)
        sent = time.monotonic()
        try:
            answer = await self._engines.ask(grant.backend, part, name, PART_S, blame=True)
        except NotSentError:
            exchange.retries += 1
            turn.give_back()
            return
        except UnansweredError:
            turn.part_failed(broken=True)
            return
        if answer.status != 200:
            turn.part_failed(refused=_refused(answer.status), broken=_broken(answer.status))
            return
        seconds = time.monotonic() - sent
        alone = running == 1 and self._admission.dispatcher.busy(grant.backend)[1] == grants
        found = self._told(exchange, grant, answer)
        if found is None:
            found = await self._found(split, grant, seconds, alone=alone)
        split.done = grant.upto_tokens
        turn.part_ended(found)

    async def _split(
        self, exchange: Exchange, ticket: Ticket, document: Mapping[str, Any], outgoing: Outgoing
    ) -> SplitPrompt | None:
        facts = exchange.facts
        assert facts is not None
        try:
            if facts.prompt_tokens is not None:
                ids = parts.own_ids(exchange.body, document)
                context = self._backends.max_model_len(facts.model)
            else:
                found = await self._tokenize(exchange, facts, ticket, outgoing)
                ids, context = (None, None) if found is None else (found.ids, found.max_model_len)
            if ids is None or not _fits(ids.count, exchange, facts, context):
                return None
            return SplitPrompt(ids, parts.copied_fields(exchange.body))
        except NotAnObjectError:
            return None

    async def _tokenize(
        self, exchange: Exchange, facts: Facts, ticket: Ticket, outgoing: Outgoing
    ) -> parts.Tokenized | None:
        """Ask one engine of the model; whatever goes wrong, the prompt goes whole."""
        name = self._next_to_ask(ticket.model)
        if name is None:
            return None
        body = parts.tokenize_body(facts.endpoint, exchange.body)
        question = replace(outgoing, method="POST", path=parts.TOKENIZE_PATH, body=body)
        try:
            async with asyncio.timeout(TOKENIZE_S), self._tokenizing:
                answer = await self._engines.ask(name, question, f"ids-{exchange.request_id}", TOKENIZE_S)
        except (TimeoutError, NotSentError, UnansweredError):
            return None
        if answer.status in _NOT_THERE:
            self._ask_again[name] = time.monotonic() + ASK_AGAIN_S
        return parts.read_tokenized(answer.body) if answer.status == 200 else None

    def _rank(self, name: str, outgoing: Outgoing) -> int | None:
        """Choose the engine behind an address that all parts of a prompt and its own request go to, each in its turn.

        vLLM sends a request to the engine that `X-data-parallel-rank` names; a client that names one has chosen.
        """
        ranks = self._ranks.get(name, 1)
        if ranks < 2 or headers.header(outgoing.fields.raw, b"x-data-parallel-rank") is not None:
            return None
        self._ranks_used[name] += 1
        return self._ranks_used[name] % ranks

    def _next_to_ask(self, model: str | None) -> str | None:
        now = time.monotonic()
        names = [name for name in self._backends.up_for(model) if self._ask_again.get(name, 0.0) <= now]
        self._turn += 1
        return names[self._turn % len(names)] if names else None

    @staticmethod
    def _told(exchange: Exchange, grant: Grant, answer: Answer) -> int | None:
        """Read what the engine says that it found; the first part's word is what the client will be told."""
        cached = parts.read_part(answer.body)
        if cached is not None and grant.part == 0:
            exchange.told = ToldUsage(cached)
        return cached

    async def _found(self, split: SplitPrompt, grant: Grant, seconds: float, *, alone: bool) -> int | None:
        """Infer what an engine found that does not say it: by its counter of hits, else by the time it took."""
        before, done = split.hits, split.done
        by_clock = split.clock.found(done, grant.upto_tokens - done, seconds, alone=alone)
        split.hits = await self._backends.prefix_hits(grant.backend)
        if not done:
            return None
        by_counter = found_by_counter(done, before, split.hits)
        return by_clock if by_counter is None else by_counter


def _refused(status: int) -> bool:
    """Whether an error says nothing about parts as such: the client's request would get it too."""
    return status in _SAYS_NOTHING or (400 <= status < 500 and status not in _NOT_THERE)


def _broken(status: int) -> bool:
    """Whether an error says that the engine failed: neither busy nor without what parts need."""
    return status >= 500 and status not in _SAYS_NOTHING | _NOT_THERE


def _fits(prompt_tokens: int, exchange: Exchange, facts: Facts, context: int | None) -> bool:
    """Whether the engine will take the request: one that it refuses for its length must not be computed first."""
    asked = facts.output.cap if exchange.output_cap_sent is None else exchange.output_cap_sent
    output = 1 if asked is None else asked
    return output >= 1 and (context is None or prompt_tokens + output <= context)

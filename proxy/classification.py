"""The second room: what a body says, how long it is, which lane it belongs in, and what the engine is asked instead.

The shell around `policy.classify` and `policy.length`: it hands tickets their ids, edits the body when a cap bites or
when usage must be asked for, and lets the estimate learn from what engines count.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from proxy.answers import EndedError, bad_request
from proxy.exchange import Exchange
from proxy.policy.classify import LanePolicy, LengthPolicy, TooLong, Verdict, classify
from proxy.policy.length import LengthEstimator
from proxy.policy.limits import Mode
from proxy.policy.outcome import Outcome, Reason
from proxy.policy.prefixes import Prefix
from proxy.policy.shadow import Decision, Would
from proxy.policy.ticket import Ticket
from proxy.wire import bodies, caps
from proxy.wire.facts import Facts
from proxy.wire.invalid import MODEL_CHARS, certain_refusal
from proxy.wire.marks import MARK_CHARS, prefix_marks
from proxy.wire.paths import Route


class Classification:
    """Turns bodies into tickets. Also an observer: finished requests correct the estimate.

    Args:
        lanes: what belongs in each lane, in order of length, with its output policy.
        context_tokens: the context of a model, where known; asked per request, so it should remember.
        want_blocks: keep the prompt's text for the recorder's prefix hashes.
    """

    def __init__(
        self, lanes: Sequence[LanePolicy], context_tokens: Callable[[str | None], int | None], *, want_blocks: bool
    ) -> None:
        self.lanes = tuple(lanes)
        self.rules: tuple[LengthPolicy, ...] = ()
        """Lengths for some models, tenants or lanes, beside those of the lanes."""
        self.estimator = LengthEstimator()
        self._context_tokens = context_tokens
        self._want_blocks = want_blocks
        self.has_choice: Callable[[str | None], bool] = _never
        """Whether several backends serve a model: then how prompts begin weighs in the choice."""
        self._ids = itertools.count(1)

    def enter(self, exchange: Exchange, route: Route, document: dict[str, Any]) -> tuple[Ticket, bytes]:
        """Classify one request.

        Args:
            exchange: takes facts, estimate, lane, cap and ticket.
            route: its route.
            document: its body, decoded.

        Returns:
            The ticket, and the body for the engine: the client's own bytes, unless a cap bit or usage is asked for. In
            a mode other than enforce it is always the client's own, and the ticket goes at once.

        Raises:
            EndedError: it can never fit, or no engine takes it; only under enforce.
        """
        if exchange.mode is Mode.ENFORCE and (refusal := certain_refusal(route.endpoint, document)) is not None:
            raise bad_request(refusal)
        wanted = self._want_blocks or self.has_choice(
            model if isinstance(model := document.get("model"), str) and len(model) <= MODEL_CHARS else None
        )
        facts = bodies.read_facts(route.endpoint, document, exchange.request_bytes, want_blocks=wanted)
        exchange.facts = facts
        estimate = self.estimator.estimate(facts.model, facts)
        exchange.prompt_tokens_estimated = estimate.tokens
        verdict = classify(
            facts,
            estimate,
            self.lanes,
            self._context_tokens(facts.model),
            rules=self.rules,
            tenant=exchange.tenant,
        )
        if exchange.mode is not Mode.ENFORCE:
            return self._let_pass(exchange, facts, verdict), exchange.body
        if isinstance(verdict, TooLong):
            raise EndedError(Outcome.TOO_LONG, 400, Reason.TOO_LONG.value, verdict.detail, Reason.TOO_LONG)
        exchange.lane = self.lanes[verdict.lane].name
        body = self._edit(exchange, facts, verdict, plain="stream_options" not in document)
        exchange.ticket = self._ticket(exchange, facts, verdict, len(body))
        return exchange.ticket, body

    def _let_pass(self, exchange: Exchange, facts: Facts, verdict: Verdict | TooLong) -> Ticket:
        """Make the ticket of a request that nothing holds; under observe, say what its length alone decides."""
        would = exchange.would = Would() if exchange.mode is Mode.OBSERVE else None
        if isinstance(verdict, TooLong):
            if would is not None:
                would.decision, would.reason = Decision.TOO_LONG, Reason.TOO_LONG
            tokens = exchange.prompt_tokens_estimated or 0
            verdict = Verdict(len(self.lanes) - 1, tokens, 0, None, None, facts.sequences, splittable=False)
        elif would is not None and verdict.cap_rule is not None:
            would.cap, would.cap_rule = verdict.output_cap, verdict.cap_rule.value
        exchange.lane = self.lanes[verdict.lane].name
        exchange.ticket = self._ticket(exchange, facts, verdict, len(exchange.body), at_once=True)
        return exchange.ticket

    def lane_of(self, tokens: int) -> int:
        """Return the lane of a prompt whose exact length has become known; one over every lane stays in the last."""
        fits = (
            index
            for index, lane in enumerate(self.lanes)
            if lane.max_prompt_tokens is None or tokens <= lane.max_prompt_tokens
        )
        return next(fits, len(self.lanes) - 1)

    def observe(self, exchange: Exchange) -> None:
        """Learn from what the engine counted."""
        facts, usage, estimated = exchange.facts, exchange.usage, exchange.prompt_tokens_estimated
        if exchange.outcome is not Outcome.OK or facts is None or usage is None or estimated is None:
            return
        if usage.completion_tokens is not None:
            self.estimator.learn_output(facts.model, usage.completion_tokens // facts.sequences)
        whole = not facts.partial_census and facts.prompt_tokens is None and facts.truncate_prompt_tokens is None
        if whole and usage.prompt_tokens is not None:
            self.estimator.learn(facts.model, facts.census, estimated, usage.prompt_tokens)

    @staticmethod
    def _edit(exchange: Exchange, facts: Facts, verdict: Verdict, *, plain: bool) -> bytes:
        body = exchange.body
        if verdict.output_cap is not None and verdict.cap_rule is not None:
            exchange.output_cap_sent, exchange.cap_rule = verdict.output_cap, verdict.cap_rule.value
            body = caps.set_output_cap(body, facts.endpoint, facts.output, verdict.output_cap)
        if facts.may_ask_usage:
            asking = caps.ask_for_usage(body, absent=plain)
            exchange.asked_usage = asking is not body
            body = asking
        return body

    def _ticket(
        self, exchange: Exchange, facts: Facts, verdict: Verdict, body_bytes: int, *, at_once: bool = False
    ) -> Ticket:
        prefix = _prefix(facts, verdict.prompt_tokens) if self.has_choice(facts.model) else None
        if facts.blocks and not self._want_blocks:
            exchange.facts = facts._replace(blocks=())  # its text need not be kept as long as the request runs
        return Ticket(  # by place, in the order of its fields: names double what it costs
            next(self._ids),
            verdict.lane,
            verdict.prompt_tokens,
            verdict.output_tokens,
            verdict.sequences,
            body_bytes,
            facts.model,
            facts.stream,
            verdict.splittable and not at_once,
            at_once,
            prefix,
            exchange.tenant,
            exchange.priority,
        )


def _never(_model: str | None) -> bool:
    return False


def _prefix(facts: Facts, prompt_tokens: int) -> Prefix | None:
    """Return how a prompt begins; None when it is too short to tell."""
    marks = prefix_marks(facts.blocks, (facts.model or "", facts.cache_salt or ""))
    if not marks:
        return None
    return Prefix(marks, prompt_tokens * MARK_CHARS / sum(map(len, facts.blocks)))

"""Which lane a request belongs in, and how long its answer may become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from proxy.policy.length import Estimate
from proxy.wire.facts import Endpoint, Facts

GENERATING = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES})
"""Endpoints that make output tokens."""
DOUBT = 1.5
"""An estimated prompt is only refused as too long when it is over the context by this factor: an estimate must not
refuse what would fit, and the engine refuses the rest before it computes anything."""
CONTEXT_RESERVE = 1.15
"""An estimated prompt may really be this much longer, when the output is lowered to what the context still holds."""


class CapAction(StrEnum):
    """What happens to a request that asks for more than the ceiling."""

    CLAMP = "clamp"
    REJECT = "reject"


class CapRule(StrEnum):
    """Which rule set the output cap; the response header and the metric label."""

    DEFAULT = "default"
    """The client named none."""
    CEILING = "ceiling"
    TOTAL = "total"
    """Its share of the ceiling for all sequences of the request together."""
    CONTEXT = "context"
    """Prompt and output together did not fit the context."""


@dataclass(frozen=True, slots=True)
class OutputPolicy:
    """How long answers may become, in tokens per sequence. All off: the client's request is left as it is."""

    default: int | None = None
    """Cap for requests that name none."""
    ceiling: int | None = None
    """Largest cap. A request that names none gets it as well."""
    action: CapAction = CapAction.CLAMP
    clamp_to_context: bool = False
    """Lower the cap to what the context holds beside the prompt, where the context is known."""
    total: int | None = None
    """Largest cap times sequences: prompts times `n` share it evenly, each at least 1."""


@dataclass(frozen=True, slots=True)
class LengthPolicy:
    """Lengths for some models, tenants or lanes. An empty selector selects all."""

    models: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    lanes: frozenset[str] = frozenset()
    prompt_tokens: int | None = None
    """Longest prompt, all prompts of the request together."""
    output: OutputPolicy = OutputPolicy()

    def holds_for(self, model: str | None, tenant: str | None, lane: str) -> bool:
        """Return whether it is for a request for `model` by `tenant` in `lane`."""
        return (
            (not self.models or model in self.models)
            and (not self.tenants or tenant in self.tenants)
            and (not self.lanes or lane in self.lanes)
        )


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """What belongs in a lane, and its output policy. Lanes are given in order of length."""

    name: str
    max_prompt_tokens: int | None = None
    """Longest prompt, estimated tokens of all prompts of the request together. None: everything longer."""
    output: OutputPolicy = OutputPolicy()


class Verdict(NamedTuple):
    """What classify decided. A named tuple: one is made for every request."""

    lane: int
    prompt_tokens: int
    """Of all its prompts together."""
    output_tokens: int
    """Expected, of all its sequences together."""
    output_cap: int | None
    """Cap per sequence to send instead of the client's own; None: leave the body as it is."""
    cap_rule: CapRule | None
    """Why `output_cap` is not None."""
    sequences: int
    splittable: bool


@dataclass(frozen=True, slots=True)
class TooLong:
    """The request can never fit."""

    detail: str
    """One sentence for the client, with the numbers."""


@dataclass(frozen=True, slots=True)
class _Cap:
    tokens: int
    rule: CapRule


def classify(
    facts: Facts,
    estimate: Estimate,
    lanes: Sequence[LanePolicy],
    context_tokens: int | None = None,
    *,
    rules: Sequence[LengthPolicy] = (),
    tenant: str | None = None,
) -> Verdict | TooLong:
    """Decide lane, expected size and output cap of a request.

    The lane goes by the prompt tokens of all prompts together, because that is what the engine has to compute before
    the last of them answers. A request with `kv_transfer_params` gets a lane and is otherwise left alone.

    Of the lane's own output policy and all rules that hold for the request the tightest wins, knob by knob; a ceiling
    whose action is reject refuses whoever asks for more than that ceiling.

    Args:
        facts: what its body says.
        estimate: its prompt length.
        lanes: in order of length, at least one.
        context_tokens: the model's context (`max_model_len`), where known.
        rules: lengths for some models, tenants or lanes.
        tenant: who sends it.
    """
    lane = _lane(estimate.tokens, lanes)
    if lane is None:
        return _over_every_lane(estimate, lanes)
    policy = lanes[lane].output
    held = [rule for rule in rules if rule.holds_for(facts.model, tenant, lanes[lane].name)] if rules else []
    cap: _Cap | None = None
    sequences, generates = facts.sequences, facts.endpoint in GENERATING
    if not facts.kv_transfer:
        each = -(-estimate.tokens // max(1, facts.prompts))
        if context_tokens is not None and each > context_tokens * (1.0 if estimate.exact else DOUBT):
            return TooLong(
                f"the prompt has {_about(estimate)}{each} tokens and the model's context holds {context_tokens}"
            )
        over = _over_prompt_ceiling(estimate, held) if held else None
        if over is None and generates:
            policies = [policy, *(rule.output for rule in held)] if held else (policy,)
            for one in policies:
                over = over or _over_ceiling(facts, one)
            cap = _cap(facts, estimate, _tightest(policies) if held else policy, context_tokens, each)
        if over is not None:
            return over
    return Verdict(
        lane,
        estimate.tokens,
        _expected_output(facts, estimate, cap) * sequences if generates else 0,
        None if cap is None else cap.tokens,
        None if cap is None else cap.rule,
        sequences,
        facts.splittable and not facts.kv_transfer,
    )


def _lane(tokens: int, lanes: Sequence[LanePolicy]) -> int | None:
    for index, lane in enumerate(lanes):
        if lane.max_prompt_tokens is None or tokens <= lane.max_prompt_tokens:
            return index
    return None


def _over_every_lane(estimate: Estimate, lanes: Sequence[LanePolicy]) -> TooLong:
    return TooLong(
        f"the prompt has {_about(estimate)}{estimate.tokens} tokens and the longest lane, {lanes[-1].name}, takes "
        f"{lanes[-1].max_prompt_tokens}"
    )


def _about(estimate: Estimate) -> str:
    return "" if estimate.exact else "about "


def _over_prompt_ceiling(estimate: Estimate, rules: Sequence[LengthPolicy]) -> TooLong | None:
    ceiling = _smallest(rule.prompt_tokens for rule in rules)
    if ceiling is None or estimate.tokens <= ceiling:
        return None
    return TooLong(f"the prompt has {_about(estimate)}{estimate.tokens} tokens and at most {ceiling} are allowed here")


def _tightest(policies: Sequence[OutputPolicy]) -> OutputPolicy:
    return OutputPolicy(
        default=_smallest(policy.default for policy in policies),
        ceiling=_smallest(policy.ceiling for policy in policies),
        total=_smallest(policy.total for policy in policies),
        clamp_to_context=any(policy.clamp_to_context for policy in policies),
    )


def _smallest(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _over_ceiling(facts: Facts, policy: OutputPolicy) -> TooLong | None:
    asked = facts.output.cap
    if asked is None or policy.action is not CapAction.REJECT:
        return None
    field = facts.output.cap_fields[0] if facts.output.cap_fields else "the output limit"
    if policy.ceiling is not None and asked > policy.ceiling:
        return TooLong(f"{field} asks for {asked} output tokens and at most {policy.ceiling} are allowed")
    if policy.total is not None and asked * facts.sequences > policy.total:
        return TooLong(
            f"{field} asks for {asked} output tokens of each of {facts.sequences} sequences and at most "
            f"{policy.total} are allowed in all"
        )
    return None


def _cap(facts: Facts, estimate: Estimate, policy: OutputPolicy, context_tokens: int | None, each: int) -> _Cap | None:
    """Return the cap that takes the place of the client's own, or None when that one stands."""
    asked = facts.output.cap
    cap: _Cap | None = None
    if asked is None and facts.endpoint is Endpoint.MESSAGES and not facts.output.cap_fields:
        return None  # the field is required there: the engine says so
    if asked is None and policy.default is not None:
        cap = _Cap(policy.default, CapRule.DEFAULT)
    effective = asked if cap is None else cap.tokens
    if policy.ceiling is not None and (effective is None or effective > policy.ceiling):
        cap = _Cap(policy.ceiling, CapRule.CEILING)
        effective = policy.ceiling
    if policy.total is not None:
        share = max(1, policy.total // facts.sequences)
        if effective is None or effective > share:
            cap = _Cap(share, CapRule.TOTAL)
            effective = share
    if policy.clamp_to_context and context_tokens is not None and effective is not None:
        room = context_tokens - round(each * (1.0 if estimate.exact else CONTEXT_RESERVE))
        if effective + each > context_tokens and room < effective:
            cap = _Cap(room, CapRule.CONTEXT)
    return None if cap is None else _Cap(max(1, cap.tokens), cap.rule)


def _expected_output(facts: Facts, estimate: Estimate, cap: _Cap | None) -> int:
    """Return how many tokens one sequence will make."""
    most = facts.output.cap if cap is None else cap.tokens
    return estimate.output_tokens if most is None else min(max(1, most), estimate.output_tokens)

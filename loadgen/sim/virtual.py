"""The product's own Dispatcher as the front of a study: the scheduling core of the proxy on a virtual clock."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from loadgen.sim.changes import UNCHANGED, Change, dispatcher
from loadgen.sim.clients import PATIENT, Clients
from loadgen.sim.drive import BORDER_TOKENS
from loadgen.sim.front import Lost, Order, Send
from loadgen.sim.nouns import EngineProfile
from proxy.policy.limits import (
    Adaptive,
    BackendLimits,
    BudgetMode,
    Fairness,
    Installments,
    LaneLimits,
    LaneOrder,
    QueueOrder,
    Scheduling,
)
from proxy.policy.outcome import Ending
from proxy.policy.ticket import Effect, Grant, Ticket

SHORT_SLO_S = 1.0
LONG_SLO_S = 5.0
TPOT_SLO_S = 0.1
ALWAYS = 1 << 40
"""A limit that never bites: in a study only what the policy says may refuse."""

START_CONCURRENCY = 32
"""Where adaptive concurrency starts in a study, whatever the engine."""
LOWEST_CONCURRENCY = 4

FIRST_OUTPUT_GUESS = 256
"""Expected output tokens before the first answer ended."""
OUTPUT_LEARNING_RATE = 0.05
"""Weight of each ended answer in the expected output; it serves the KV guard and the work estimate only."""


class Preset(StrEnum):
    """The operator's choice of what to do with late requests."""

    STRICT = "strict"
    """Short lane first; whoever cannot meet the deadline is dropped at once."""
    GENTLE = "gentle"
    """The lane that would be late first; late requests step behind, and are dropped at five times the deadline."""


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """What a study sets on lanewise."""

    preset: Preset = Preset.STRICT
    drop: float | None = None
    """Multiple of the deadline at which a request is dropped; None: the preset's."""
    installments: bool = False
    cap: int | None = None
    """Sequences per backend, or where they start; None: 32 when adaptive, else the engine profile's."""
    adaptive: bool = True
    """Whether the cap follows TPOT, from 4 up to the engine's `max_num_seqs`."""
    fair: bool = False
    """Whether tenants share each lane by their tokens."""
    told_output: bool = False
    """Whether clients name an output limit that is what they take, as those of a replay do: it bounds what the
    Dispatcher expects."""

    proxies: int = 1
    """Proxies in front of the same engines; requests go to them in turn."""
    leased: bool = True
    """Whether several share their limits by leases; else each has its static share."""

    @property
    def split(self) -> int:
        """Return into how many parts every limit is split beforehand."""
        return 1 if self.leased else self.proxies

    @property
    def drop_factor(self) -> float:
        """Multiple of the deadline at which a request is dropped."""
        if self.drop is not None:
            return self.drop
        return 1.0 if self.preset is Preset.STRICT else 5.0

    def start(self, profile: EngineProfile) -> int:
        """Return the cap in front of an engine, or where it starts."""
        return self.cap or (START_CONCURRENCY if self.adaptive else profile.concurrency_cap)


def lanewise(
    profile: EngineProfile,
    options: LaneOptions,
    backends: int,
    change: Change = UNCHANGED,
    clients: Clients = PATIENT,
) -> "DispatcherFront":
    """Build the product as a study runs it: deadline lanes with a prefill budget.

    An engine with a long-prefill threshold gets separate prefill budgets per lane, as docs/algorithm.md says.
    """
    strict = options.preset is Preset.STRICT
    threshold = profile.long_prefill_token_threshold > 0
    scheduling = Scheduling(
        lanes=_lanes(SHORT_SLO_S, LONG_SLO_S, *_places(change, backends)),
        lane_order=LaneOrder.SHORT_FIRST if strict else LaneOrder.DEADLINE,
        budget_mode=BudgetMode.SEPARATE if threshold else BudgetMode.SHARED,
        prefill_budget_tokens=max(1, profile.max_num_batched_tokens // options.split),
        drop_factor=options.drop_factor,
        prefill_s_per_token=profile.c,
        step_s=profile.a,
        installments=Installments() if options.installments else None,
        fairness=Fairness() if options.fair else None,
    )
    bounds = max(1, LOWEST_CONCURRENCY // options.split), max(1, profile.max_num_seqs // options.split)
    adaptive = Adaptive(TPOT_SLO_S, *bounds) if options.adaptive else None
    if adaptive is not None and change.tpot_target is not None:
        adaptive = replace(adaptive, target=change.tpot_target)
    return DispatcherFront(
        change.settings(scheduling),
        profile,
        max(1, options.start(profile) // options.split),
        backends,
        adaptive=adaptive,
        split=options.split,
        leased=options.proxies > 1 and options.leased,
        kv_guard=change.kv_guard,
        told_output=options.told_output,
        change=change,
        clients=clients,
    )


def _places(change: Change, backends: int) -> tuple[int, int]:
    return (ALWAYS, ALWAYS) if change.waiting is None else (change.waiting[0] * backends, change.waiting[1] * backends)


def bounded_queue(profile: EngineProfile, cap: int, backends: int) -> "DispatcherFront":
    """Build the plain thing: one queue in order of arrival, `cap` in flight and `cap` waiting per backend.

    Of the waiting places three quarters are for short and one quarter for long requests. No deadline, no prefill
    budget. The same Dispatcher with those parts switched off: both lanes have the same deadline and a prompt costs
    nothing, so the lane that would be late first is the one whose head came first.
    """
    nothing = 1e-12
    waiting = cap * backends
    scheduling = Scheduling(
        lanes=_lanes(LONG_SLO_S, LONG_SLO_S, waiting * 3 // 4, waiting // 4),
        lane_order=LaneOrder.DEADLINE,
        queue_order=QueueOrder.FIFO,
        prefill_budget_tokens=None,
        drop_factor=None,
        prefill_s_per_token=nothing,
        step_s=profile.a,
    )
    return DispatcherFront(scheduling, profile, cap, backends, kv_guard=False)


REFERENCE_CAP = 96
REFERENCE_BUDGET = 8192


def reference_front(profile: EngineProfile, backends: int) -> "DispatcherFront":
    """Build what stands in front of the perfect-knowledge engine: shedding, a wide cap, a wide prefill budget."""
    scheduling = Scheduling(
        lanes=_lanes(SHORT_SLO_S, LONG_SLO_S),
        prefill_budget_tokens=REFERENCE_BUDGET,
        prefill_s_per_token=profile.c,
        step_s=profile.a,
    )
    return DispatcherFront(scheduling, profile, REFERENCE_CAP, backends)


class DispatcherFront:
    """Drives one Dispatcher: virtual events in, its effects out as orders.

    Args:
        scheduling: its settings; two lanes with the border at 2,048 tokens.
        profile: of the engines behind (for the size of the KV cache).
        cap: sequences per backend, or where they start.
        backends: how many.
        adaptive: how the cap follows TPOT; None: it is fixed.
        kv_guard: whether the Dispatcher knows the size of the KV cache.
        told_output: whether requests name an output limit that is what they take.
        change: what is not as in the product.
        clients: tells tenants apart.
        split: proxies among which the KV cache is split beforehand.
        leased: other proxies share the engines by leases.
    """

    def __init__(
        self,
        scheduling: Scheduling,
        profile: EngineProfile,
        cap: int,
        backends: int,
        *,
        adaptive: Adaptive | None = None,
        kv_guard: bool = True,
        told_output: bool = False,
        change: Change = UNCHANGED,
        clients: Clients = PATIENT,
        split: int = 1,
        leased: bool = False,
    ) -> None:
        kv_tokens = profile.kv_tokens if kv_guard else None
        share = profile.kv_fraction / split
        limit = BackendLimits("", cap, kv_tokens=kv_tokens, kv_fraction=share, adaptive=adaptive, leased=leased)
        self._names = [str(number) for number in range(backends)]
        self.dispatcher = dispatcher(scheduling, [replace(limit, name=name) for name in self._names], change)
        self._change = change
        self._clients = clients
        self._adapts = adaptive is not None and change.sees_tokens
        self._splits = scheduling.installments is not None
        self._told_output = told_output
        self._output = float(FIRST_OUTPUT_GUESS)

    def arrive(self, now: float, index: int, prompt_tokens: int, output_tokens: int) -> Sequence[Order]:
        """Offer a ticket; how long the answer will be stays unknown, or is bounded by the limit that it names."""
        expected = round(self._output)
        length = self._change.estimated(index, prompt_tokens)
        if self._splits and length > BORDER_TOKENS:  # what may be split is counted by the engine's /tokenize first
            length = prompt_tokens
        long = length > BORDER_TOKENS
        ticket = Ticket(
            index,
            lane=int(long),
            prompt_tokens=length,
            output_tokens=min(output_tokens, expected) if self._told_output else expected,
            splittable=long and self._splits,
            streams=self._change.sees_tokens,
            tenant=self._clients.tenant(index),
        )
        return orders(self.dispatcher.offer(now, ticket))

    def first_token(self, now: float, index: int) -> Sequence[Order]:
        """Give the prefill budget back; without streams nobody sees it."""
        if not self._change.sees_tokens:
            return ()
        return orders(self.dispatcher.first_token(now, index))

    def part_ended(self, now: float, index: int, cached_tokens: int) -> Sequence[Order]:
        """Let the ticket wait for its next part."""
        return orders(self.dispatcher.part_ended(now, index, cached_tokens))

    def finished(self, now: float, index: int, output_tokens: int, cached_tokens: int) -> Sequence[Order]:
        """Let the ticket go; learn how long answers are."""
        self._output += OUTPUT_LEARNING_RATE * (output_tokens - self._output)
        return orders(self.dispatcher.leave(now, index, Ending.MEASURED, output_tokens, cached_tokens))

    def gone(self, now: float, index: int) -> Sequence[Order]:
        """Let the ticket go."""
        return orders(self.dispatcher.leave(now, index, Ending.IGNORED))

    def stepped(self, backend: int, seconds: float, tokens: int) -> None:
        """Let the cap follow it."""
        if self._adapts:
            self.dispatcher.pace(self._names[backend], seconds, tokens)

    def wake(self, now: float) -> Sequence[Order]:
        """Deadlines, pauses and budgets that are due."""
        return orders(self.dispatcher.wake(now))

    def next_wake(self) -> float | None:
        """When the next of them is."""
        return self.dispatcher.next_wake()


def _lanes(short_slo_s: float, long_slo_s: float, short: int = ALWAYS, long: int = ALWAYS) -> tuple[LaneLimits, ...]:
    return (
        LaneLimits("short", BORDER_TOKENS, short_slo_s, short, ALWAYS, ALWAYS),
        LaneLimits("long", None, long_slo_s, long, ALWAYS, ALWAYS),
    )


def orders(effects: Sequence[Effect]) -> Sequence[Order]:
    """Return effects as the driver reads them."""
    return [_order(effect) for effect in effects] if effects else ()


def _order(effect: Effect) -> Order:
    if isinstance(effect, Grant):
        return Send(effect.ticket.id, int(effect.backend), effect.upto_tokens, effect.final)
    return Lost(effect.ticket.id, effect.outcome.value, effect.reason.value)

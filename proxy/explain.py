"""Why a request was treated as it was: kept for the last finished ones, and told with the answer where asked for."""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network
from itertools import islice
from typing import Any

from aiohttp import web

from proxy.exchange import Exchange
from proxy.inforce import InForce
from proxy.modes import trusts
from proxy.policy.length import LengthEstimator
from proxy.policy.limits import Mode
from proxy.policy.standing import Stand, Standing
from proxy.settings import Settings

HEADER = "x-lanewise-explain"
_MOST_BYTES = 2000
_MOST_CONFIGURATIONS = 32
_SAME_S = 1e-9
"""Work that differs by less is the same: what the ticket itself holds was taken out again in floating point."""


class Explanations:
    """Observer that keeps what was decided on the last finished requests.

    Args:
        in_force: the settings in force.
        estimator: knows what each class of text counts for.
    """

    def __init__(self, in_force: InForce, estimator: LengthEstimator) -> None:
        self._in_force = in_force
        self._estimator = estimator
        self._kept: deque[Exchange] = deque(maxlen=in_force.settings.explain.keep)
        self.wanted = self._kept.maxlen != 0
        """Whether the choice of a backend is to be kept for explanations."""
        self._configurations = {in_force.sha: in_force.settings}
        """The latest that were in force, by their hash: requests outlive the one they began under."""

    def __repr__(self) -> str:
        return f"<Explanations of {len(self._kept)} requests>"

    def configure(self, settings: Settings) -> None:
        """Keep as many as the settings say; the oldest go first."""
        self._configurations.pop(settings.hash, None)
        self._configurations[settings.hash] = settings
        if len(self._configurations) > _MOST_CONFIGURATIONS:
            del self._configurations[next(iter(self._configurations))]
        if settings.explain.keep != self._kept.maxlen:
            self._kept = deque(self._kept, maxlen=settings.explain.keep)
            self.wanted = self._kept.maxlen != 0

    def asked(self, request: web.BaseRequest) -> bool:
        """Return whether a request wants its answer to say what was decided, and may have that."""
        value = request.headers.get(HEADER)
        if value is None or value.strip().lower() not in {"1", "true", "yes"}:
            return False
        settings = self._in_force.settings
        who = settings.explain.header
        networks: Sequence[IPv4Network | IPv6Network] = settings.trusted_networks
        return who == "all" or (who == "trusted" and trusts(networks, request.remote))

    def observe(self, exchange: Exchange) -> None:
        """Keep one finished request, without its text; it must be the last observer that needs that.

        What needs no lane and was served is left out.
        """
        if self.wanted and (exchange.facts is not None or exchange.reason is not None):
            exchange.body = b""
            if exchange.facts is not None and (exchange.facts.blocks or exchange.facts.cache_salt):
                exchange.facts = exchange.facts.without_text()
            self._kept.append(exchange)

    def of(self, exchange: Exchange) -> dict[str, Any]:
        """Return everything that was decided on a request so far, ready for JSON."""
        settings = self._configurations.get(exchange.config or "", self._in_force.settings)
        return {
            "request_id": exchange.request_id,
            "arrived": stamp(exchange.arrived_wall),
            "config": exchange.config,
            "mode": exchange.mode.value,
            "endpoint": exchange.endpoint.value,
            "model": exchange.model,
            "tenant": exchange.tenant,
            "priority": exchange.priority,
            "estimate": self._estimate(exchange),
            "lane": lane_of(settings, exchange.lane, exchange.ticket, exchange.prompt_tokens_estimated),
            "output": _output(exchange),
            "deadline": deadline_of(settings, exchange.lane),
            "wait_s": _rounded(exchange.queue_s if exchange.ended is not None else _so_far(exchange)),
            "backend": choice(exchange.standing, exchange.backend, exchange.mode),
            "parts": exchange.parts,
            "attempts": exchange.attempts,
            "retries": exchange.retries,
            "duplicate": exchange.duplicate,
            "outcome": None if exchange.outcome is None else exchange.outcome.value,
            "reason": None if exchange.reason is None else exchange.reason.value,
            "phase": None if exchange.phase is None else exchange.phase.value,
            "status": exchange.status,
            "detail": exchange.own_detail,
            "would": _would(exchange),
            "times_s": {
                "first_token": _rounded(exchange.ttft_s),
                "per_output_token": _rounded(exchange.tpot_s),
                "total": _rounded(exchange.total_s),
            },
        }

    def find(self, request_id: str) -> dict[str, Any] | None:
        """Return the explanation of the latest request with an id; None when it is not kept."""
        return next((self.of(one) for one in reversed(self._kept) if one.request_id == request_id), None)

    def recent(self, count: int = 20) -> list[dict[str, Any]]:
        """Return the latest, the newest first, a few words each."""
        return [
            {
                "request_id": one.request_id,
                "arrived": stamp(one.arrived_wall),
                "lane": one.lane,
                "outcome": None if one.outcome is None else one.outcome.value,
                "reason": None if one.reason is None else one.reason.value,
                "wait_s": _rounded(one.queue_s),
            }
            for one in islice(reversed(self._kept), count)
        ]

    def field(self, exchange: Exchange) -> tuple[bytes, bytes]:
        """Return the header that says what was decided so far."""
        text = "; ".join(f"{key}={value}" for key, value in compact(self.of(exchange)).items())
        return HEADER.encode("ascii"), text.encode("ascii", "replace").replace(b"\r", b" ").replace(b"\n", b" ")[
            :_MOST_BYTES
        ]

    def _estimate(self, exchange: Exchange) -> dict[str, Any]:
        facts, tokens = exchange.facts, exchange.prompt_tokens_estimated
        if facts is None or tokens is None:
            return {"tokens": None, "exact": False, "by_class": {}, "actual": exchange.prompt_tokens}
        exact = facts.prompt_tokens is not None
        ticket = exchange.ticket
        shares = {} if exact else self._estimator.shares(facts.model, facts.census)
        scale = tokens / max(1, sum(shares.values()))  # what a class counts for may have been learned since
        return {
            "tokens": tokens,
            "exact": exact,
            "by_class": {name: round(share * scale) for name, share in shares.items()},
            "counted": None if ticket is None or ticket.prompt_tokens == tokens else ticket.prompt_tokens,
            "actual": exchange.prompt_tokens,
            "cached": exchange.cached_tokens,
        }


def lane_of(settings: Settings, lane: str | None, ticket: Any, estimated: int | None) -> dict[str, Any]:
    """Return the lane and why it is that one."""
    if lane is None:
        return {"name": None, "why": "it got no lane"}
    tokens = estimated if ticket is None else ticket.prompt_tokens
    border = settings.lanes.short.max_prompt_tokens
    sign = "at most" if lane == "short" else "more than"
    return {"name": lane, "why": f"{tokens} prompt tokens are {sign} {border} (lanes.short.max_prompt_tokens)"}


def deadline_of(settings: Settings, lane: str | None) -> dict[str, Any]:
    """Return until when the first token is due in a lane, and when a request is given up."""
    if lane is None:
        return {"first_token_s": None, "dropped_s": None}
    slo, factor = getattr(settings.lanes, lane).ttft_slo, settings.scheduling.drop_factor
    return {
        "first_token_s": None if factor is None else slo,
        "dropped_s": None if factor is None else _rounded(slo * factor),
        "preset": settings.scheduling.preset,
    }


def choice(standing: Standing | None, backend: str | None, mode: Mode) -> dict[str, Any]:
    """Return the backend, why it is that one, and how all of them stood."""
    if standing is None:
        return {"name": backend, "why": None if backend is None else "not kept", "stood": []}
    stood = [standing.chosen, *standing.others]
    return {
        "name": standing.chosen.name,
        "why": _why(standing, mode),
        "in_flight": standing.chosen.in_flight,
        "cap": standing.chosen.cap,
        "prefill_tokens": standing.chosen.prefill_tokens,
        "prefill_budget": standing.budget_tokens,
        "prefill_s_per_token": _rounded(standing.prefill_s_per_token),
        "stood": [_stood(one) for one in stood],
        "not_listed": standing.more,
    }


def _why(standing: Standing, mode: Mode) -> str:
    if standing.kept:
        return "the beginning of its prompt is in this engine's cache"
    up = [one for one in standing.others if one.up]
    if not up and not standing.more:
        return "the only one that is up and serves the model"
    if mode is not Mode.ENFORCE:
        return f"least outstanding work of {len(up) + standing.more + 1}; mode {mode.value} holds nothing"
    among = len(up) + standing.more + 1
    if any(one.work_s < standing.chosen.work_s - _SAME_S for one in up):
        known = ", with what the caches hold of its beginning" if standing.prefix else ""
        return f"least outstanding work of those of {among} that had room{known}"
    return f"least outstanding work of {among}"


def _stood(one: Stand) -> dict[str, Any]:
    return {
        "name": one.name,
        "up": one.up,
        "in_flight": one.in_flight,
        "cap": one.cap,
        "prefill_tokens": one.prefill_tokens,
        "work_s": _rounded(one.work_s),
    }


def _output(exchange: Exchange) -> dict[str, Any]:
    asked = None if exchange.facts is None else exchange.facts.output.cap
    return {"asked": asked, "sent": exchange.output_cap_sent, "rule": exchange.cap_rule, "made": exchange.output_tokens}


def _would(exchange: Exchange) -> dict[str, Any] | None:
    would = exchange.would
    if would is None:
        return None
    return {
        "decision": None if would.decision is None else would.decision.value,
        "reason": None if would.reason is None else would.reason.value,
        "wait_s": _rounded(would.wait_s),
        "cap": would.cap,
        "cap_rule": would.cap_rule,
    }


def compact(explanation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of the header, in order; what is not known is left out."""
    estimate, lane, backend = explanation["estimate"], explanation["lane"], explanation["backend"]
    output, deadline = explanation["output"], explanation["deadline"]
    counted = estimate.get("counted")
    words: dict[str, Any] = {
        "lane": lane["name"],
        "estimate": estimate["tokens"],
        "counted": counted,
        "classes": ",".join(f"{name}:{tokens}" for name, tokens in estimate["by_class"].items()) or None,
        "exact": 1 if estimate["exact"] else None,
        "wait_ms": _ms(explanation["wait_s"]),
        "deadline_ms": _ms(deadline["first_token_s"]),
        "tenant": explanation["tenant"],
        "priority": explanation["priority"] or None,
        "backend": backend["name"],
        "cap": _of(backend.get("in_flight"), backend.get("cap")),
        "budget": _of(backend.get("prefill_tokens"), backend.get("prefill_budget")),
        "why": (backend["why"] or "").replace(";", ",") or None,
        "parts": explanation["parts"] or None,
        "retries": explanation["retries"] or None,
        "max_tokens": None if output["rule"] is None else f"{output['asked']}->{output['sent']}({output['rule']})",
        "reason": explanation["reason"],
        "mode": explanation["mode"],
        "config": explanation["config"],
    }
    return {key: value for key, value in words.items() if value is not None}


def _of(used: int | None, limit: int | None) -> str | None:
    return None if used is None else f"{used}/{'-' if limit is None else limit}"


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)


def _so_far(exchange: Exchange) -> float | None:
    return None if exchange.granted is None else exchange.granted - exchange.arrived


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def stamp(wall: float) -> str:
    """Return a wall-clock time (Unix seconds) as people write it, UTC, to the microsecond."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

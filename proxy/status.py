"""What an operator asks first, as one document: version, configuration, lanes, backends, budgets, last rejections."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from proxy.backends import Backends, BackendView
from proxy.exchange import Exchange
from proxy.inforce import InForce
from proxy.policy.limiter import Move
from proxy.policy.limits import Mode
from proxy.policy.outcome import Outcome
from proxy.policy.reuse import PrefixReuse
from proxy.policy.snapshot import BackendSnapshot, Snapshot
from proxy.settings import Settings
from proxy.settings.change import with_secrets_of
from proxy.statussettings import ShownSettings

LAST = 20
_REFUSALS = frozenset({Outcome.REJECTED, Outcome.EXPIRED, Outcome.TOO_LONG, Outcome.DRAINING})


class Status:
    """Observer that keeps the last rejections, and builds the status document.

    Args:
        in_force: the configuration in force, or settings that stay.
        snapshot: what the Dispatcher holds now.
        backends: the watched engines.
        would: what would have been done with requests that were only observed, by lane and decision.
        reuse: how much of the prompts repeats; None: nobody counts.
        last_minute: what became of requests in the last minute, per lane.
    """

    def __init__(
        self,
        in_force: InForce | Settings,
        *,
        snapshot: Callable[[], Snapshot],
        backends: Backends,
        would: Callable[[], Mapping[tuple[str, str], int]] = dict,
        reuse: PrefixReuse | None = None,
        last_minute: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self._in_force = InForce(in_force) if isinstance(in_force, Settings) else in_force
        self._snapshot = snapshot
        self._backends = backends
        self._would = would
        self._reuse = reuse
        self._last_minute = last_minute
        self._shown = ShownSettings()
        self.sharing: Callable[[], dict[str, Any] | None] = lambda: None
        """How limits are shared with other proxies; None: they are not."""
        self._started = time.monotonic()
        self._rejections: deque[dict[str, Any]] = deque(maxlen=LAST)

    def observe(self, exchange: Exchange) -> None:
        """Keep a refusal."""
        if exchange.outcome in _REFUSALS:
            self._rejections.append(
                {
                    "at": _stamp(exchange.arrived_wall),
                    "request_id": exchange.request_id,
                    "lane": exchange.lane,
                    "outcome": exchange.outcome.value,
                    "reason": exchange.reason.value if exchange.reason is not None else None,
                    "waited_s": _rounded(exchange.queue_s),
                    "prompt_tokens_estimated": exchange.prompt_tokens_estimated,
                    "detail": exchange.own_detail,
                }
            )

    def not_ready(self) -> str | None:
        """Return why no new requests should be sent here, or None."""
        if self._snapshot().draining:
            return "draining"
        return self._backends.why_none

    def _on_paper(self) -> list[dict[str, Any]]:
        """Return what would have been done since the start, per lane."""
        lanes: dict[str, dict[str, Any]] = {}
        for (lane, decision), count in self._would().items():
            lanes.setdefault(lane, {"lane": lane})[decision] = count
        return list(lanes.values())

    def configuration(self) -> dict[str, Any]:
        """Return the settings in force, ready for JSON; secrets are left out."""
        settings = self._in_force.settings.without_key_digests
        bare = with_secrets_of(settings, settings, hidden=True)
        return {
            "config": self._in_force.sha,
            "generation": self._in_force.generation,
            "settings": bare.model_dump(mode="json"),
        }

    def _reused(self) -> dict[str, Any] | None:
        """Return how much of the prompts began like a recent one; None while nobody counts."""
        if self._reuse is None:
            return None
        repeated, new = self._reuse.repeated, self._reuse.new
        share = _rounded(repeated / (repeated + new)) if repeated + new else None
        return {"repeated_blocks": repeated, "new_blocks": new, "share": share}

    def document(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        snapshot = self._snapshot()
        reason = self.not_ready()
        views = {view.name: view for view in self._backends.views()}
        return {
            "version": version("lanewise"),
            "config": self._in_force.sha,
            "experiment": self._in_force.settings.metrics.experiment,
            "mode": self._in_force.settings.mode.value,
            "preset": self._in_force.settings.scheduling.preset,
            "settings": self._shown.of(self._in_force),
            "why": dict(self._in_force.settings.why),
            "reload": _reload(self._in_force),
            "uptime_s": round(time.monotonic() - self._started, 1),
            "ready": reason is None,
            "reason": reason,
            "draining": snapshot.draining,
            "lanes": [{key: _rounded(value) for key, value in asdict(lane).items()} for lane in snapshot.lanes],
            "backends": [_backend(of, views[of.name]) for of in snapshot.backends],
            "last_minute": self._last_minute(),
            "limit_moves": _moves(snapshot.backends),
            "tenants": [{key: _rounded(value) for key, value in asdict(of).items()} for of in snapshot.tenants],
            "prefix_reuse": self._reused(),
            "sharing": self.sharing(),
            "would": self._on_paper() if self._in_force.settings.mode is Mode.OBSERVE else [],
            "rejections": list(reversed(self._rejections)),
        }


def _reload(in_force: InForce) -> dict[str, Any]:
    return {
        "generation": in_force.generation,
        "since": _stamp(in_force.since),
        "verdict": in_force.verdict,
        "tried_at": _stamp(in_force.tried_at),
        "succeeded": in_force.tried_well,
        "said": list(in_force.said),
        "changed": list(in_force.changed),
    }


def _backend(held: BackendSnapshot, seen: BackendView) -> dict[str, Any]:
    return {
        "name": held.name,
        "url": seen.url,
        "up": seen.serves,
        "state": seen.word,
        "drained": seen.drained,
        "allowed": held.allowed,
        "held_back_s": _rounded(held.held_back_s),
        "failed_in_a_row": seen.failed_in_a_row,
        "last_fault": seen.fault,
        "version": seen.version,
        "models": [{"name": model.name, "max_model_len": model.max_model_len} for model in seen.models],
        "in_flight": held.in_flight,
        "concurrency": held.concurrency,
        "adaptive": held.adaptive,
        "requests": held.requests,
        "prefill_tokens": held.prefill_tokens,
        "prefill_budget": held.prefill_budget,
        "kv_tokens": held.kv_tokens,
        "kv_limit": held.kv_limit,
        "installments": None if held.installments is None else held.installments.value,
        "installment_hit_ratio": _rounded(held.hit_ratio),
        "recomputed_tokens": held.recomputed_tokens,
        "engine_waiting": seen.waiting,
        "engine_running": seen.running,
        "engine_kv_usage": seen.kv_usage,
        "engine_kv_tokens": seen.kv_tokens,
        "engine_metrics_age_s": _rounded(seen.scrape_age_s),
        "probe_age_s": _rounded(seen.probe_age_s),
        "probe_error": seen.error,
        "reported_failures": seen.reported_failures,
    }


def _moves(backends: Iterable[BackendSnapshot]) -> list[dict[str, Any]]:
    """Return the last changes of the concurrency limits, the newest first."""
    moves = sorted(((move, of.name) for of in backends for move in of.limit_moves), key=lambda pair: -pair[0].at)
    ahead = time.time() - time.monotonic()
    return [_move(move, name, ahead) for move, name in moves[:LAST]]


def _move(move: Move, backend: str, ahead: float) -> dict[str, Any]:
    return {
        "at": _stamp(move.at + ahead),
        "backend": backend,
        "before": move.before,
        "after": move.after,
        "cause": move.cause.value,
        "in_flight": move.in_flight,
        "tpot_s": _rounded(move.tpot_s),
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _stamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

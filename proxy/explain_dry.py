"""What would be decided about a body, without an engine; and what a recorded request tells of itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy import accept
from proxy.answers import EndedError, bad_request
from proxy.classification import Classification
from proxy.exchange import Exchange
from proxy.explain import Explanations, deadline_of, stamp
from proxy.inforce import InForce
from proxy.policy.installments import DEFAULT_GRANULARITY, Feed, next_tokens
from proxy.policy.limits import Mode
from proxy.settings import Settings
from proxy.wire import trace
from proxy.wire.paths import Route, route
from proxy.wire.trace import Record

_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "pooling": "/pooling",
}


class NothingFoundError(Exception):
    """There is nothing to explain; the text says why."""


def dry_run(
    settings: Settings, body: bytes, endpoint: str, context: int | None, learned: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Decide about a body as the proxy would under these settings, with nobody else there.

    Args:
        settings: the configuration.
        body: of the request.
        endpoint: `chat`, `completions`, `responses`, `messages`, `embeddings`, `pooling`, or the path itself.
        context: the model's `max_model_len`, where known.
        learned: what a proxy has learned of lengths; None: the start values hold.

    Returns:
        The explanation, of the shape that a finished request has.

    Raises:
        NothingFoundError: there is no such endpoint.
    """
    asked = _route(endpoint)
    room = Classification(settings.to_lane_policies(), lambda _model: context, want_blocks=False)
    room.rules = settings.to_length_policies()
    if learned:
        room.estimator.restore(learned)
    exchange = Exchange("dry-run", 0.0, 0.0, config=settings.hash, mode=Mode.ENFORCE, endpoint=asked.endpoint)
    exchange.body, exchange.request_bytes = body, len(body)
    try:
        if len(body) > settings.limits.body:
            raise bad_request(_over(settings.limits.body, len(body)), status=413, code="too_large")
        room.enter(exchange, asked, accept.parse_object(body))
    except EndedError as ended:
        exchange.outcome, exchange.reason, exchange.status = ended.outcome, ended.reason, ended.status
        exchange.detail = ended.message
    told = Explanations(InForce(settings), room.estimator).of(exchange)
    ticket = exchange.ticket
    budget = settings.scheduling.prefill_budget_tokens
    return {
        **told,
        "arrived": None,
        "backend": {
            "name": None,
            "why": "decided when an engine has room",
            "cap": max(one.concurrency or settings.scheduling.concurrency for one in settings.backends),
            "prefill_budget": budget,
            "stood": [],
        },
        "parts": 0 if ticket is None or not ticket.splittable else _parts(settings, ticket.prompt_tokens),
        "sequences": None if ticket is None else ticket.sequences,
    }


def from_record(settings: Settings | None, record: Record) -> dict[str, Any]:
    """Return what a record says of the decisions; what was not recorded is None."""
    return {
        "request_id": record.request_id,
        "arrived": stamp(record.arrived_s),
        "config": record.config,
        "mode": record.mode or Mode.ENFORCE.value,
        "endpoint": record.endpoint,
        "model": record.model,
        "tenant": record.tenant,
        "priority": {"high": -1, "low": 1}.get(record.priority or "", 0),
        "estimate": {
            "tokens": record.prompt_tokens_estimated,
            "exact": False,
            "by_class": {},
            "counted": None,
            "actual": record.prompt_tokens,
            "cached": record.cached_tokens,
        },
        "lane": {"name": record.lane, "why": "as recorded"},
        "output": {
            "asked": record.output_cap,
            "sent": record.output_cap_sent,
            "rule": None if record.output_cap_sent is None else "recorded",
            "made": record.output_tokens,
        },
        "deadline": _recorded_deadline(settings, record),
        "wait_s": record.queue_s,
        "backend": {"name": record.backend, "why": "not recorded" if record.backend else None, "stood": []},
        "parts": record.parts or 0,
        "attempts": record.attempts,
        "retries": max(0, record.attempts - 1),
        "duplicate": None,
        "outcome": record.outcome,
        "reason": record.reason,
        "phase": record.phase,
        "status": record.status,
        "detail": "",
        "would": None
        if record.would is None
        else {
            "decision": record.would,
            "reason": None,
            "wait_s": record.would_wait_s,
            "cap": record.would_cap,
            "cap_rule": None,
        },
        "times_s": {"first_token": record.first_token_s, "per_output_token": None, "total": record.end_s},
    }


def find_record(path: Path, request_id: str) -> Record:
    """Return the latest record of a request in a trace file, or in a directory of them.

    Raises:
        NothingFoundError: it is not there.
        OSError: the trace cannot be read.
        trace.TraceError: a line with that id is no trace record; the text says where.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    wanted = json.dumps(request_id, ensure_ascii=False).encode()
    for file in reversed(files):
        with file.open("rb") as lines:
            found = [(number, line) for number, line in enumerate(lines, 1) if wanted in line]
        for number, line in reversed(found):
            record = trace.decode(line, f"{file}:{number}")
            if record.request_id == request_id:
                return record
    raise NothingFoundError(f"{path} has no record of a request {request_id!r}")


def _route(endpoint: str) -> Route:
    found = route("POST", _PATHS.get(endpoint, endpoint))
    if not isinstance(found, Route) or not found.queued:
        raise NothingFoundError(f"--endpoint {endpoint}: allowed: {', '.join(_PATHS)}, or a path such as /v1/rerank")
    return found


def _over(limit: int, size: int) -> str:
    return f"the body has {size} bytes and at most {limit} are allowed (limits.body)"


def _parts(settings: Settings, tokens: int) -> int:
    """Return how many parts a prompt would go in before its own request, where the prefix cache works."""
    limits = settings.to_scheduling().installments
    if limits is None or tokens <= settings.lanes.short.max_prompt_tokens:
        return 0
    feed, parts = Feed(), 0
    while (size := next_tokens(tokens, feed, DEFAULT_GRANULARITY, limits)) < tokens - feed.done:
        feed.done += size
        feed.part += 1
        parts += 1
    return parts


def _recorded_deadline(settings: Settings | None, record: Record) -> dict[str, Any]:
    if settings is None or settings.hash != record.config:
        why = f"not recorded: give configuration {record.config or '-'}, which it began under, with --config"
        return {"first_token_s": None, "dropped_s": None, "why": why}
    return deadline_of(settings, record.lane)

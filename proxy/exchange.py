"""The one record of one request: each room fills its own part once, the last room reads all of it.

Stamps are monotonic seconds (`time.monotonic`); a stamp is None until its moment came. The single wall-clock value is
`arrived_wall`, for the trace record.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from proxy.policy.limits import Mode
from proxy.policy.outcome import Ending, Outcome, Phase, Reason
from proxy.policy.shadow import Would
from proxy.policy.standing import Standing
from proxy.policy.ticket import Ticket
from proxy.wire.facts import Endpoint, Facts
from proxy.wire.parts import ToldUsage
from proxy.wire.trace import Record
from proxy.wire.usage import Usage


class UpstreamError(StrEnum):
    """What went wrong between us and a backend; the `kind` label of the metric."""

    CONNECT = "connect"
    """No connection: refused, unreachable, or the connect time-out passed."""
    RESET = "reset"
    """The connection died before the head of the answer."""
    TIMEOUT = "timeout"
    """No first byte in time, or a stream that fell silent."""
    PROTOCOL = "protocol"
    """Bytes that are no HTTP answer: garbage, conflicting lengths, an oversized head."""
    HTTP_4XX = "http_4xx"
    """The engine refused: 429."""
    HTTP_5XX = "http_5xx"
    STREAM_ERROR = "stream_error"
    """An error frame inside a stream that began with 200."""
    TRUNCATED_STREAM = "truncated_stream"
    """The answer ended before its end."""


_CLASSES = {-1: "high", 1: "low"}
_SAID = {
    UpstreamError.RESET: "the engine closed the connection before it answered",
    UpstreamError.TIMEOUT: "the engine did not answer in time",
    UpstreamError.PROTOCOL: "the engine's answer could not be understood",
    UpstreamError.HTTP_4XX: "the engine refused the request",
    UpstreamError.HTTP_5XX: "the engine failed",
    UpstreamError.STREAM_ERROR: "the engine ended its stream with an error",
    UpstreamError.TRUNCATED_STREAM: "the engine's answer ended before its end",
}


@dataclass(slots=True)
class Exchange:
    """Everything about one request, from its head to its last byte."""

    request_id: str
    arrived: float
    """Head read, monotonic seconds."""
    arrived_wall: float
    """The same moment as Unix seconds."""

    config: str | None = None
    """Hash of the configuration that it began under."""
    mode: Mode = Mode.ENFORCE
    would: Would | None = None
    """What would have been done with it; only under observe."""

    tenant: str | None = None
    """Label of who sends it; None while tenants do not matter."""
    client: str | None = None
    """Address of the client, where the log is to say it; otherwise None."""
    priority: int = 0
    """Its class: -1 high, 0 normal, 1 low."""
    fingerprint: bytes | None = None
    """What an identical request would have too; only where duplicates are looked for."""
    duplicate: str | None = None
    """What was done about it while an identical one was in flight: `observed` or `rejected`."""
    damped: bool = False
    """It was refused, and told to stay away longer because it had come back too early."""

    # accept
    endpoint: Endpoint = Endpoint.UTILITY
    method: str = ""
    path: str = ""
    """The path that goes upstream: a constant of the allow-list, "" for a request that matched none."""
    request_bytes: int = 0
    """Body bytes as they came from the client."""
    body: bytes = b""

    # classify
    facts: Facts | None = None
    lane: str | None = None
    prompt_tokens_estimated: int | None = None
    output_cap_sent: int | None = None
    """Output cap that the engine was asked for, when a rule of ours set it."""
    cap_rule: str | None = None
    """Which rule set it (metric label)."""
    asked_usage: bool = False
    """We asked for the usage event and take it out of the stream again."""

    # admit
    ticket: Ticket | None = None
    offered: float | None = None
    """Asked the Dispatcher."""
    granted: float | None = None
    """The grant that its engine began with: of a prompt fed in parts the first part's."""
    final_granted: float | None = None
    """The grant of its own request, when parts of its prompt went before it."""
    backend: str | None = None
    attempts: int = 0
    """Times the request was given to a backend."""
    retries: int = 0
    """Attempts beyond the first that were safe to make."""
    retry_refused: bool = False
    """One more would have been safe, and the budget of the proxy had none left."""

    standing: Standing | None = None
    """How the backends stood at its last grant; None: never granted, or nobody asks for explanations."""
    explained: bool = False
    """Its answer says what was decided."""

    # feed
    parts: int = 0
    """Parts of its prompt that were sent before it."""
    tokenize_s: float = 0.0
    """Waited for the engine to say the token ids of its prompt."""
    told: ToldUsage | None = None
    """What the client is told about the prefix cache instead of what the engine says; None: what the engine says."""

    # relay
    sent: float | None = None
    """The whole request was handed to the upstream connection."""
    head: float | None = None
    """Status and headers of the engine's answer."""
    first_token: float | None = None
    last_token: float | None = None
    token_events: int = 0
    """Stream events that carried output; not tokens: engines merge."""
    usage: Usage | None = None
    """Token counts as the engine reported them."""
    finish_reason: str | None = None
    answered: float | None = None
    """Last byte from the engine."""
    upstream_status: int | None = None
    upstream_error: UpstreamError | None = None
    response_bytes: int = 0
    """Body bytes given to the client, as payload (without chunk framing)."""
    hash_ids: tuple[str, ...] | None = None
    """Hashes of the blocks of its prompt, where the recorder made them before its end."""

    # the ending
    status: int | None = None
    """Status sent to the client."""
    outcome: Outcome | None = None
    reason: Reason | None = None
    phase: Phase | None = None
    ending: Ending = Ending.IGNORED
    """What it tells the limiter."""
    detail: str = ""
    """One sentence for people about what ended it."""
    ended: float | None = None

    span: Any = None
    """Its span, until that has ended; None: it is not traced. See `proxy.tracing`."""

    @property
    def model(self) -> str | None:
        """Model the body names."""
        return self.facts.model if self.facts is not None else None

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self.facts is not None and self.facts.stream

    @property
    def queue_s(self) -> float | None:
        """Seconds from arrival to the grant; of a request that was never granted: to its end."""
        until = self.granted if self.granted is not None else self.ended
        return None if self.offered is None or until is None else until - self.arrived

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token event."""
        return self._since_arrival(self.first_token)

    @property
    def upstream_ttft_s(self) -> float | None:
        """Seconds from the grant to the first token event."""
        if self.first_token is None or self.granted is None:
            return None
        return self.first_token - self.granted

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first: (last - first) / (n - 1)."""
        count = self.output_tokens
        if self.first_token is None or self.last_token is None or count is None or count < 2:
            return None
        return (self.last_token - self.first_token) / (count - 1)

    @property
    def total_s(self) -> float | None:
        """Seconds from arrival to the end."""
        return self._since_arrival(self.ended)

    @property
    def overhead_s(self) -> float | None:
        """Our own seconds: neither queued nor waiting for the engine. None when no engine answered."""
        granted = self.granted if self.final_granted is None else self.final_granted
        offered, sent, answered, ended = self.offered, self.sent, self.answered, self.ended
        if offered is None or granted is None or sent is None or answered is None or ended is None:
            return None
        return (offered - self.arrived - self.tokenize_s) + (sent - granted) + max(0.0, ended - answered)

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt length from the engine's `usage`."""
        return self.usage.prompt_tokens if self.usage is not None else None

    @property
    def output_tokens(self) -> int | None:
        """Output length from the engine's `usage`, else the number of token events, else None."""
        if self.usage is not None and self.usage.completion_tokens is not None:
            return self.usage.completion_tokens
        return self.token_events or None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the engine's prefix cache."""
        return self.usage.cached_tokens if self.usage is not None else None

    @property
    def own_detail(self) -> str:
        """`detail`, where lanewise has worded it: what an engine says in an error may quote the prompt."""
        if self.upstream_error is UpstreamError.CONNECT:
            return self.detail
        if self.upstream_error is not None:
            return _SAID.get(self.upstream_error, "")
        if self.upstream_status is not None and self.upstream_status >= 400:
            return f"the engine answered {self.upstream_status}"
        return self.detail

    def say_what_was_told(self) -> None:
        """Let its usage say what the client was told about the prefix cache."""
        if self.told is not None and self.usage is not None and self.usage.cached_tokens is not None:
            self.usage = self.usage._replace(cached_tokens=self.told.cached)

    def _since_arrival(self, stamp: float | None) -> float | None:
        return None if stamp is None else stamp - self.arrived


def to_record(
    exchange: Exchange,
    *,
    block_tokens: int | None = None,
    hash_ids: tuple[str, ...] = (),
    config: str | None = None,
    text: str | None = None,
) -> Record:
    """Turn a finished exchange into its trace record.

    Args:
        exchange: the request, after its ending was set.
        block_tokens: size of one hashed prefix block, in tokens.
        hash_ids: salted chain hashes of the prompt's blocks.
        config: hash of the configuration in force, where the exchange knows none.
        text: the request body, only when the operator asked for it.
    """
    fields: dict[str, Any] = {"model": None, "lane": None}
    fields |= record_fields(exchange, block_tokens=block_tokens, hash_ids=hash_ids, config=config, text=text)
    return Record(**fields)


def record_fields(
    exchange: Exchange,
    *,
    block_tokens: int | None = None,
    hash_ids: tuple[str, ...] = (),
    config: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """Return the fields of a trace record that are known, in its order; the arguments are those of `to_record`.

    A dict, because it is made for every request: a `Record` of as many fields costs several times as much. It reads
    nothing that changes after the last room, so another thread may call it.
    """
    facts, usage, arrived = exchange.facts, exchange.usage, exchange.arrived
    fields: dict[str, Any] = {
        "arrived_s": exchange.arrived_wall,
        "request_id": exchange.request_id,
        "endpoint": exchange.endpoint._value_,
    }
    if facts is not None and facts.model is not None:
        fields["model"] = facts.model
    if exchange.lane is not None:
        fields["lane"] = exchange.lane
    fields["outcome"] = (exchange.outcome or Outcome.BACKEND_ERROR)._value_
    if exchange.reason is not None:
        fields["reason"] = exchange.reason._value_
    if exchange.phase is not None:
        fields["phase"] = exchange.phase._value_
    if exchange.status is not None:
        fields["status"] = exchange.status
    fields["stream"] = facts is not None and facts.stream
    fields["sequences"] = 1 if facts is None else facts.sequences
    if exchange.prompt_tokens_estimated is not None:
        fields["prompt_tokens_estimated"] = exchange.prompt_tokens_estimated
    if usage is not None and usage.prompt_tokens is not None:
        fields["prompt_tokens"] = usage.prompt_tokens
    if usage is not None and usage.cached_tokens is not None:
        fields["cached_tokens"] = usage.cached_tokens
    if (output_tokens := exchange.output_tokens) is not None:
        fields["output_tokens"] = output_tokens
        counted = usage is not None and usage.completion_tokens is not None
        fields["output_source"] = "usage" if counted else "events"
    if facts is not None and facts.output.cap is not None:
        fields["output_cap"] = facts.output.cap
    if exchange.output_cap_sent is not None:
        fields["output_cap_sent"] = exchange.output_cap_sent
    if exchange.finish_reason is not None:
        fields["finish_reason"] = exchange.finish_reason
    if exchange.backend is not None:
        fields["backend"] = exchange.backend
    fields["attempts"] = exchange.attempts
    if exchange.parts:
        fields["parts"] = exchange.parts
    if (queue_s := exchange.queue_s) is not None:
        fields["queue_s"] = queue_s
    if exchange.first_token is not None:
        fields["first_token_s"] = exchange.first_token - arrived
    if exchange.last_token is not None:
        fields["last_token_s"] = exchange.last_token - arrived
    if exchange.ended is not None:
        fields["end_s"] = exchange.ended - arrived
    fields["request_bytes"] = exchange.request_bytes
    fields["response_bytes"] = exchange.response_bytes
    if block_tokens is not None:
        fields["block_tokens"] = block_tokens
    if hash_ids:
        fields["hash_ids"] = hash_ids
    if (sha := exchange.config or config) is not None:
        fields["config"] = sha
    if exchange.mode is not Mode.ENFORCE:
        fields["mode"] = exchange.mode._value_
    if exchange.would is not None:
        _add_would(fields, exchange.would)
    if exchange.tenant is not None:
        fields["tenant"] = exchange.tenant
    if exchange.priority in _CLASSES:
        fields["priority"] = _CLASSES[exchange.priority]
    if text is not None:
        fields["text"] = text
    return fields


def _add_would(fields: dict[str, Any], would: Would) -> None:
    if would.decision is not None:
        fields["would"] = would.decision._value_
    if would.wait_s is not None:
        fields["would_wait_s"] = would.wait_s
    if would.cap is not None:
        fields["would_cap"] = would.cap

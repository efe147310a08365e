"""The corridor: one coroutine that opens the doors in order, and decides nothing itself.

accept → classify → admit → relay → account. A room ends a request by raising `EndedError`; the last room always runs.
The one way back: a connection that failed before a byte was sent gives its grant back, and the ticket waits once more.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from proxy import accept, answers
from proxy.account import Account
from proxy.admission import Admission, RefusedError, Turn
from proxy.answers import EndedError
from proxy.attempt import ClientStalledError, Engines, NotSentError, Outgoing
from proxy.classification import Classification
from proxy.clienthead import ClientHead
from proxy.delivery import ClientSide
from proxy.exchange import Exchange
from proxy.explain import Explanations
from proxy.feeding import Feeding, SplitPrompt
from proxy.forwarding import Forwarding
from proxy.keys import Keyring, admit
from proxy.lengths import ExactLengths
from proxy.listener import CLOSE, KEEP, ClientConnection, head_bytes
from proxy.modes import Modes
from proxy.policy.limits import Mode
from proxy.policy.outcome import Outcome, Phase, Reason
from proxy.policy.shadow import Decision, Would
from proxy.policy.ticket import Grant
from proxy.relay import Patience
from proxy.repeats import Repeats
from proxy.requestids import RequestIds
from proxy.tenancy import Tenancy
from proxy.tracing import Spans, with_fields
from proxy.wire import headers

_log = logging.getLogger("lanewise")


@dataclass(frozen=True, slots=True)
class HandlerLimits:
    """What the corridor itself enforces."""

    body_bytes: int
    body_s: float
    """For the whole body to arrive."""
    patience: tuple[Patience, ...]
    """Per lane, for a stream."""
    answer: Patience
    """For an answer that is not streamed, and for requests without a lane."""
    read_s: float
    """How long a client may leave a whole answer unread before it is cut off."""
    id_header: str
    """Header of the request id, lower case."""
    modes: Modes = field(default_factory=Modes)
    config: str | None = None
    """Hash of the configuration that all this comes from."""
    keys: Keyring | None = None
    """Keys that requests need; None: they need none."""
    forwarding: Forwarding = field(default_factory=Forwarding)
    log_client: bool = False
    """Let the log say the address of a client."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the corridor leads through."""

    classification: Classification
    admission: Admission
    engines: Engines
    feeding: Feeding
    account: Account
    reachable: Callable[[], Iterable[str]]
    """Names of the backends that are up, the one to try first in front."""
    tenancy: Tenancy
    repeats: Repeats
    explanations: Explanations
    exact: ExactLengths
    spans: Spans | None = None
    """None: nothing is traced."""


class Corridor:
    """Serves requests. Called by the listener for each request whose head is complete."""

    def __init__(self, rooms: Rooms, limits: HandlerLimits) -> None:
        self._rooms = rooms
        self._limits = limits
        self._id_header = limits.id_header.encode("ascii")
        self._ids = RequestIds()
        self.draining = False
        """Refuse what comes from now on."""
        self.active = 0
        """Requests between their first and their last room."""
        self.quiet = asyncio.Event()
        """Set while none is active."""
        self.quiet.set()

    def configure(self, limits: HandlerLimits) -> None:
        """Take new limits: for requests that come from now on, and for what is still to be limited in the others."""
        self._limits = limits
        self._id_header = limits.id_header.encode("ascii")

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        exchange = self._open(request)
        client = self._client(request, exchange)
        if not self.active:
            self.quiet.clear()
        self.active += 1
        try:
            keep = await self._walk(request, exchange, client)
        except EndedError as ended:
            self._rooms.repeats.damp(request, exchange, ended)
            keep = self._answer(exchange, client, ended)
        except ClientStalledError:
            self._client_left(exchange)
            _abort(client)
            keep = False
        except asyncio.CancelledError:
            self._client_left(exchange)
            raise
        except Exception:  # noqa: BLE001 - a fault of ours ends one request, and says so
            _log.exception("request %s failed", exchange.request_id)
            keep = self._failed(exchange, client)
        finally:
            self._close(exchange)
            self.active -= 1
            if not self.active:
                self.quiet.set()
        if client.connection.writing_paused:
            await client.connection.drained(self._limits.read_s)
        return KEEP if keep else CLOSE

    def refuse(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.StreamResponse:
        """Answer bytes that aiohttp's parser did not take for a request; the connection closes."""
        connection = request.protocol
        assert isinstance(connection, ClientConnection)
        exchange = self._open(request)
        client = ClientSide(connection, http10=False, keep_alive=False, headers=self._id_field(exchange))
        self._answer(exchange, client, _unparsed(status, error, connection))
        self._close(exchange)
        return CLOSE

    async def _walk(self, request: web.BaseRequest, exchange: Exchange, client: ClientSide) -> bool:
        limits, rooms = self._limits, self._rooms
        if rooms.spans is not None:
            rooms.spans.begin(exchange, request.raw_headers)
        head = client.connection.head
        if head is None or head.under is not limits or not head.covers(request):
            head = client.connection.head = self._read_head(request, exchange)
        route = head.route
        exchange.endpoint, exchange.path = route.endpoint, route.upstream_path
        exchange.client, exchange.mode, exchange.explained = head.client, head.mode, head.explained
        body = accept.body_at_hand(request, limits.body_bytes)
        if body is None:
            body = await accept.read_body(request, limits.body_bytes, limits.body_s)
        exchange.body = body
        exchange.request_bytes = len(body)
        if self.draining:
            raise _draining()
        if not route.queued:
            return await self._pass_through(exchange, client, head.fields)
        document = self._document(exchange)
        if document is None:
            return await self._pass_through(exchange, client, head.fields)
        if head.tenant == "":
            head.tenant = rooms.tenancy.tenant(request)
        exchange.tenant = head.tenant
        exchange.priority = rooms.tenancy.priority(request, exchange.tenant, document.get("priority"))
        ticket, body = rooms.classification.enter(exchange, route, document)
        rooms.repeats.begin(request, exchange)
        outgoing = _outgoing(exchange, body, head.fields)
        client = _with_clamp(client, exchange)
        if rooms.exact.wants(ticket, exchange.facts) and not rooms.feeding.would_split(ticket):
            ticket = await rooms.exact.refine(exchange, ticket, outgoing)
        split = None
        if ticket.splittable:
            ticket, split = await rooms.feeding.prepare(exchange, ticket, document, outgoing)
        del document, body  # this frame lives as long as the stream
        exchange.offered = time.monotonic()
        async with rooms.admission.turn(ticket, exchange.would) as turn:
            try:
                return await self._run(exchange, outgoing, client, turn, split)
            finally:
                turn.ending = exchange.ending
                turn.output_tokens, turn.cached_tokens = exchange.output_tokens, exchange.cached_tokens
                exchange.say_what_was_told()

    def _read_head(self, request: web.BaseRequest, exchange: Exchange) -> ClientHead:
        """Read a head that is another than the one before it on its connection.

        Raises:
            EndedError: it is not acceptable.
        """
        limits = self._limits
        route = accept.check_head(request)
        exchange.endpoint, exchange.path = route.endpoint, route.upstream_path
        if limits.log_client:
            exchange.client = limits.forwarding.client(request)
        if limits.keys is not None:
            admit(limits.keys, request)
        return ClientHead(
            request,
            limits,
            route=route,
            mode=limits.modes.of(request),
            explained=self._rooms.explanations.asked(request),
            fields=headers.UpstreamFields(request.raw_headers, limits.forwarding.peer(request)),
            client=exchange.client,
        )

    @staticmethod
    def _document(exchange: Exchange) -> dict[str, Any] | None:
        """Return the decoded body; None when it cannot be decoded and that is for the engine to say."""
        try:
            return accept.parse_object(exchange.body)
        except EndedError:
            if exchange.mode is Mode.ENFORCE:
                raise
        if exchange.mode is Mode.OBSERVE:
            exchange.would = Would(Decision.INVALID, Reason.INVALID)
        return None

    async def _run(
        self, exchange: Exchange, outgoing: Outgoing, client: ClientSide, turn: Turn, split: SplitPrompt | None
    ) -> bool:
        """Wait for a grant, use it: for parts of a long prompt first, then for the request itself.

        When no connection could be made, the grant is given back and the ticket waits once more.
        """
        limits = self._limits
        hurried = turn.ticket.streams and not turn.ticket.at_once
        patience = limits.patience[turn.ticket.lane] if hurried else limits.answer
        while True:
            try:
                grant = await turn.grant()
            except RefusedError as refused:
                depth = self._rooms.admission.waiting[turn.ticket.lane]
                raise answers.refused(refused.refuse, depth) from None
            self._note_grant(exchange, grant)
            if grant.part == 0:
                outgoing.rank = None
            explanations = self._rooms.explanations
            if explanations.wanted or exchange.explained:
                exchange.standing = self._rooms.admission.dispatcher.standing(turn.ticket.id)
            if split is not None and not grant.final:
                await self._rooms.feeding.feed(exchange, split, grant, turn, outgoing)
                continue
            told = client
            if exchange.explained:
                told = replace(client, headers=(*client.headers, explanations.field(exchange)))
            try:
                return await self._rooms.engines.attempt(exchange, outgoing, told, patience, turn.first_token)
            except NotSentError:
                exchange.retries += 1
                turn.give_back()

    @staticmethod
    def _note_grant(exchange: Exchange, grant: Grant) -> None:
        now = time.monotonic()
        exchange.backend = grant.backend
        if grant.part == 0:
            exchange.granted, exchange.final_granted = now, None
        elif grant.final:
            exchange.final_granted = now

    async def _pass_through(self, exchange: Exchange, client: ClientSide, fields: headers.UpstreamFields) -> bool:
        """Serve a request that needs no lane: the first backend that can be reached answers."""
        rooms, outgoing = self._rooms, _outgoing(exchange, exchange.body, fields)
        for name in rooms.reachable():
            exchange.backend = name
            try:
                return await rooms.engines.attempt(exchange, outgoing, client, self._limits.answer, _nothing)
            except NotSentError:
                exchange.retries += 1
        raise EndedError(
            Outcome.REJECTED, 503, Reason.NO_BACKEND.value, "no backend is up", Reason.NO_BACKEND, retry_after_s=5.0
        )

    def _open(self, request: web.BaseRequest) -> Exchange:
        request_id = None
        if self._limits.id_header in request.headers:
            wanted = headers.header(request.raw_headers, self._id_header) or b""
            request_id = headers.client_request_id(((b"x-request-id", wanted),))
        return Exchange(
            request_id or self._ids.next(),
            time.monotonic(),
            time.time(),
            method=request.method,
            config=self._limits.config,
        )

    def _client(self, request: web.BaseRequest, exchange: Exchange) -> ClientSide:
        connection = request.protocol
        assert isinstance(connection, ClientConnection)
        return ClientSide(
            connection=connection,
            http10=request.version < (1, 1),
            keep_alive=request.keep_alive and not self.draining,
            headers=self._id_field(exchange),
        )

    def _id_field(self, exchange: Exchange) -> answers.Fields:
        return ((self._id_header, exchange.request_id.encode("ascii")),)

    def _answer(self, exchange: Exchange, client: ClientSide, ended: EndedError) -> bool:
        """Write an answer of ours; return whether the connection stays."""
        exchange.outcome, exchange.reason, exchange.ending = ended.outcome, ended.reason, ended.ending
        exchange.detail = exchange.detail or ended.message
        exchange.status = ended.status
        keep = client.keep_alive and not ended.close
        answer = answers.build(exchange, ended, random.random())
        fields = (*answer.headers, *client.headers)
        if exchange.explained:
            fields = (*fields, self._rooms.explanations.field(exchange))
        transport = client.connection.transport
        if transport is not None:
            head = head_bytes(answer.status, fields, keep_alive=keep, http10=client.http10)
            transport.write(head if exchange.method == "HEAD" else head + answer.body)
        return keep

    def _failed(self, exchange: Exchange, client: ClientSide) -> bool:
        """End a request over a fault of ours."""
        exchange.outcome = Outcome.BACKEND_ERROR
        if exchange.status is not None:
            _abort(client)
            return False
        message = "lanewise failed to serve this request; its log says why"
        return self._answer(exchange, client, EndedError(Outcome.BACKEND_ERROR, 500, "internal", message, close=True))

    def _client_left(self, exchange: Exchange) -> None:
        exchange.outcome, exchange.reason = Outcome.CLIENT_GONE, None
        if exchange.granted is None:
            exchange.phase = Phase.QUEUED
        else:
            exchange.phase = Phase.PREFILL if exchange.first_token is None else Phase.DECODE

    def _close(self, exchange: Exchange) -> None:
        exchange.ended = time.monotonic()
        self._rooms.repeats.end(exchange)
        self._rooms.account.close(exchange)


def _outgoing(exchange: Exchange, body: bytes, fields: headers.UpstreamFields) -> Outgoing:
    if exchange.span is not None:
        fields = headers.UpstreamFields(with_fields(fields.raw, exchange.span), fields.peer)
    return Outgoing(exchange.method, exchange.path, body, fields)


def _with_clamp(client: ClientSide, exchange: Exchange) -> ClientSide:
    """Say in the answer that the output cap was lowered."""
    if exchange.output_cap_sent is None or exchange.facts is None:
        return client
    asked = exchange.facts.output.cap
    said = f"{'none' if asked is None else asked}->{exchange.output_cap_sent}".encode("ascii")
    return replace(client, headers=(*client.headers, (b"x-lanewise-max-tokens-clamped", said)))


def _draining() -> EndedError:
    message = "the proxy is shutting down"
    return EndedError(
        Outcome.DRAINING, 503, Reason.DRAINING.value, message, Reason.DRAINING, retry_after_s=1.0, close=True
    )


def _unparsed(status: int, error: BaseException | None, connection: ClientConnection) -> EndedError:
    if "Too many headers" in str(error):
        status = 431
    elif isinstance(error, LineTooLong):
        line = error.args[1] == connection.max_line_size != connection.max_field_size
        status = 414 if line else 431
    message = "this is no request that HTTP/1.1 allows"
    return answers.bad_request(message, status=status, close=True)


def _abort(client: ClientSide) -> None:
    transport = client.connection.transport
    if transport is not None:
        transport.abort()


def _nothing() -> None:
    """Take no note of a first token: nobody waits for this budget."""

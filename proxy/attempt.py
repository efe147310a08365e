"""Giving a request to a backend: a warm connection or a new one, and the one retry that is safe.

A request is sent a second time, once, only when the first time came to nothing before an engine had read it: when no
connection could be made (then perhaps to another backend), or when a connection that had served before died without one
byte of the answer. A budget for the whole proxy bounds how often. Everything else is told to the client.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from proxy.answers import EndedError
from proxy.delivery import ClientSide
from proxy.evidence import Reports, report, report_answer, report_broken
from proxy.exchange import Exchange, UpstreamError
from proxy.pace import Pace
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.retries import RetryBudget
from proxy.relay import Patience, Relay, Stopped
from proxy.upstream.call import Answer, Call
from proxy.upstream.connection import Broken
from proxy.upstream.pool import ConnectError, Pool
from proxy.wire import headers

_ENDINGS = {
    UpstreamError.TIMEOUT: (Outcome.BACKEND_TIMEOUT, 504),
    UpstreamError.TRUNCATED_STREAM: (Outcome.TRUNCATED, 502),
}
_SENTENCES = {
    UpstreamError.TIMEOUT: "the engine did not answer in time",
    UpstreamError.TRUNCATED_STREAM: "the engine's answer ended before its end",
    UpstreamError.PROTOCOL: "the engine's answer could not be understood",
    UpstreamError.RESET: "the engine closed the connection before it answered",
}
"""What a client is told: never bytes of the engine."""


_JOIN_BYTES = 16 * 1024
"""A body up to this size is copied behind its head: one buffer costs the kernel less than two."""


class NotSentError(Exception):
    """Not one byte of the request reached the backend."""


class UnansweredError(Exception):
    """A request of our own got no whole answer."""

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken.detail)
        self.broken = broken


class ClientStalledError(Exception):
    """The client stopped reading its answer."""


@dataclass(slots=True)
class Outgoing:
    """A request as the engine gets it."""

    method: str
    path: str
    body: bytes
    fields: headers.UpstreamFields
    rank: int | None = None
    """Data-parallel engine behind the backend's address that it goes to; None: whichever takes it."""

    def parts(self, authority: str, request_id: str, key: str | None = None) -> tuple[bytes, ...]:
        """Return head and body as they go on the wire, the engine's own key in place of the client's."""
        line = f"{self.method} {self.path} HTTP/1.1\r\n".encode("ascii")
        rank = b"" if self.rank is None else b"X-data-parallel-rank: %d\r\n" % self.rank
        fields, known_as = self.fields.lines(authority, key), request_id.encode("ascii")
        if self.method != "POST":
            return (b"%b%bX-Request-Id: %b\r\n%b\r\n" % (line, fields, known_as, rank),)
        body = self.body
        size = len(body)
        head = b"%b%bX-Request-Id: %b\r\nContent-Length: %d\r\n%b\r\n" % (line, fields, known_as, size, rank)
        return (head, body) if size > _JOIN_BYTES else (head + body,)


class Engines:
    """Sends requests to backends by name.

    Args:
        pools: connections of each backend.
        reports: told what each attempt says about its backend.
        paces: where the streams of each backend are measured; a backend that is not in it is not.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        reports: Reports | None = None,
        paces: Mapping[str, Pace] | None = None,
    ) -> None:
        self.pools = pools
        self._reports = reports or Reports()
        self._budget = RetryBudget()
        self._stale_connections = True
        self._paces = {} if paces is None else paces
        self.keep_bodies = False
        """Somebody reads the bodies of requests that are over."""
        self.on_stream: Callable[[Exchange], None] = _nothing
        """Told of each request whose stream begins."""
        self._relays: set[Relay] = set()
        self._calls: set[Call] = set()

    def configure(self, *, retry_ratio: float, retry_floor: int, stale_connections: bool) -> None:
        """Take when a request may be sent again.

        Args:
            retry_ratio: retries for each request of the last seconds.
            retry_floor: retries beside those.
            stale_connections: also when a warm connection died.
        """
        self._budget.configure(retry_ratio, retry_floor)
        self._stale_connections = stale_connections

    def close(self) -> None:
        """Close all idle connections, and the others as they become idle."""
        for pool in self.pools.values():
            pool.close()

    def stop_all(self) -> int:
        """End every relay and call that runs, because the time to drain is over; return how many."""
        running, calls = list(self._relays), list(self._calls)
        for relay in running:
            relay.stop(Stopped.DRAINED)
        for call in calls:
            call.stop()
        return len(running) + len(calls)

    async def attempt(
        self,
        exchange: Exchange,
        outgoing: Outgoing,
        client: ClientSide,
        patience: Patience,
        on_first_token: Callable[[], None],
    ) -> bool:
        """Give the request to `exchange.backend` and relay its answer.

        Returns:
            Whether the client's connection stays.

        Raises:
            NotSentError: no connection could be made; the request may go to another backend.
            EndedError: the engine failed, and nothing was sent to the client yet; or no connection could be made, and
                it may not be tried again.
            ClientStalledError: the client does not read.
        """
        name = exchange.backend or ""
        began = time.monotonic()
        if not exchange.retries:
            self._budget.request(began)
        if self._reports.on_trial(name):
            on_first_token = self._telling(name, began, on_first_token)
        single = exchange.ticket is not None and exchange.ticket.sequences == 1  # others mix their tokens in one stream
        pace = self._paces.get(name) if single else None
        on_stream = partial(self._let_go, outgoing, exchange)
        relay = Relay(exchange, client, patience, on_first_token, pace, on_stream=on_stream)
        self._relays.add(relay)
        try:
            broken = await self._send(relay, exchange, outgoing, name)
        except ConnectError as error:
            exchange.upstream_error, exchange.detail = UpstreamError.CONNECT, str(error)
            self._reports.unreachable(name)
            raise self._not_sent(exchange, name) from None
        finally:
            self._relays.discard(relay)
        if broken is None:
            report(self._reports, exchange, began, relay.head, relay.stream_error)
            return relay.delivery.keep_alive
        if broken is Stopped.CLIENT_STALLED:
            raise ClientStalledError
        if isinstance(broken, Broken):
            report_broken(self._reports, name, began, broken)
        self._end(relay, exchange, broken)
        return False

    async def ask(
        self, name: str, outgoing: Outgoing, request_id: str, patience_s: float, *, blame: bool = False
    ) -> Answer:
        """Send a request of our own and return the whole answer, whatever its status.

        Args:
            name: the backend.
            outgoing: the request.
            request_id: what the engine shall call it.
            patience_s: for the whole answer.
            blame: let its answer, or its silence, say something about the backend.

        Raises:
            NotSentError: no connection could be made, or the backend is gone.
            UnansweredError: the answer did not come, not whole, or not in time.
            EndedError: the time to drain is over.
        """
        call = Call()
        self._calls.add(call)
        try:
            pool = self._pool(name)
            sent = outgoing.parts(pool.authority, request_id, pool.key)
            began = time.monotonic()
            result = await call.run(pool.take() or await pool.connect(), sent, patience_s)
            if isinstance(result, Broken) and self._may_resend(result):
                result = await call.run(await pool.connect(), sent, patience_s)
        except ConnectError:
            self._reports.unreachable(name)
            raise NotSentError from None
        finally:
            self._calls.discard(call)
        if result is None:
            raise _drained()
        if isinstance(result, Broken):
            if blame:
                report_broken(self._reports, name, began, result)
            raise UnansweredError(result)
        if blame:
            report_answer(self._reports, name, began, result.status, result.retry_after_s)
        return result

    def _let_go(self, outgoing: Outgoing, exchange: Exchange) -> None:
        """Let go of a request whose stream has begun: it is not sent again, and its stream may last for long."""
        outgoing.body = b""
        if not self.keep_bodies:
            exchange.body = b""
        self.on_stream(exchange)

    def _pool(self, name: str) -> Pool:
        try:
            return self.pools[name]
        except KeyError:  # a reload took it away since it was chosen
            raise ConnectError(f"backend {name} is gone from the configuration") from None

    async def _send(self, relay: Relay, exchange: Exchange, outgoing: Outgoing, name: str) -> Broken | Stopped | None:
        pool = self._pool(name)
        connection = pool.take() or await pool.connect()
        broken = await relay.run(connection, self._parts(outgoing, pool, exchange))
        if isinstance(broken, Broken) and not exchange.retries and self._may_resend(broken, exchange):
            exchange.retries += 1
            connection = await pool.connect()
            exchange.upstream_error = None
            broken = await relay.run(connection, self._parts(outgoing, pool, exchange))
        return broken

    def _may_resend(self, broken: Broken, exchange: Exchange | None = None) -> bool:
        """Whether a request that met a dead connection may go over another one to the same backend."""
        return broken.untouched and self._stale_connections and self._budgeted(exchange)

    def _not_sent(self, exchange: Exchange, name: str) -> NotSentError | EndedError:
        """Say what follows when no connection could be made."""
        if not exchange.attempts and (exchange.retries or self._budgeted(exchange)):
            return NotSentError()  # whoever has the second grant of a ticket refuses it then
        message = f"backend {name} could not be reached, and this request is not tried again"
        return EndedError(Outcome.REJECTED, 503, Reason.NO_BACKEND.value, message, Reason.NO_BACKEND, retry_after_s=1.0)

    def _budgeted(self, exchange: Exchange | None) -> bool:
        allowed = self._budget.take(time.monotonic())
        if not allowed and exchange is not None:
            exchange.retry_refused = True
        return allowed

    def _telling(self, name: str, began: float, on_first_token: Callable[[], None]) -> Callable[[], None]:
        """Return what to do at the first token of a trial: it shows that the backend works."""

        def first_token() -> None:
            on_first_token()
            self._reports.served(name, began)

        return first_token

    @staticmethod
    def _parts(outgoing: Outgoing, pool: Pool, exchange: Exchange) -> Iterable[bytes]:
        request_id = headers.attempt_id(exchange.request_id, exchange.attempts + 1)
        return outgoing.parts(pool.authority, request_id, pool.key)

    @staticmethod
    def _end(relay: Relay, exchange: Exchange, broken: Broken | Stopped) -> None:
        """Tell the client that its answer will not be whole: with a status, or inside the stream that has begun."""
        ended = _drained() if isinstance(broken, Stopped) else _ended(broken)
        if not relay.delivery.started:
            raise ended
        exchange.outcome, exchange.reason, exchange.ending = ended.outcome, ended.reason, ended.ending
        relay.cut(ended.code, ended.status, ended.message)


def _nothing(_exchange: Exchange) -> None:
    """Take no note of a stream."""


def _ended(broken: Broken) -> EndedError:
    outcome, status = _ENDINGS.get(broken.kind, (Outcome.BACKEND_ERROR, 502))
    return EndedError(outcome, status, outcome.value, _SENTENCES[broken.kind], ending=Ending.DROPPED)


def _drained() -> EndedError:
    message = "the proxy shuts down and could not wait any longer for this answer"
    return EndedError(Outcome.DRAINING, 503, Reason.DRAINING.value, message, Reason.DRAINING, close=True)

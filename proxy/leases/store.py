"""The store of a group: one atomic step in Redis or Valkey, or at the supervisor of the workers of one host."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any, Protocol

from proxy.policy.leases.book import Document
from proxy.settings.sharing import Sharing

_KEY = "lanewise:{%s}:leases"
"""The braces keep a group on one node of a cluster."""
_LISTEN_S = 1.0
"""For one message, and until a broken connection is made anew."""


class StoreError(Exception):
    """The store did not answer, or not as it should; the text is for people."""


class NoClientError(Exception):
    """The extra that a store needs is not installed."""


class Store(Protocol):
    """Where a group keeps what its proxies hold."""

    async def sync(self, request: Document) -> Document:
        """Make one step of `proxy.policy.leases.book` on the store's clock.

        Raises:
            StoreError: no answer within the time-out. Whether the step was made is not known then.
        """
        ...

    async def listen(self, woken: Callable[[], None]) -> None:
        """Call `woken` whenever something was given back that somebody stands in line for; until cancelled.

        Nothing depends on it but time: who stands in line asks again in any case.
        """
        ...

    async def close(self) -> None:
        """Let the connection go."""
        ...


class RedisStore:
    """One connection to Redis 7 or Valkey 9, without retries of its own.

    After a failure the connection is closed, so that no late answer is taken for that of a later request.

    Raises:
        NoClientError: the package redis is not installed.
    """

    def __init__(self, sharing: Sharing) -> None:
        try:
            from redis.asyncio import Redis  # noqa: PLC0415 - an extra
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import NoBackoff  # noqa: PLC0415
            from redis.exceptions import NoScriptError, RedisError  # noqa: PLC0415
        except ImportError:
            raise NoClientError("sharing.store needs the redis client: pip install 'lanewise[redis]'") from None
        if sharing.store is None:
            raise ValueError("sharing.store names no store")
        self._timeout_s = sharing.timeout
        self._key = _KEY % sharing.group
        self._text = files("proxy.leases").joinpath("sync.lua").read_text(encoding="utf-8")
        self._sha = ""
        self._no_script: type[Exception] = NoScriptError
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError, ValueError)
        self._client: Any = Redis.from_url(
            sharing.store,
            username=sharing.username,
            password=None if sharing.password is None else sharing.password.get_secret_value(),
            socket_timeout=sharing.timeout,
            socket_connect_timeout=sharing.timeout,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
            max_connections=4,
            decode_responses=True,
        )

    async def sync(self, request: Document) -> Document:
        """Make one step; see `Store`."""
        text = json.dumps(request, separators=(",", ":"))
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._run(text)
            return _document(json.loads(answer))
        except self._errors as error:
            await self._drop()
            raise StoreError(_words(error, self._timeout_s)) from None

    async def listen(self, woken: Callable[[], None]) -> None:
        """Hear what is given back; see `Store`. A connection that breaks is made anew."""
        while True:
            channel = self._client.pubsub(ignore_subscribe_messages=True)
            try:
                await channel.subscribe(self._key)
                while True:
                    message = await channel.get_message(timeout=_LISTEN_S)
                    if message is not None:
                        woken()
            except self._errors:
                await asyncio.sleep(_LISTEN_S)
            finally:
                with suppress(*self._errors):
                    await channel.aclose()

    async def close(self) -> None:
        """Let the connection go."""
        await self._client.aclose()

    async def _run(self, text: str) -> str:
        """Run the script by its name, and send its text where the server does not know it (yet, or any more)."""
        client = self._client
        if self._sha:
            try:
                return str(await client.evalsha(self._sha, 1, self._key, text))
            except self._no_script:
                pass
        self._sha = str(await client.script_load(self._text))
        return str(await client.evalsha(self._sha, 1, self._key, text))

    async def _drop(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.connection_pool.disconnect()
        except self._errors:
            self._sha = ""


def _document(value: object) -> Document:
    if not isinstance(value, dict):
        raise ValueError(f"the store answered {type(value).__name__}, not an object")  # noqa: TRY004 - a bad answer
    if isinstance(value.get("p"), list):  # an empty table has no kind in Lua
        value["p"] = {}
    return value


def _words(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {1000 * timeout_s:g} ms"
    return " ".join(str(error).split()) or type(error).__name__

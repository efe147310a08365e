"""The simulated engine behind vLLM's HTTP dialect, on the wall clock.

Not imitated, because no model is there or nobody asked: log probabilities, tool calls, images, `/v1/responses`,
`/v1/messages`, pooling, API keys, CORS, `/reset_prefix_cache`. Unknown paths answer 404 as vLLM's do.
"""

import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import HttpVersion11, web

from loadgen.sim import http_errors, text
from loadgen.sim.driver import TIMER_S, Driver, Pacemaker
from loadgen.sim.engine import Engine, QueueFull
from loadgen.sim.exposition import CONTENT_TYPE, Exposition, Life
from loadgen.sim.http_answers import Count, Label
from loadgen.sim.http_errors import ApiError
from loadgen.sim.http_requests import (
    Job,
    Served,
    decode,
    read_chat,
    read_completion,
    read_detokenize,
    read_tokenize,
)
from loadgen.sim.ledger import Ledger, Meter
from loadgen.sim.nouns import EngineProfile, EngineRequest, Noise, RequestId
from loadgen.sim.replies import StreamReply, Voiced, WholeReply
from loadgen.sim.speech import Speech, speech_for

VLLM_VERSION = "0.32.0"
"""The version whose dialect is spoken."""
_BODY_BYTES = 64 * 1024 * 1024
_HEADERS = {"Server": "uvicorn", "Vary": "Origin"}

Reading = Callable[[Mapping[str, Any], Served], Job]
Handling = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the engine is served."""

    model: str
    """Served model name."""
    speed: float = 1.0
    """Times faster than the profile says."""
    seed: int = 0
    """Decides texts and natural answer lengths."""
    prompt_tokens_details: bool = True
    """Tell cached tokens in `usage`, as with vLLM's `--enable-prompt-tokens-details`."""
    ledger: Path | None = None
    """File that takes size and checksum of every answer (`loadgen.sim.ledger`)."""


class EngineServer:
    """One engine and its HTTP face. Build it inside the event loop that will run it."""

    def __init__(self, profile: EngineProfile, options: ServerOptions, noise: Noise | None = None) -> None:
        engine = Engine(profile, noise)
        self._profile = profile
        self._options = options
        self._served = Served(options.model, profile.max_model_len)
        self._exposition = Exposition(profile, options.model, engine.counters)
        self._driver = Driver(engine, self._exposition, options.speed, early_s=TIMER_S / 2)
        self._pace = Pacemaker(self._driver)
        self._ids = itertools.count(1)
        self._started = int(time.time())
        self._requests = 0
        self._ledger = Ledger(options.ledger) if options.ledger is not None else None
        self._routes = self._table()

    def application(self) -> web.Application:
        """Return the aiohttp application that serves the engine."""
        app = web.Application(client_max_size=_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_cleanup.append(self._stop)
        return app

    async def _stop(self, app: web.Application) -> None:
        del app
        self._pace.stop()
        if self._ledger is not None:
            self._ledger.close()

    # --- the way in

    def _table(self) -> dict[str, dict[str, Handling]]:
        return {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completions},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
        }

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        methods = self._routes.get(request.path)
        if methods is None:
            return _document({"detail": "Not Found"}, 404)
        handle = methods.get(request.method)
        if handle is None:
            return _document({"detail": "Method Not Allowed"}, 405, {"Allow": ", ".join(methods)})
        try:
            return await handle(request)
        except ApiError as error:
            return self._noted(request, _document(error.body, error.status))

    # --- generation

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, read_chat)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, read_completion)

    async def _generate(self, request: web.Request, read: Reading) -> web.StreamResponse:
        job = read(decode(await _json_body(request)), self._served)
        label = Label(_request_id(request, job), int(time.time()), job.model, job.chat)
        count = Count(job.prompt_tokens, detailed=self._options.prompt_tokens_details)
        meter = Meter() if self._ledger is not None else None
        reply = StreamReply(job, label, count, meter) if job.stream else WholeReply(job, label, count)
        ids = self._submit(job, reply)
        self._requests += 1
        try:
            if isinstance(reply, StreamReply):
                return await self._stream(request, reply, meter)
            await reply.done
            return self._noted(request, _answer(reply.document(), headers=self._load_report(request)))
        finally:
            self._requests -= 1
            for sequence in ids:
                self._driver.abort(sequence)

    async def _stream(self, request: web.Request, reply: StreamReply, meter: Meter | None) -> web.StreamResponse:
        """Send the head at once, then let the driver write."""
        try:
            response = await self._streamed(request, reply)
            if meter is not None:
                meter.whole = True
            return response
        finally:
            if self._ledger is not None and meter is not None:
                self._ledger.write(_named(request), 200, meter)

    @staticmethod
    async def _streamed(request: web.Request, reply: StreamReply) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
        framed = request.version >= HttpVersion11
        if framed:
            response.enable_chunked_encoding()
        await response.prepare(request)
        if request.transport is not None:
            reply.attach(request.transport, framed=framed)
        await reply.done
        await response.write_eof()
        return response

    def _noted(self, request: web.Request, response: web.Response) -> web.Response:
        """Enter a whole answer into the ledger."""
        if self._ledger is not None and request.method == "POST" and isinstance(response.body, bytes):
            meter = Meter()
            meter.add(response.body)
            meter.whole = True
            self._ledger.write(_named(request), response.status, meter)
        return response

    def _submit(self, job: Job, reply: StreamReply | WholeReply) -> list[RequestId]:
        """Give every sequence of a request to the engine: all of them, or none.

        Raises:
            ApiError: the engine refuses one of them.
        """
        now, ids = self._pace.now(), list[RequestId]()
        try:
            self._driver.check_admission(len(job.prompts) * job.n)
            for place, prompt in enumerate(job.prompts):
                mark = text.fingerprint(prompt)
                hashes = text.block_hashes(prompt, self._profile.block_size, job.salt)
                for sample in range(job.n):
                    speech = speech_for(job.sampling[place], mark, sample, self._options.seed)
                    request = EngineRequest(next(self._ids), len(prompt), speech.length, hashes, job.priority)
                    index = place * job.n + sample
                    voiced = Voiced(reply, index, speech, len(prompt), self._profile.block_size)
                    self._driver.submit(now, request, self._life(job, place, index, speech, now), voiced)
                    ids.append(request.id)
        except (QueueFull, ValueError) as error:
            for sequence in ids:
                self._driver.abort(sequence)
            raise _refusal(error) from None
        finally:
            self._pace.wake()
        return ids

    def _life(self, job: Job, place: int, index: int, speech: Speech, now: float) -> Life:
        return Life(
            prompt_tokens=len(job.prompts[place]),
            output_tokens=speech.length,
            max_tokens=job.sampling[place].cap,
            n=0 if index else job.n,
            arrived=now,
        )

    def _load_report(self, request: web.Request) -> dict[str, str]:
        """Return the ORCA header that a request may ask for; streams never carry it."""
        gauges = self._exposition.gauges
        metrics = {
            "num_requests_waiting": float(gauges.waiting),
            "kv_cache_usage_perc": gauges.kv_usage,
        }
        kind = request.headers.get("endpoint-load-metrics-format", "").upper()
        if kind == "TEXT":
            listed = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
            return {"endpoint-load-metrics": f"TEXT {listed}"}
        if kind == "JSON":
            return {"endpoint-load-metrics": f"JSON {orjson.dumps({'named_metrics': metrics}).decode()}"}
        return {}

    # --- the rest

    async def _models(self, request: web.Request) -> web.Response:
        del request
        permission = {
            "id": f"modelperm-{secrets.token_hex(8)}",
            "object": "model_permission",
            "created": self._started,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self._served.model,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": self._served.model,
            "parent": None,
            "max_model_len": self._served.context,
            "permission": [permission],
        }
        return _document({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        document = decode(await _json_body(request))
        ids = read_tokenize(document, self._served)
        pieces = [text.decode([token]) for token in ids] if document.get("return_token_strs") else None
        return _document(
            {"count": len(ids), "max_model_len": self._served.context, "tokens": ids, "token_strs": pieces}
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        return _document({"prompt": read_detokenize(decode(await _json_body(request)), self._served)})

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response(headers=_HEADERS)

    async def _version(self, request: web.Request) -> web.Response:
        del request
        return _document({"version": VLLM_VERSION})

    async def _load(self, request: web.Request) -> web.Response:
        del request
        return _document({"server_load": self._requests})

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return _answer(self._exposition.render(), content_type=CONTENT_TYPE)


async def _json_body(request: web.Request) -> bytes:
    """Return the body of a request whose content type is JSON; an empty body is left to the JSON reader."""
    body = await request.read()
    if request.content_type != "application/json" and not request.content_type.endswith("+json"):
        raise http_errors.not_json()
    return body


def _request_id(request: web.Request, job: Job) -> str:
    given = request.headers.get("X-Request-Id") or job.request_id or secrets.token_hex(8)
    return f"{'chatcmpl' if job.chat else 'cmpl'}-{given}"


def _named(request: web.Request) -> str:
    """Return the id that the request carries, for the ledger."""
    return request.headers.get("X-Request-Id", "")


def _refusal(error: QueueFull | ValueError) -> ApiError:
    if isinstance(error, QueueFull):
        return http_errors.backlog_full() if error.limit == "max_num_queued_tokens" else http_errors.queue_full()
    return ApiError(400, str(error))


def _document(document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return _answer(orjson.dumps(document), status, headers)


def _answer(
    body: bytes,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> web.Response:
    return web.Response(body=body, status=status, headers={**_HEADERS, **(headers or {}), "Content-Type": content_type})

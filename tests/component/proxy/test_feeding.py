"""Installments on the wire: what an engine gets of a long prompt, what the client sees, and what is left held."""

import asyncio
import json

import pytest
from clients import chat
from conftest import until
from engines import DONE, PATIENCE_S, chat_chunk, event

from proxy import feeding
from proxy.backends import PrefixCaching
from proxy.policy.installments import Mode
from proxy.policy.outcome import Outcome, Phase
from proxy.policy.ticket import Ticket

BLOCK = 128
IDS = list(range(5000))
PARTS = [1024, 2048, 3072, 4096]
"""How far the parts of 5,000 ids reach; what is left is below one and a half parts."""


def words(count: int) -> str:
    """A text whose tokens the engine below counts by its words."""
    return "word " * count


class PrefixEngine:
    """Answers like vLLM with a prefix cache, and does what a test tells it for one request of its choice."""

    def __init__(self, *, caching=True, details=True, context=16384):
        self.caching, self.details, self.context = caching, details, context
        self.cached: set[tuple[int, ...]] = set()
        self.instead = {}
        """Path → what is done instead of answering a request for it."""

    async def __call__(self, request, peer):
        act = self.instead.get(request.path)
        if act is not None and await act(request, peer) is not NotImplemented:
            return
        if request.path == "/tokenize":
            self._tokenize(request, peer)
        else:
            self._generate(request, peer)

    def _tokenize(self, request, peer):
        ids = self.ids(request.json)
        answer = {"count": len(ids), "max_model_len": self.context, "tokens": ids, "token_strs": None}
        peer.answer(json.dumps(answer).encode())

    @staticmethod
    def ids(document):
        prompt = document.get("prompt")
        if isinstance(prompt, list):
            return prompt
        text = prompt if prompt is not None else document["messages"][0]["content"]
        return list(range(len(text.split())))

    def _generate(self, request, peer):
        document, ids = request.json, self.ids(request.json)
        blocks = [tuple(ids[:end]) for end in range(BLOCK, len(ids), BLOCK)]
        found = max((len(block) for block in blocks if block in self.cached), default=0)
        if self.caching:
            self.cached.update(blocks, [tuple(ids[: len(ids) // BLOCK * BLOCK])])
        usage = {"prompt_tokens": len(ids), "total_tokens": len(ids) + 1, "completion_tokens": 1}
        if self.details:
            created = len(ids) // BLOCK * BLOCK - found
            usage["prompt_tokens_details"] = {"cached_tokens": found, "created_cache_tokens": created}
        if document.get("stream"):
            peer.stream_head()
            told = event({"id": "c", "choices": [], "usage": usage})
            asked = (document.get("stream_options") or {}).get("include_usage")
            for item in (chat_chunk("hi"), chat_chunk(None, "stop"), *([told] if asked else []), DONE):
                peer.chunk(item)
            peer.send(b"0\r\n\r\n")
        else:
            choices = [{"index": 0, "text": "hi", "finish_reason": "length"}]
            peer.answer(json.dumps({"id": "c", "choices": choices, "usage": usage}).encode())


@pytest.fixture
def fed(start):
    """Start prefix engines and a proxy in front of them: `engine, proxy = await fed(PrefixEngine())`."""

    async def begin(*scripts, **sections):
        *engines, proxy = await start(*scripts, **sections)
        return (*engines, proxy)

    return begin


def shape(engine):
    """What came: the ids of a part, or the path."""
    return [
        len(request.json["prompt"])
        if request.path == "/v1/completions" and request.json.get("request_id", "").startswith("inst-")
        else request.path
        for request in engine.requests
    ]


def parts_of(engine):
    return [request for request in engine.requests if request.json.get("request_id", "").startswith("inst-")]


def seen(proxy, index=0):
    return proxy.app.admission.snapshot().backends[index]


def results(proxy, index=0):
    return {result.value: count for result, count in seen(proxy, index).parts.items() if count}


FED = ["/tokenize", *PARTS, "/v1/chat/completions"]


# ---------------------------------------------------------------- what the engine gets


async def test_a_long_chat_goes_as_its_ids_in_parts_and_then_as_it_came(fed):
    engine, proxy = await fed(PrefixEngine())
    body = json.dumps(chat(words(5000), cache_salt="s-1", priority=-2, temperature=0.3, tools=[])).encode()
    client = await proxy.client()
    got = await client.post(
        body, Authorization="Bearer k", X_data_parallel_rank="3", X_Request_Id="r1", traceparent="00-ab"
    )
    assert got.status == 200
    assert shape(engine) == FED
    assert engine.requests[-1].body == body
    asked = engine.requests[0].json
    assert sorted(asked) == ["messages", "model", "tools"]
    for number, part in enumerate(parts_of(engine)):
        assert part.json == {
            "model": "tiny",
            "cache_salt": "s-1",
            "priority": -2,
            "prompt": IDS[: PARTS[number]],
            "max_tokens": 1,
            "temperature": 0,
            "stream": False,
            "request_id": f"inst-r1-{number}",
        }
        assert part.header("x-request-id") == f"inst-r1-{number}"
        for name, value in (("authorization", "Bearer k"), ("x-data-parallel-rank", "3"), ("traceparent", "00-ab")):
            assert part.header(name) == engine.requests[-1].header(name) == value
    assert results(proxy) == {"first": 1, "hit": 3}
    assert (seen(proxy).installments, seen(proxy).recomputed_tokens) == (Mode.ON, 0)
    exchange = await proxy.ended()
    assert (exchange.outcome, exchange.parts, exchange.attempts) == (Outcome.OK, 4, 1)
    assert proxy.held() == (0, 0, 0)


async def test_a_completion_that_brings_its_ids_needs_no_tokenize(fed):
    engine, proxy = await fed(PrefixEngine())
    got = await (await proxy.client()).post({"model": "tiny", "prompt": IDS, "max_tokens": 3}, "/v1/completions")
    assert got.status == 200
    assert shape(engine) == [*PARTS, "/v1/completions"]


async def test_a_text_completion_is_tokenized_as_text(fed):
    engine, proxy = await fed(PrefixEngine())
    body = {"model": "tiny", "prompt": words(5000), "add_special_tokens": False, "max_tokens": 3}
    assert (await (await proxy.client()).post(body, "/v1/completions")).status == 200
    assert sorted(engine.requests[0].json) == ["add_special_tokens", "model", "prompt"]
    assert shape(engine) == ["/tokenize", *PARTS, "/v1/completions"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (chat(words(1500)), "/v1/chat/completions"),
        (chat(words(5000), reasoning_effort="high"), "/v1/chat/completions"),
        (chat(words(5000), prompt_logprobs=1), "/v1/chat/completions"),
        ({"model": "tiny", "prompt": [words(3000), words(3000)]}, "/v1/completions"),
        ({"model": "tiny", "input": words(5000)}, "/v1/responses"),
    ],
)
async def test_what_is_short_or_cannot_be_split_goes_whole_and_costs_nothing(fed, body, path):
    engine, proxy = await fed(PrefixEngine())
    engine.script.instead[path] = answer_hi
    await (await proxy.client()).post(body, path)
    assert shape(engine) == [path]


async def answer_hi(request, peer):
    peer.answer(b'{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}')


async def test_a_prompt_that_is_short_after_all_goes_to_the_short_lane_whole(fed):
    engine, proxy = await fed(PrefixEngine())
    await (await proxy.client()).post(chat(words(2000)))  # 2,500 tokens by estimate, 2,000 by count
    assert shape(engine) == ["/tokenize", "/v1/chat/completions"]
    assert (await proxy.ended()).lane == "short"


async def test_a_prompt_that_does_not_fit_the_context_is_refused_by_the_engine_before_anything_is_computed(fed):
    async def too_long(request, peer):
        peer.answer(b'{"error":{"message":"too long","code":400}}', b"400 Bad Request")

    engine, proxy = await fed(PrefixEngine(context=5010))
    engine.script.instead["/v1/chat/completions"] = too_long
    got = await (await proxy.client()).post(chat(words(5000), max_tokens=11))
    assert (got.status, shape(engine)) == (400, ["/tokenize", "/v1/chat/completions"])
    await (await proxy.client()).post(chat(words(5000), max_tokens=10))
    assert len(parts_of(engine)) == 4


async def test_installments_off_asks_for_no_ids(fed):
    engine, proxy = await fed(PrefixEngine(), installments={"mode": "off"})
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/v1/chat/completions"]


@pytest.mark.parametrize("length", [3001, 4500, 4501, 6000, 9000])
async def test_every_part_ends_on_the_granularity_and_all_tokens_are_computed_once(fed, length):
    script = PrefixEngine()
    engine, proxy = await fed(script, installments={"part_tokens": 3000, "parts_at_most": 3})
    client = await proxy.client()
    assert (await client.post({"model": "tiny", "prompt": list(range(length))}, "/v1/completions")).whole
    sent = [len(part.json["prompt"]) for part in parts_of(engine)]
    assert all(end % BLOCK == 0 for end in sent)
    assert len(sent) < 3
    assert bool(sent) == (length > 1.5 * 3072)
    assert seen(proxy).recomputed_tokens == 0


# ---------------------------------------------------------------- what the client sees


def usage_of(got):
    lines = [line for line in got.body.split(b"\n") if b'"usage"' in line]
    return json.loads(lines[-1].removeprefix(b"data: "))["usage"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_client_sees_what_the_engine_would_have_said_without_parts(fed, stream):
    ask = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answers = []
    for mode in ("off", "auto"):
        _, proxy = await fed(PrefixEngine(), installments={"mode": mode})
        answers.append(await (await proxy.client()).post(chat(words(5000), **ask)))
    whole, split = answers
    assert split.body == whole.body
    assert split.header("content-length") == whole.header("content-length")
    assert usage_of(split)["prompt_tokens_details"] == {"cached_tokens": 0, "created_cache_tokens": 4992}


async def test_a_cache_hit_of_the_clients_own_making_is_told(fed):
    _, proxy = await fed(PrefixEngine())
    client = await proxy.client()
    await client.post(chat(words(5000)))
    again = await client.post(chat(words(5000)))
    assert usage_of(again)["prompt_tokens_details"]["cached_tokens"] == 896  # all that a prompt of 1,024 can find
    exchange = await proxy.ended(1)
    assert exchange.cached_tokens == 896
    assert seen(proxy).recomputed_tokens == 0


async def test_usage_that_only_we_asked_for_is_still_taken_out(fed):
    _, proxy = await fed(PrefixEngine())
    got = await (await proxy.client()).post(chat(words(5000), stream=True))
    assert got.body == chat_chunk("hi") + chat_chunk(None, "stop") + DONE
    assert (await proxy.ended()).cached_tokens == 0


async def test_an_engine_without_details_is_relayed_as_it_is(fed):
    answers = []
    for mode in ("off", "on"):
        engine, proxy = await fed(PrefixEngine(details=False), installments={"mode": mode})
        answers.append((await (await proxy.client()).post(chat(words(5000)))).body)
    assert answers[0] == answers[1]
    assert len(parts_of(engine)) == 4


# ---------------------------------------------------------------- parts that go wrong


def once(act):
    """Do it to the first part that comes, then answer as always."""
    left = [act]

    async def do(request, peer):
        if not left or "request_id" not in request.json:
            return NotImplemented
        await left.pop()(request, peer)
        return None

    return do


async def refuse(request, peer):
    peer.answer(b'{"error":{"message":"no"}}', b"400 Bad Request")


async def break_down(request, peer):
    peer.answer(b"{}", b"500 Internal Server Error")


async def hang_up(request, peer):
    peer.reset()


async def half_an_answer(request, peer):
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{")
    peer.close()


async def garbage(request, peer):
    peer.send(b"\x00\x01\r\n\r\n")


async def nonsense(request, peer):
    peer.engine.script._generate(request, Quiet())
    peer.answer(b"\xff not json")


class Quiet:
    def answer(self, body):
        pass


@pytest.mark.parametrize("act", [refuse, break_down, half_an_answer, garbage])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_part_that_fails_sends_the_rest_whole_and_the_client_notices_nothing(fed, act, after):
    engine, proxy = await fed(PrefixEngine())
    left = [after]

    async def later(request, peer):
        if "request_id" not in request.json:
            return NotImplemented
        left[0] -= 1
        if left[0] != -1:
            return NotImplemented
        await act(request, peer)
        return None

    engine.script.instead["/v1/completions"] = later
    got = await (await proxy.client()).post(chat(words(5000)))
    assert (got.status, got.whole) == (200, True)
    assert shape(engine) == ["/tokenize", *PARTS[: after + 1], "/v1/chat/completions"]
    assert results(proxy)["failed"] == 1
    assert proxy.held() == (0, 0, 0)
    assert seen(proxy).started is None


async def test_an_answer_of_a_part_that_means_nothing_is_no_verdict(fed):
    engine, proxy = await fed(PrefixEngine())
    engine.script.instead["/v1/completions"] = once(nonsense)
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert shape(engine) == FED


async def test_a_part_that_hangs_is_given_up_and_the_rest_goes_whole(fed, monkeypatch):
    async def hang(request, peer):
        await peer.gone.wait()

    monkeypatch.setattr(feeding, "PART_S", 0.02)
    engine, proxy = await fed(PrefixEngine())
    engine.script.instead["/v1/completions"] = once(hang)
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/tokenize", 1024, "/v1/chat/completions"]
    assert seen(proxy).installments is Mode.OFF


async def test_a_part_on_a_connection_that_the_engine_had_closed_is_sent_again(fed):
    engine, proxy = await fed(PrefixEngine())
    engine.script.instead["/v1/completions"] = once(hang_up)
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/tokenize", 1024, *PARTS, "/v1/chat/completions"]
    assert results(proxy) == {"first": 1, "hit": 3}


@pytest.mark.parametrize(
    "act",
    [
        lambda r, p: p.answer(b"{}", b"404 Not Found"),
        lambda r, p: p.answer(b"{}", b"500 Oops"),
        lambda r, p: p.answer(b'{"count":3,"tokens":[1]}'),
        lambda r, p: p.reset(),
        lambda r, p: None,
    ],
)
async def test_without_ids_a_prompt_goes_whole(fed, act, monkeypatch):
    async def do(request, peer):
        act(request, peer)

    monkeypatch.setattr(feeding, "TOKENIZE_S", 0.05)
    engine, proxy = await fed(PrefixEngine())
    engine.script.instead["/tokenize"] = do
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/tokenize", "/v1/chat/completions"]


async def test_an_engine_without_tokenize_is_not_asked_at_every_request(fed):
    async def missing(request, peer):
        peer.answer(b"{}", b"404 Not Found")

    engine, proxy = await fed(PrefixEngine())
    engine.script.instead["/tokenize"] = missing
    client = await proxy.client()
    for _ in range(3):
        await client.post(chat(words(5000)))
    assert shape(engine) == ["/tokenize", *["/v1/chat/completions"] * 3]


# ---------------------------------------------------------------- an engine whose cache does not help


async def test_without_prefix_caching_the_first_miss_ends_it_for_this_prompt_and_the_next(fed):
    engine, proxy = await fed(PrefixEngine(caching=False))
    client = await proxy.client()
    assert (await client.post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/tokenize", 1024, 2048, "/v1/chat/completions"]
    assert results(proxy) == {"first": 1, "miss": 1}
    assert seen(proxy).installments is Mode.OFF
    await client.post(chat(words(5000)))
    assert shape(engine)[4:] == ["/v1/chat/completions"]


async def test_on_means_on_whatever_is_seen_but_each_prompt_still_gives_up_at_its_first_miss(fed):
    engine, proxy = await fed(PrefixEngine(caching=False), installments={"mode": "on"})
    client = await proxy.client()
    for _ in range(2):
        assert (await client.post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/tokenize", 1024, 2048, "/v1/chat/completions"] * 2


async def test_an_engine_that_shows_nothing_is_fed_four_parts_and_then_no_more(fed):
    engine, proxy = await fed(PrefixEngine(details=False))
    client = await proxy.client()
    short = [asyncio.ensure_future((await proxy.client()).post(chat("hi"))) for _ in range(2)]
    await asyncio.gather(*short)
    proxy.app.corridor._rooms.feeding._found = nobody_knows
    await client.post(chat(words(12_000)))
    assert len(parts_of(engine)) == 5  # the first has nothing to find
    assert seen(proxy).installments is Mode.OFF


async def test_without_a_counter_the_clock_is_asked_whether_a_part_was_alone_and_how_long_it_took(fed, monkeypatch):
    asked = []

    class Clock:
        def found(self, done, tokens, seconds, *, alone):
            asked.append((done, tokens, alone))
            assert 0 < seconds < PATIENCE_S
            return done or None

    monkeypatch.setattr(feeding, "PartClock", Clock)
    _, proxy = await fed(PrefixEngine(details=False))
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert asked == [(0, 1024, True), (1024, 1024, True), (2048, 1024, True), (3072, 1024, True)]
    assert seen(proxy).installments is Mode.ON


async def nobody_knows(*args, **fields):
    return None


async def test_a_cache_that_is_emptied_sends_the_rest_whole(fed):
    script = PrefixEngine()
    engine, proxy = await fed(script)

    async def forget(request, peer):
        if len(parts_of(engine)) == 3:
            script.cached.clear()
        return NotImplemented

    script.instead["/v1/completions"] = forget
    assert (await (await proxy.client()).post(chat(words(8000)))).status == 200
    assert shape(engine) == ["/tokenize", 1024, 2048, 3072, "/v1/chat/completions"]
    assert seen(proxy).recomputed_tokens == 2048


# ---------------------------------------------------------------- several engines behind one address


class Ranks:
    """Data-parallel engines behind one address: a request goes to the rank that it names, else to each in its turn."""

    def __init__(self, count, *, heeds=True):
        self.engines = [PrefixEngine() for _ in range(count)]
        self.heeds = heeds
        self.served = []

    async def __call__(self, request, peer):
        named = request.header("x-data-parallel-rank") if self.heeds else None
        rank = len(self.served) % len(self.engines) if named is None else int(named)
        if request.path != "/tokenize":
            self.served.append(rank)
        await self.engines[rank](request, peer)


async def test_all_parts_of_a_prompt_and_its_own_request_go_to_one_engine_behind_an_address(fed):
    ranks = Ranks(3)
    _, proxy = await fed(ranks)
    proxy.app._caching_told("engine0", PrefixCaching(enabled=True, block_tokens=BLOCK, engines=3))
    for number in range(3):
        assert (await (await proxy.client()).post(chat(words(5000 + number)))).status == 200
    of_each = len(PARTS) + 1
    assert [len(set(ranks.served[at : at + of_each])) for at in range(0, 3 * of_each, of_each)] == [1, 1, 1]
    assert set(ranks.served) == {0, 1, 2}
    assert "miss" not in results(proxy)


async def test_engines_that_do_not_heed_the_rank_get_the_rest_whole_at_the_first_miss(fed):
    engine, proxy = await fed(Ranks(3, heeds=False))
    proxy.app._caching_told("engine0", PrefixCaching(enabled=True, block_tokens=BLOCK, engines=3))
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/tokenize", *PARTS[:2], "/v1/chat/completions"]
    assert results(proxy) == {"first": 1, "miss": 1}


async def test_a_client_that_names_its_engine_keeps_it(fed):
    ranks = Ranks(3)
    engine, proxy = await fed(ranks)
    proxy.app._caching_told("engine0", PrefixCaching(enabled=True, block_tokens=BLOCK, engines=3))
    assert (await (await proxy.client()).post(chat(words(5000)), X_data_parallel_rank="2")).status == 200
    assert set(ranks.served) == {2}
    assert all([key for key, _ in request.headers].count("x-data-parallel-rank") == 1 for request in engine.requests)


# ---------------------------------------------------------------- engines that die


async def test_a_part_whose_engine_cannot_be_reached_starts_anew_on_another(fed):
    first, second, proxy = await fed(PrefixEngine(), PrefixEngine())

    async def die(request, peer):
        if len(parts_of(first)) == 2:
            first.server.close()
            peer.answer(b"{}", extra=b"connection: close\r\n")
            return None
        return NotImplemented

    first.script.instead["/v1/completions"] = die
    got = await (await proxy.client()).post(chat(words(5000)))
    assert got.status == 200
    dead, alive = (first, second) if parts_of(first) else (second, first)
    assert len(parts_of(dead)) == 2
    assert [len(part.json["prompt"]) for part in parts_of(alive)] == PARTS
    assert alive.requests[-1].path == "/v1/chat/completions"
    assert usage_of(got)["prompt_tokens_details"]["cached_tokens"] == 0
    assert [backend.started for backend in proxy.app.admission.snapshot().backends] == [None, None]


@pytest.mark.parametrize("how", ["answers 500", "hangs up"])
async def test_a_part_that_breaks_its_engine_starts_anew_on_another(fed, how):
    """The process that speaks HTTP may outlive the one that computes: then the answer is 500."""
    first, second, proxy = await fed(PrefixEngine(), PrefixEngine())

    broken = []

    def breaking_down(engine):
        async def act(request, peer):
            if len(parts_of(engine)) == 2 and not broken:
                broken.append(engine)
            if engine not in broken:
                return NotImplemented
            if how == "hangs up":
                peer.reset()
            else:
                peer.answer(b'{"error":{"message":"EngineCore","code":500}}', status=b"500 Internal Server Error")
            return None

        return act

    for engine in (first, second):
        engine.script.instead["/v1/completions"] = breaking_down(engine)
    got = await (await proxy.client()).post(chat(words(5000)))
    assert got.status == 200
    other = second if broken == [first] else first
    assert [len(part.json["prompt"]) for part in parts_of(other)] == PARTS
    assert other.requests[-1].path == "/v1/chat/completions"
    assert "/v1/chat/completions" not in shape(broken[0])
    assert proxy.held() == (0, 0, 0)


async def test_an_engine_killed_between_parts_fails_the_request_only_as_it_would_without_parts(fed):
    engine, proxy = await fed(PrefixEngine())

    async def die(request, peer):
        if len(parts_of(engine)) == 2:
            engine.server.close()
            peer.reset()
            return None
        return NotImplemented

    engine.script.instead["/v1/completions"] = die
    got = await (await proxy.client()).post(chat(words(5000)))
    assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
    assert proxy.held() == (0, 0, 0)
    assert seen(proxy).started is None


# ---------------------------------------------------------------- others between the parts


async def test_a_short_request_passes_between_two_parts(fed):
    engine, proxy = await fed(PrefixEngine(), scheduling={"concurrency": 1, "adaptive": {"enabled": False}})
    gate = asyncio.Event()

    async def wait(request, peer):
        if len(parts_of(engine)) == 2:
            await gate.wait()
        return NotImplemented

    engine.script.instead["/v1/completions"] = wait
    long = asyncio.ensure_future((await proxy.client()).post(chat(words(5000))))
    await engine.request(2)
    short = asyncio.ensure_future((await proxy.client()).post(chat("hi")))
    await until(lambda: proxy.held()[2] == 1)
    gate.set()
    assert {got.status for got in await asyncio.gather(long, short)} == {200}
    assert shape(engine) == ["/tokenize", 1024, 2048, "/v1/chat/completions", 3072, 4096, "/v1/chat/completions"]


async def test_only_one_long_prompt_is_fed_at_a_time(fed):
    engine, proxy = await fed(PrefixEngine())
    clients = [await proxy.client() for _ in range(3)]
    bodies = [{"model": "tiny", "prompt": [n, *IDS], "max_tokens": 1} for n in range(3)]
    await asyncio.gather(*(one.post(body, "/v1/completions") for one, body in zip(clients, bodies, strict=True)))
    owners = [request.json["prompt"][0] for request in engine.requests]
    assert owners == sorted(owners, key=owners.index)
    assert seen(proxy).recomputed_tokens == 0


# ---------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("when", ["asking", "waiting", "part", "parked", "prefill"])
async def test_a_client_that_leaves_in_any_phase_leaves_nothing_held(fed, when):
    engine, proxy = await fed(PrefixEngine(), scheduling={"concurrency": 1, "adaptive": {"enabled": False}})
    gone, others = [], []

    async def wait(request, peer):
        gone.append(peer)
        await peer.gone.wait()

    stop_at = {"asking": "/tokenize", "part": "/v1/completions", "prefill": "/v1/chat/completions"}
    if when in stop_at:
        engine.script.instead[stop_at[when]] = wait
    if when == "waiting":
        others.append(occupy(proxy))
    elif when == "parked":
        engine.script.instead["/v1/completions"] = blocked_by(proxy, others)
    client = await proxy.client()
    request = asyncio.ensure_future(client.post(chat(words(5000))))
    if when in {"waiting", "parked"}:
        await until(lambda: parked_or_waiting(proxy, when))
    else:
        await until(lambda: bool(gone))
    client.leave()
    await asyncio.gather(request, return_exceptions=True)
    exchange = await proxy.ended()
    expected = Phase.QUEUED if when in {"asking", "waiting"} else Phase.PREFILL
    assert (exchange.outcome, exchange.phase) == (Outcome.CLIENT_GONE, expected)
    async with asyncio.timeout(PATIENCE_S):
        for peer in gone:
            await peer.gone.wait()
    assert proxy.held() == (len(others), 10 * len(others), 0)
    assert (seen(proxy).started, proxy.app.admission.snapshot().lanes[1].parked) == (None, 0)
    for turn in others:
        proxy.app.admission._leave(turn)
    assert (proxy.held(), proxy.app.admission.live) == ((0, 0, 0), 0)


def occupy(proxy):
    """Take the one slot, or wait for it, as a short request would."""
    turn = proxy.app.admission.turn(Ticket(1000, 0, 10, 10))
    proxy.app.admission._enter(turn)
    return turn


def blocked_by(proxy, others):
    """While the first part runs, let a short request come that has the slot after it."""

    async def act(request, peer):
        others.append(occupy(proxy))
        return NotImplemented

    return act


def parked_or_waiting(proxy, when):
    lane = proxy.app.admission.snapshot().lanes[1]
    return (lane.parked if when == "parked" else lane.waiting_requests) == 1


async def test_a_drain_whose_time_is_over_ends_a_part_with_the_word_for_it(fed):
    async def hang(request, peer):
        await peer.gone.wait()

    engine, proxy = await fed(PrefixEngine())
    engine.script.instead["/v1/completions"] = hang
    client = await proxy.client()
    request = asyncio.ensure_future(client.post(chat(words(5000))))
    await engine.request(1)
    hurry = asyncio.Event()
    hurry.set()
    await proxy.app.drain(hurry)
    got = await request
    assert (got.status, got.json["error"]["code"]) == (503, "draining")
    assert proxy.held() == (0, 0, 0)
    assert (await proxy.ended()).outcome is Outcome.DRAINING


async def test_a_reload_that_switches_installments_off_lets_the_rest_go_whole(fed):
    engine, proxy = await fed(PrefixEngine(), scheduling={"concurrency": 1, "adaptive": {"enabled": False}})

    async def switch(request, peer):
        off = proxy.app.settings.model_copy(
            update={"installments": proxy.app.settings.installments.model_copy(update={"mode": "off"})}
        )
        await proxy.app.change_to(off)
        return NotImplemented

    engine.script.instead["/v1/completions"] = switch
    assert (await (await proxy.client()).post(chat(words(5000)))).status == 200
    assert shape(engine) == ["/tokenize", 1024, "/v1/chat/completions"]
    assert proxy.held() == (0, 0, 0)
    assert seen(proxy).started is None


async def test_the_record_of_a_request_says_how_many_parts_it_had(fed, tmp_path):
    _, proxy = await fed(PrefixEngine(), recorder={"enabled": True, "directory": str(tmp_path)})
    client = await proxy.client()
    await client.post(chat(words(5000)))
    await client.post(chat("hi"))
    await proxy.ended(1)
    await proxy.app._recorder.close()
    (file,) = tmp_path.glob("trace-*.jsonl")
    one, two = (json.loads(line) for line in file.read_text().splitlines())
    assert (one["parts"], one["attempts"], one["cached_tokens"], one["lane"]) == (4, 1, 0, "long")
    assert "parts" not in two

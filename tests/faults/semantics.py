"""The semantics cases: request fields that an engine, or a proxy's arithmetic, takes the wrong way."""

import json
from typing import Any

from tests.faults import upstream
from tests.faults.bodies import CAPPED, RECORDED, REFUSED, answered
from tests.faults.case import case
from tests.faults.station import POOL, start, trace_rows
from tests.faults.wire import chat

DEFAULTED: dict[str, Any] = {
    "lanes": {"short": {"output": {"default": 64}}, "long": {"output": {"default": 64}}},
}
_CAPS = ("max_tokens", "max_completion_tokens", "min_tokens")


async def sent_on(config: dict[str, Any] | None, document: Any, path: str = "/v1/chat/completions") -> dict[str, Any]:
    """Send a document under a configuration; say what the engine was asked."""
    async with POOL.borrow(config) as station:
        body = json.dumps(document).encode()
        got = await answered(station, body, path)
        seen = station.upstream.requests[-1].document if got["upstream"] else None
    if isinstance(seen, dict):
        got["caps"] = {name: seen[name] for name in _CAPS if name in seen}
        got["same_document"] = seen == document
    return got


def field(identity: str, given: str, more: dict[str, Any], rule: Any, config: Any = None, why: str = "") -> None:
    """Add a case that differs from a plain chat request in some fields."""

    async def observe() -> dict[str, Any]:
        return await sent_on(config, chat(**more))

    case(identity, given, rule, why=why)(observe)


def passed_with(**caps: Any) -> dict[str, Any]:
    return {"status": 200, "upstream": 1, "caps": caps}


_UNDER_100 = {"at_least": 0, "at_most": 100}
_AS_SENT = {"status": 200, "upstream": 1, "same_document": True, "traceback": False}

field("INT-00", "max_tokens: -1", {"max_tokens": -1}, REFUSED)
field(
    "INT-01",
    "max_tokens: 0, where at most 100 is allowed",
    {"max_tokens": 0},
    {"any_of": [REFUSED, passed_with(max_tokens=_UNDER_100)]},
    CAPPED,
    "refused, or passed as 0; never taken for 'no cap'",
)
field("INT-03", 'max_tokens: "5"', {"max_tokens": "5"}, {"any_of": [REFUSED, _AS_SENT]})
field(
    "INT-04",
    "max_tokens: true",
    {"max_tokens": True},
    {"any_of": [REFUSED, _AS_SENT | {"bytes_equal": True}]},
    why="refused, or passed byte for byte: vLLM's schema takes it for 1, so the engine answers",
)
field(
    "INT-05",
    "max_tokens: 1e9, where at most 100 is allowed",
    {"max_tokens": 1e9},
    {"any_of": [REFUSED, passed_with(max_tokens=_UNDER_100)]},
    CAPPED,
)
field("INT-06", "max_tokens: 5.5", {"max_tokens": 5.5}, REFUSED)
field(
    "INT-07",
    "max_tokens 5000 and max_completion_tokens 9000, where at most 100 is allowed",
    {"max_tokens": 5000, "max_completion_tokens": 9000},
    {"any_of": [REFUSED, passed_with(max_tokens=_UNDER_100, max_completion_tokens=_UNDER_100)]},
    CAPPED,
)
field(
    "INT-10",
    "min_tokens 500 and max_tokens 600, where at most 100 is allowed",
    {"max_tokens": 600, "min_tokens": 500},
    {"any_of": [REFUSED, passed_with(max_tokens=_UNDER_100, min_tokens=_UNDER_100)]},
    CAPPED,
)
field(
    "INT-15",
    "a content part of a type that nobody knows",
    {"messages": [{"role": "user", "content": [{"type": "hologram", "hologram": {"depth": 3}}]}]},
    _AS_SENT | {"bytes_equal": True},
)
field(
    "INT-23",
    "chat_template_kwargs and unknown fields",
    {"chat_template_kwargs": {"enable_thinking": False}, "new_field": {"a": [1, 2.5, None]}, "logit_bias": {"5": -100}},
    _AS_SENT | {"bytes_equal": True},
)


@case(
    "INT-02",
    "max_tokens null, and absent, where 64 is the default",
    {"each_way": {"each": {"status": 200, "caps": {"max_tokens": 64}}, "count": 2}},
    why="the engine's own default is the whole context; ours is put in",
)
async def _absent() -> dict[str, Any]:
    absent = {key: value for key, value in chat().items() if key != "max_tokens"}
    return {"each_way": [await sent_on(DEFAULTED, chat(max_tokens=None)), await sent_on(DEFAULTED, absent)]}


async def cost_of(document: Any, path: str) -> dict[str, Any]:
    """Send a document to an engine that never answers; say how many sequences it counts as."""
    async with start(script=upstream.silent) as station:
        client = await station.open(document, path=path)
        talk = None
        try:
            await station.upstream.arrival(0, 1.0)
        except TimeoutError:
            talk = await client.read_answer(1.0)
        held = await station.held()
        client.reset()
        return {
            "status": talk.answer.status if talk else None,
            "upstream": len(station.upstream.requests),
            "in_flight": held["in_flight"],
            "held_after": await station.settled(),
        }


_COUNTED = "refused, or counted whole while it runs and given back when its client leaves"


def cost(identity: str, given: str, document: Any, path: str, sequences: int, why: str = _COUNTED) -> None:
    """Add a case about how many sequences a request counts as."""

    async def observe() -> dict[str, Any]:
        return await cost_of(document, path)

    counted = {"in_flight": {"at_least": sequences}, "held_after": {"in_flight": 0}}
    refused = {"status": 400, "upstream": 0}
    case(identity, given, {"any_of": [counted, refused]}, why=why)(observe)


_COMPLETIONS = "/v1/completions"
_PROMPT = {"model": "m", "prompt": "a", "max_tokens": 4}
cost("INT-08", "n: 10,000", chat(n=10_000), "/v1/chat/completions", 10_000)
cost(
    "INT-09",
    "best_of: 10,000",
    _PROMPT | {"best_of": 10_000},
    _COMPLETIONS,
    1,
    "counted as one sequence: vLLM V1 ignores best_of and answers 200 with one choice; n is what counts (INT-08)",
)
cost("INT-14", "a list of 10,000 prompts", _PROMPT | {"prompt": ["a"] * 10_000}, _COMPLETIONS, 10_000)


@case(
    "INT-11",
    'stream: "true" and 1',
    {"each_way": {"each": {"any_of": [{"status": 400}, {"status": 200, "type": {"contains": "event-stream"}}]}}},
    why="refused, or passed; the answer is what the engine's Content-Type says it is",
)
async def _stream_words() -> dict[str, Any]:
    async with POOL.borrow() as station:
        tries = [await station.ask(chat(stream=value)) for value in ("true", 1)]
    return {
        "each_way": [
            {
                "status": one.answer.status,
                "type": one.answer.header("content-type") or "",
                "complete": one.answer.complete,
            }
            for one in tries
        ]
    }


@case(
    "INT-12",
    "a stream whose client did not ask for usage",
    {"status": 200, "usage_events": 0, "same_events": True, "asked_upstream": True},
    why="usage may be asked for, if the extra event is taken out again",
)
async def _usage() -> dict[str, Any]:
    async with POOL.borrow() as station:
        talk = await station.ask(chat(stream=True))
        asked = upstream.wants_usage(station.upstream.requests[-1])
    body = talk.answer.body
    return {
        "status": talk.answer.status,
        "usage_events": body.count(b'"usage"'),
        "same_events": body == b"".join(upstream.chat_events()),
        "asked_upstream": asked,
    }


async def estimated(document: Any, path: str = "/v1/chat/completions") -> dict[str, Any]:
    """Send a document; say what the trace recorded of it."""
    async with POOL.borrow(RECORDED | {"limits": {"body": "33MiB"}}) as station:
        before = len(await trace_rows(station, 0))
        talk = await station.ask(document, path=path, within=20.0)
        rows = (await trace_rows(station, before + 1))[before:]
    row = rows[0] if rows else {}
    return {
        "status": talk.answer.status,
        "estimate": row.get("prompt_tokens_estimated"),
        "lane": row.get("lane"),
        "bytes": row.get("request_bytes"),
        "sequences": row.get("sequences", 1),
    }


def _saying(text: str, **more: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": text}], **more)


@case("INT-13", "prompts as lists of token ids: [[1,2],[3,4]]", {"status": 200, "estimate": 4, "in_flight": 2})
async def _nested() -> dict[str, Any]:
    document = _PROMPT | {"prompt": [[1, 2], [3, 4]]}
    held = await cost_of(document, _COMPLETIONS)
    return await estimated(document, _COMPLETIONS) | {"in_flight": held["in_flight"]}


@case(
    "INT-17",
    "a model name of 1 MB",
    {"status": 400, "upstream": 0, "longest_metric_line": {"at_most": 2000}, "longest_log_line": {"at_most": 4000}},
    why="refused; never whole in metrics or logs",
)
async def _long_name() -> dict[str, Any]:
    async with POOL.borrow(RECORDED) as station:
        got = await answered(station, json.dumps(chat(model="x" * 1_000_000)).encode())
        page = (await station.page("/metrics")).answer.body.decode()
        lines = station.log.splitlines()
    return got | {
        "longest_metric_line": max(map(len, page.splitlines())),
        "longest_log_line": max(map(len, lines)),
    }


@case(
    "INT-19",
    "30,000 Chinese characters, and 30,000 ASCII characters",
    {"chinese": {"lane": "long", "estimate": {"at_least": 15_000}}, "ascii": {"estimate": {"at_most": 15_000}}},
)
async def _chinese() -> dict[str, Any]:
    chinese = ("今天天气很好我们一起去公园散步吧" * 2000)[:30_000]
    english = ("the quick brown fox jumps over the lazy dog " * 700)[:30_000]
    return {"chinese": await estimated(_saying(chinese)), "ascii": await estimated(_saying(english))}


@case("INT-20", "10,000 joined emoji", {"status": 200, "times_a_quarter_of_the_bytes": {"at_least": 1.0}})
async def _emoji() -> dict[str, Any]:
    text = "👩\u200d👩\u200d👧\u200d👦" * 2500
    got = await estimated(_saying(text))
    return got | {"times_a_quarter_of_the_bytes": round((got["estimate"] or 0) / (len(text.encode()) / 4), 2)}


@case("INT-21", "1 MB of base64 inside text", {"status": 200, "lane": "long", "estimate": {"at_least": 250_000}})
async def _base64() -> dict[str, Any]:
    blob = "".join(
        chr(65 + (i * 7 + i // 26) % 26) + chr(97 + (i * 11) % 26) + str(i % 10) + "k" for i in range(250_000)
    )
    return await estimated(_saying("decode this: " + blob))


@case(
    "INT-22",
    'a tools schema of 500 kB beside the prompt "hi"',
    {"status": 200, "lane": "long", "estimate": {"at_least": 60_000}},
)
async def _tools() -> dict[str, Any]:
    properties = {f"field_{i}": {"type": "string", "description": "what this field is about"} for i in range(7_000)}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}
    return await estimated(_saying("hi", tools=[tool]))


@case(
    "INT-24",
    "a response_format schema 1000 levels deep",
    {"status": {"any_of": [200, 400]}, "traceback": False},
    why="nothing breaks; the engine may judge it",
)
async def _bomb() -> dict[str, Any]:
    opening = '{"type": "object", "properties": {"a": '
    deep = opening * 1000 + '{"type": "string"}' + "}}" * 1000
    body = json.dumps(chat(response_format=0)).replace(
        '"response_format": 0', '"response_format": {"type": "json_schema", "json_schema": {"schema": ' + deep + "}}"
    )
    async with POOL.borrow(RECORDED) as station:
        return await answered(station, body.encode())

"""The load generator's cases of answers: failed, refused, cut, short, or merged."""

import json
from typing import Any

from tests.faults.case import case
from tests.faults.loadgen_streams import WHOLE, every_other, stream, text, usage
from tests.faults.replaying import Asked, ended, mooncake, run_to_end, running, seen, summary
from tests.faults.upstream import DONE, Connection, Script, Seen, Upstream, event


async def _fails(seen: Seen, connection: Connection) -> None:
    await connection.answer(b'{"error":{"message":"broken","code":"oops"}}', "500 Internal Server Error")


@case(
    "LG-10",
    "an engine that fails every other request with 500",
    {
        "outcomes": {"ok": 20, "error": 20},
        "latencies_of": 20,
        "all_of": 40,
        "p99_with_failures": "inf",
        "reasons": {"contains": "500 oops"},
    },
    why="failures are counted and never among the latencies; where they count, they count as infinite",
)
async def _failures() -> dict[str, Any]:
    async with running(Asked(trace=mooncake(40)), every_other(WHOLE, _fails)) as replay:
        await ended(replay)
        told = (await summary(replay))["lanes"]["short"]
        failed = [shot for shot in replay.shots if shot["outcome"] != "ok"]
        return seen(replay) | {
            "latencies_of": told["ttft"]["n"],
            "all_of": told["ttft_all"]["n"],
            "p99_with_failures": told["ttft_all"]["p99"],
            "reasons": sorted({f"{shot.get('status')} {shot.get('reason')}" for shot in failed}),
        }


async def _busy(seen: Seen, connection: Connection) -> None:
    status = "429 Too Many Requests" if seen.connection.number % 2 else "503 Service Unavailable"
    await connection.answer(b'{"error":{"message":"full","code":"queue_full"}}', status, extra=b"retry-after: 7\r\n")


@case(
    "LG-11",
    "429 and 503 with Retry-After: 7",
    {"outcomes": {"rejected": 20}, "retry_after": [7], "asked_upstream": 20},
    why="refusals are a class of their own, their wait is kept, and nothing is sent twice",
)
async def _refused() -> dict[str, Any]:
    async with Upstream(_busy) as engine:
        async with running(Asked(trace=mooncake(20)), upstream=engine) as replay:
            await ended(replay)
            found = seen(replay) | {"retry_after": sorted({shot.get("retry_after") for shot in replay.shots}, key=str)}
        return found | {"asked_upstream": len([one for one in engine.requests if one.method == "POST"])}


@case(
    "LG-12",
    "streams that end cleanly without finish or [DONE], are cut, or carry an error",
    {
        "clean_end": {"outcomes": {"truncated": 4}},
        "cut": {"outcomes": {"any_of": [{"truncated": 4}, {"error": 4}]}},
        "error_inside": {"outcomes": {"error": 4}},
    },
    why="none of them is a success",
)
async def _truncated() -> dict[str, Any]:
    async def cut(seen: Seen, connection: Connection) -> None:
        await stream([text("a")], ends=False)(seen, connection)
        connection.close()

    error = event({"error": {"message": "out of memory", "code": 500}})
    scripts = {
        "clean_end": stream([text("a"), text("b")]),
        "cut": cut,
        "error_inside": stream([text("a"), error]),
    }
    return {name: await run_to_end(Asked(trace=mooncake(4)), script) for name, script in scripts.items()}


async def _one(script: Script, *arguments: str, prompt: int = 10, output: int = 3) -> dict[str, Any]:
    """The journal line of a single request, and what the summary says."""
    async with running(Asked(arguments, mooncake(1, prompt=prompt, output=output)), script) as replay:
        await ended(replay)
        told = await summary(replay)
        shots = replay.shots
    return {"exit": replay.code, "shot": shots[0] if shots else {}, "warnings": json.dumps(told.get("warnings"))} | {
        "lane": told.get("lanes", {}).get("short", {})
    }


def _without_events(shot: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "outcome",
        "tokens",
        "tokens_from",
        "chunks",
        "output_tokens",
        "first",
        "first_content",
        "last",
        "due",
        "kinds",
    )
    return {key: shot.get(key) for key in keys}


@case(
    "LG-13",
    "an engine that answers 3 tokens where 50 were recorded",
    {"shot": {"tokens": 3, "tokens_from": "usage", "output_tokens": 50}, "warned": True},
    why="counted by usage; that the lengths differ from the recording is said",
)
async def _fewer() -> dict[str, Any]:
    got = await _one(WHOLE, output=50)
    said = any(word in got["warnings"] for word in ("output", "shorter", "fewer"))
    return {"shot": _without_events(got["shot"]), "warned": said, "warnings": got["warnings"][:300]}


def _delta(content: str | None, **more: Any) -> bytes:
    delta = {"role": "assistant", "content": ""} if content is None else {"content": content}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **more}]})


@case(
    "LG-14",
    "a stream whose first event has only the role, and its first content 0.3 s later",
    {"outcome": "ok", "ttft_s": {"at_least": 0.28, "at_most": 1.0}, "first_event_s": {"at_most": 0.2}},
    why="the first token counts; the time of the first event is in the journal beside it",
)
async def _role_first() -> dict[str, Any]:
    parts = [_delta(None), _delta("a"), _delta("b", finish_reason="stop"), usage(10, 2), DONE]
    shot = (await _one(stream(parts, (0, 0.3)), "--endpoint", "chat"))["shot"]
    events = shot.get("events") or [0]
    return {
        "outcome": shot.get("outcome"),
        "ttft_s": shot.get("first", 0) - shot.get("due", 0),
        "first_event_s": shot.get("sent", 0) + events[0] / 1e6 - shot.get("due", 0),
        "kinds": shot.get("kinds"),
    }


@case(
    "LG-15",
    "31 tokens in 4 events, 0.1 s apart",
    {
        "tokens": 31,
        "chunks": 4,
        "tpot_s": {"at_least": 0.0095, "at_most": 0.013},
        "gaps": 3,
        "gap_p50_s": {"at_least": 0.09},
    },
    why="time per token by usage, gaps by event",
)
async def _several() -> dict[str, Any]:
    parts = [text("a b c"), text("d e f"), text("g h"), text("i j", "length"), usage(10, 31), DONE]
    got = await _one(stream(parts, (0, 0.1, 0.1, 0.1)), output=31)
    shot, lane = got["shot"], got["lane"]
    return {
        "tokens": shot.get("tokens"),
        "chunks": shot.get("chunks"),
        "tpot_s": lane.get("tpot", {}).get("p50"),
        "gaps": lane.get("icl", {}).get("n"),
        "gap_p50_s": lane.get("icl", {}).get("p50"),
    }

"""Every recorded request, sent to the engine itself and through lanewise, is answered the same."""

import json
import re

import pytest

from tests.engine.conftest import API_KEY
from tests.faults import wire

pytestmark = [pytest.mark.real_engine, pytest.mark.shared]

WITHIN_S = 120.0
CUT = {
    "chat_prompt_too_long": ("hello world " * 20_000, False),
    "chat_prompt_too_long_stream": ("hello world " * 20_000, True),
    "chat_body_1MB_ok_json_too_long": ("x " * 600_000, False),
    "chat_body_6MB": ("x " * 3_000_000, False),
}
"""Requests that are kept in part: content of their message, and whether they stream."""
SAMPLED = {"chat_n2", "chat_stream_n2", "compl_n2_best_of", "responses_create", "responses_stream"} | {
    "messages_create",
    "messages_stream",
}
"""Answers that are drawn by chance: same keys and events, other words."""
NOT_ROUTED = {
    *("get_load", "get_load_end", "metrics_idle_start", "metrics_idle_end", "get_kv_event_sources", "invocations"),
    *("generate_route", "options_chat", "x_load_busy", "x_metrics_busy", "x_metrics_end", "x_no_api_key_metrics"),
    *("get_root", "get_unknown_route", "get_model_one", "get_tokenizer_info", "get_server_info", "audio_on_generate"),
}
"""Not in the allow-list: administration, one engine's own pages, and what no generating engine serves."""
OWN_ANSWER = {
    *("chat_invalid_json", "chat_empty_body", "chat_json_not_object", "chat_no_content_type", "chat_text_plain"),
    *("chat_max_tokens_neg1", "chat_max_tokens_float", "chat_prompt_too_long", "chat_prompt_too_long_stream"),
    *("chat_body_1MB_ok_json_too_long", "chat_body_6MB", "compl_prompt_too_long_ids"),
    *("get_method_not_allowed", "head_health"),
}
"""lanewise answers these itself, with the engine's status: no turn is spent on what no engine takes."""
HELD = {"x_overflow_503", "x_overflow_503_stream", "x_overflow_503_n3", "x_overflow_503_messages"} | {
    "x_overflow_503_responses"
}
"""Sent while the engine's queue is full."""
WARM = {"x_prefix_cached_usage_2"}
"""Found in the prefix cache, where the case before it has put it."""
OTHER_ID = {"chat_body_request_id"}
"""The engine takes `X-Request-Id` before `request_id` of the body, and lanewise always sends that field."""
ELSEWHERE = {"x_sse_keepalive_prefill", "x_queued_tokens_503", "x_request_id_absent"}
"""Their answers depend on what else runs, or on a flag of another engine."""
OURS = {"x-request-id", "connection", "keep-alive", "transfer-encoding", "content-length", "date"}
"""Header fields of the hop, and the id that lanewise always gives."""

_IDS = re.compile(rb'"((?:chatcmpl|cmpl|resp|msg|rs|call|chatcmpl-tool|modelperm)[-_])[0-9a-f][0-9a-f-]*')
_TIMES = re.compile(rb'"(created(?:_at)?|completed_at)":\s?\d+(?:\.\d+)?')
_MEASURED = re.compile(rb'"((?:\w+_ms)|tokens_per_second)":\s?[\d.e-]+')


def recorded(shared, group):
    index = json.loads((shared / "fixtures/INDEX.json").read_bytes())
    return [name for name, entry in index.items() if entry["set"] == group]


def sent(shared, name):
    request = (shared / f"fixtures/{name}.req").read_bytes()
    if name not in CUT:
        return request
    content, stream = CUT[name]
    document = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8}
    document |= {"temperature": 0, "seed": 1} | ({"stream": True} if stream else {})
    body = json.dumps(document).encode()
    head = [
        line
        for line in request.partition(b"\r\n\r\n")[0].split(b"\r\n")
        if not line.lower().startswith(b"content-length")
    ]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


async def answered(port, request):
    if request.startswith(b"HEAD "):
        return (await wire.talk(port, request, quiet=0.5, heads_only=True)).answer
    return (await wire.ask(port, request, WITHIN_S)).answer


def plain(body):
    """A body without what changes from answer to answer: ids, times, measurements."""
    return _MEASURED.sub(rb'"\1":0', _TIMES.sub(rb'"\1":0', _IDS.sub(rb'"\1X', body)))


def shape(value):
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        shapes = [shape(inner) for inner in value]
        return [one for place, one in enumerate(shapes) if one not in shapes[:place]]
    return None


def events(body):
    """(name, document) of each event; a text where the data is no JSON. Comments are skipped."""
    found = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = [line.partition(b": ")[::2] for line in block.split(b"\n") if line and not line.startswith(b":")]
        data = b"".join(value for name, value in fields if name == b"data")
        if fields:
            name = next((value.decode() for name, value in fields if name == b"event"), "")
            found.append((name, json.loads(data) if data.startswith(b"{") else data.decode()))
    return found


def joined(body):
    """A stream as its client adds it up: an engine merges events when its reader is slow."""
    texts, rest = {}, []
    for name, document in events(body):
        if isinstance(document, dict):
            # vLLM says it in the last event but [DONE]: with usage, which lanewise asks for and takes out again, in
            # that one, so a client that did not ask for usage does not see it.
            document.pop("system_fingerprint", None)
            if document.get("choices"):
                document.pop("usage", None)  # so far: which counts are seen depends on what was merged
            for choice in document.get("choices", ()):
                holder = choice.get("delta", choice)
                key = "content" if "delta" in choice else "text"
                texts.setdefault(choice["index"], []).append(holder.pop(key, None) or "")
                choice.pop("token_ids", None)
        if (name, document) not in rest:
            rest.append((name, document))
    # The events of several choices come in any order, one at a time.
    return {index: "".join(parts) for index, parts in texts.items()}, sorted(rest[:-1], key=repr), rest[-1:]


def told(name, answer):
    """What has to be equal."""
    fields = sorted((key.lower().decode(), value) for key, value in answer.fields)
    fields = [(key, value) for key, value in fields if key not in OURS]
    body = plain(answer.body)
    streams = (answer.header("content-type") or "").startswith("text/event-stream")
    if name in SAMPLED and answer.status == 200:
        body = shape([one for _, one in events(body)]) if streams else shape(json.loads(body))
    elif streams:
        body = joined(body)
    return answer.status, answer.complete, fields, body


def difference(name, direct, through):
    """None when both are told the same; else what each was told."""
    if name in OWN_ANSWER:
        same = through.status == direct.status and through.header("x-lanewise-reason")
        return None if same else (direct.status, through.status, through.body[:200])
    one, other = told(name, direct), told(name, through)
    return None if one == other else (one, other)


async def compared(shared, names, engine, proxy):
    """The cases whose two answers differ."""
    wrong = {}
    for name in names:
        request = sent(shared, name)
        direct = await answered(engine.port, request)
        if name not in WARM:
            await wire.ask(engine.port, wire.request(path="/reset_prefix_cache"), WITHIN_S)
        found = difference(name, direct, await answered(proxy.port, request))
        if found:
            wrong[name] = found
    return wrong


def listed(wrong):
    return "\n".join(f"{name}:\n  direct  {found[0]}\n  through {found[1:]}" for name, found in wrong.items())


async def test_every_recorded_request_is_answered_through_lanewise_as_by_the_engine_itself(shared, engine, in_front_of):
    names = [name for name in recorded(shared, "default") if name not in NOT_ROUTED | OTHER_ID]
    assert len(names) > 80
    async with in_front_of(engine) as proxy:
        wrong = await compared(shared, names, engine, proxy)
    assert not wrong, listed(wrong)


async def test_what_is_not_in_the_allow_list_is_404_or_405_and_never_reaches_the_engine(shared, engine, in_front_of):
    names = [name for name in recorded(shared, "default") if name in NOT_ROUTED]
    async with in_front_of(engine) as proxy:
        before = await engine.total("http_requests_total", 'handler="/invocations"')
        answers = {name: await answered(proxy.port, sent(shared, name)) for name in names}
        after = await engine.total("http_requests_total", 'handler="/invocations"')
    assert {name: answer.status for name, answer in answers.items() if answer.status not in {404, 405}} == {}
    assert all(answer.header("x-lanewise-reason") == "invalid" for answer in answers.values())
    assert after == before


async def test_keys_tools_priorities_and_request_ids_pass_as_they_are(shared, flagged, in_front_of):
    names = [name for name in recorded(shared, "flags") if name not in NOT_ROUTED | HELD | ELSEWHERE]
    assert len(names) > 10
    async with in_front_of(flagged, api_key=API_KEY) as proxy:
        wrong = await compared(shared, names, flagged, proxy)
    assert not wrong, listed(wrong)


async def test_a_full_engine_is_told_to_the_client_in_the_engines_own_words(shared, flagged, in_front_of):
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    busy = wire.request(body, path="/v1/completions", headers=(f"Authorization: Bearer {API_KEY}",))
    wrong = {}
    async with in_front_of(
        flagged, api_key=API_KEY, scheduling={"drop_factor": "never", "adaptive": {"enabled": False}}
    ) as proxy:
        others = [await wire.Client.connect(flagged.port) for _ in range(4)]
        for one in others:
            one.send(busy)
            assert await one.read_until(b"\r\n\r\n", 30.0)
        for name in sorted(HELD):
            request = sent(shared, name)
            direct, through = await answered(flagged.port, request), await answered(proxy.port, request)
            assert direct.status == 503
            found = difference(name, direct, through)
            if found:
                wrong[name] = found
        for one in others:
            one.reset()
    await flagged.idle(within=30.0)
    assert not wrong, listed(wrong)

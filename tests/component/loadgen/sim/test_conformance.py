"""The simulated engine answers the recorded requests as the real vLLM did: status, headers, keys, errors."""

import asyncio

import orjson
import pytest

pytestmark = pytest.mark.shared

ENDPOINTS = {
    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize"),
    *("/health", "/ping", "/version", "/load", "/", "/v1/nope", "/v1/models/tiny"),
    *("/tokenizer_info", "/server_info", "/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions"),
}
NOT_IMITATED = {
    "chat_logprobs": "there is no model whose probabilities could be told",
    "chat_stream_logprobs": "as chat_logprobs",
    "compl_echo_logprobs": "as chat_logprobs",
    "chat_echo": "prompt_logprobs, as chat_logprobs",
    "options_chat": "no browser talks to a simulated engine",
}
CUT = {
    "chat_prompt_too_long": ("hello world " * 20000, False),
    "chat_prompt_too_long_stream": ("hello world " * 20000, True),
    "chat_body_1MB_ok_json_too_long": ("x " * 600000, False),
    "chat_body_6MB": ("x " * 3000000, False),
}


def recorded(shared):
    index = orjson.loads((shared / "fixtures" / "INDEX.json").read_bytes())
    return [
        name
        for name, entry in index.items()
        if entry["set"] == "default" and entry["path"] in ENDPOINTS and name not in NOT_IMITATED
    ]


def sent(shared, name):
    request = (shared / "fixtures" / f"{name}.req").read_bytes()
    if name not in CUT:
        return request
    head, _, _ = request.partition(b"\r\n\r\n")
    content, stream = CUT[name]
    document = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        "temperature": 0,
        "seed": 1,
    }
    if stream:
        document["stream"] = True
    body = orjson.dumps(document)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


async def was_answered(shared, name, read_answer):
    reader = asyncio.StreamReader()
    reader.feed_data((shared / "fixtures" / f"{name}.resp").read_bytes())
    reader.feed_eof()
    return await read_answer(reader, name.startswith("head_"))


def shape(value):
    """Keys and nesting without the leaves; of a list, every shape in it once."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        shapes = [shape(inner) for inner in value]
        return [one for place, one in enumerate(shapes) if one not in shapes[:place]]
    return None


def told(answer):
    """What has to be the same: errors whole, documents and events by their shape."""
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return kind, list(answer.events[0]), shape(answer.events)
    if not answer.body:
        return kind, b""
    document = answer.document
    if answer.status >= 400:
        return kind, document
    return kind, list(document), shape(document)


async def test_every_recorded_request_is_answered_as_vllm_answered_it(shared, serving, read_answer):
    names = recorded(shared)
    assert len(names) > 80
    wrong = {}
    async with serving(details=False, speed=1000.0) as client:
        for name in names:
            theirs = await was_answered(shared, name, read_answer)
            ours = await client.raw(sent(shared, name))
            if (theirs.status, set(theirs.headers), told(theirs)) != (ours.status, set(ours.headers), told(ours)):
                wrong[name] = (
                    theirs.status,
                    ours.status,
                    sorted(set(theirs.headers) ^ set(ours.headers)),
                    told(theirs),
                    told(ours),
                )
    assert not wrong, "\n".join(f"{name}: {difference}" for name, difference in wrong.items())


async def test_a_full_queue_is_answered_as_vllm_answers_it(shared, serving, read_answer):
    theirs = await was_answered(shared, "x_overflow_503", read_answer)
    async with serving(max_num_seqs=2, max_num_queued_reqs=4, speed=0.1) as client:
        open_streams = []
        for _ in range(4):
            reader, writer = await client.open()
            body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}
            writer.write(client.request("/v1/completions", body))
            await reader.readuntil(b"\r\n\r\n")
            open_streams.append(writer)
        ours = await client.raw(sent(shared, "x_overflow_503"))
        assert (ours.status, ours.document) == (theirs.status, theirs.document)
        three = await client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 3})
        assert three.document == theirs.document
        series = 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}'
        assert (await client.metrics())[series] == 2
        for writer in open_streams:
            writer.close()


async def test_the_metrics_have_vllms_names_labels_and_buckets(shared, serving):
    text = (shared / "fixtures" / "metrics_after_runs.txt").read_text()
    theirs = {line.rpartition(" ")[0] for line in text.splitlines() if line.startswith("vllm:")}
    async with serving() as client:
        await client.post("/v1/completions", {"prompt": "x", "max_tokens": 3})
        ours = {series for series in await client.metrics() if series.startswith("vllm:")}
    unknown = {series for series in ours if series not in theirs and "cache_config_info" not in series}
    assert not unknown
    for histogram in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        buckets = {series for series in theirs if series.startswith(f"vllm:{histogram}_bucket")}
        assert buckets
        assert buckets <= ours

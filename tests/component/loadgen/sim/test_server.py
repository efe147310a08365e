"""The simulated engine's server on real sockets: streams, disconnects, prefix cache, metrics."""

import asyncio
from zlib import crc32

import orjson
import pytest

LONG = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}
RUNNING = 'vllm:num_requests_running{engine="0",model_name="tiny"}'
WAITING = 'vllm:num_requests_waiting{engine="0",model_name="tiny"}'


async def test_the_head_of_a_stream_leaves_before_the_first_token(serving):
    async with serving(speed=0.05) as client:
        reader, writer = await client.open()
        writer.write(client.request("/v1/completions", {**LONG, "prompt": [7] * 4000, "stream": True}))
        await reader.readuntil(b"\r\n\r\n")
        metrics = await client.metrics()
        assert metrics['vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"}'] == 0


async def test_a_stream_says_exactly_as_many_tokens_as_were_asked_for(serving):
    async with serving() as client:
        body = {"prompt": "hi", "max_tokens": 40, "ignore_eos": True, "stream": True}
        answer = await client.post("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        *chunks, usage = answer.events
        words = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        counted = (await client.post("/tokenize", {"prompt": words})).document["count"]
    assert usage["usage"]["completion_tokens"] == 40 == counted
    assert usage["usage"]["prompt_tokens"] == 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_whole_answer_and_a_stream_say_the_same(serving):
    async with serving() as client:
        body = {"messages": [{"role": "user", "content": "Say something."}], "seed": 5}
        whole = (await client.post("/v1/chat/completions", body)).document
        events = (await client.post("/v1/chat/completions", {**body, "stream": True})).events
    spoken = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert spoken == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] >= 16


async def test_tokenize_agrees_with_usage(serving):
    async with serving() as client:
        messages = [{"role": "system", "content": "你好世界。"}, {"role": "user", "content": "Count: 12345 😀"}]
        count = (await client.post("/tokenize", {"messages": messages})).document["count"]
        answer = (await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})).document
    assert answer["usage"]["prompt_tokens"] == count


async def test_detokenize_gives_back_what_was_tokenized(serving):
    async with serving() as client:
        tokens = (await client.post("/tokenize", {"prompt": "def main(): 返回 42"})).document["tokens"]
        assert (await client.post("/detokenize", {"tokens": tokens})).document == {"prompt": "def main(): 返回 42"}


async def test_every_prompt_and_sample_is_a_choice_of_its_own(serving):
    async with serving() as client:
        body = {"prompt": ["one", [5, 6, 7]], "n": 2, "max_tokens": 6, "ignore_eos": True, "stream": True}
        events = (await client.post("/v1/completions", body)).events
    choices = [event["choices"][0] for event in events]
    assert {choice["index"] for choice in choices} == {0, 1, 2, 3}
    texts = ["".join(choice["text"] for choice in choices if choice["index"] == index) for index in range(4)]
    assert len(set(texts)) == 4


async def test_request_ids_come_from_the_header_or_the_body(serving):
    async with serving() as client:
        asked = {"prompt": "x", "max_tokens": 1}
        assert (await client.post("/v1/completions", asked, X_Request_Id="abc")).document["id"] == "cmpl-abc"
        assert (await client.post("/v1/completions", {**asked, "request_id": "de"})).document["id"] == "cmpl-de"


async def test_a_repeated_prompt_is_found_in_the_prefix_cache_unless_it_is_salted(serving):
    async with serving() as client:
        body = {"prompt": list(range(1000, 1700)), "max_tokens": 1}
        told = [
            (await client.post("/v1/completions", {**body, **more})).document["usage"]["prompt_tokens_details"]
            for more in ({}, {}, {"cache_salt": "a"}, {"cache_salt": "a"})
        ]
        metrics = await client.metrics()
    assert [details["cached_tokens"] for details in told] == [0, 640, 0, 640]
    assert [details["created_cache_tokens"] for details in told] == [640, 0, 640, 0]
    assert metrics['vllm:prefix_cache_hits_total{engine="0",model_name="tiny"}'] == 1280
    assert metrics['vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_cache_hit"}'] == 1280


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
async def test_a_client_that_leaves_while_decoding_is_aborted(serving, how, stream):
    async with serving(speed=1.0) as client:
        _, writer = await client.open()
        writer.write(client.request("/v1/completions", {**LONG, "stream": stream}))
        await client.until(RUNNING, 1)
        leave(writer, how)
        await client.until(RUNNING, 0)
        before = await client.metrics()
        assert before['vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'] == 0
        assert (await client.get("/load")).document == {"server_load": 0}


async def test_a_client_that_leaves_while_prefilling_frees_the_engine_at_the_next_step(serving):
    async with serving(speed=1.0) as client:
        _, writer = await client.open()
        writer.write(client.request("/v1/completions", {**LONG, "prompt": [9] * 12000, "stream": True}))
        await client.until(RUNNING, 1)
        writer.close()
        await client.until(RUNNING, 0)
        metrics = await client.metrics()
    assert metrics['vllm:prompt_tokens_total{engine="0",model_name="tiny"}'] == 0
    assert metrics['vllm:iteration_tokens_total_count{engine="0",model_name="tiny"}'] < 6


async def test_clients_that_leave_while_waiting_leave_the_queue(serving):
    async with serving(speed=1.0, max_num_seqs=1) as client:
        writers = []
        for _ in range(5):
            _, writer = await client.open()
            writer.write(client.request("/v1/completions", {**LONG, "stream": True, "n": 1}))
            writers.append(writer)
        await client.until(WAITING, 4)
        for writer in writers[1:]:
            writer.close()
        await client.until(WAITING, 0)
        assert (await client.metrics())[RUNNING] == 1


async def test_all_sequences_of_a_request_are_aborted_together(serving):
    async with serving(speed=1.0) as client:
        _, writer = await client.open()
        writer.write(client.request("/v1/completions", {**LONG, "temperature": 1, "n": 3, "stream": True}))
        await client.until(RUNNING, 3)
        writer.close()
        await client.until(RUNNING, 0)
        assert (await client.metrics())[WAITING] == 0


async def test_an_old_client_without_chunks_reads_to_the_end_of_the_connection(serving):
    async with serving() as client:
        body = orjson.dumps({"prompt": "x", "max_tokens": 2, "stream": True})
        head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        answer = await client.raw(head.encode() + body)
    assert "transfer-encoding" not in answer.headers
    assert len(answer.events) == 2


async def test_a_tool_can_ask_for_the_load_in_a_header(serving):
    async with serving() as client:
        body = {"prompt": "x", "max_tokens": 1}
        plain = await client.post("/v1/completions", body, endpoint_load_metrics_format="TEXT")
        json = await client.post("/v1/completions", body, endpoint_load_metrics_format="JSON")
    assert plain.headers["endpoint-load-metrics"].startswith("text named_metrics.num_requests_waiting=0.0")
    assert "kv_cache_usage_perc" in orjson.loads(json.headers["endpoint-load-metrics"][5:])["named_metrics"]


async def test_a_request_over_the_kv_cache_is_refused_with_the_numbers(serving):
    async with serving(kv_blocks=4) as client:
        answer = await client.post("/v1/completions", {"prompt": [5] * 1000, "max_tokens": 8})
    assert answer.status == 400
    assert "512" in answer.document["error"]["message"]


async def test_tokens_of_one_step_arrive_together(serving):
    async with serving(speed=0.5) as client:
        readers = []
        for _ in range(3):
            reader, writer = await client.open()
            writer.write(client.request("/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": True}))
            readers.append(reader)
        answers = await asyncio.gather(*map(client.read_answer, readers))
        steps = (await client.metrics())['vllm:iteration_tokens_total_count{engine="0",model_name="tiny"}']
    assert all(len(answer.events) == 1 for answer in answers)
    assert steps <= 2


async def test_the_ledger_says_what_was_answered_byte_for_byte(serving, tmp_path):
    file = tmp_path / "ledger.jsonl"
    async with serving(ledger=file) as client:
        body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "stream_options": {"include_usage": True}}
        answers = {
            "stream": await client.post("/v1/completions", {**body, "stream": True}, x_request_id="stream"),
            "whole": await client.post("/v1/completions", {"prompt": "x", "max_tokens": 3}, x_request_id="whole"),
            "wrong": await client.post("/v1/completions", {"prompt": "x", "max_tokens": -1}, x_request_id="wrong"),
        }
        lines = {line["request_id"]: line for line in map(orjson.loads, file.read_bytes().splitlines())}
    for name, answer in answers.items():
        told = {"status": answer.status, "bytes": len(answer.body), "crc32": crc32(answer.body), "whole": True}
        assert lines[name] == {"request_id": name, **told}


async def test_the_ledger_tells_an_answer_whose_client_left(serving, tmp_path):
    file = tmp_path / "ledger.jsonl"
    async with serving(ledger=file) as client:
        reader, writer = await client.open()
        writer.write(client.request("/v1/completions", {**LONG, "stream": True}, x_request_id="left"))
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        await client.until(RUNNING, 0)
        (line,) = map(orjson.loads, file.read_bytes().splitlines())
    assert (line["request_id"], line["whole"]) == ("left", False)
    assert line["bytes"] > 0


def leave(writer, how):
    if how == "close":
        writer.close()
    elif how == "half-close":
        writer.write_eof()
    else:
        writer.transport.abort()

"""Bodies become jobs, or the refusal that vLLM sends. (What it recorded: tests/component/loadgen/sim.)"""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.http_errors import ApiError
from loadgen.sim.http_requests import Served, decode, read_chat, read_completion, read_detokenize, read_tokenize

SERVED = Served("m", 1000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "n", "stream", "seed"),
        *("stream_options", "stop", "stop_token_ids", "logit_bias", "response_format", "temperature", "tools"),
        *("tool_choice", "priority", "cache_salt", "request_id", "echo", "suffix", "tokens", "ignore_eos"),
    ]
)


@pytest.mark.parametrize("read", [read_chat, read_completion, read_tokenize, read_detokenize])
@given(strange=st.dictionaries(FIELDS, JSON, max_size=3))
def test_any_object_is_read_or_refused_with_a_sentence(read, strange):
    valid = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "tokens": [5], "stream": True}
    refusal = refusal_of(lambda: read(valid | strange, SERVED))
    assert refusal is None or (refusal.message and 400 <= refusal.status < 500)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_refused(body):
    refusal = refusal_of(lambda: decode(body))
    assert refusal is None or refusal.status == 400


def refusal_of(reading):
    try:
        reading()
    except ApiError as error:
        return error
    return None


def refused(read, document):
    with pytest.raises(ApiError) as caught:
        read(document, SERVED)
    return caught.value


def test_the_newer_name_of_the_cap_wins():
    messages = [{"role": "user", "content": "hi"}]
    job = read_chat({"messages": messages, "max_tokens": 3, "max_completion_tokens": 6}, SERVED)
    assert job.sampling[0].cap == 6


def test_without_a_cap_a_chat_takes_the_rest_of_the_context_and_a_completion_sixteen():
    chat = read_chat({"messages": [{"role": "user", "content": "hi"}]}, SERVED)
    assert chat.sampling[0].cap == 1000 - chat.prompt_tokens
    assert read_completion({"prompt": "hi"}, SERVED).sampling[0].cap == 16


def test_a_cap_over_what_is_left_is_cut_for_each_prompt():
    job = read_completion({"prompt": [[5] * 990, [5] * 10], "max_tokens": 100}, SERVED)
    assert [sampling.cap for sampling in job.sampling] == [10, 100]


def test_a_prompt_comes_as_text_texts_ids_or_lists_of_ids():
    for prompt, count in (("hello", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2], [3]], 3), (["a", [1]], 2)):
        assert len(read_completion({"prompt": prompt}, SERVED).prompts) == count


def test_a_whole_number_may_come_as_text_or_float():
    assert read_completion({"prompt": "x", "max_tokens": "12"}, SERVED).sampling[0].cap == 12
    assert read_completion({"prompt": "x", "max_tokens": 12.0}, SERVED).sampling[0].cap == 12
    assert refused(read_completion, {"prompt": "x", "max_tokens": "many"}).param == "body.max_tokens"
    assert refused(read_completion, {"prompt": "x", "max_tokens": True}).param == "body.max_tokens"


def test_several_samples_need_a_temperature():
    assert refused(read_completion, {"prompt": "x", "n": 2, "temperature": 0}).message.startswith("n must be 1")
    assert read_completion({"prompt": "x", "n": 2}, SERVED).n == 2
    assert refused(read_completion, {"prompt": "x", "n": 0}).param == "n"


def test_usage_in_every_event_needs_usage_at_all():
    options = {"continuous_usage_stats": True}
    job = read_completion({"prompt": "x", "stream": True, "stream_options": options}, SERVED)
    assert not job.running_usage


def test_a_conversation_is_counted_without_the_answers_opening_when_asked():
    messages = [{"role": "user", "content": "hi"}]
    with_opening = read_tokenize({"messages": messages}, SERVED)
    without = read_tokenize({"messages": messages, "add_generation_prompt": False}, SERVED)
    assert len(with_opening) - len(without) == 5


def test_a_message_that_is_no_message_is_named_by_its_place():
    error = refused(read_chat, {"messages": [{"role": "user", "content": "hi"}, "hello"]})
    assert error.param == "body.messages.1"


def test_every_refusal_is_a_document():
    body = refused(read_completion, {"prompt": "x", "model": "other"}).body
    assert orjson.loads(orjson.dumps(body))["error"]["code"] == 404


@pytest.mark.parametrize(
    "fields",
    [{}, {"add_generation_prompt": False}, {"tools": [{"type": "function"}], "tool_choice": {"type": "function"}}],
)
def test_tokenize_gives_the_ids_that_the_chat_runs(fields):
    document = {"messages": [{"role": "user", "content": "how long?"}], **fields}
    assert tuple(read_tokenize(document, SERVED)) == tuple(read_chat(document, SERVED).prompts[0])

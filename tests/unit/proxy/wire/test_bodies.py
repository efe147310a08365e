"""Bodies of every dialect become facts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.bodies import read_facts
from proxy.wire.facts import Endpoint, Facts, OutputFields
from proxy.wire.paths import Route, route


def chat(**fields: Any) -> Facts:
    return read_facts(Endpoint.CHAT, {"messages": [{"role": "user", "content": "hello"}]} | fields, 10)


def completions(**fields: Any) -> Facts:
    return read_facts(Endpoint.COMPLETIONS, {"prompt": "hello"} | fields, 10)


def test_a_chat_is_read() -> None:
    facts = chat(model="demo", stream=True, max_tokens=50, n=2, priority=3, cache_salt="s", min_tokens=5)
    assert (facts.model, facts.stream, facts.sequences, facts.body_bytes) == ("demo", True, 2, 10)
    assert facts.output == OutputFields(50, ("max_tokens",), 5)
    assert (facts.priority, facts.cache_salt, facts.kv_transfer) == (3, "s", False)
    assert (facts.census.latin, facts.census.messages) == (5, 1)
    assert not facts.partial_census


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({}, OutputFields()),
        ({"max_tokens": None}, OutputFields(None, ("max_tokens",))),
        ({"max_tokens": 3, "max_completion_tokens": 6}, OutputFields(6, ("max_completion_tokens", "max_tokens"))),
        ({"max_tokens": 6, "max_completion_tokens": 3}, OutputFields(3, ("max_completion_tokens", "max_tokens"))),
        ({"max_tokens": 6, "max_completion_tokens": None}, OutputFields(6, ("max_tokens", "max_completion_tokens"))),
        ({"max_tokens": "12"}, OutputFields(12, ("max_tokens",))),
        ({"max_tokens": "many"}, OutputFields()),
        ({"max_tokens": -1}, OutputFields()),
        ({"max_tokens": [1]}, OutputFields()),
        ({"max_output_tokens": 5}, OutputFields()),
        ({"thinking_token_budget": 9}, OutputFields(thinking_budget=9)),
    ],
)
def test_the_output_cap_of_a_chat(fields: dict[str, Any], output: OutputFields) -> None:
    assert chat(**fields).output == output


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({}, OutputFields(16)),
        ({"max_tokens": None}, OutputFields(None, ("max_tokens",))),
        ({"max_tokens": 0, "echo": True}, OutputFields(0, ("max_tokens",))),
        ({"max_completion_tokens": 5}, OutputFields(16)),
    ],
)
def test_the_output_cap_of_a_completion_is_16_when_absent_and_open_when_null(
    fields: dict[str, Any], output: OutputFields
) -> None:
    assert completions(**fields).output == output


def test_the_output_cap_of_responses_and_messages() -> None:
    responses = read_facts(Endpoint.RESPONSES, {"input": "hi", "max_output_tokens": 7, "max_tokens": 5}, 1)
    assert responses.output == OutputFields(7, ("max_output_tokens",))
    document = {"messages": [], "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 4}}
    assert read_facts(Endpoint.MESSAGES, document, 1).output == OutputFields(9, ("max_tokens",), None, 4)
    assert read_facts(Endpoint.EMBEDDINGS, {"input": "a", "max_tokens": 9}, 1).output == OutputFields()


@pytest.mark.parametrize(
    ("prompt", "prompts", "tokens"),
    [
        ("one", 1, None),
        ([], 1, None),
        (["a", "b", "c"], 3, None),
        ([1, 2, 3, 4], 1, 4),
        ([[1, 2], [3]], 2, 3),
        ([[1, 2], "text"], 2, None),
        (None, 1, None),
        (7, 1, None),
    ],
)
def test_prompts_are_counted_and_token_ids_are_exact(prompt: Any, prompts: int, tokens: int | None) -> None:
    facts = completions(prompt=prompt, n=2)
    assert (facts.prompts, facts.prompt_tokens, facts.sequences) == (prompts, tokens, prompts * 2)


def test_prompt_embeddings_are_prompts_of_unknown_length() -> None:
    facts = read_facts(Endpoint.COMPLETIONS, {"prompt_embeds": ["AAAA", "BBBB"]}, 1)
    assert (facts.prompts, facts.partial_census) == (2, True)
    assert completions(prompt_embeds="AAAA").prompts == 2


def test_n_that_is_no_count_is_one() -> None:
    assert [chat(n=n).n for n in (None, 0, -3, "x", 1.5, [], "4", 3.0)] == [1, 1, 1, 1, 1, 1, 4, 3]


def test_a_batch_of_chats_counts_each_conversation() -> None:
    turn = {"role": "user", "content": "one"}
    facts = chat(messages=[[turn], [turn, turn]])
    assert (facts.prompts, facts.census.messages, facts.census.latin) == (2, 3, 9)
    assert not facts.splittable


@pytest.mark.parametrize(
    ("fields", "asks", "may_ask"),
    [
        ({"stream": True}, False, True),
        ({"stream": True, "stream_options": None}, False, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, False, True),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, False),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, False, False),
        ({"stream": True, "stream_options": "x"}, False, False),
        ({"stream": True, "kv_transfer_params": {}}, False, False),
        ({"stream": False}, False, False),
        ({}, False, False),
    ],
)
def test_usage_may_be_asked_for_only_where_it_changes_nothing_else(
    fields: dict[str, Any], asks: bool, may_ask: bool
) -> None:
    for facts in (chat(**fields), completions(**fields)):
        assert (facts.asks_usage, facts.may_ask_usage) == (asks, may_ask)


def test_messages_and_responses_report_usage_unasked() -> None:
    for endpoint in (Endpoint.MESSAGES, Endpoint.RESPONSES):
        assert not read_facts(endpoint, {"stream": True}, 1).may_ask_usage


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": 1},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"truncate_prompt_tokens": 100},
        {"documents": [{"text": "d"}]},
        {"reasoning_effort": "low"},
        {"a_field_of_tomorrow": 1},
        {"messages": []},
        {"messages": "text"},
        {"messages": [[{"role": "user", "content": "a batch of one"}]]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
    ],
)
def test_a_chat_that_could_read_its_prompt_differently_is_not_split(fields: dict[str, Any]) -> None:
    assert not chat(**fields).splittable


def test_a_plain_chat_is_splittable_with_sampling_and_template_fields() -> None:
    assert chat().splittable
    assert chat(
        temperature=0.5, top_k=3, tools=[{"type": "function"}], tool_choice="auto", chat_template_kwargs={"x": 1},
        prompt_logprobs=None, cache_salt="s", priority=1, n=2, logprobs=True, stream=True,
    ).splittable  # fmt: skip
    assert chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}]).splittable


def test_a_completion_is_splittable_unless_its_prompt_must_be_scored() -> None:
    assert completions().splittable
    assert completions(prompt=[1, 2, 3]).splittable
    assert completions(echo=True).splittable
    assert completions(logprobs=1).splittable
    assert not completions(echo=True, logprobs=1).splittable
    assert not completions(prompt=["a", "b"]).splittable
    assert not completions(prompt=[[1, 2]]).splittable
    assert not completions(prompt_embeds="AAAA").splittable
    assert not completions(suffix="end").splittable


def test_other_endpoints_are_never_split() -> None:
    for endpoint in set(Endpoint) - {Endpoint.CHAT, Endpoint.COMPLETIONS}:
        assert not read_facts(endpoint, {"messages": [{"role": "user", "content": "a"}], "input": "a"}, 1).splittable


def test_blocks_are_given_only_when_asked_for_and_only_for_one_prompt() -> None:
    document: dict[str, Any] = {"prompt": [5, 6, 7]}
    assert read_facts(Endpoint.COMPLETIONS, document, 1).blocks == ()
    assert read_facts(Endpoint.COMPLETIONS, document, 1, want_blocks=True).blocks == ("5,6,7",)
    assert read_facts(Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}, 1, want_blocks=True).blocks == ()


def test_utility_requests_have_no_prompt_to_run() -> None:
    facts = read_facts(Endpoint.UTILITY, {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}, 5)
    assert facts == Facts(Endpoint.UTILITY, model="demo", body_bytes=5)


KEYS = st.sampled_from([
    "messages", "prompt", "input", "system", "instructions", "tools", "content", "role", "text", "type",
    "query", "documents", "text_1", "text_2", "max_tokens", "n", "stream", "stream_options", "include_usage",
    "thinking", "budget_tokens", "tool_calls", "images", "prompt_embeds", "items", "model", "tool_result",
    "output", "summary", "previous_response_id",
])  # fmt: skip
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from(["tool_result", "tool_use", "function_call_output", "reasoning", "item_reference"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(Endpoint)), st.dictionaries(KEYS, ANY_JSON, max_size=6), st.booleans())
def test_no_document_whatever_makes_the_reader_raise(
    endpoint: Endpoint, document: dict[str, Any], want_blocks: bool
) -> None:
    facts = read_facts(endpoint, document, 1, want_blocks=want_blocks)
    assert facts.sequences >= 1
    census = facts.census
    assert min(census.latin, census.digits, census.symbols, census.cjk, census.other, census.base64) >= 0


def test_a_document_of_any_depth_is_read() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [{"type": "tool_result", "content": deep}]
    for endpoint in Endpoint:
        document = {"messages": [{"role": "user", "content": deep}], "tools": deep, "input": deep, "prompt": deep}
        assert read_facts(endpoint, document, 1).prompts >= 1


@pytest.mark.shared
def test_every_request_recorded_at_a_real_engine_gives_facts(shared: Path) -> None:
    index = json.loads((shared / "fixtures" / "INDEX.json").read_text())
    read: dict[str, Facts] = {}
    for name, entry in index.items():
        found = route(entry["method"], entry["path"].partition("?")[0])
        request = shared / "fixtures" / f"{name}.req"
        if not isinstance(found, Route) or not request.exists():
            continue
        body = request.read_bytes().partition(b"\r\n\r\n")[2]
        try:
            document = json.loads(body)
        except ValueError:
            continue
        if isinstance(document, dict):
            read[name] = read_facts(found.endpoint, document, len(body), want_blocks=True)
            assert read[name].body_bytes == len(body)
    assert len(read) >= 90
    assert read["chat_both_max_tokens3_mct6"].output.cap == 6
    assert read["compl_default_max_tokens"].output.cap == 16
    assert read["compl_batch_strings"].sequences == 2
    assert read["compl_prompt_too_long_ids"].prompt_tokens == 17_000
    assert read["chat_image_on_text_model"].census.media_parts == 1
    assert read["chat_max_tokens_string"].output.cap is not None


def test_of_absurdly_long_names_only_what_tells_them_apart_is_kept() -> None:
    long = chat(model="m" * 100_000, cache_salt="s" * 100_000)
    other = chat(model="m" * 100_000 + "n", cache_salt="s" * 100_000 + "t")
    assert [len(name or "") for name in (long.model, long.cache_salt)] == [1024, 1024]
    assert (long.model, long.cache_salt) == (chat(model="m" * 100_000).model, chat(cache_salt="s" * 100_000).cache_salt)
    assert (long.model != other.model, long.cache_salt != other.cache_salt) == (True, True)
    assert chat(model="m" * 1024).model == "m" * 1024

"""Parts on the wire: ids as text, copied fields, and the two digits of usage that change."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import parts
from proxy.wire.facts import Endpoint
from proxy.wire.parts import PromptIds, ToldUsage, UsageTeller
from proxy.wire.splice import NotAnObjectError


def ids_of(count):
    return PromptIds(",".join(map(str, range(count))).encode())


# ---------------------------------------------------------------- ids


@given(
    ids=st.lists(st.integers(0, 200_000), min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 60), max_size=8),
    comma=st.sampled_from([",", ", ", " ,\n"]),
)
def test_a_prefix_of_the_text_is_a_prefix_of_the_ids_in_any_order_of_asking(ids, cuts, comma):
    text = PromptIds(comma.join(map(str, ids)).encode())
    assert text.count == len(ids)
    for cut in [cut for cut in cuts if cut <= len(ids)]:
        assert json.loads(b"[%b]" % text.prefix(cut)) == ids[:cut]


@pytest.mark.parametrize("tokens", [0, -1, 4])
def test_a_prefix_that_does_not_exist_is_an_error(tokens):
    with pytest.raises(ValueError, match="the prompt has 3 ids"):
        ids_of(3).prefix(tokens)


def test_the_ids_of_a_completions_body_are_its_own_bytes():
    body = b'{"model":"m", "prompt" : [ 5,\n 6, 7 ] , "max_tokens":3}'
    found = parts.own_ids(body, json.loads(body))
    assert (found.count, found.prefix(2), len(found)) == (3, b"5,\n 6", 8)


@pytest.mark.parametrize("prompt", ["text", ["text"], [[1, 2]], [1, True], [1, 2.0], [1, -2], [], None, {"a": 1}])
def test_a_prompt_that_is_no_list_of_ids_brings_none(prompt):
    document = {"prompt": prompt}
    assert parts.own_ids(json.dumps(document).encode(), document) is None


def test_of_two_prompts_in_one_body_the_last_counts_as_it_does_for_the_engine():
    body = b'{"prompt":[1],"prompt":[2,3]}'
    assert parts.own_ids(body, json.loads(body)).prefix(2) == b"2,3"


# ---------------------------------------------------------------- asking for ids


def test_tokenize_gets_what_shapes_the_prompt_byte_for_byte_and_nothing_else():
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"\\u4e2d  x"}],"temperature":0.5,"tools":[ ],'
        b'"chat_template_kwargs":{"enable_thinking":false},"continue_final_message":true,"stream":true,'
        b'"add_generation_prompt":false,"max_tokens":5,"cache_salt":"s"}'
    )
    assert parts.tokenize_body(Endpoint.CHAT, body) == (
        b'{"model":"m","messages":[{"role":"user","content":"\\u4e2d  x"}],"tools":[ ],'
        b'"chat_template_kwargs":{"enable_thinking":false},"continue_final_message":true,"add_generation_prompt":false}'
    )


def test_a_text_prompt_asks_with_its_text():
    body = b'{"prompt":"a b","max_tokens":5,"add_special_tokens":false}'
    assert parts.tokenize_body(Endpoint.COMPLETIONS, body) == b'{"prompt":"a b","add_special_tokens":false}'


def test_an_answer_of_tokenize_gives_ids_and_context():
    found = parts.read_tokenized(b'{"count":3,"max_model_len":16384,"tokens":[10, 11,12],"token_strs":null}')
    assert (found.ids.count, found.ids.prefix(2), found.max_model_len) == (3, b"10, 11", 16384)


def test_the_context_may_be_missing():
    assert parts.read_tokenized(b'{"count":1,"tokens":[10]}').max_model_len is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[1,2]",
        b"not json",
        b'{"error":{"message":"x"}}',
        b'{"count":2,"tokens":[10]}',
        b'{"count":0,"tokens":[]}',
        b'{"count":1,"tokens":["10"]}',
        b'{"count":1,"tokens":[-1]}',
        b'{"count":1,"tokens":[1.5]}',
        b'{"count":1,"tokens":{"a":1}}',
        b'{"tokens":[1]}',
        b'{"count":1,"tokens":[1',
    ],
)
def test_what_is_no_answer_of_tokenize_gives_nothing(answer):
    assert parts.read_tokenized(answer) is None


# ---------------------------------------------------------------- the request for a part


def test_a_part_is_the_prefix_with_one_token_of_output_and_the_fields_that_make_it_findable():
    body = b'{"stream":true,"model":"m-\\u4e2d","cache_salt":"a\\"b","n":1,"priority":-3,"max_tokens":99}'
    made = parts.part_body(ids_of(9), 4, parts.copied_fields(body), parts.part_id('client-"1"', 2))
    assert made.startswith(b'{"model":"m-\\u4e2d","cache_salt":"a\\"b","priority":-3,"prompt":[0,1,2,3],')
    assert json.loads(made) == {
        "model": "m-中",
        "cache_salt": 'a"b',
        "priority": -3,
        "prompt": [0, 1, 2, 3],
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        "request_id": 'inst-client-"1"-2',
    }


def test_a_part_of_a_body_that_names_nothing_names_nothing():
    made = json.loads(parts.part_body(ids_of(2), 1, parts.copied_fields(b'{"prompt":[0,1]}'), "inst-x-0"))
    assert sorted(made) == ["max_tokens", "prompt", "request_id", "stream", "temperature"]


def test_a_key_written_with_escapes_is_copied_under_its_plain_name():
    assert parts.copied_fields(b'{"mod\\u0065l":"m"}') == b'"model":"m",'


def test_a_body_that_is_no_object_cannot_be_copied_from():
    with pytest.raises(NotAnObjectError):
        parts.copied_fields(b"[1]")


# ---------------------------------------------------------------- the usage that is told

USAGE = (
    b'"usage": {"prompt_tokens": 5000, "total_tokens": 5003, "completion_tokens": 3, '
    b'"prompt_tokens_details": {"cached_tokens": 4096, "created_cache_tokens": 896}}'
)
TOLD = USAGE.replace(b"4096", b"128").replace(b"896", b"4864")
CHOICES = b'"choices":[{"text":"\\"cached_tokens\\": 7, {\\"usage\\"}"}], '


def test_only_the_two_counts_change_in_a_whole_answer():
    answer = b"{" + CHOICES + USAGE + b', "cached_tokens": 1}'
    assert parts.tell_usage(answer, ToldUsage(128)) == b"{" + CHOICES + TOLD + b', "cached_tokens": 1}'


@pytest.mark.parametrize(
    "answer",
    [
        b'{"usage":{"prompt_tokens":5}}',
        b'{"usage":null,"cached_tokens":5}',
        b'{"usage":{"prompt_tokens_details":null,"cached_tokens":4}}',
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}',
        b'{"choices":[{"usage":{"prompt_tokens_details":{"cached_tokens":9}}}]}',
        b'"cached_tokens" is not in an object',
        b'{"cached_tokens" broken',
        b"",
    ],
)
def test_an_answer_without_the_count_stays_as_it_is(answer):
    assert parts.tell_usage(answer, ToldUsage(0)) == answer


EVENTS = (
    b'data: {"choices":[{"delta":{"content":"cached_tokens"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"\\"cached_tokens\\""}}]}\n\n',
    b": keep-alive\n\n",
    b'data: {"choices":[{"delta":{"content":"' + b"x" * 300 + b'"}}]}\r\n\r\n',
    b'data: {"choices":[], ' + USAGE + b"}\n\n",
    b"data: [DONE]\n\n",
)
STREAM = b"".join(EVENTS)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_cut_anywhere_changes_in_its_usage_event_alone(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    teller = UsageTeller(ToldUsage(128))
    out = b"".join(teller.feed(STREAM[one:two]) for one, two in itertools.pairwise(edges)) + teller.end()
    assert out == STREAM.replace(USAGE, TOLD)


def test_whole_events_without_the_count_pass_as_the_object_they_came_as():
    teller = UsageTeller(ToldUsage(0))
    assert teller.feed(EVENTS[0]) is not None
    data = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
    assert teller.feed(data) is data


def test_an_event_too_long_to_be_usage_is_not_kept():
    teller = UsageTeller(ToldUsage(128))
    long = b'data: {"text":"' + b"y" * 200_000
    passed = teller.feed(long)
    assert len(passed) == len(long) - 3
    rest = teller.feed(b'"}\n\n' + EVENTS[4])
    assert passed + rest == long + b'"}\n\n' + EVENTS[4].replace(USAGE, TOLD)


def test_a_last_event_without_its_blank_line_is_corrected_too():
    teller = UsageTeller(ToldUsage(128))
    assert teller.feed(EVENTS[4][:-1]) == b""
    assert teller.end() == EVENTS[4][:-1].replace(USAGE, TOLD)

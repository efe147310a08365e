"""Events and documents. (Their shapes against recorded ones: tests/component/loadgen/sim.)"""

import orjson
import pytest

from loadgen.sim.http_answers import DONE, Count, EventWriter, Finish, Label, Said, whole
from loadgen.sim.http_requests import Served, read_chat, read_completion

SERVED = Served("m", 1000)


def writer(chat, *, count=None, **body):
    if chat:
        job = read_chat({"messages": [{"role": "user", "content": "hi"}], "stream": True, **body}, SERVED)
    else:
        job = read_completion({"prompt": "hi", "stream": True, **body}, SERVED)
    return EventWriter(job, Label("id-1", 7, 'm"', chat=chat), count or Count(3))


def document(event):
    return orjson.loads(event.removeprefix(b"data: "))


@pytest.mark.parametrize("chat", [True, False])
def test_the_short_way_makes_the_same_event_as_the_long_way(chat):
    one, two = writer(chat), writer(chat)
    assert one.plain(0, " the") is None
    assert one.token(0, " the", [5], None) == two.token(0, " the", [5], None)
    assert [one.plain(0, " cat")] == two.token(0, " cat", [6], None)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    "body",
    [{"return_token_ids": True}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}],
)
def test_events_that_carry_more_never_go_the_short_way(chat, body):
    made = writer(chat, **body)
    made.token(0, " the", [5], None)
    assert made.plain(0, " cat") is None


def test_a_chat_begins_with_the_role_and_ends_with_the_reason():
    role, first = map(document, writer(chat=True).token(0, " the", [5], Finish("stop", "x")))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["finish_reason"] == "stop"
    assert first["choices"][0]["stop_reason"] == "x"
    assert "system_fingerprint" in first


def test_usage_takes_the_fingerprint_with_it():
    made = writer(chat=False, stream_options={"include_usage": True}, count=Count(3, 1, 2, 0, detailed=True))
    (last,) = map(document, made.token(0, " the", [5], Finish("length", None)))
    usage, end = made.end()
    assert "system_fingerprint" not in last
    assert document(usage)["choices"] == []
    assert document(usage)["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 4,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2, "created_cache_tokens": 0},
    }
    assert end == DONE


def test_running_usage_counts_up():
    made = writer(chat=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    events = [*made.token(0, " the", [5], None), *made.token(0, " cat sat", [6, 7], None)]
    assert [document(event)["usage"]["completion_tokens"] for event in events] == [0, 1, 3]


def test_an_echo_comes_before_the_answer_and_may_hold_anything():
    (first,) = map(document, writer(chat=False, prompt='say "hi"\n', echo=True).token(0, " the", [5], None))
    assert first["choices"][0]["text"] == 'say "hi"\n the'


def test_a_whole_answer_has_a_choice_for_each_sequence():
    job = read_completion({"prompt": ["a", "b"], "n": 2, "return_token_ids": True}, SERVED)
    said = [Said([f" {index}"], [index], Finish("length", None)) for index in range(4)]
    answer = orjson.loads(whole(job, Label("id-1", 7, "m", chat=False), Count(2, 4), said))
    assert [choice["text"] for choice in answer["choices"]] == [" 0", " 1", " 2", " 3"]
    assert [choice["token_ids"] for choice in answer["choices"]] == [[0], [1], [2], [3]]
    assert answer["choices"][1]["prompt_token_ids"] == job.prompts[0]
    assert answer["usage"]["total_tokens"] == 6

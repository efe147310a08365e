import pytest

from proxy.wire.facts import Endpoint
from proxy.wire.invalid import MODEL_CHARS, certain_refusal


@pytest.mark.parametrize(
    ("endpoint", "body", "said"),
    [
        (Endpoint.CHAT, {"max_tokens": -1}, "max_tokens is -1; it must be at least 1"),
        (Endpoint.CHAT, {"max_tokens": "-3"}, "max_tokens is -3"),
        (Endpoint.CHAT, {"max_tokens": -2.0}, "max_tokens is -2"),
        (Endpoint.CHAT, {"max_completion_tokens": None, "max_tokens": -1}, "max_tokens is -1"),
        (Endpoint.CHAT, {"max_completion_tokens": 5, "max_tokens": 5.5}, "max_tokens is 5.5; it must be a whole"),
        (Endpoint.COMPLETIONS, {"max_tokens": -1}, "max_tokens is -1"),
        (Endpoint.RESPONSES, {"max_output_tokens": 0.5}, "max_output_tokens is 0.5"),
        (Endpoint.MESSAGES, {"max_tokens": -1}, "max_tokens is -1"),
        (Endpoint.EMBEDDINGS, {"model": "x" * (MODEL_CHARS + 1)}, f"a name of {MODEL_CHARS + 1} characters"),
    ],
)
def test_what_every_engine_refuses_is_told(endpoint, body, said):
    assert said in certain_refusal(endpoint, body)


@pytest.mark.parametrize("cap", [None, 0, 1, "5", 5.0, 1e9, 1e30, True, False, [], {}, "many", "-x"])
def test_what_some_engine_takes_is_for_the_engine_to_answer(cap):
    assert certain_refusal(Endpoint.CHAT, {"model": "x" * MODEL_CHARS, "max_tokens": cap}) is None


def test_a_cap_that_another_one_beats_is_not_looked_at_by_its_sign():
    assert certain_refusal(Endpoint.CHAT, {"max_completion_tokens": 4, "max_tokens": -1}) is None


def test_a_field_of_another_dialect_is_no_cap():
    assert certain_refusal(Endpoint.RESPONSES, {"max_tokens": -1}) is None
    assert certain_refusal(Endpoint.EMBEDDINGS, {"max_tokens": -1.5, "model": 7}) is None

"""Reading usage and finish reason from whole answers."""

import json

import pytest

from proxy.answer_reader import read_answer
from proxy.wire.facts import Endpoint
from proxy.wire.usage import Usage

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def test_a_chat_answer_has_usage_and_a_finish():
    body = json.dumps({"choices": [{"finish_reason": "length"}], "usage": USAGE}).encode()
    assert read_answer(Endpoint.CHAT, body) == (Usage(7, 3, 2), "length")


def test_messages_and_responses_name_them_otherwise():
    usage = {"input_tokens": 4, "output_tokens": 5}
    messages = json.dumps({"stop_reason": "end_turn", "usage": usage}).encode()
    assert read_answer(Endpoint.MESSAGES, messages) == (Usage(4, 5), "end_turn")
    responses = json.dumps({"status": "completed", "usage": usage}).encode()
    assert read_answer(Endpoint.RESPONSES, responses) == (Usage(4, 5), "completed")


def test_a_very_long_answer_gives_its_usage_without_being_parsed():
    fake = 'he said "usage":{"prompt_tokens": 999} to me'
    body = json.dumps({"data": [{"embedding": [0.5] * 60_000, "text": fake}], "usage": USAGE, "z": fake}).encode()
    assert len(body) > 200_000
    assert read_answer(Endpoint.EMBEDDINGS, body) == (Usage(7, 3, 2), None)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"<html>", b'{"usage": 5}', b'{"choices": [5]}', b'{"choices": {}}', b"x" * 200_000,
     b'"usage":' + b"{" * 200_000, b'"usage":' + b" " * 200_000],
)  # fmt: skip
def test_what_cannot_be_read_says_nothing(body):
    assert read_answer(Endpoint.CHAT, body) == (None, None)

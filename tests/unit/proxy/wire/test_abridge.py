"""Large attachments are left out of what is read, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.abridge import LONG_STRING, abridged

LONG = "QUJD" * (LONG_STRING // 4) + "QQ=="


def with_image(url: str, key: str = "url") -> bytes:
    part = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {key: url, "detail": "low"}}]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": part}], "max_tokens": 8}).encode()


def image_of(body: bytes, key: str = "url") -> str:
    return json.loads(body)["messages"][0]["content"][1]["image_url"].pop(key)


def test_an_image_loses_its_middle_and_keeps_both_ends():
    body = with_image(f"data:image/png;base64,{LONG}")
    short = abridged(body)
    assert len(short) < LONG_STRING
    assert image_of(short).startswith("data:image/png;base64,QUJD")
    assert image_of(short).endswith("QUJDQQ==")
    assert json.loads(short) | {"messages": 0} == json.loads(body) | {"messages": 0}


def test_several_images_are_all_shortened_and_what_stands_between_stays():
    bodies = [{"data": LONG}, "text between", {"url": LONG}, {"file_data": LONG}]
    short = abridged(json.dumps(bodies, separators=(",", ":")).encode())
    assert len(short) < 2 * LONG_STRING
    assert json.loads(short)[1] == "text between"
    assert [list(part) for part in json.loads(short) if isinstance(part, dict)] == [["data"], ["url"], ["file_data"]]


def test_images_of_different_lengths_stay_different():
    assert image_of(abridged(with_image(LONG))) != image_of(abridged(with_image("QUJD" + LONG)))


@pytest.mark.parametrize(
    "body",
    [
        with_image("data:image/png;base64,QUJD"),
        with_image("Q" * LONG_STRING),
        with_image(LONG, "text"),
        with_image(LONG + '"'),
        with_image("\u2028" + LONG),
        json.dumps({"prompt": LONG}).encode(),
        json.dumps({"say": f'"url":"{LONG}'}).encode(),
        b'"' * (3 * LONG_STRING),
        b"x" * (3 * LONG_STRING),
        b'{"url":"' + b"x" * (3 * LONG_STRING),
        b"",
    ],
    ids=[
        "small",
        "just too small",
        "another key",
        "a quote inside",
        "an escape inside",
        "a prompt",
        "a key inside text",
        "quotes",
        "no quotes",
        "cut off",
        "empty",
    ],
)
def test_everything_else_stays_the_same_object(body):
    assert abridged(body) is body


@given(st.lists(st.sampled_from([b'{"url":"', b'"', b"\\", b"," + b"x" * 700_000, b"data", b'","data" : "', b"}"])))
def test_what_is_no_json_stays_none_and_what_is_some_stays_some(pieces):
    body = b"".join(pieces)

    def is_json(text):
        try:
            json.loads(text)
        except ValueError:
            return False
        return True

    assert is_json(abridged(body)) == is_json(body)

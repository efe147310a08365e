import dataclasses
import hashlib
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.options import Endpoint
from loadgen.plan import Lane, Shot
from loadgen.prompts import Asking, Calibration, Prompts


def shot(tokens, *, index=0, blocks=(), output=5):
    return Shot(index, 0.0, tokens, output, Lane.SHORT, index, 0, tuple(blocks), 512 if blocks else 0)


def ids(body):
    return json.loads(body)["prompt"]


def completions(salt="s"):
    return Prompts(Asking(Endpoint.COMPLETIONS, "m", salt))


@settings(max_examples=40)
@given(st.integers(1, 70_000))
def test_a_prompt_of_ids_has_exactly_the_asked_length(tokens):
    prompt = ids(completions().body(shot(tokens)))
    assert len(prompt) == tokens
    assert min(prompt) >= 1000
    assert max(prompt) < 2024


@settings(max_examples=40)
@given(st.integers(1, 3000))
def test_blocks_do_not_change_the_length(tokens):
    blocks = range(-(-tokens // 512))
    assert len(ids(completions().body(shot(tokens, blocks=blocks)))) == tokens


def test_the_body_forces_the_output_length_and_asks_for_usage():
    body = json.loads(completions().body(shot(10, output=77)))
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (77, 77, True)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["model"] == "m"


def test_equal_blocks_are_equal_prefixes_and_others_differ_at_once():
    prompts = completions()
    one = ids(prompts.body(shot(1500, blocks=(1, 2, 3), index=1)))
    two = ids(prompts.body(shot(1400, blocks=(1, 2, 4), index=2)))
    assert one[:1024] == two[:1024]
    assert one[1024:1030] != two[1024:1030]


def test_a_partial_block_is_the_beginning_of_the_whole_one():
    prompts = completions()
    whole = ids(prompts.body(shot(1024, blocks=(1, 2))))
    part = ids(prompts.body(shot(700, blocks=(1, 2))))
    assert whole[:700] == part


def test_requests_without_blocks_share_no_prefix():
    prompts = completions()
    heads = {tuple(ids(prompts.body(shot(40, index=n)))[:6]) for n in range(500)}
    assert len(heads) == 500


def test_another_salt_gives_other_prompts_from_the_first_tokens_on():
    one, two = (ids(completions(salt).body(shot(1024, blocks=(1, 2)))) for salt in ("pass 1", "pass 2"))
    assert one[:6] != two[:6]


def test_prompts_are_the_same_in_every_process():
    body = completions("fixed").body(shot(1000, blocks=(5, 6)))
    assert hashlib.sha256(body).hexdigest()[:16] == "337524d679f6e1d7"


def test_a_chat_prompt_is_words_and_takes_the_template_off():
    calibration = Calibration(tokens_per_word=1.25, template_tokens=20, source="tokenize")
    body = json.loads(Prompts(Asking(Endpoint.CHAT, "m", "s", calibration)).body(shot(1020)))
    words = body["messages"][0]["content"].split()
    assert len(words) == 800
    assert {len(word) for word in words} == {3}


@pytest.mark.parametrize("tokens", [1, 5, 21])
def test_a_chat_prompt_shorter_than_its_template_still_has_a_word(tokens):
    calibration = Calibration(tokens_per_word=1.0, template_tokens=20)
    body = json.loads(Prompts(Asking(Endpoint.CHAT, "m", "s", calibration)).body(shot(tokens)))
    assert len(body["messages"][0]["content"].split()) == 1


def test_chat_prompts_share_prefixes_as_recorded():
    prompts = Prompts(Asking(Endpoint.CHAT, "m", "s"))
    one, two = (prompts.text(shot(1024, blocks=blocks)) for blocks in ((1, 2), (1, 3)))
    assert one[: 512 * 4] == two[: 512 * 4]
    assert one[512 * 4 : 521 * 4] != two[512 * 4 : 521 * 4]


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_prompts_do_not_depend_on_the_hash_seed_of_the_process(hash_seed):
    program = (
        "from loadgen.options import Endpoint; from loadgen.plan import Lane, Shot; from loadgen.prompts import *;"
        "import hashlib; shot = Shot(0, 0.0, 1000, 5, Lane.SHORT, 0, 0, (5, 6), 512);"
        "print(hashlib.sha256(Prompts(Asking(Endpoint.COMPLETIONS, 'm', 'fixed')).body(shot)).hexdigest()[:16])"
    )
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert said.stdout.strip() == "337524d679f6e1d7"


def recorded(body, **more):
    return Prompts(Asking(Endpoint.CHAT, "m", "s1", **more)).body(dataclasses.replace(shot(7, output=9), body=body))


BODY = b'{"model": "theirs", "messages": [{"role":"user","content":"hi"}],  "stream":true }\n'


def test_a_recorded_body_goes_out_as_it_came():
    assert recorded(BODY) == BODY


def test_a_salted_body_is_the_recorded_one_with_a_cache_salt_of_this_pass():
    assert json.loads(recorded(BODY, cache_salt=True)) == json.loads(BODY) | {"cache_salt": "s1"}


def test_a_cache_salt_that_was_there_still_keeps_apart_what_it_kept_apart():
    body = b'{"cache_salt": "tenant", "messages": []}'
    assert json.loads(recorded(body, cache_salt=True))["cache_salt"] == "s1-tenant"


def test_recorded_messages_are_asked_with_the_recorded_answer_length():
    body = json.loads(recorded(b'"messages":[{"role":"user","content":"hi"}]'))
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert (body["model"], body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == ("m", 9, 9, True)
    assert body["stream"] is True

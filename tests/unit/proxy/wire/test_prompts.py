"""Where the text of a prompt is, dialect by dialect."""

from typing import Any

import pytest

from proxy.wire.facts import Endpoint
from proxy.wire.prompts import MARKED_CHARS, MARKED_IDS, Prompt, read_prompt


def read(endpoint: Endpoint, **document: Any) -> Prompt:
    return read_prompt(endpoint, document, want_blocks=True)


def test_chat_text_stands_in_the_order_of_a_template_with_roles() -> None:
    prompt = read(
        Endpoint.CHAT,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "done"},
        ],
        tools=[{"name": "f"}],
    )
    assert prompt.blocks == [
        '[{"name":"f"}]',
        "system",
        "Be brief.",
        "user",
        "one",
        "two",
        "assistant",
        '[{"function":{"name":"f","arguments":"{}"}}]',
        "tool",
        "done",
    ]
    assert prompt.messages == 4


def test_roles_are_not_counted_as_text() -> None:
    prompt = read(Endpoint.CHAT, messages=[{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}])
    assert (prompt.census().latin, prompt.census().messages) == (5, 2)


def test_tools_and_response_formats_are_part_of_the_prompt() -> None:
    plain = read(Endpoint.CHAT, messages=[{"role": "user", "content": "abc"}]).census()
    schema = {"type": "json_schema", "json_schema": {"name": "answer"}}
    more = read(Endpoint.CHAT, messages=[{"role": "user", "content": "abc"}], response_format=schema).census()
    assert more.symbols > plain.symbols
    assert more.latin > plain.latin


def test_media_parts_are_counted_and_make_prompts_differ() -> None:
    def with_image(url: str) -> Prompt:
        part = {"type": "image_url", "image_url": {"url": url}}
        return read(Endpoint.CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])

    one, two = with_image("data:image/png;base64,AAAA"), with_image("data:image/png;base64,BBBB")
    assert (one.media, one.census().latin, one.census().media_parts) == (1, 3, 1)
    assert one.blocks != two.blocks
    assert "AAAA" not in "".join(one.blocks)


@pytest.mark.parametrize(
    "kind", ["input_audio", "video_url", "image", "file", "input_image", "document", "of_tomorrow"]
)
def test_every_part_without_text_is_media(kind: str) -> None:
    prompt = read(Endpoint.CHAT, messages=[{"role": "user", "content": [{"type": kind, kind: {"url": "x"}}]}])
    assert prompt.media == 1


def test_thoughts_of_earlier_turns_are_text() -> None:
    prompt = read(Endpoint.CHAT, messages=[{"role": "assistant", "reasoning_content": "hm", "content": "yes"}])
    assert prompt.blocks == ["assistant", "hm", "yes"]


def test_messages_have_a_system_prompt_and_blocks() -> None:
    prompt = read(
        Endpoint.MESSAGES,
        system=[{"type": "text", "text": "Be brief."}],
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                              {"type": "tool_use", "name": "find", "input": {"q": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "found"}]},
                                         {"type": "image", "source": {"data": "AAAA"}}]},
        ],
    )  # fmt: skip
    assert prompt.blocks[:-1] == [
        "system", "Be brief.", "user", "hi", "assistant", "hm", "find", '{"q":1}', "user", "found",
    ]  # fmt: skip
    assert (prompt.messages, prompt.media) == (4, 1)


def test_responses_have_instructions_and_items() -> None:
    prompt = read(
        Endpoint.RESPONSES,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "output": "found"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        ],
        text={"format": {"type": "text"}},
    )
    assert prompt.blocks == [
        '{"type":"text"}', "system", "Be brief.", "user", "hi", "hm", "find", "{}", "found", "assistant", "ok",
    ]  # fmt: skip
    assert prompt.messages == 6
    assert not prompt.hidden


def test_a_plain_input_of_responses_is_one_user_message() -> None:
    prompt = read(Endpoint.RESPONSES, input="hi")
    assert (prompt.blocks, prompt.messages) == (["user", "hi"], 1)


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "prompt"])
def test_what_a_response_continues_is_hidden(field: str) -> None:
    assert read(Endpoint.RESPONSES, input="hi", **{field: "resp_1"}).hidden


@pytest.mark.parametrize(
    ("document", "prompts", "tokens"),
    [
        ({"input": "a"}, 1, None),
        ({"input": ["a", "b"]}, 2, None),
        ({"input": [1, 2, 3]}, 1, 3),
        ({"input": [[1], [2, 3]]}, 2, 3),
        ({"texts": ["a", "b", "c"]}, 3, None),
        ({"messages": [{"role": "user", "content": "a"}]}, 1, None),
    ],
)
def test_each_input_of_an_embedding_is_a_prompt(document: dict[str, Any], prompts: int, tokens: int | None) -> None:
    for endpoint in (Endpoint.EMBEDDINGS, Endpoint.POOLING):
        prompt = read(endpoint, **document)
        assert (prompt.prompts, prompt.token_ids) == (prompts, tokens)


def test_a_query_is_read_once_with_each_document() -> None:
    prompt = read(Endpoint.POOLING, query="abc", documents=["d", "ef", {"text": "ghi"}])
    assert (prompt.prompts, prompt.census().latin) == (3, 3 * 3 + 6)
    prompt = read(Endpoint.POOLING, text_1="abc", text_2=["d", "ef"])
    assert (prompt.prompts, prompt.census().latin) == (2, 2 * 3 + 3)


def test_two_lists_are_scored_pair_by_pair() -> None:
    prompt = read(Endpoint.POOLING, text_1=["ab", "c"], text_2=["d", "ef"])
    assert (prompt.prompts, prompt.census().latin) == (2, 6)


def test_images_to_embed_are_media() -> None:
    assert read(Endpoint.POOLING, images=["data:a", "data:b"]).media == 2


def test_joining_texts_adds_no_characters() -> None:
    messages = [{"role": "user", "content": "a" * 40}, {"role": "user", "content": "1" * 40}]
    census = read(Endpoint.CHAT, messages=messages).census()
    assert (census.latin, census.digits, census.base64) == (40, 40, 0)


def test_of_very_many_token_ids_only_the_first_are_kept_for_the_hashes() -> None:
    ids = list(range(MARKED_IDS + 5))
    prompt = read(Endpoint.COMPLETIONS, prompt=ids)
    assert prompt.token_ids == len(ids)
    assert prompt.blocks == [",".join(map(str, ids[:MARKED_IDS]))]


def test_token_ids_beside_other_values_keep_their_order_without_these() -> None:
    assert read(Endpoint.COMPLETIONS, prompt=[1, "x", 2.5, 3]).blocks == ["1,3"]


def _image(data: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data}}]}]}


@pytest.mark.parametrize("changed", [0, -1, "longer"])
def test_large_media_are_told_apart_by_beginning_end_and_length(changed: object) -> None:
    data = "QUJD" * (MARKED_CHARS // 2)
    other = {0: "x" + data[1:], -1: data[:-1] + "x", "longer": data[:8] + data}[changed]
    mark = read(Endpoint.CHAT, **_image(data)).blocks
    assert mark == read(Endpoint.CHAT, **_image(data)).blocks
    assert mark != read(Endpoint.CHAT, **_image(other)).blocks


def test_small_media_are_told_apart_by_every_character() -> None:
    data = "QUJD" * (MARKED_CHARS // 4)
    middle = data[: MARKED_CHARS // 2] + "x" + data[MARKED_CHARS // 2 + 1 :]
    assert read(Endpoint.CHAT, **_image(data)).blocks != read(Endpoint.CHAT, **_image(middle)).blocks

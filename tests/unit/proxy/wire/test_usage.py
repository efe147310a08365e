"""Token counts in every dialect."""

import pytest

from proxy.wire.usage import Usage, merge_usage, read_usage


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"prompt_tokens": 17, "completion_tokens": 8, "total_tokens": 25}, Usage(17, 8)),
        ({"prompt_tokens": 17, "completion_tokens": 0, "prompt_tokens_details": None}, Usage(17, 0)),
        ({"prompt_tokens": 17, "prompt_tokens_details": {"cached_tokens": 16}}, Usage(17, None, 16)),
        ({"input_tokens": 11, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 0}}, Usage(11, 4, 0)),
        ({"input_tokens": 11, "output_tokens": 4}, Usage(11, 4)),
    ],
)
def test_usage_is_read_in_every_dialect(document: object, usage: Usage) -> None:
    assert read_usage(document) == usage


def test_the_cached_tokens_that_messages_count_apart_belong_to_the_prompt() -> None:
    document = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 1}
    assert read_usage(document) == Usage(100, 1, 90)


@pytest.mark.parametrize(
    "document", [None, 5, [], {}, {"prompt_tokens": "7"}, {"prompt_tokens": -1}, {"prompt_tokens": True}]
)
def test_what_counts_nothing_is_no_usage(document: object) -> None:
    assert read_usage(document) is None


def test_a_later_report_wins_where_it_says_something() -> None:
    assert merge_usage(Usage(11, 0, 8), Usage(None, 4, None)) == Usage(11, 4, 8)
    assert merge_usage(None, Usage(1)) == Usage(1)
    assert merge_usage(Usage(1), None) == Usage(1)
    assert merge_usage(None, None) is None

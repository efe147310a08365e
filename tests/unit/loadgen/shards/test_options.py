"""Options of several load generators."""

import pytest

from loadgen.failure import UsageError
from loadgen.shards.nouns import WHOLE, Shard
from loadgen.shards.options import ALONE, ShardOptions


def test_without_any_the_whole_plan_is_sent():
    assert ALONE.read() == WHOLE


def test_a_shard_with_a_barrier_or_a_start_is_read():
    assert ShardOptions(shard="1/2", barrier="redis://127.0.0.1:6379").read() == Shard(1, 2)
    assert ShardOptions(shard="1/2", start_at=1e9).read() == Shard(1, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shard": "1/2"}, "start when"),
        ({"shard": "2/2", "start_at": 1.0}, "INDEX/COUNT"),
        ({"barrier": "redis://here"}, "with --shard"),
        ({"shard": "0/2", "barrier": "redis://here", "start_at": 1.0}, "leave out one"),
        ({"shard": "0/2", "barrier": "here:6379"}, "redis://HOST:PORT"),
    ],
)
def test_options_that_do_not_go_together_say_what_is_missing(given, said):
    with pytest.raises(UsageError, match=said):
        ShardOptions(**given).read()

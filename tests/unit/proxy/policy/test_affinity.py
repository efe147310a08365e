"""A prompt went where its beginning lies, or elsewhere, or it lies nowhere."""

import pytest

from proxy.policy.affinity import Affinity, affinity
from proxy.policy.backend import Backend
from proxy.policy.dispatch import Dispatcher
from proxy.policy.limits import BackendLimits
from proxy.policy.prefixes import Prefix
from proxy.policy.ticket import Ticket
from proxy.settings import Settings

LONG = Prefix((1, 2, 3, 4), 200.0)
BEGINNING = Prefix((1, 2), 200.0)
TWO = {"backends": [{"url": "http://a:1", "name": "a"}, {"url": "http://b:1", "name": "b"}]}


@pytest.fixture
def pool():
    return [Backend(BackendLimits(name, 8), 2) for name in "ab"]


def test_nowhere_is_a_miss(pool):
    assert affinity(LONG, pool[0], pool) is Affinity.MISS


def test_where_most_of_it_lies_is_a_hit(pool):
    a, b = pool
    a.prefixes.note(BEGINNING)
    b.prefixes.note(LONG)
    assert affinity(LONG, b, pool) is Affinity.HIT
    assert affinity(LONG, a, pool) is Affinity.SPILL


def test_what_lies_on_a_backend_that_takes_nothing_or_does_not_cache_cannot_be_missed(pool):
    a, b = pool
    b.prefixes.note(LONG)
    b.set_drained(True)
    assert affinity(LONG, a, pool) is Affinity.MISS
    b.set_drained(False)
    assert affinity(LONG, a, pool) is Affinity.SPILL
    b.set_caching(False)
    b.prefixes.note(LONG)
    assert affinity(LONG, a, pool) is Affinity.MISS


def test_each_granted_prompt_counts_once_and_one_without_a_choice_not_at_all():
    settings = Settings.model_validate({**TWO, "scheduling": {"concurrency": 1}})
    dispatcher = Dispatcher(settings.to_scheduling(), settings.to_backend_limits())
    for number, prefix in enumerate((LONG, LONG, None), start=1):
        dispatcher.offer(0.0, Ticket(number, lane=0, prompt_tokens=1000, output_tokens=10, prefix=prefix))
    lane = dispatcher.snapshot(0.0).lanes[0]
    assert lane.affinity == {"hit": 0, "miss": 1, "spill": 1}

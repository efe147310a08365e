"""The nouns of a request."""

from proxy.wire.facts import Dialect, Endpoint, Facts


def test_only_messages_speaks_anthropic() -> None:
    assert [endpoint for endpoint in Endpoint if endpoint.dialect is Dialect.ANTHROPIC] == [Endpoint.MESSAGES]


def test_slots_are_prompts_times_n_and_at_least_one() -> None:
    assert Facts(Endpoint.CHAT).sequences == 1
    assert Facts(Endpoint.COMPLETIONS, prompts=3, n=2).sequences == 6
    assert Facts(Endpoint.CHAT, prompts=0, n=0).sequences == 1


def test_facts_without_text_differ_in_nothing_else() -> None:
    facts = Facts(Endpoint.CHAT, model="m", n=2, priority=3, cache_salt="s", kv_transfer=True, blocks=("a",))
    assert facts.without_text() == facts._replace(cache_salt=None, blocks=())

"""What is told about a static share."""

from proxy.leases.shown import share_document, share_sentence
from proxy.settings import Settings


def settings(**more):
    document = {"backends": [{"url": "http://127.0.0.1:8000", "name": "a"}], "scheduling": {"concurrency": 64}, **more}
    return Settings.model_validate(document)


def test_a_share_is_told_with_the_numbers():
    assert share_sentence(settings(share="1/3")) == (
        "share 1/3: this proxy takes 21 of 64 sequences on a, 682 of 2048 prefill tokens on each; the other proxies "
        "are to take the rest"
    )
    assert share_document(settings(share="1/3"))["backends"] == [{"name": "a", "concurrency": 21, "of": 64}]


def test_without_a_prefill_budget_none_is_told():
    told = share_sentence(settings(share="1/2", scheduling={"concurrency": 8, "prefill_budget_tokens": "unlimited"}))
    assert told == "share 1/2: this proxy takes 4 of 8 sequences on a; the other proxies are to take the rest"


def test_one_proxy_alone_says_nothing():
    assert share_sentence(settings()) is None
    assert share_document(settings()) is None


def test_leases_are_told_elsewhere():
    assert share_document(settings(share="1/3", sharing={"store": "redis://h"})) is None

"""The last room shows every request to every observer, whatever they do."""

import logging

from proxy.account import Account
from proxy.exchange import Exchange


class Fine:
    def __init__(self):
        self.seen = []

    def observe(self, exchange):
        self.seen.append(exchange.request_id)


class Broken:
    def observe(self, exchange):
        raise RuntimeError("no disk")


def test_a_failing_observer_keeps_nothing_from_the_others(caplog):
    first, last = Fine(), Fine()
    account = Account([first, Broken(), last])
    with caplog.at_level(logging.ERROR, logger="lanewise"):
        account.close(Exchange("r1", 0.0, 0.0))
    assert first.seen == last.seen == ["r1"]
    assert account.failures == 1
    assert "Broken failed on request r1" in caplog.text

"""Who sends a request of a study."""

from collections import Counter

import pytest

from loadgen.sim.clients import ABUSER, PATIENT, Clients


def test_clients_are_not_told_apart_unless_one_sends_most():
    assert {PATIENT.tenant(index) for index in range(100)} == {None}


def test_one_tenant_sends_its_share_and_the_others_share_the_rest():
    senders = Counter(Clients(abuser=0.6, others=4).tenant(index) for index in range(20_000))
    assert senders.pop(ABUSER) / 20_000 == pytest.approx(0.6, abs=0.01)
    assert sorted(senders) == ["tenant-0", "tenant-1", "tenant-2", "tenant-3"]
    assert all(count / 20_000 == pytest.approx(0.1, abs=0.01) for count in senders.values())


def test_the_same_request_has_the_same_sender_whenever_it_is_asked():
    clients = Clients(abuser=0.5)
    assert [clients.tenant(index) for index in range(50)] == [clients.tenant(index) for index in range(50)]

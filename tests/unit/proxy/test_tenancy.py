"""Who a request belongs to, and which class it may have."""

from hashlib import sha256
from unittest.mock import Mock

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.settings import Settings
from proxy.tenancy import Tenancy

KEY = "sk-very-secret"


def tenancy(**sections):
    return Tenancy(Settings.model_validate({"backends": ["http://127.0.0.1:1"], **sections}))


def ask(peer="10.1.2.3", **headers):
    transport = Mock()
    transport.get_extra_info = lambda name, default=None: (peer, 1234) if name == "peername" else default
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("POST", "/v1/chat/completions", headers=fields, transport=transport)


def named(name, key=KEY, **share):
    return {"name": name, "keys": [sha256(key.encode()).hexdigest()], **share}


def test_switched_off_nobody_is_told_apart():
    assert tenancy().tenant(ask(Authorization=f"Bearer {KEY}")) is None


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Bearer {KEY}"}, {"x_api_key": KEY}, {"authorization": f"bearer {KEY}"}]
)
def test_a_key_of_the_configuration_is_called_by_its_name(headers):
    assert tenancy(tenants={"by": "key", "named": [named("acme")]}).tenant(ask(**headers)) == "acme"


def test_an_unknown_key_is_called_by_a_salted_hash_that_holds_nothing_of_it():
    one, other = (tenancy(tenants={"by": "key", "salt": salt}) for salt in ("a", "b"))
    label = one.tenant(ask(Authorization=f"Bearer {KEY}"))
    assert label.startswith("t-")
    assert len(label) == 10
    assert one.tenant(ask(x_api_key=KEY)) == label
    assert other.tenant(ask(x_api_key=KEY)) != label
    assert KEY not in repr(one)


def test_after_the_last_that_is_told_apart_all_share_one_name_and_those_before_keep_theirs():
    who = tenancy(tenants={"by": "key", "told_apart": 2, "named": [named("acme", "k9")]})
    labels = [who.tenant(ask(x_api_key=f"k{n}")) for n in range(5)]
    assert labels[2:] == ["other"] * 3
    assert len({*labels}) == 3
    assert who.tenant(ask(x_api_key="k0")) == labels[0]
    assert who.tenant(ask(x_api_key="k9")) == "acme"


def test_requests_without_a_key_are_one_tenant():
    who = tenancy(tenants={"by": "key"})
    assert {who.tenant(ask()), who.tenant(ask(Authorization="Bearer ")), who.tenant(ask(Authorization="Basic x"))} == {
        "none"
    }


def test_the_header_counts_from_trusted_networks_and_the_key_from_elsewhere():
    who = tenancy(trusted_networks=["10.0.0.0/8"], tenants={"by": "header", "named": [named("acme"), {"name": "beta"}]})
    assert who.tenant(ask(x_tenant_id="beta", x_api_key=KEY)) == "beta"
    assert who.tenant(ask("192.0.2.1", x_tenant_id="beta", x_api_key=KEY)) == "acme"
    assert who.tenant(ask("192.0.2.1", x_tenant_id="beta")) == "none"
    unnamed = who.tenant(ask(x_tenant_id="someone@example.org"))
    assert unnamed.startswith("t-")
    assert who.tenant(ask(x_api_key="someone@example.org")) != unnamed


def test_a_reload_keeps_the_hashes_that_were_given():
    who = tenancy(tenants={"by": "key"})
    label = who.tenant(ask(x_api_key=KEY))
    who.configure(
        Settings.model_validate({"backends": ["http://127.0.0.1:1"], "tenants": {"by": "key", "told_apart": 1}})
    )
    assert who.tenant(ask(x_api_key=KEY)) == label


@pytest.mark.parametrize("change", [{"salt": "another"}, {"told_apart": 1}])
def test_labels_that_come_no_more_or_are_too_many_keep_no_place(change):
    plain = {"by": "key", "told_apart": 2, "salt": "first"}
    who = tenancy(tenants=plain)
    before = {who.tenant(ask(x_api_key=f"key {n}")) for n in range(2)}
    who.configure(Settings.model_validate({"backends": ["http://127.0.0.1:1"], "tenants": {**plain, **change}}))
    after = [who.tenant(ask(x_api_key=f"new key {n}")) for n in range(3)]
    told_apart = change.get("told_apart", 2)
    assert [label == "other" for label in after] == [n >= told_apart for n in range(3)]
    assert before.isdisjoint(after)


def test_a_header_that_comes_twice_names_nobody():
    """One of the two may be the client's own, passed on by the gateway."""
    who = tenancy(trusted_networks=["10.0.0.0/8"], tenants={"by": "header", "named": [named("acme"), {"name": "beta"}]})
    twice = ask(x_api_key=KEY)
    twice._headers = CIMultiDictProxy(
        CIMultiDict([("x-tenant-id", "beta"), ("x-tenant-id", "gamma"), ("x-api-key", KEY)])
    )
    assert who.tenant(twice) == "acme"


# ---------------------------------------------------------------- classes


@pytest.mark.parametrize(
    ("value", "expected"), [(None, 0), (0, 0), (-1, -1), (-100, -1), (1, 1), (7, 1), ("x", 0), (True, 0)]
)
def test_a_priority_becomes_one_of_three_classes(value, expected):
    assert tenancy(priority={"allowed": "anyone"}).priority(ask(), None, value) == expected


def test_borders_between_the_classes_can_be_moved():
    who = tenancy(priority={"allowed": "anyone", "high_at_most": 9, "low_from": 100})
    assert [who.priority(ask(), None, value) for value in (0, 9, 10, 99, 100)] == [-1, -1, 0, 0, 1]


def test_the_header_counts_before_the_field_and_nonsense_in_it_does_not_count():
    who = tenancy(priority={"allowed": "anyone"})
    assert who.priority(ask(X_Vllm_Priority="-5"), None, 5) == -1
    for nonsense in ("high", "", "1.5", "--1", "9" * 30):
        assert who.priority(ask(X_Vllm_Priority=nonsense), None, 5) == 1


def test_switched_off_no_priority_counts():
    assert tenancy().priority(ask(X_Vllm_Priority="-5"), None, -5) == 0


def test_under_trusted_it_counts_from_trusted_networks_and_from_tenants_that_are_named():
    who = tenancy(
        trusted_networks=["10.0.0.0/8"],
        tenants={"by": "key", "named": [named("acme")]},
        priority={"allowed": "trusted", "tenants": ["acme"]},
    )
    assert who.priority(ask("10.1.1.1"), "none", -1) == -1
    assert who.priority(ask("192.0.2.1"), "none", -1) == 0
    assert who.priority(ask("192.0.2.1"), "none", 5) == 0
    assert who.priority(ask("192.0.2.1"), "acme", -1) == -1

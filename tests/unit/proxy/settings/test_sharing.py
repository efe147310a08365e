"""Shares and the lease store, as an operator writes them."""

import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.policy.limits import Fairness, TenantLimits
from proxy.settings import Settings, warnings
from proxy.settings.change import changes, need_restart, steering
from proxy.settings.sharing import one_of, read_share, split_fairness


def settings(**more):
    document = {"backends": [{"url": "http://127.0.0.1:8000", "name": "a"}], "scheduling": {"concurrency": 64}, **more}
    return Settings.model_validate(document)


def test_a_third_of_every_limit_is_rounded_down():
    mine = settings(share="1/3")
    [backend] = mine.to_backend_limits()
    assert backend.concurrency == 21
    assert (backend.adaptive.floor, backend.adaptive.ceiling) == (2, 85)
    assert backend.kv_fraction == pytest.approx(0.3)
    assert mine.to_scheduling().prefill_budget_tokens == 2048 // 3


def test_nothing_is_split_where_one_proxy_has_all():
    assert settings(share="1/1").to_backend_limits() == settings().to_backend_limits()


@given(st.integers(1, 1000), st.integers(1, 64))
def test_all_shares_together_keep_the_limit_where_it_has_one_for_each(limit, proxies):
    share = one_of(limit, proxies)
    assert share >= 1
    assert share * proxies <= max(limit, proxies)


def test_a_share_that_is_less_than_one_sequence_is_told():
    few = settings(share="1/8", scheduling={"concurrency": 4, "adaptive": {"enabled": False}})
    assert few.to_backend_limits()[0].concurrency == 1
    assert [one.text for one in warnings(few) if one.key == "share"] == [
        "1/8 of the 4 sequences of a is less than one; each proxy takes one, 8 together"
    ]


@pytest.mark.parametrize("wrong", ["1/0", "2/3", "1/65", "a third", 0.33, True, 3, None])
def test_a_share_is_one_of_so_many(wrong):
    with pytest.raises(ValueError, match='write "1/N"'):
        read_share(wrong)


def test_a_tenant_can_always_let_its_longest_request_wait():
    fairness = Fairness(
        tenants={"a": TenantLimits(waiting_requests=4, waiting_tokens=90_000, sequences=2, tokens_per_minute=600)}
    )
    part = split_fairness(fairness, 3, 50_000).tenants["a"]
    assert part == TenantLimits(waiting_requests=1, waiting_tokens=50_000, sequences=1, tokens_per_minute=200)


def test_leased_sequences_of_a_tenant_stay_whole():
    fairness = Fairness(others=TenantLimits(sequences=9, tokens_per_minute=600))
    assert split_fairness(fairness, 3, None, leased=True).others == TenantLimits(sequences=9, tokens_per_minute=200)


def test_leases_leave_the_limits_of_the_engines_whole():
    mine = settings(share="1/3", sharing={"store": "redis://10.0.0.9:6379/0"})
    assert mine.to_backend_limits() == tuple(replace(one, leased=True) for one in settings().to_backend_limits())
    assert mine.to_scheduling().prefill_budget_tokens == 2048


def test_a_store_needs_a_share_to_fall_back_on():
    with pytest.raises(ValidationError) as refused:
        settings(sharing={"store": "redis://10.0.0.9:6379/0"})
    assert [one.key for one in refused.value.errors()[0]["ctx"]["problems"]] == ["share"]


@pytest.mark.parametrize("wrong", ["10.0.0.9:6379", "http://10.0.0.9", "redis://", "unix://", "redis://u:secret@h"])
def test_a_store_is_named_by_its_url_alone(wrong):
    with pytest.raises(ValidationError, match="write") as refused:
        settings(share="1/2", sharing={"store": wrong})
    assert "secret" not in str(refused.value)


def test_a_lease_outlives_three_time_outs():
    with pytest.raises(ValidationError):
        settings(share="1/2", sharing={"store": "redis://h", "lease": "300ms", "timeout": "100ms"})


def test_the_password_does_not_show():
    mine = settings(share="1/2", sharing={"store": "redis://h", "password": "secret"})
    assert "secret" not in mine.model_dump_json()
    assert mine.hash == settings(share="1/2", sharing={"store": "redis://h"}).hash


def test_another_share_is_one_parameter_and_another_store_a_restart():
    old, new = settings(share="1/2"), settings(share="1/3")
    assert steering(changes(old, new), old, new) == ("share",)
    found = changes(old, settings(share="1/2", sharing={"store": "redis://h"}))
    assert [one.key for one in need_restart(found)] == ["sharing.store"]


def test_what_the_page_shows_is_taken(root):
    page = (root / "docs/several-proxies.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        assert Settings.model_validate({"backends": ["http://127.0.0.1:1"], **yaml.safe_load(block)}).share > 1

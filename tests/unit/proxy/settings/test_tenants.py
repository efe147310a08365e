"""Tenants and classes as an operator writes them."""

import pytest
from pydantic import ValidationError

from proxy.policy.limits import Fairness, TenantLimits
from proxy.settings.tenants import Priority, Tenants

DIGEST = "ab" * 32


def test_switched_off_the_dispatcher_hears_nothing_of_tenants():
    assert Tenants().to_fairness() is None


def test_what_is_written_is_what_the_dispatcher_reads():
    chosen = Tenants.model_validate(
        {
            "by": "key",
            "fairness": False,
            "named": [{"name": "acme", "keys": [f"sha256:{DIGEST.upper()}"], "weight": 2, "waiting_requests": 5}],
            "others": {"sequences": 3, "waiting_tokens": "4k", "tokens_per_minute": "1m"},
        }
    )
    assert chosen.named[0].keys == (DIGEST,)
    assert chosen.to_fairness() == Fairness(
        by_tokens=False,
        tenants={"acme": TenantLimits(weight=2.0, waiting_requests=5)},
        others=TenantLimits(sequences=3, waiting_tokens=4000, tokens_per_minute=1_000_000),
    )


def test_a_list_of_tenants_may_be_json_text():
    assert Tenants.model_validate({"named": '[{"name": "acme"}]'}).named[0].name == "acme"
    with pytest.raises(ValidationError, match="not a JSON list"):
        Tenants.model_validate({"named": "acme"})


@pytest.mark.parametrize("keys", [["sk-plain-key"], "sk-plain-key", [DIGEST, "ab"], 5, [5]])
def test_a_plain_key_is_refused_with_the_command_that_makes_its_digest(keys):
    with pytest.raises(ValidationError, match=r"SHA-256") as caught:
        Tenants.model_validate({"named": [{"name": "acme", "keys": keys}]})
    assert "sk-plain-key" not in str(caught.value)


@pytest.mark.parametrize("weight", [0, -1, 1e-320, 1e300, float("inf"), float("nan")])
def test_a_weight_with_which_somebody_would_never_or_always_be_next_is_refused(weight):
    with pytest.raises(ValidationError, match="weight"):
        Tenants.model_validate({"others": {"weight": weight}})


def test_the_bare_word_off_is_no_false():
    assert Tenants.model_validate({"by": False}).by == "off"
    assert Priority.model_validate({"allowed": False}).allowed == "off"


def test_classes_have_borders():
    chosen = Priority(high_at_most=-10, low_from=10)
    assert [chosen.class_of(value) for value in (None, -10, -9, 9, 10)] == [0, -1, 0, 0, 1]

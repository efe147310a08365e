"""What is counted of senders: bounded labels, and series from the start where labels are closed."""

from proxy.exchange import Exchange
from proxy.metrics.senders import SenderMetrics
from proxy.policy.outcome import Outcome
from proxy.policy.reuse import PrefixReuse
from proxy.policy.tenants import TenantSnapshot
from proxy.policy.ticket import Ticket
from proxy.settings import Settings
from proxy.wire.facts import Endpoint, Facts
from proxy.wire.usage import Usage

SETTINGS = Settings.model_validate({"backends": ["http://127.0.0.1:1"]})


def exchange(**fields):
    one = Exchange("id", 0.0, 0.0)
    one.facts, one.lane, one.outcome = Facts(Endpoint.CHAT), "short", Outcome.OK
    one.ticket = Ticket(1, 0, 10, 5)
    for name, value in fields.items():
        setattr(one, name, value)
    return one


def rows(metrics, name, tenants=(), reuse=None):
    """Values above 0 by labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in metrics.families(tenants, reuse)
        for sample in family.samples
        if family.name == f"lanewise_{name}" and sample.value
    }


def test_duplicates_are_counted_by_what_was_done():
    metrics = SenderMetrics(SETTINGS)
    metrics.observe(exchange(duplicate="observed"))
    metrics.observe(exchange(duplicate="rejected", lane=None, ticket=None))
    metrics.observe(exchange())
    assert rows(metrics, "duplicate_requests") == {("short", "observed"): 1, ("none", "rejected"): 1}


def test_early_returns_and_classes_are_counted_by_lane():
    metrics = SenderMetrics(SETTINGS)
    metrics.observe(exchange(damped=True, priority=-1))
    metrics.observe(exchange(lane="long"))
    assert rows(metrics, "early_returns") == {("short",): 1}
    assert rows(metrics, "priority_requests") == {("short", "high"): 1, ("long", "normal"): 1}


def test_tenants_are_counted_by_their_labels_alone():
    metrics = SenderMetrics(SETTINGS)
    usage = Usage(prompt_tokens=30, completion_tokens=4)
    metrics.observe(exchange(tenant="acme", usage=usage))
    metrics.observe(exchange(tenant="acme", outcome=Outcome.REJECTED))
    metrics.observe(exchange())
    assert rows(metrics, "tenant_requests") == {("acme", "ok"): 1, ("acme", "rejected"): 1}
    assert rows(metrics, "tenant_prompt_tokens") == {("acme",): 30}
    assert rows(metrics, "tenant_output_tokens") == {("acme",): 4}


def test_what_tenants_hold_now_comes_from_the_dispatcher():
    tenant = TenantSnapshot(
        "acme",
        counter=9.0,
        waiting_requests=2,
        waiting_tokens=200,
        running=3,
        granted=4,
        granted_tokens=400,
        rejected=1,
        dropped=2,
    )
    metrics = SenderMetrics(SETTINGS)
    for name, value in (
        ("tenant_queue_depth", 2),
        ("tenant_queue_tokens", 200),
        ("tenant_inflight_requests", 3),
        ("tenant_granted_tokens", 400),
    ):
        assert rows(metrics, name, [tenant]) == {("acme",): value}


def test_prefix_blocks_have_series_only_where_they_are_measured():
    reuse = PrefixReuse()
    reuse.note(("a", "b"))
    reuse.note(("a", "c"))
    assert rows(SenderMetrics(SETTINGS), "prefix_blocks", reuse=reuse) == {("repeated",): 1, ("new",): 3}
    assert rows(SenderMetrics(SETTINGS), "prefix_blocks") == {}


def test_goodput_of_a_tenant_is_what_was_answered_within_the_deadlines_of_its_lane():
    metrics = SenderMetrics(SETTINGS)
    for ended in (0.9, 1.1):
        metrics.observe(exchange(tenant="acme", ended=ended))
    metrics.observe(exchange(tenant="acme", ended=1.1, lane="long"))
    metrics.observe(exchange(tenant="acme", ended=0.1, outcome=Outcome.REJECTED))
    metrics.observe(exchange(tenant="acme", ended=0.1, lane=None, ticket=None))
    assert rows(metrics, "tenant_slo_good") == {("acme",): 2}
    metrics.configure(
        Settings.model_validate({"backends": ["http://127.0.0.1:1"], "lanes": {"short": {"ttft_slo": "2s"}}})
    )
    metrics.observe(exchange(tenant="acme", ended=1.1))
    assert rows(metrics, "tenant_slo_good") == {("acme",): 3}

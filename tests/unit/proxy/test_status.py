"""The status document and its two looks, a page and a terminal."""

import io
import json

import pytest
from rich.console import Console

from proxy.backends import Backends
from proxy.exchange import Exchange
from proxy.inforce import InForce
from proxy.metrics.requests import WOULD_DECISIONS
from proxy.policy.dispatch import Dispatcher
from proxy.policy.outcome import Outcome, Reason
from proxy.policy.reuse import PrefixReuse
from proxy.policy.ticket import Ticket
from proxy.settings import Settings
from proxy.status import LAST, Status
from proxy.statuspage import page
from proxy.statustext import write

SETTINGS = Settings.model_validate({"backends": [{"url": "http://127.0.0.1:8000", "name": "npu-0"}]})


@pytest.fixture
def parts():
    """A status over a real Dispatcher and backends that were never probed."""
    dispatcher = Dispatcher(SETTINGS.to_scheduling(), SETTINGS.to_backend_limits())
    backends = Backends(SETTINGS, lambda _name, _up: None)
    return Status(SETTINGS, snapshot=lambda: dispatcher.snapshot(10.0), backends=backends), dispatcher


def refused(number, **more):
    return Exchange(
        f"id-{number}",
        1.0,
        1_790_000_000.0,
        lane="short",
        outcome=Outcome.REJECTED,
        reason=Reason.QUEUE_FULL,
        detail="<b>full</b>",
        **more,
    )


def test_before_the_first_probe_it_is_not_ready(parts):
    status, _ = parts
    document = status.document()
    assert (document["ready"], document["reason"]) == (False, "no backend answers")
    assert document["backends"][0]["state"] == "starting"


def test_draining_comes_before_every_other_reason(parts):
    status, dispatcher = parts
    dispatcher.drain(10.0)
    assert status.not_ready() == "draining"


def test_it_is_one_json_document(parts):
    status, _ = parts
    document = status.document()
    assert json.loads(json.dumps(document)) == document
    assert document["config"] == SETTINGS.hash
    assert [lane["name"] for lane in document["lanes"]] == ["short", "long"]


def test_the_last_rejections_are_kept_newest_first_and_nothing_else(parts):
    status, _ = parts
    for number in range(LAST + 5):
        status.observe(refused(number))
    status.observe(Exchange("fine", 1.0, 1.0, outcome=Outcome.OK))
    kept = [of["request_id"] for of in status.document()["rejections"]]
    assert kept == [f"id-{number}" for number in range(LAST + 4, 4, -1)]
    assert status.document()["rejections"][0]["at"] == "2026-09-21T14:13:20Z"


def slowed(dispatcher):
    """Two intervals of two seconds in which a token took 150 ms."""
    dispatcher.offer(0.0, Ticket(1, lane=0, prompt_tokens=100, output_tokens=10))
    for seconds in (2.0, 4.0):
        dispatcher.pace("npu-0", 3.0, 20)
        dispatcher.wake(seconds)


def test_the_last_moves_of_the_limits_are_told_newest_first_with_their_causes(parts):
    status, dispatcher = parts
    assert status.document()["limit_moves"] == []
    slowed(dispatcher)
    moves = status.document()["limit_moves"]
    assert [(of["before"], of["after"]) for of in moves] == [(30, 28), (32, 30)]
    stamp = moves[0].pop("at")
    assert len(stamp) == len("2026-09-21T14:13:20Z")
    assert moves[0] == {
        "backend": "npu-0",
        "before": 30,
        "after": 28,
        "cause": "tpot_high",
        "in_flight": 1,
        "tpot_s": 0.15,
    }


def test_moves_of_the_limits_are_on_the_page_and_in_the_terminal(parts):
    status, dispatcher = parts
    slowed(dispatcher)
    out = io.StringIO()
    write(status.document(), Console(file=out, width=160))
    assert "30 -> 28  tpot_high          1      150" in out.getvalue()
    html = page(status.document())
    assert '<td class="n">30 → 28</td><td>tpot_high <span class="quiet">a token took longer than its SLO</span>' in html
    assert '<td class="n">1</td><td class="n">150 ms</td>' in html


def test_the_mode_of_installments_is_shown_everywhere(parts):
    status, dispatcher = parts
    assert status.document()["backends"][0]["installments"] == "unknown"
    dispatcher.offer(0.0, Ticket(1, lane=1, prompt_tokens=9000, output_tokens=10, splittable=True))
    for cached in (0, 1000):
        dispatcher.part_ended(1.0, 1, cached)
    shown = status.document()["backends"][0]
    assert (shown["installments"], shown["installment_hit_ratio"], shown["recomputed_tokens"]) == ("on", 0.9941, 24)
    assert "<td>on · 99% found again</td>" in page(status.document())
    out = io.StringIO()
    write(status.document(), Console(file=out, width=160))
    row = next(line for line in out.getvalue().splitlines() if line.startswith("npu-0"))
    assert "on" in row.split()


def test_the_page_escapes_what_came_from_outside(parts):
    status, _ = parts
    status.observe(refused(1))
    html = page(status.document())
    assert "&lt;b&gt;full&lt;/b&gt;" in html
    assert "<b>full" not in html


def test_values_at_their_limit_are_marked(parts):
    status, _ = parts
    document = status.document()
    document["lanes"][0]["waiting_requests"] = document["lanes"][0]["limit_requests"]
    assert '<span class="full">1,024 / 1,024</span>' in page(document)


def test_the_terminal_shows_lanes_backends_and_rejections(parts):
    status, _ = parts
    status.observe(refused(1))
    out = io.StringIO()
    write(status.document(), Console(file=out, width=160))
    text = out.getvalue()
    assert "not ready: no backend answers" in text
    assert [word for word in ("short", "long", "npu-0", "queue_full", "<b>full</b>") if word not in text] == []


def test_the_terminal_shows_the_last_minute(parts):
    document = parts[0].document()
    times = {"wait_p95_s": 0.254, "ttft_p95_s": None, "tpot_p95_s": 0.0312}
    document["last_minute"] = [{"lane": "short", "finished": 71, "refused": 3, "failed": 2, **times}]
    out = io.StringIO()
    write(document, Console(file=out, width=160))
    row = out.getvalue().split("last minute")[1].splitlines()[1]
    assert row.split() == ["short", "71", "3", "2", "0.25", "-", "31"]


def test_a_failed_reload_and_what_was_said_are_shown_everywhere():
    in_force = InForce(SETTINGS)
    backends = Backends(SETTINGS, lambda _name, _up: None)
    dispatcher = Dispatcher(SETTINGS.to_scheduling(), SETTINGS.to_backend_limits())
    status = Status(in_force, snapshot=lambda: dispatcher.snapshot(10.0), backends=backends)
    in_force.verdict = "bad"
    in_force.fail(("lanewise.yaml:3: <b> is no key",))
    document = status.document()
    assert document["reload"]["succeeded"] is False
    assert document["reload"]["generation"] == 1
    html = page(document)
    assert "The last change was not made" in html
    assert "<li>lanewise.yaml:3: &lt;b&gt; is no key</li>" in html
    out = io.StringIO()
    write(document, Console(file=out, width=160))
    assert "judged bad; the last change was not made" in out.getvalue()
    assert "lanewise.yaml:3: <b> is no key" in out.getvalue()


def test_what_a_generation_changed_is_shown_with_the_experiment_everywhere():
    in_force = InForce(SETTINGS)
    backends = Backends(SETTINGS, lambda _name, _up: None)
    dispatcher = Dispatcher(SETTINGS.to_scheduling(), SETTINGS.to_backend_limits())
    status = Status(in_force, snapshot=lambda: dispatcher.snapshot(10.0), backends=backends)
    assert status.document()["reload"]["changed"] == []
    written = SETTINGS.model_dump(mode="json")
    written["metrics"]["experiment"] = "candidate-2"
    written["scheduling"]["drop_factor"] = 5
    before = SETTINGS.scheduling.drop_factor
    in_force.take(Settings.model_validate(written), ())
    document = status.document()
    assert document["experiment"] == "candidate-2"
    assert f"scheduling.drop_factor: {before} -> 5.0" in document["reload"]["changed"]
    html = page(document)
    assert f"<li><code>scheduling.drop_factor: {before} -&gt; 5.0</code></li>" in html
    assert "<dd>candidate-2</dd>" in html
    out = io.StringIO()
    write(document, Console(file=out, width=160))
    assert f"changed scheduling.drop_factor: {before} -> 5.0" in out.getvalue()


def test_what_would_have_been_done_is_shown_while_observing(parts):
    plain, dispatcher = parts
    assert plain.document()["would"] == []
    observing = Settings.model_validate({**SETTINGS.model_dump(mode="json"), "mode": "observe"})
    counts = {(lane, word): 7 for lane in ("short", "long", "none") for word in WOULD_DECISIONS}
    backends = Backends(observing, lambda _name, _up: None)
    parts = {"snapshot": lambda: dispatcher.snapshot(10.0), "backends": backends}
    document = Status(observing, would=lambda: counts, **parts).document()
    assert document["would"][0] == {"lane": "short", **dict.fromkeys(WOULD_DECISIONS, 7)}
    assert "On paper" in page(document)
    out = io.StringIO()
    write(document, Console(file=out, width=160))
    assert "on paper" in out.getvalue()


def test_tenants_and_what_repeats_are_shown_where_they_are_told_apart():
    apart = Settings.model_validate({**SETTINGS.model_dump(mode="json"), "tenants": {"by": "key"}})
    dispatcher = Dispatcher(apart.to_scheduling(), apart.to_backend_limits())
    dispatcher.offer(0.0, Ticket(1, 0, 100, 10, tenant="<acme>"))
    reuse = PrefixReuse()
    reuse.note(("a", "b"))
    reuse.note(("a",))
    backends = Backends(apart, lambda _name, _up: None)
    status = Status(apart, snapshot=lambda: dispatcher.snapshot(10.0), backends=backends, reuse=reuse)
    document = status.document()
    assert [(of["name"], of["running"], of["granted_tokens"]) for of in document["tenants"]] == [("<acme>", 1, 100)]
    assert document["prefix_reuse"] == {"repeated_blocks": 1, "new_blocks": 2, "share": 0.3333}
    assert "&lt;acme&gt;" in page(document)
    out = io.StringIO()
    write(document, Console(file=out, width=160))
    assert "<acme>" in out.getvalue()


def test_without_tenants_and_recorder_there_is_nothing_to_show(parts):
    status, _ = parts
    document = status.document()
    assert (document["tenants"], document["prefix_reuse"]) == ([], None)
    assert "Tenants" not in page(document)

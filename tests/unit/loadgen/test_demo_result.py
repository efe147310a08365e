"""What a demo says, from run folders that never ran."""

import io
import json

import pytest
import yaml
from rich.console import Console

from loadgen.demo_result import Conditions, lateness_p99, proxy_config, result, write
from loadgen.failure import Exit
from loadgen.sim.profile import load_profile
from proxy.policy.limits import LaneOrder
from proxy.settings import load


@pytest.fixture
def conditions():
    return Conditions(load_profile("8b"), "strict", rows=120, rate=2.5, speed=5.0, seed=1)


@pytest.fixture
def runs(made):
    def run(name, short, *, refused=0, n=100, **manifest):
        results = [made.ok(index, short) for index in range(n)]
        results += [made.ok(n + index, 2.0, lane="long") for index in range(20 - refused)]
        results += [made.failed(n + 20 - refused + index, lane="long") for index in range(refused)]
        return made.folder(name, results, **manifest)

    return run


def printed(told):
    out = io.StringIO()
    told.print(Console(file=out, width=150))
    return out.getvalue()


def test_the_proxy_takes_the_configuration_and_lives_in_its_time(conditions, tmp_path):
    file = tmp_path / "lanewise.yaml"
    file.write_text(proxy_config(conditions, "http://127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", tmp_path / "trace"))
    settings = load(file).settings
    scheduling, (backend,) = settings.to_scheduling(), settings.to_backend_limits()
    assert [lane.ttft_slo_s for lane in scheduling.lanes] == [0.2, 1.0]
    assert scheduling.lane_order is LaneOrder.SHORT_FIRST
    assert scheduling.deadline_margin_s == pytest.approx(0.01)
    assert scheduling.prefill_s_per_token == pytest.approx(0.000018)
    assert scheduling.step_s == pytest.approx(0.004)
    assert (backend.concurrency, backend.kv_tokens) == (48, 249_600)


def test_the_gentle_preset_is_handed_on(conditions, tmp_path):
    gentle = Conditions(conditions.profile, "gentle", 120, 2.5, 1.0, 1)
    document = yaml.safe_load(proxy_config(gentle, "http://127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", tmp_path))
    assert document["scheduling"]["preset"] == "gentle"
    assert document["lanes"]["short"]["ttft_slo"] == "1000000us"


def test_an_effect_passes_and_is_written_as_table_document_and_page(conditions, runs, tmp_path):
    told = result(conditions, tmp_path, [runs("direct", 4.0), runs("lanewise", 0.5, refused=1)], {}, stopped=False)
    write(told)
    document = json.loads((tmp_path / "demo.json").read_text())
    assert told.code == Exit.DONE
    assert document["passed"]
    assert {row["name"]: row["after"] for row in document["rows"]}["TTFT, short, p99"] == pytest.approx(0.5)
    assert json.loads((tmp_path / "comparison.json").read_text())["a"] == "direct"
    assert "8.0x faster" in (tmp_path / "index.html").read_text()
    text = printed(told)
    assert "computed, not measured" in text
    assert "8.0x faster" in text


def test_a_third_pass_stands_beside_the_others_and_is_judged(conditions, runs, tmp_path):
    three = [runs("direct", 4.0), runs("lanewise", 0.8, refused=1), runs("installments", 0.4, refused=1)]
    told = result(conditions, tmp_path, three, {}, stopped=False)
    write(told)
    assert told.code == Exit.DONE
    document = json.loads((tmp_path / "demo.json").read_text())
    assert [check["name"] for check in document["checks"]][-1] == "installments_goodput"
    assert {row["name"]: row["more"] for row in document["rows"]}["TTFT, short, p99"] == [pytest.approx(0.4)]
    assert sorted(document["summaries"]) == ["+ installments", "direct", "lanewise"]
    for text in (printed(told), (tmp_path / "index.html").read_text()):
        assert "+ installments" in text
        assert "5.0x faster" in text
        assert "10.0x faster" in text


def test_the_third_pass_feeds_long_prompts_in_parts_and_the_second_does_not(conditions, tmp_path):
    def mode(**more):
        text = proxy_config(conditions, "http://a:1", "127.0.0.1:2", "127.0.0.1:3", tmp_path, **more)
        return yaml.safe_load(text)["installments"]["mode"]

    assert (mode(), mode(installments=True)) == ("off", "auto")


def test_no_effect_is_exit_code_three(conditions, runs, tmp_path):
    told = result(conditions, tmp_path, [runs("direct", 1.0), runs("lanewise", 0.9)], {}, stopped=False)
    assert told.code == Exit.GATE
    assert "FAILED" in printed(told)
    assert "do not count" not in printed(told)


@pytest.mark.parametrize("late", ["generator", "engine"])
def test_what_failed_on_a_busy_machine_is_not_held_against_the_proxy(late, conditions, runs, tmp_path):
    more = {"loop_lag_p99_s": 0.5} if late == "generator" else {}
    lateness = {"lanewise": 0.25} if late == "engine" else {}
    both = [runs("direct", 1.0), runs("lanewise", 0.9, **more)]
    told = result(conditions, tmp_path, both, lateness, stopped=False)
    assert told.code == Exit.INVALID
    assert "do not count" in printed(told)


def test_lost_long_requests_are_exit_code_three(conditions, runs, tmp_path):
    told = result(conditions, tmp_path, [runs("direct", 4.0), runs("lanewise", 0.5, refused=3)], {}, stopped=False)
    assert told.code == Exit.GATE


def test_a_demo_that_was_stopped_judges_nothing_and_says_so(conditions, runs, tmp_path):
    half = [runs("direct", 4.0, complete=False)]
    told = result(conditions, tmp_path, half, {}, stopped=True)
    write(told)
    assert told.code == Exit.INTERRUPTED
    assert json.loads((tmp_path / "demo.json").read_text())["interrupted"]
    assert not (tmp_path / "index.html").exists()
    text = printed(told)
    assert "Interrupted" in text
    assert "direct" in text


def test_a_demo_that_was_stopped_in_its_second_pass_still_shows_both(conditions, runs, tmp_path):
    both = [runs("direct", 4.0), runs("lanewise", 0.5, complete=False)]
    told = result(conditions, tmp_path, both, {}, stopped=True)
    write(told)
    assert told.code == Exit.INTERRUPTED
    assert (tmp_path / "index.html").exists()
    assert not json.loads((tmp_path / "demo.json").read_text())["passed"]


def test_a_late_engine_is_told(conditions, runs, tmp_path):
    both = [runs("direct", 4.0), runs("lanewise", 0.5)]
    told = result(conditions, tmp_path, both, {"direct": 0.001, "lanewise": 0.1}, stopped=False)
    assert [notice for notice in told.notices if "late in pass lanewise" in notice]
    assert not [notice for notice in told.notices if "late in pass direct" in notice]


def test_lateness_is_the_bucket_that_holds_the_ninety_ninth_percentile():
    text = "\n".join(
        f'lanewise_sim_lateness_seconds_bucket{{le="{bound}"}} {count}'
        for bound, count in (("0.001", 985.0), ("0.01", 991.0), ("+Inf", 1000.0))
    )
    assert lateness_p99(text) == 0.01
    assert lateness_p99("") == 0

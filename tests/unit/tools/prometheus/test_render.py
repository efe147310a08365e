"""Rules are the same at every factor but for their windows."""

import re

import pytest
import yaml

from tools.prometheus import render
from tools.prometheus.alerts import alerts
from tools.prometheus.nouns import Objectives


def rules_of(files):
    return [
        rule
        for name in ("recording.yaml", "alerts.yaml")
        for group in yaml.safe_load(files[name])["groups"]
        for rule in group["rules"]
    ]


@pytest.mark.parametrize(("text", "wanted"), [("15s", 15), ("1h30m", 5400), ("3d", 259200), ("250ms", 0.25)])
def test_a_duration_is_read_in_seconds(text, wanted):
    assert render.seconds(text) == wanted


def test_windows_and_waits_are_divided_and_nothing_else_changes():
    whole, fast = rules_of(render.documents()), rules_of(render.documents(60))
    assert len(whole) == len(fast) > 30
    for one, other in zip(whole, fast, strict=True):
        assert {key: value for key, value in one.items() if key not in {"expr", "for"}} == {
            key: value for key, value in other.items() if key not in {"expr", "for"}
        }
        assert re.sub(r"\[\w+\]", "[]", one["expr"]) == re.sub(r"\[\w+\]", "[]", other["expr"])
        windows = zip(re.findall(r"\[(\w+)\]", one["expr"]), re.findall(r"\[(\w+)\]", other["expr"]), strict=True)
        assert all(render.seconds(a) == pytest.approx(60 * render.seconds(b)) for a, b in windows)
        assert ("for" in one) == ("for" in other)
        if "for" in one:
            assert render.seconds(one["for"]) == pytest.approx(60 * render.seconds(other["for"]))


def test_every_alert_says_what_it_is_about_in_both_languages():
    for rule in rules_of(render.documents()):
        if "alert" in rule:
            said = rule["annotations"]
            assert sorted(said) == ["description", "description_zh", "runbook_url", "summary", "summary_zh"]
            assert all(re.search(r"[\u4e00-\u9fff]", said[name]) for name in ("summary_zh", "description_zh")), rule[
                "alert"
            ]
            assert not re.search(r"[\u4e00-\u9fff]", said["summary"] + said["description"])


def test_every_alert_has_a_case_that_fires_it_and_one_that_does_not():
    cases = {}
    for alert in alerts(Objectives()):
        cases.setdefault(alert.name, []).extend(bool(case.fired) for case in alert.cases)
    assert {name: sorted(set(fired)) for name, fired in cases.items()} == {name: [False, True] for name in cases}


def test_an_objective_that_leaves_a_large_budget_drops_the_alert_that_could_never_fire():
    windows = [alert.window for alert in alerts(Objectives(ttft=0.9)) if alert.name == "LanewiseTTFTBudgetBurn"]
    assert windows == ["6h", "3d"]


def test_the_command_writes_what_it_checks(tmp_path, capsys):
    assert render.main(["--out", str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().out.count("out of date") == 3
    assert render.main(["--out", str(tmp_path), "--runbook", "https://wiki/runbook"]) == 0
    assert render.main(["--out", str(tmp_path), "--runbook", "https://wiki/runbook", "--check"]) == 0
    assert "runbook_url: https://wiki/runbook#lanewisequeuefull" in (tmp_path / "alerts.yaml").read_text()


@pytest.mark.parametrize("factor", ["0.5", "0", "nan"])
def test_a_factor_below_one_is_refused(tmp_path, factor):
    with pytest.raises(SystemExit):
        render.main(["--out", str(tmp_path), "--factor", factor])

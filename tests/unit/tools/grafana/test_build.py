"""Dashboards as Grafana reads them: complete, consistent, and nothing of them is lost on the way."""

import json
import re

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.grafana import build

NAMES = [board.name for board in build.BOARDS]


@pytest.fixture(scope="module")
def made():
    return build.documents()


@pytest.fixture(params=NAMES)
def document(request, made):
    return json.loads(made[f"grafana/dashboards/{request.param}.json"])


def panels(document):
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def expressions(document):
    return [target["expr"] for panel in panels(document) for target in panel["targets"]]


@pytest.mark.parametrize("name", NAMES)
def test_grafanas_own_model_keeps_every_key(made, name):
    text = made[f"grafana/dashboards/{name}.json"]
    assert build.encoded(Dashboard.from_json(json.loads(text))) == text


def test_a_misspelt_key_would_be_noticed(made):
    document = json.loads(made["grafana/dashboards/overview.json"])
    document["panels"][1]["fieldConfig"]["defaults"]["unitt"] = "s"
    assert json.loads(build.encoded(Dashboard.from_json(document))) != document


def test_every_panel_has_a_title_a_description_a_unit_and_a_query(document):
    for panel in panels(document):
        assert re.search(r"[\u4e00-\u9fff]|TTFT|TPOT", panel["title"]), panel["title"]
        zh, en, metric = panel["description"].split("\n\n")
        assert re.search(r"[\u4e00-\u9fff]", zh)
        assert en.isascii() or "µ" in en
        assert re.fullmatch(r"Metric: `[^`]+`(, `[^`]+`)*", metric), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert panel["datasource"]["uid"] == "${datasource}"


def test_every_variable_that_is_used_is_declared_and_every_declared_one_used(document):
    declared = {variable["name"] for variable in document["templating"]["list"]}
    marks = [mark["expr"] for mark in document["annotations"]["list"]]
    queries = [str(variable.get("query")) for variable in document["templating"]["list"]]
    used = set(re.findall(r"\$(?!__)(\w+)", " ".join([*expressions(document), *marks, *queries])))
    assert used - declared == set()
    assert declared - used == {"datasource"}


def test_every_rate_has_the_window_or_the_range_of_the_screen(document):
    for expr in expressions(document):
        assert set(re.findall(r"\[([^\]]+)\]", expr)) <= {"$__rate_interval", "$__range"}, expr


def test_every_selector_names_a_job(document):
    for expr in expressions(document):
        selectors = re.findall(r"\{([^}]*)\}", expr)
        assert selectors
        assert all(re.search(r'job=~"\$\w+"', selector) for selector in selectors), expr


def test_no_two_panels_lie_on_each_other(document):
    taken = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_it_is_for_provisioning_and_not_for_an_import_by_hand(document):
    assert document["uid"] == f"lanewise-{next(name for name in NAMES if document['uid'].endswith(name))}"
    assert document.get("id") is None
    assert "__inputs" not in document


def test_grafana_gets_every_alert_once(made):
    rules = yaml.safe_load(made["grafana/provisioning/alerting/lanewise.yaml"])["groups"][0]["rules"]
    alerts = yaml.safe_load((build.ROOT / "config/prometheus/alerts.yaml").read_text())["groups"][0]["rules"]
    assert [rule["data"][0]["model"]["expr"] for rule in rules] == [alert["expr"] for alert in alerts]
    assert len({rule["uid"] for rule in rules}) == len(rules)
    assert all(len(rule["uid"]) <= 40 for rule in rules)

"""Rules and runbook are committed as they are made, and lead to each other."""

import re

import pytest
import yaml

from loadgen.telemetry.exposed import NAMES
from proxy.metrics.series import TTFT
from tools.grafana import build
from tools.prometheus import render
from tools.prometheus.nouns import Objectives


def alert_names(root):
    groups = yaml.safe_load((root / "config/prometheus/alerts.yaml").read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def test_the_committed_rules_are_what_the_tool_makes(root):
    folder = root / render.FOLDER
    stale = [name for name, text in render.documents().items() if (folder / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m tools.prometheus.render"


@pytest.mark.parametrize("page", ["docs/runbook.md", "docs/runbook.zh.md"])
def test_every_alert_has_its_section_in_the_runbook_and_every_section_its_alert(root, page):
    sections = re.findall(r"^## (Lanewise\w+)$", (root / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == list(dict.fromkeys(alert_names(root)))


def test_an_objective_of_time_to_first_token_is_a_bound_of_its_histogram():
    assert {float(bound) for bound in Objectives().ttft_bounds.values()} <= set(TTFT)


def test_the_committed_dashboards_are_what_the_tool_makes(root):
    files = build.documents()
    stale = [path for path, text in files.items() if (root / path).read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m tools.grafana.build"
    shipped = {str(path.relative_to(root)) for path in (root / "grafana").rglob("*") if path.is_file()}
    assert shipped - {"grafana/.gitkeep"} == set(files)


def test_every_metric_of_dashboards_and_alerts_is_one_that_lanewise_has(root):
    documented = set(re.findall(r"^\| `(lanewise_\w+)`", (root / "docs/metrics.md").read_text(), re.MULTILINE))
    documented |= {f"lanewise_load_{name}" for name in NAMES}
    texts = [text for path, text in build.documents().items() if path.endswith(".json")]
    texts += render.documents().values()
    used = {
        name
        for text in texts
        for name in re.findall(r"(?<![:\w])(lanewise_\w+?)(?:_bucket|_count|_sum)?(?=[{\[ )])", text)
    }
    assert len(used) > 40
    assert used - documented == set()

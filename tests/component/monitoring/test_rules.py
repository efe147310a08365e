"""promtool on the committed rules: each alert fires in its situation and stays silent beside it."""

import pytest

from tools.prometheus.render import documents
from tools.prometheus.server import promtool

pytestmark = pytest.mark.usefixtures("promtools")


@pytest.fixture
def folder(root):
    return root / "config/prometheus"


def test_the_scrape_configuration_is_valid(folder):
    code, said = promtool("check", "config", "prometheus.yaml", cwd=folder)
    assert (code, said.count("SUCCESS")) == (0, 4), said


def test_every_alert_fires_in_its_situation_and_stays_silent_beside_it(folder):
    code, said = promtool("test", "rules", "tests.yaml", cwd=folder)
    assert code == 0, said


def test_a_rule_that_is_off_would_be_noticed(folder, tmp_path):
    for file in folder.glob("*.yaml"):
        (tmp_path / file.name).write_text(file.read_text())
    rules = tmp_path / "alerts.yaml"
    rules.write_text(rules.read_text().replace("ratio_rate5m > 0.05", "ratio_rate5m > 0.5"))
    code, said = promtool("test", "rules", "tests.yaml", cwd=tmp_path)
    assert code == 1
    assert "LanewiseRejectionsHigh" in said


def test_rules_with_shorter_windows_are_valid_too(tmp_path):
    for name, text in documents(60).items():
        (tmp_path / name).write_text(text)
    code, said = promtool("check", "rules", "recording.yaml", "alerts.yaml", cwd=tmp_path)
    assert code == 0, said

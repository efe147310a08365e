"""The run behind the pictures: two arms that differ in one thing, and a Prometheus that knows which is which."""

import pytest

from proxy.policy.limits import Mode
from proxy.settings import Settings
from tools.grafana.scene import BASELINE, CANDIDATE, Scene, settings, watched


@pytest.fixture
def arms(tmp_path):
    made = (
        settings(name, "http://127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", tmp_path) for name in (BASELINE, CANDIDATE)
    )
    return [Settings.model_validate(one) for one in made]


def test_the_baseline_passes_everything_on_and_the_candidate_schedules(arms):
    assert [one.mode for one in arms] == [Mode.PASSTHROUGH, Mode.ENFORCE]
    assert [one.metrics.experiment for one in arms] == [BASELINE, CANDIDATE]
    assert arms[0].lanes == arms[1].lanes


def test_each_target_keeps_its_labels_and_each_job_its_name():
    config = watched({"lanewise": [("a:1", {"experiment": BASELINE}), ("b:1", {"experiment": CANDIDATE})]})
    assert config["scrape_configs"] == [
        {
            "job_name": "lanewise",
            "static_configs": [
                {"targets": ["a:1"], "labels": {"experiment": BASELINE}},
                {"targets": ["b:1"], "labels": {"experiment": CANDIDATE}},
            ],
        }
    ]
    assert config["rule_files"] == ["alerts.yaml", "recording.yaml"]


def test_a_run_that_is_over_can_be_drawn_again_from_its_folder(tmp_path):
    Scene(folder=tmp_path, start=100.5, end=160.0).write()
    assert Scene.read(tmp_path) == Scene(folder=tmp_path, start=100.5, end=160.0)
    with pytest.raises(FileNotFoundError):
        Scene.read(tmp_path / "none")

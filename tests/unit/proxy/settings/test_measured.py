"""What was measured is written beside the configuration, dated, in a file of its own that is read after it."""

import datetime as dt

import pytest

from proxy.settings import ConfigurationError, load, warnings
from proxy.settings.load import load_text

BASE = """
backends: [http://a:1]
scheduling:
  concurrency: 32
  drop_factor: 2
"""
FRAGMENT = """
scheduling:
  concurrency: 40
measured:
  date: 2026-11-30
  model: qwen
  concurrency: 40
  tpot_slo: 100ms
why:
  scheduling.concurrency: "the knee"
"""


@pytest.fixture
def files(tmp_path):
    named = tmp_path / "base.yaml", tmp_path / "measured.yaml"
    for path, text in zip(named, (BASE, FRAGMENT), strict=True):
        path.write_text(text)
    return named


def test_a_fragment_read_after_the_configuration_wins_key_by_key(files):
    loaded = load(files)
    scheduling = loaded.settings.scheduling
    assert (scheduling.concurrency, scheduling.drop_factor) == (40, 2.0)
    assert loaded.settings.measured.date == dt.date(2026, 11, 30)
    assert loaded.origins["scheduling.concurrency"] == f"{files[1]}:3"
    assert loaded.origins["scheduling.drop_factor"] == f"{files[0]}:5"
    assert warnings(loaded.settings) == ()


def test_an_error_in_the_fragment_names_its_line(files):
    files[1].write_text(FRAGMENT.replace("qwen", "[qwen]"))
    with pytest.raises(ConfigurationError, match=r"measured\.yaml:6: measured\.model is"):
        load(files)


def test_a_measurement_without_a_date_is_pointed_out():
    read = load_text("backends: [http://a:1]\nmeasured: {concurrency: 40}\n", "lanewise.yaml")
    assert [found.key for found in warnings(read)] == ["measured"]


def test_a_stricter_slo_than_the_measured_one_is_pointed_out():
    read = load_text(BASE + "lanes: {short: {tpot_slo: 50ms}}\nmeasured: {date: 2026-11-30, tpot_slo: 100ms}\n", "x")
    assert [found.key for found in warnings(read)] == ["measured.tpot_slo"]

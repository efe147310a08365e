"""The check of the generator's clock and speed runs; its figures need a quiet machine: tools.acceptance.generator."""

import pytest

CLIENTS = ("--client", "lanewise-load", "--client", "wire")


@pytest.mark.shared
def test_what_the_generator_reads_is_held_against_the_stamps_of_a_mock(acceptance, shared):
    mock = shared / "mock/mock.py"
    result = acceptance("generator", "--mock", mock, "--only", "accuracy", "--runs", 1, "--streams", 8, *CLIENTS)
    ours, wire = result["accuracy"]
    assert (ours["client"], ours["requests"], wire["client"]) == ("lanewise-load", 32, "wire")
    for row in (ours, wire):
        assert 0 < row["outward_s"] < 1
        assert 0 < row["back_s"] < 1
        assert row["error_mean_s"] == pytest.approx(row["outward_s"] + row["back_s"])
    assert 0 < ours["certified_s"] < 1
    assert wire["certified_s"] is None


def test_what_the_generator_takes_in_is_measured_without_a_mock_and_the_missing_half_is_said(acceptance):
    result = acceptance("generator", "--runs", 1, "--requests", 200, *CLIENTS)
    assert result["accuracy"] == []
    ours, wire = (row for row in result["throughput"] if row["server"] == "prepared")
    assert ours["chunks_per_s"] == pytest.approx(64 * ours["requests_per_s"])
    assert ours["cpu_us_per_request"] > wire["cpu_us_per_request"] > 0
    assert 20 < ours["rss_mb"] < 400
    assert set(result["held"]) == {"requests/s", "chunks/s", "memory"}

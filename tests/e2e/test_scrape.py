"""The check of what a scrape costs runs; its figures need a quiet machine: `python -m tools.acceptance.scrape`."""


def test_streams_are_watched_with_scrapes_and_without(acceptance):
    result = acceptance("scrape", "--pairs", 2, "--streams", 4, "--window", 0.3)
    assert result["scrapes"] == 2
    assert 1400 < result["series"] <= 2000
    assert min(result["gaps"].values()) > 0
    assert result["added_s"] == result["gap_p99_s"]["with"] - result["gap_p99_s"]["without"]
    assert result["passed"] is (result["added_s"] < 0.010)

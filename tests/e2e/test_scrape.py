"""The check of what a scrape costs runs; its figures need a quiet machine: `python -m tools.acceptance.scrape`."""

import pytest

from tools.acceptance import scrape


def test_streams_are_watched_with_scrapes_and_without(acceptance):
    result = acceptance("scrape", "--pairs", 2, "--streams", 4, "--window", 0.3)
    assert result["scrapes"] == 2
    assert 1400 < result["series"] <= 2000
    assert min(result["gaps"].values()) > 0
    low, high = result["added_interval_s"]
    assert low <= result["added_s"] <= high
    assert result["passed"] is (result["added_s"] < 0.010)


def test_a_burst_of_other_work_in_one_window_decides_nothing():
    seen, windows = scrape.Seen([], []), []
    for turn in range(40):
        scraped, start = turn % 2 == 0, float(turn)
        late = 0.5 if turn == 4 else 0.003 if scraped else 0.001
        seen.at += [start + 0.1, start + 0.5]
        seen.gap += [late, late]
        windows.append((scraped, start, start + 1.0))
    found = scrape.judged(seen, windows)
    assert found["added_s"] == pytest.approx(0.002)
    assert (found["passed"], found["decided"]) == (True, True)


def test_pairs_that_disagree_decide_nothing():
    seen, windows = scrape.Seen([], []), []
    for turn in range(6):
        seen.at.append(turn + 0.5)
        seen.gap.append(0.03 if turn in {0, 1, 2} else 0.001)
        windows.append((turn % 2 == 0, float(turn), turn + 1.0))
    assert not scrape.judged(seen, windows)["decided"]


def test_windows_in_which_streams_stand_still_are_no_measurement():
    with pytest.raises(ValueError, match="stood still"):
        scrape.judged(scrape.Seen([0.5], [0.1]), [(True, 0.0, 1.0), (False, 1.0, 2.0)])

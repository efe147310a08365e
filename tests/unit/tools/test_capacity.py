"""The figures of the bench go into the capacity page, readable and between their marks."""

import pytest

from tools.capacity import filled, shown, table

MEASURED = [
    {"proxy": "nginx", "cpu_s_per_1k_requests": 0.016, "cpu_s_per_1m_events_20k": 14.0, "cancel_s": None},
    {"proxy": "lanewise", "cpu_s_per_1k_requests": 0.08123, "cpu_s_per_1m_events_20k": None, "cancel_s": None},
]


def test_each_proxy_is_a_column_and_what_was_void_is_a_dash():
    lines = table(MEASURED).splitlines()
    assert lines[0].endswith("| nginx | lanewise |")
    assert lines[2].endswith("| 0.016 s | 0.0812 s |")
    assert lines[3].endswith("| 14 s | - |")


def test_what_was_measured_for_none_is_left_out():
    assert "cancel" not in table(MEASURED)
    assert len(table(MEASURED).splitlines()) == 5


def test_streams_on_a_core_follow_from_what_an_event_costs():
    assert table(MEASURED).splitlines()[-1].endswith("| 3,571 | - |")


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (18991.3, "18,991 µs"), (0.051, "0.051 µs"), (0, "0 µs")])
def test_a_figure_has_three_digits_and_its_unit(value, text):
    assert shown(value, "µs") == text


def test_only_what_is_between_the_marks_changes():
    page = "a\n<!-- bench -->\nold\n<!-- /bench -->\nb\n"
    assert filled(page, "new\n| x |") == "a\n<!-- bench -->\nnew\n| x |\n<!-- /bench -->\nb\n"


def test_a_page_without_marks_is_not_written():
    with pytest.raises(ValueError, match="one pair of marks"):
        filled("nothing", "figures")

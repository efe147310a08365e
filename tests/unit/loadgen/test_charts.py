"""Charts as SVG: every picture is well-formed, whatever the numbers are."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.charts import WIDTH, Axis, Bar, Curve, Points, distribution, stacked, timeline

SECONDS = st.floats(1e-5, 1e4)


def paths(svg, style):
    return [node.get("d") for node in ET.fromstring(svg).iter("path") if style in node.get("class").split()]


@given(st.lists(SECONDS, max_size=30), st.lists(SECONDS, max_size=30))
def test_any_two_distributions_are_drawn_inside_the_picture(one, two):
    curves = [Curve("before", one, len(one) + 1), Curve("after", two, len(two) + 1)]
    svg = ET.fromstring(distribution(curves, 1.0, "label"))
    assert svg.get("aria-label") == "label"
    for node in svg.iter("text"):
        assert 0 <= float(node.get("x")) <= WIDTH


@given(st.lists(st.tuples(st.floats(0, 1e5), SECONDS), max_size=30), st.lists(st.floats(0, 1e5), max_size=5))
def test_any_timeline_has_one_dot_for_each_request(points, lost):
    svg = timeline([Points("before", points, lost)], 1.0, 1e5, "label")
    assert paths(svg, "dots")[0].count("M") == len(points)
    assert paths(svg, "lost")[0].count("M") == len(lost)


def test_a_distribution_ends_below_one_by_what_was_lost():
    whole = paths(distribution([Curve("before", [0.1, 0.2], 2)], 1.0, ""), "line")[0]
    half = paths(distribution([Curve("before", [0.1, 0.2], 4)], 1.0, ""), "line")[0]
    highest = [min(float(part.split("H")[0]) for part in path.split("V")[1:]) for path in (whole, half)]
    assert highest[0] < highest[1]


def test_a_logarithmic_axis_gives_every_decade_the_same_length():
    axis = Axis(0.1, 100, 0, 300, log=True)
    assert [axis.at(value) for value in (0.1, 1, 10, 100)] == pytest.approx([0, 100, 200, 300])
    assert axis.at(0.001) == 0
    assert axis.at(1e6) == 300


def test_a_bar_shows_counts_and_hides_empty_parts():
    svg = stacked([Bar("short, direct", [("good", 90, "good"), ("rejected", 0, "refused"), ("late", 10, "late")])], "")
    boxes = [node.get("class") for node in ET.fromstring(svg).iter("rect")]
    assert boxes == ["good", "late"]
    assert ">90<" in svg


def test_names_from_outside_are_escaped():
    svg = stacked([Bar("<script>alert(1)</script>", [("good", 1, '"><b>')])], '"<&')
    assert "<script>" not in svg
    assert ET.fromstring(svg).get("aria-label") == '"<&'

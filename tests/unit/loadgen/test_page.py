"""The page: one file, no network, no scripts, nothing unescaped."""

import pytest

from loadgen.columns import columns_of
from loadgen.headline import gate, rows
from loadgen.page import Page, Side, render
from tests.unit.loadgen.outline import Outline


@pytest.fixture
def page(made):
    def side(name, ttft, refused):
        results = [made.ok(index, ttft * (1 + index % 7)) for index in range(80)]
        results += [made.ok(80 + index, 3.0, lane="long") for index in range(20 - refused)]
        results += [made.failed(100 - refused + index, lane="long") for index in range(refused)]
        return Side(name, "中", made.summary(results), columns_of(results))

    before, after = side("direct", 2.0, 0), side("lanewise", 0.1, 1)
    return Page(
        title="Title",
        lead="Lead",
        before=before,
        after=after,
        rows=rows(before.summary, after.summary),
        checks=gate(before.summary, after.summary),
        facts=[("Engine", "simulated")],
        notices=["computed, not measured"],
        remarks=["few samples"],
    )


def test_the_page_is_one_well_formed_file_without_scripts_or_links(page):
    outline = Outline(render(page))
    assert outline.links == []
    assert "script" not in outline.tags
    assert outline.tags.count("svg") == 5


def test_the_table_comes_before_the_pictures_and_holds_every_row(page):
    document = render(page)
    texts = Outline(document).texts
    assert document.index("<table>") < document.index("<svg")
    for row in page.rows:
        assert row.name in texts
        assert row.shown(row.after) in texts


def test_conditions_notices_and_verdict_are_said(page):
    texts = " ".join(Outline(render(page)).texts)
    for said in ("simulated", "computed, not measured", "few samples", "TTFT p99 of short requests went from"):
        assert said in texts


def test_text_from_outside_cannot_become_markup(made, page):
    evil = "</style><script>alert('x')</script>&"
    hostile = Page(
        title=evil,
        lead=evil,
        before=Side(evil, evil, page.before.summary, page.before.columns),
        after=Side(evil, evil, page.after.summary, page.after.columns),
        rows=page.rows,
        checks=page.checks,
        facts=[(evil, evil)],
        notices=[evil],
        remarks=[evil],
    )
    outline = Outline(render(hostile))
    assert "script" not in outline.tags
    assert evil in outline.texts


def test_a_run_without_a_single_success_still_makes_a_page(made, page):
    results = [made.failed(0), made.failed(1, lane="long")]
    nothing = Side("lanewise", "中", made.summary(results), columns_of(results))
    empty = Page(
        title="t",
        lead="l",
        before=page.before,
        after=nothing,
        rows=rows(page.before.summary, nothing.summary),
        checks=gate(page.before.summary, nothing.summary),
        facts=(),
        notices=(),
        remarks=(),
    )
    assert Outline(render(empty)).tags.count("svg") == 5

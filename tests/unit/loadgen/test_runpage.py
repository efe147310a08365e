"""The page of a run: one file, no network, no scripts, nothing unescaped, in two languages."""

import pytest

from loadgen.columns import columns_of
from loadgen.compare import compare
from loadgen.runpage import RunPage, Shown, render
from loadgen.runwords import Language, Words
from tests.unit.loadgen.outline import Outline


@pytest.fixture
def shown(made):
    def one(results, **manifest):
        summary = made.summary(results, **manifest)
        return Shown(summary, columns_of(results), made.manifest | manifest)

    return one


@pytest.fixture
def some(made):
    served = [made.ok(n, 0.2 + n / 50) for n in range(40)] + [made.ok(40 + n, 3.0, lane="long") for n in range(5)]
    return [*served, made.failed(45), made.failed(46, "truncated", first=46.1)]


@pytest.mark.parametrize("language", list(Language))
def test_a_run_is_one_well_formed_file_without_scripts_or_links(shown, some, language):
    outline = Outline(render(RunPage([shown(some)], None, None, Words(language))))
    assert outline.links == []
    assert "script" not in outline.tags
    assert outline.tags.count("svg") == 6


def test_the_chinese_page_speaks_chinese(shown, some):
    document = render(RunPage([shown(some)], None, None, Words(Language.ZH)))
    assert '<html lang="zh">' in document
    assert "请求结局" in document
    assert "首个回答字" in document
    assert "What became of" not in document


def test_every_number_of_the_summary_is_there(shown, some):
    texts = " ".join(Outline(render(RunPage([shown(some)], None, None, Words(Language.EN)))).texts)
    for said in ("47 requests sent", "580 ms", "truncated", "longest chunk gap", "steady window"):
        assert said in texts


def test_two_runs_have_a_verdict_and_both_curves(shown, made):
    a = made.folder("a", [made.ok(n, 0.8) for n in range(40)], parameters={"cap": "32"})
    b = made.folder("b", [made.ok(n, 0.5) for n in range(40)], parameters={"cap": "64"})
    sides = [shown(list(run.results()), label=run.path.name) for run in (a, b)]
    outline = Outline(render(RunPage(sides, compare(a, b), None, Words(Language.ZH))))
    texts = " ".join(outline.texts)
    assert "结论：保留。" in texts  # noqa: RUF001
    assert "cap: 32 → 64" in texts
    assert outline.tags.count("svg") == 4


def test_a_refused_comparison_says_why(shown, some):
    document = render(RunPage([shown(some), shown(some)], None, "another plan", Words(Language.EN)))
    assert "Not comparable: another plan" in document


def test_a_run_in_which_nothing_was_sent_is_shown(shown, made):
    nothing = [made.failed(n, "cancelled", started=None, sent=None, connected=None, end=None) for n in range(3)]
    texts = " ".join(Outline(render(RunPage([shown(nothing)], None, None, Words(Language.EN)))).texts)
    assert "planned, not sent" in texts


def test_text_from_outside_cannot_become_markup(shown, some):
    evil = "</style><script>alert('x')</script>&"
    side = shown(some, label=evil, target=evil, model=evil, parameters={evil: evil}, engine={"version": evil})
    document = render(RunPage([side], None, evil, Words(Language.EN)))
    assert "script" not in Outline(document).tags

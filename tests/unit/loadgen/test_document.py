"""What every page of ours is made of."""

from loadgen.document import document, figure, keys
from tests.unit.loadgen.outline import Outline


def test_a_document_is_whole_names_its_language_and_reads_nothing_from_elsewhere():
    page = document("a <b> & c", ["<p>text</p>"], language="zh")
    read = Outline(page)
    assert '<html lang="zh">' in page
    assert "a <b> & c" in read.texts
    assert "b" not in read.tags
    assert read.links == []


def test_names_and_captions_are_text_and_a_drawing_is_passed_on():
    assert "&lt;b&gt;" in keys([("good", "<b>")])
    drawn = figure("a<", "b&", "<svg></svg>")
    assert ("a&lt;" in drawn, "b&amp;" in drawn, "<svg></svg>" in drawn) == (True, True, True)

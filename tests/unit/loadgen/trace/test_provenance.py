import pytest

from loadgen.options import SourceOptions
from loadgen.source import read_source
from loadgen.trace import provenance, rewrite
from loadgen.trace.output import Output
from loadgen.trace.rewrite import Part
from loadgen.tracefile import open_trace

CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:47.5,5,6\n"


@pytest.fixture
def cut_twice(tmp_path):
    source = tmp_path / "whole.csv"
    source.write_text(CSV)
    for number, name in enumerate(("once.csv", "twice.csv")):
        with Output(tmp_path / name) as out:
            rewrite.cut(open_trace(source), Part(rows=2 - number), out)
        out.origin(provenance.step("trace cut", (source,), {"rows": 2 - number, "lane": None}))
        source = tmp_path / name
    return source


def test_the_manifest_of_a_run_names_every_step_from_the_first_file_on(cut_twice):
    (facts,) = read_source(SourceOptions(traces=(cut_twice,))).facts["traces"]
    first, second = facts["origin"]
    assert first["sources"] == [{"name": "whole.csv", "sha256": provenance.sha256(cut_twice.with_name("whole.csv"))}]
    assert (first["options"], second["options"]) == ({"rows": 2}, {"rows": 1})
    assert second["sources"][0]["name"] == "once.csv"


def test_an_origin_that_belongs_to_other_bytes_is_not_believed(cut_twice):
    cut_twice.write_text(CSV)
    assert provenance.provenance_of(cut_twice) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"sha256": 1}', "{"])
def test_a_broken_origin_is_no_origin(cut_twice, text):
    provenance.beside(cut_twice).write_text(text)
    assert provenance.steps_of(cut_twice) == []

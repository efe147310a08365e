import csv
import io

import pyarrow.parquet as pq
import pytest

from loadgen.shots import HEADER, row_of, write_csv, write_parquet


@pytest.fixture
def some(made):
    return [made.ok(0, 0.25, tokens=11, tpot=0.02, lag=0.003), made.failed(1, retry_after=2.0), made.ok(2, tokens=1)]


def test_a_row_has_the_latencies_as_they_are_defined(some):
    row = row_of(some[0])
    assert row["ttft"] == pytest.approx(0.25)
    assert row["ttft_send"] == pytest.approx(0.247)
    assert row["tpot"] == pytest.approx(0.02)
    assert row["e2e"] == pytest.approx(0.45)
    assert row["lag"] == pytest.approx(0.003)
    assert row_of(some[2])["tpot"] is None


def test_csv_has_a_line_for_every_request_and_nothing_where_nothing_happened(some):
    file = io.StringIO()
    write_csv(some, file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [row["outcome"] for row in rows] == ["ok", "rejected", "ok"]
    assert (rows[1]["ttft"], rows[1]["retry_after"]) == ("", "2.0")
    assert rows[0]["events"].startswith("[")


def test_parquet_holds_the_same_table_with_types(some, tmp_path):
    write_parquet(some, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert tuple(table.column_names) == HEADER
    assert table.to_pylist() == [row_of(one) | {"events": list(one.events)} for one in some]
    assert str(table.schema.field("events").type) == "list<element: int64>"

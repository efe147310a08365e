import gzip

import pytest

from loadgen.failure import UsageError
from loadgen.tracefile import Skipped, open_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:47.5,375,45\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [0]}\n'


@pytest.fixture
def trace(tmp_path):
    def write(text, name="t.trace"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (AZURE, "azure"),
        (MOONCAKE, "mooncake"),
        ('{"schema":"lanewise.trace/1","arrived_s":1}\n', "lanewise"),
        ("\ufeff" + AZURE.replace("\n", "\r\n"), "azure"),
    ],
)
def test_the_first_line_tells_the_format(trace, text, name):
    assert open_trace(trace(text)).format.name == name


def test_a_format_states_its_time_unit(trace):
    assert "millisecond" in open_trace(trace(MOONCAKE)).format.time_unit


@pytest.mark.parametrize("text", ["", "a,b,c\n", "{}\n", "[]\n", b"\xff\xfe\n"])
def test_a_file_of_no_known_format_is_refused_with_its_first_line(trace, text):
    with pytest.raises(UsageError, match=r"t\.trace:1: "):
        open_trace(trace(text))


def test_an_empty_file_is_called_empty(trace):
    with pytest.raises(UsageError, match=r"t\.trace:1: the file is empty"):
        open_trace(trace(""))


def test_a_wrong_format_name_lists_the_right_ones(trace):
    with pytest.raises(UsageError, match="azure, mooncake, lanewise, bailian"):
        open_trace(trace(AZURE), "csv")


def test_rows_carry_their_line_numbers_and_blank_lines_do_not_count_as_bad(trace):
    rows = list(open_trace(trace(AZURE + "\n\n2023-11-16 18:15:48.5,1,1\n")).rows())
    assert [row.number for row in rows] == [2, 3, 6]


def test_a_bad_line_stops_the_reading_and_is_named(trace):
    path = trace(AZURE + "oops\n")
    with pytest.raises(UsageError, match=r"t\.trace:4: .*--bad-lines skip"):
        list(open_trace(path).rows())


def test_a_way_out_is_only_named_where_it_is_offered(trace):
    with pytest.raises(UsageError, match=r"t\.trace:4: .*\. Mend the line$"):
        list(open_trace(trace(AZURE + "oops\n"), can_skip=False).rows())


@pytest.mark.parametrize(
    "bad", ["2023-11-16 18:15:46.5,0,44", "2023-11-16 18:15:46.5,5,0", "2023-11-16 18:15:46.5,5,999999999"]
)
def test_lengths_that_make_no_sense_are_bad_lines(trace, bad):
    with pytest.raises(UsageError, match=r"t\.trace:4: .*length"):
        list(open_trace(trace(AZURE + bad + "\n")).rows())


def test_bad_lines_can_be_passed_over_and_are_counted(trace):
    skipped = Skipped()
    path = trace(AZURE.encode() + b"oops\n\xff\xff\n" + b"2023-11-16 18:15:48.5,1,1\n")
    rows = list(open_trace(path, skipped=skipped).rows())
    assert [row.number for row in rows] == [2, 3, 6]
    assert skipped.count == 2
    assert skipped.examples[0].endswith("t.trace:4: has 1 fields; TIMESTAMP,ContextTokens,GeneratedTokens are 3")


def test_a_compressed_trace_is_read(trace):
    assert len(list(open_trace(trace(gzip.compress(AZURE.encode()), "t.csv.gz")).rows())) == 2


@pytest.mark.parametrize("name", ["azure", "sharegpt"])
@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:10] + b"\x07" + raw[11:]])
def test_a_broken_compressed_trace_is_refused(trace, name, damage):
    text = AZURE if name == "azure" else '[{"conversations": []}]'
    with pytest.raises(UsageError, match="cannot be read"):
        list(open_trace(trace(damage(gzip.compress(text.encode())), "t.gz"), name).rows())


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        open_trace(tmp_path / "none.csv")


def test_a_line_without_end_does_not_fill_the_memory(trace):
    skipped = Skipped()
    path = trace(AZURE.encode() + b"x" * (9 * 1024 * 1024) + b"\n2023-11-16 18:15:48.5,1,1\n")
    rows = list(open_trace(path, skipped=skipped).rows())
    assert [row.number for row in rows] == [2, 3, 5]
    assert "longer than" in skipped.examples[0]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("azure/AzureLLMInferenceTrace_conv.csv", 9683),
        ("azure/AzureLLMInferenceTrace_code.csv", 4409),
        ("mooncake/conversation_trace.jsonl", 6015),
    ],
)
def test_the_public_traces_are_read_whole(shared, name, rows):
    assert sum(1 for _ in open_trace(shared / "traces" / name).rows()) == rows

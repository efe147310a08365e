from pathlib import Path

import pytest

from loadgen.failure import UsageError
from loadgen.tracefile.detect import FORMATS, detect

FIRST = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "servegen": "0,6.48,0.93,Gamma,1.14,0.13",
    "mooncake": '{"timestamp":0,"input_length":5,"output_length":2,"hash_ids":[0]}',
    "bailian": '{"chat_id":1,"parent_chat_id":-1,"timestamp":0,"input_length":5,"output_length":2,"hash_ids":[0]}',
    "lanewise": '{"schema":"lanewise.trace/1","arrived_s":1}',
    "sharegpt": '[{"id":"1","conversations":[',
    "log": "2026-11-30T18:45:02Z prompt_tokens=1 completion_tokens=2",
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_told_by_its_content(name):
    assert detect(Path("x"), [FIRST[name]]) == name


def test_a_log_may_begin_with_other_lines():
    assert detect(Path("x"), ["INFO starting", "", FIRST["log"]]) == "log"


@pytest.mark.parametrize("line", ["", "[]", "[1]", "{}", "a,b,c", "1,2,3,4,5,6", '{"timestamp":0}', '"unclosed'])
def test_what_is_no_trace_is_refused_and_the_formats_are_listed(line):
    with pytest.raises(UsageError, match=r"no known trace format: azure starts with .*servegen.*--format names it"):
        detect(Path("x"), [line])

import numpy as np
import pytest

from loadgen.options import SourceOptions
from loadgen.trace.info import burstiness, lane_border, output_caps, trace_info

S = 1_000_000_000


def test_a_valley_between_two_hills_is_found():
    rng = np.random.default_rng(1)
    prompts = np.concatenate([rng.lognormal(5.3, 0.4, 7500), rng.lognormal(8.7, 0.4, 2500)]).astype(np.int64)
    found = lane_border(prompts)
    assert 500 < found["valley"]["tokens"] < 2500
    assert found["valley"]["share_below"] == pytest.approx(0.75, abs=0.02)
    assert found["p70"] <= found["suggested"] <= found["p85"]
    assert 300 < found["suggested"] < 3000


def test_one_hill_has_no_valley():
    prompts = np.random.default_rng(1).lognormal(6, 0.8, 10_000).astype(np.int64) + 1
    assert lane_border(prompts)["valley"] is None


@pytest.mark.parametrize("prompts", [[5], [7] * 30])
def test_few_or_equal_prompts_still_have_a_border(prompts):
    assert lane_border(np.array(prompts))["suggested"] == prompts[0]


def test_a_cap_cuts_what_is_over_it():
    (cap,) = [one for one in output_caps(np.array([100, 200, 300, 1000])) if one["cap"] == 256]
    assert (cap["requests_cut_share"], cap["tokens_cut_share"]) == (0.5, (44 + 744) / 1600)


def test_bursts_show_in_the_gaps_and_in_the_fullest_windows():
    even = burstiness(np.arange(0, 600) * S)
    assert (even["rate"], even["gap_cv"]) == (1.0, 0.0)
    assert [peak["requests"] for peak in even["peaks"]] == [1, 10, 60]
    bursts = burstiness(np.repeat(np.arange(0, 600, 10), 10) * S)
    assert bursts["gap_cv"] == pytest.approx(3, rel=0.1)
    assert bursts["peaks"][0]["requests"] == 10
    assert bursts["peaks"][0]["times_the_mean"] == pytest.approx(10, rel=0.05)


def test_one_request_has_no_rate():
    assert burstiness(np.array([0]))["rate"] is None


def test_duplicates_order_and_conversations_are_told(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [(1, -1, 0, "[1,2]"), (2, 1, 5, "[1,2,3]"), (3, -1, 4, "[1,2]"), (4, 2, 9, "[1,2,3]")]
    path.write_text(
        "".join(
            f'{{"chat_id":{chat},"parent_chat_id":{parent},"timestamp":{t},"input_length":{16 * len(ids.split(","))},'
            f'"output_length":1,"type":"text","turn":1,"hash_ids":{ids}}}\n'
            for chat, parent, t, ids in lines
        )
    )
    found = trace_info(SourceOptions(traces=(path,)))
    assert found["duplicates"] == {"rows": 2, "share": 0.5}
    assert found["out_of_order"] == {"rows": 1, "first_line": 3}
    assert found["conversations"] == {"conversations": 2, "later_turns": 2, "longest_turns": 3}
    assert found["shared_prefix_share"] == (32 + 32 + 48) / (32 + 48 + 32 + 48)


def test_a_file_without_times_says_so(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('[{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}]')
    found = trace_info(SourceOptions(traces=(path,)))
    assert (found["rows"], found["rate"], found["span_s"], found["peaks"]) == (1, None, None, [])

"""The study command on small trace files: keys, repeatability, errors."""

import json

import pytest

from loadgen.cli import main
from loadgen.study import EngineFlags

KEYS = {
    "workload",
    "load",
    "policy",
    "preset",
    "installments",
    "engine",
    "backends",
    "offered",
    "completed",
    "rejected",
    "short_lost",
    "long_lost",
    "goodput",
    "goodput_tokens_per_s",
    "short_ttft_p50_s",
    "short_ttft_p99_s",
    "long_ttft_p99_s",
    "tpot_p99_s",
    "preemptions",
    "recomputed_tokens",
    "completed_per_s",
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    (folder / "azure").mkdir()
    rows = [
        f"2023-11-16 18:{n // 60:02}:{n % 60:02}.0000000,{9000 if n % 7 == 0 else 200 + 17 * (n % 50)},{10 + n % 90}"
        for n in range(400)
    ]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n"
    (folder / "azure/AzureLLMInferenceTrace_conv.csv").write_text(text)
    return folder


def study(capsys, traces, *more):
    with pytest.raises(SystemExit) as stopped:
        main(["study", "--traces", str(traces), "--rows", "300", *more])
    out = capsys.readouterr()
    return stopped.value.code, out.out, out.err


def rows_of(capsys, traces, *more):
    code, out, _ = study(capsys, traces, "--workload", "conv", "--windows", "2", "--json", *more)
    assert code == 0
    return json.loads(out)


def test_a_row_per_workload_load_and_policy_with_every_key_of_the_contract(capsys, traces):
    rows = rows_of(capsys, traces, "--load", "0.5", "--load", "1.0", "--policy", "direct", "--policy", "lanewise")
    assert [(row["load"], row["policy"]) for row in rows] == [
        (0.5, "direct"),
        (0.5, "lanewise"),
        (1.0, "direct"),
        (1.0, "lanewise"),
    ]
    assert all(row.keys() >= KEYS for row in rows)
    assert {row["preset"] for row in rows if row["policy"] == "direct"} == {None}
    assert {row["preset"] for row in rows if row["policy"] == "lanewise"} == {"strict"}
    assert all(0 <= row["goodput"] <= 1 and row["offered"] > 200 for row in rows)


def test_all_policies_run(capsys, traces):
    names = ["direct", "bounded-queue", "static-lanes", "lanewise", "reference"]
    rows = rows_of(capsys, traces, "--load", "1", *(part for name in names for part in ("--policy", name)))
    assert [row["policy"] for row in rows] == names
    assert all(row["completed"] > 0 for row in rows)


def test_the_same_command_prints_the_same_figures(capsys, traces):
    asked = ("--load", "1.1", "--policy", "lanewise", "--installments", "on")
    assert rows_of(capsys, traces, *asked) == rows_of(capsys, traces, *asked)


def test_options_of_lanewise_and_flags_of_the_engine_are_in_the_row(capsys, traces):
    asked = ("--preset", "gentle", "--drop", "10", "--installments", "on", "--cap", "20", "--backends", "2")
    flags = ("--long-prefill-threshold", "256", "--max-num-batched-tokens", "4096", "--prefix-caching", "off")
    (row,) = rows_of(capsys, traces, "--load", "1", "--policy", "lanewise", *asked, *flags, "--kv-blocks", "900")
    assert (row["preset"], row["drop"], row["installments"], row["cap"], row["backends"]) == ("gentle", 10, "on", 20, 2)
    assert (row["long_prefill_threshold"], row["max_num_batched_tokens"]) == (256, 4096)
    assert (row["prefix_caching"], row["kv_blocks"], row["engine"]) == ("off", 900, "8b")


def test_twice_the_backends_are_offered_twice_the_rate(capsys, traces):
    one, two = (
        rows_of(capsys, traces, "--load", "0.2", "--policy", "direct", "--backends", n)[0]["completed_per_s"]
        for n in ("1", "2")
    )
    assert two == pytest.approx(2 * one, rel=0.01)


def test_without_json_a_table_goes_to_stdout(capsys, traces):
    code, out, _ = study(capsys, traces, "--workload", "conv", "--load", "1", "--policy", "direct")
    assert code == 0
    assert "goodput" in out
    assert "direct" in out
    assert "not measured" in " ".join(out.split())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--workload", "chat", "--load", "1", "--policy", "direct"), "--workload chat: not known; one of mixed"),
        (("--workload", "conv", "--load", "0", "--policy", "direct"), "--load 0: must be above 0"),
        (("--workload", "conv", "--load", "1", "--policy", "x"), "--policy x: not known; one of direct"),
        (("--workload", "conv", "--load", "1", "--policy", "direct", "--engine", "7b"), "7b: no such file"),
        (("--workload", "mixed", "--load", "1", "--policy", "direct"), "no such trace file"),
        (
            ("--workload", "conv", "--load", "1", "--policy", "direct", "--drop", "0.5"),
            "--drop 0.5: must be at least 1",
        ),
        (("--workload", "conv", "--load", "1", "--policy", "direct", "--backends", "0"), "--backends 0"),
        (("--workload", "conv", "--load", "1", "--policy", "direct", "--windows", "0"), "cannot be cut"),
        (("--workload", "conv", "--load", "1", "--policy", "direct", "--kv-blocks", "0"), "kv_blocks"),
        (("--workload", "conv", "--load", "1", "--policy", "direct", "--kv-blocks", "20"), "whole KV cache of 2560"),
    ],
)
def test_a_wrong_question_is_answered_with_one_sentence_and_exit_code_2(capsys, traces, asked, words):
    code, out, err = study(capsys, traces, *asked)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_flags_that_are_not_given_leave_the_profile_as_it_is():
    from loadgen.sim.profile import load_profile

    profile = load_profile("14b")
    assert EngineFlags().apply(profile) == profile


def test_a_table_is_printed_whole_for_people_and_as_one_document(capsys, traces):
    asked = ("--table", "abusive-tenant", "--workload", "conv", "--load", "1.5", "--windows", "1")
    code, out, _ = study(capsys, traces, *asked)
    assert code == 0
    assert "strict, installments, fair" in out
    assert "conv 1.5x" in out
    code, out, _ = study(capsys, traces, *asked, "--json")
    (table,) = json.loads(out)
    assert code == 0
    assert (table["table"], table["engine"], table["windows"]) == ("abusive-tenant", "8b", 1)
    alone, *others = table["rows"]
    assert alone["cases"][0]["load"] == pytest.approx(0.6)
    assert all(row["cases"][0]["others_goodput"] is not None for row in others)


def test_cases_of_a_table_can_be_chosen_and_its_engine_replaced(capsys, traces):
    asked = ("--table", "14b", "--workload", "conv", "--load", "0.5", "--windows", "1", "--engine", "8b")
    code, out, _ = study(capsys, traces, *asked, "--json")
    (table,) = json.loads(out)
    assert code == 0
    assert table["engine"] == "8b"
    assert {(case["workload"], case["load"]) for row in table["rows"] for case in row["cases"]} == {("conv", 0.5)}
    assert all(row["mean"]["goodput"] == row["cases"][0]["goodput"] for row in table["rows"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--workload", "conv", "--load", "1"), "study needs --workload, --load and --policy"),
        (("--table", "main", "--policy", "direct"), "--policy: a table has its own"),
        (("--table", "main", "--installments", "on"), "--installments: a table has its own"),
        (("--table", "main", "--backends", "2"), "--backends: a table has its own"),
        (("--table", "main", "--processes", "0"), "--processes 0: must be from 1 to 1024"),
        (("--table", "main", "--workload", "chat"), "--workload chat: not known"),
        (("--table", "mine"), "mine"),
    ],
)
def test_a_wrong_question_about_tables_is_answered_with_one_sentence(capsys, traces, asked, words):
    code, out, err = study(capsys, traces, *asked)
    assert (code, out) == (2, "")
    assert words in err

"""What a user sees who got something wrong: one clear sentence that names the place, the exit code, nothing written."""

import json
import socket

import pytest

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.5,374,44\n"
MOONCAKE = '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1]}\n'
RECORD = {"schema": "lanewise.trace/1", "arrived_s": 1.5, "request_id": "a", "endpoint": "chat", "outcome": "ok"}
RECORD |= {"prompt_tokens": 9, "output_tokens": 5}
NOBODY = "http://127.0.0.1:1"


def record(**change):
    return json.dumps(RECORD | change) + "\n"


BAD_TRACES = {
    "azure, no number": (HEADER + ROW + "2023-11-16 18:15:47.5,many,44\n", ":3: ContextTokens 'many' is not a whole"),
    "azure, cut off": (HEADER + ROW + ROW + "2023-11-16 18:1", ":4: has 1 fields"),
    "azure, wrong clock": (HEADER + "16/11/2023 18:15,374,44\n", ":2: TIMESTAMP '16/11/2023 18:15' is not a time"),
    "azure, no row": (HEADER, ": no request in it"),
    "mooncake, cut off": (MOONCAKE + MOONCAKE[:30], ":2: is not JSON"),
    "mooncake, seconds as text": (MOONCAKE + MOONCAKE.replace("0,", '"3s",', 1), ":2: timestamp is '3s'"),
    "mooncake, missing key": (MOONCAKE + MOONCAKE.replace("output_length", "output"), ":2: output_length is missing"),
    "lanewise, cut off": (record() + record()[:50], ":2: this is no JSON"),
    "lanewise, wrong kind": (record() + record(arrived_s="noon"), ':2: arrived_s is "noon"; allowed is a number'),
    "lanewise, later schema": (record() + record(schema="lanewise.trace/2"), ":2: schema is"),
    "empty": ("", ":1: the file is empty"),
    "something else": ("Dear reader,\n", ":1: the first line is of no known trace format"),
}


def assert_one_sentence(done, code, *words):
    assert (done.code, done.out) == (code, ""), done.err
    assert len(done.err.splitlines()) == 1, done.err
    for word in words:
        assert word in done.err


@pytest.mark.parametrize("name", BAD_TRACES)
def test_a_trace_that_cannot_be_read_is_named_with_its_line_and_nothing_is_written(name, call, tmp_path):
    text, said = BAD_TRACES[name]
    trace = tmp_path / "my.trace"
    trace.write_text(text)
    done = call("loadgen", "replay", trace, "--target", NOBODY, "--out", tmp_path / "run", "--json")
    assert_one_sentence(done, 2, f"my.trace{said}")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["my.trace"]


def test_a_study_names_the_bad_line_of_its_traces(call, tmp_path):
    (tmp_path / "azure").mkdir()
    (tmp_path / "azure" / "AzureLLMInferenceTrace_conv.csv").write_text(HEADER + ROW + "oops\n")
    arguments = "--workload", "conv", "--load", "1", "--policy", "direct", "--json"
    done = call("loadgen", "study", "--traces", tmp_path, *arguments)
    assert_one_sentence(done, 2, "AzureLLMInferenceTrace_conv.csv:3: has 1 fields")
    assert "--bad-lines" not in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "scheduling:\n  drop_factr: 3\n",
            'my.yaml:3: unknown key "scheduling.drop_factr"; did you mean',
        ),
        ("lanes:\n  short:\n    ttft_slo: 1 parsec\n", 'my.yaml:4: lanes.short.ttft_slo is "1 parsec": unknown unit'),
        ("lanes:\n  short:\n    ttft_slo: 1\n", "my.yaml:4: lanes.short.ttft_slo is 1: a duration needs a unit"),
        ("limits:\n  body: 32 MBit\n", 'my.yaml:3: limits.body is "32 MBit": unknown unit'),
        ("limits: {\n", "my.yaml:3: not valid YAML"),
    ],
)
def test_a_wrong_configuration_is_named_with_its_line_and_nothing_starts(text, said, call, tmp_path, address):
    (tmp_path / "my.yaml").write_text(f"backends: [{NOBODY}]\n{text}")
    listen = address()
    done = call("proxy", "serve", "--config", tmp_path / "my.yaml", "--listen", listen, "--record", tmp_path / "trace")
    assert_one_sentence(done, 2, said)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["my.yaml"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--patience-short", "30x"), ("--duration", "5parsec"), ("--slo-tpot", "fast"), ("--rate", "quick")],
)
def test_a_wrong_unit_of_an_option_is_named_and_nothing_is_written(option, value, call, tmp_path):
    (tmp_path / "my.trace").write_text(HEADER + ROW)
    options = "--target", NOBODY, "--out", tmp_path / "run", option, value
    done = call("loadgen", "replay", tmp_path / "my.trace", *options)
    assert_one_sentence(done, 2, option, value)
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_exit_code_1_for_every_server(call, address):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        engine = call("loadgen", "sim", "serve", "--listen", busy, "--json")
        data = call("proxy", "serve", "--backend", NOBODY, "--listen", busy, "--admin", address())
        admin = call("proxy", "serve", "--backend", NOBODY, "--listen", address(), "--admin", busy)
    for done in (engine, data, admin):
        assert (done.code, done.out) == (1, "")
        assert busy in done.err
        assert "address already in use" in done.err.lower()
        assert "Traceback" not in done.err


def test_a_target_that_is_not_there_is_exit_code_1_and_nothing_is_written(call, tmp_path):
    (tmp_path / "my.trace").write_text(HEADER + ROW)
    done = call("loadgen", "replay", tmp_path / "my.trace", "--target", NOBODY, "--out", tmp_path / "run", "--json")
    assert_one_sentence(done, 1, f"{NOBODY} does not answer: connection refused")
    assert not (tmp_path / "run").exists()


def test_the_proxy_starts_before_its_engine_says_so_and_serves_once_it_answers(server, address, get, until):
    engine, listen, admin = address(), address(), address()
    with server("proxy", "serve", "--backend", f"http://{engine}", "--listen", listen, "--admin", admin) as proxy:
        proxy.says("no backend answers yet")
        assert get(f"http://{admin}/livez")[0] == 200
        status, body = get(f"http://{admin}/readyz")
        assert (status, json.loads(body)["reason"]) == (503, "no backend answers")
        assert get(f"http://{listen}/v1/models")[0] == 503
        with server("loadgen", "sim", "serve", "--listen", engine) as started:
            started.says(engine)
            until(f"http://{admin}/readyz", 200)
            assert get(f"http://{listen}/v1/models")[0] == 200
            assert started.stop() == 0
        assert proxy.stop() == 0

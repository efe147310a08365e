"""The command: one document, plain lines, exit codes."""

import json

import pytest

from loadgen.cli import main


@pytest.fixture
def here(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["diagnose", *map(str, arguments)])
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run


@pytest.fixture
def healthy(made):
    return made.folder("fine", [made.ok(at) for at in range(20)]).path


def test_a_healthy_run_is_said_to_be_one_and_what_is_not_known_too(here, healthy):
    code, out, _ = here(healthy)
    assert code == 0
    assert "nothing limits this run" in out
    assert "--engine-metrics" in out


def test_json_is_one_document_with_the_layer_first(here, made):
    failing = made.folder("bad", [made.failed(at, "error", reason="x", head=at + 0.1) for at in range(20)]).path
    code, out, _ = here(failing, "--json")
    document = json.loads(out)
    assert (code, document["layer"], document["valid"]) == (0, "adaptation", True)
    assert document["findings"][0]["evidence"][0]["value"] == 1.0


def test_an_invalid_run_exits_with_4(here, made):
    late = made.folder("late", [made.ok(at, lag=0.4) for at in range(20)]).path
    cut = made.folder("cut", [made.ok(at) for at in range(20)], complete=False).path
    assert [(code, "invalid" in out) for code, out, _ in (here(late), here(cut))] == [(4, True), (4, True)]


def test_a_log_alone_can_be_diagnosed(here, tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("RuntimeError: NPU out of memory. Tried to allocate 3 GiB\n")
    code, out, _ = here("--engine-log", log)
    assert code == 0
    assert "memory (weights): loading stage" in out
    assert "tuning cannot help" in out


def test_a_log_without_a_failure_says_so(here, healthy, tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("INFO all is well\n")
    assert "no line in it" in here(healthy, "--engine-log", log)[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "give a run folder"), (["/nowhere"], "not a run folder"), (["--engine-log", "/nowhere"], "cannot be read")],
)
def test_wrong_input_is_one_sentence(here, arguments, said):
    code, out, err = here(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_requests_that_could_not_connect_are_no_adaptation_problem(here, made):
    refused = made.folder("gone", [made.failed(at, "error", reason="connect") for at in range(20)]).path
    assert json.loads(here(refused, "--json")[1])["layer"] != "adaptation"


def test_a_head_that_comes_with_the_first_token_is_no_slow_link(here, healthy):
    assert json.loads(here(healthy, "--json")[1])["layer"] is None


def floor(seconds):
    return {"paths": {"direct": {"url": "http://far:8000", "tcp": {"p50_s": seconds}}}}


@pytest.mark.parametrize(("seconds", "layer"), [(0.12, "link"), (0.0003, None)])
def test_the_floor_that_was_measured_before_the_run_tells_a_slow_link(here, made, seconds, layer):
    """The engine is quick, every head comes late: either the way is long, or something holds heads back."""
    results = [made.ok(at, 0.3, head=at + 0.13) for at in range(20)]
    run = made.folder("far", results, target="http://far:8000", floor=floor(seconds)).path
    assert json.loads(here(run, "--json")[1])["layer"] == layer

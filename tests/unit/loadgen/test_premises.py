"""Premises come from what is told, from a command line, from a model's name; each says where from."""

import http.server
import json
import os
import socket
import threading

import pytest

from loadgen.failure import StopError, UsageError
from loadgen.manifest import premise
from loadgen.premises import PremisesOptions, complete, proxy_facts, read_floor, told


def test_what_is_told_wins_over_the_file_and_the_file_over_the_flags(tmp_path):
    (tmp_path / "premises.yaml").write_text("card: Ascend 910B4\ncards: 4\nquantisation: w8a8\n")
    (tmp_path / "start.sh").write_text("vllm serve Qwen3-32B \\\n  -tp 2 --quantization ascend # as typed\n")
    found = told(
        PremisesOptions(premises=tmp_path / "premises.yaml", engine_flags=tmp_path / "start.sh", quantisation="w4a8")
    )
    assert found["premises"]["quantisation"] == {"value": "w4a8", "source": "told"}
    assert found["premises"]["cards"]["value"] == 4
    assert found["flags"] == {"model": "Qwen3-32B", "tensor_parallel_size": "2", "quantization": "ascend"}
    assert found["flags_from"] == "file start.sh"
    whole = complete(found["premises"], "Qwen3-32B")
    assert premise({"premises": whole}, "size") == "32B"
    assert whole["size"]["source"] == "model name"
    assert whole["model"] == {"value": "Qwen3-32B", "source": "engine"}


def test_nothing_told_is_nothing_known():
    found = told(PremisesOptions())
    assert found == {"premises": {}, "flags": {}, "flags_from": None, "proxy": None, "floor": None}
    assert complete({}, "m")["card"] is None


def test_the_command_line_of_a_local_process_is_read_by_its_id_and_by_its_port():
    by_pid = told(PremisesOptions(engine_pid=os.getpid()))
    assert by_pid["flags_from"] == f"process {os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        by_port = told(PremisesOptions(engine_port=server.getsockname()[1]))
    assert by_port["flags"] == by_pid["flags"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine_pid": 1 << 30}, "cannot be read"),
        ({"engine_port": 1}, "no process that this user may look into listens there"),
        ({"engine_port": 1, "engine_pid": 1}, "--engine-pid and --engine-port all name"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_way_out(options, said):
    with pytest.raises(UsageError, match=said):
        told(PremisesOptions(**options))


def test_a_misspelt_premise_is_refused(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("crads: 4\n")
    with pytest.raises(UsageError, match="crads; allowed: card, cards, model_size, quantisation"):
        told(PremisesOptions(premises=file))


def test_a_file_that_is_no_floor_is_refused(tmp_path):
    file = tmp_path / "floor.json"
    file.write_text("{}")
    with pytest.raises(UsageError, match="`lanewise-load floor` writes it"):
        read_floor(file)


@pytest.fixture
def admin():
    """An admin listener that answers with what is put into it."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answers).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_proxys_configuration_is_kept_with_its_hash(admin):
    address, answers = admin
    answers.update(version="1", config="abc", mode="enforce", preset="strict", settings={"scheduling.concurrency": 40})
    facts = proxy_facts(address)
    assert facts["config"] == "abc"
    assert facts["settings"] == {"scheduling.concurrency": 40}


def test_another_server_is_not_taken_for_lanewise(admin):
    with pytest.raises(StopError, match="does not answer as lanewise's admin listener does"):
        proxy_facts(admin[0])
